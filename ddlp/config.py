"""`LoaderConfig`: the values, at one moment, of the arguments that only `DDLPLoader` has, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from csd_engine.transforms.reduced import DECODES
from ddlp.auto.decide import Goal
from ddlp.caching.settings import Cache
from ddlp.devices.device import Device
from ddlp.process.platforms import other_system
from ddlp.sampling.epoch_plan import is_built_in, is_random
from ddlp.sampling.torch_loader import index_sampler_of
from ddlp.schedule.strategies import STRATEGIES, Auto, Cpu, Ordered, Strategy, strategy_class
from ddlp.sources.base import LeaseSource, is_lease_source
from ddlp.sources.host.dali import require_dali
from ddlp.transfer.choose_transfer import TRANSFERS, WAYS
from ddlp.transfer.epilogue import DTYPES

__all__ = ["LoaderConfig"]

BACKENDS = ("native", "dali", "dali_cpu")
OWN_STEPS = ("processes", "threads", "off")
ON_ERROR = ("raise", "replace")
OUTPUTS = {str(t).removeprefix("torch."): t for t in DTYPES}


@dataclass(frozen=True)
class LoaderConfig:
    """A loader's arguments that DataLoader does not have. The docstring of `DDLPLoader` describes each in full.

    The loader makes and checks one when it is constructed. It makes another one at each iter(), since its attributes may be set
    between epochs. An epoch sees no later change.

    Attributes:
        strategy: the name of one of ddlp's strategies, or a class of the user's own; None: ``csd`` and the order decide.
        csd: a device's name or address, a `Device`, a source of the user's own, or several of these; None: no device is named.
        pool: a number of engines on this machine, the directory of engines' cards, or a `ddlp.pools.base.Pool`; None: none.
        device: where batches are delivered, a torch device or a GPU's number; None: as CPU tensors, like DataLoader's.
        seed: the seed, an int, of the random draws within samples; None: a seed is drawn at each iter().
        ratio: the host's share of an epoch's batches, 0 to 1; None: measured.
        goal: what the strategy ``"auto"`` makes small; None: time.
        transfer: how a device's batches come to this host, one of `TRANSFERS`; None: the fastest way that works.
        spool: directory for the embedded engine's batch files; None: $DDLP_SPOOL, else the system's temporary directory.
        spool_bytes: how many bytes the embedded engine may hold there; None: half of the free space, 8 GiB at most.
        audit: the host makes one sample in every ``audit`` batches of a device again and compares it; None: it compares none.
        output: the images' dtype, or its name; None: the dtype that the transform gives.
        memory_format: the images' memory format; None: the one that the transform gives.
        decode: ``"exact"`` or ``"fast"``, how JPEGs are decoded.
        cache: where the host keeps what it would do again in every epoch: False, ``"auto"``, or a `ddlp.Cache`.
        as_pil: operators after ToImage or PILToTensor run as on PIL images.
        batch_transform: a function that is called with each finished batch; None: batches are delivered as they are.
        backend: which code prepares the host's batches, one of `BACKENDS`.
        own_steps: where the steps run that ddlp does not know, one of `OWN_STEPS`.
        allow_different_bits: a device is used even if its Pillow makes other pixels than this host's.
        record: directory of the recording, or a `ddlp.observe.Recorder`; None: nothing is recorded.
        snapshot_every_n_steps: for user code: after how many batches the data sets' states are taken; 0: never.
        postpone_decoding: while user code makes batches, `PIL.Image.open` gives JPEGs that are decoded as late as possible.
        on_error: what happens to a sample whose image is bad, one of `ON_ERROR`.
        max_replaced: with ``on_error="replace"``: the largest share of an epoch's samples that may be replaced, 0 to 1.
        order_is_free: tells whether another order of the batches is just as good. It is called only if that decides.
    """

    strategy: str | type[Strategy] | None
    csd: str | Device | LeaseSource | Iterable[str | Device | LeaseSource] | None
    pool: Any  # not typed: this module must not import ddlp.pools, which checks it
    device: str | int | torch.device | None
    seed: int | None
    ratio: float | None
    goal: Goal | None
    transfer: str | None
    spool: str | None
    spool_bytes: int | None
    audit: int | None
    output: torch.dtype | str | None
    memory_format: torch.memory_format | None
    decode: str
    cache: bool | str | Cache
    as_pil: bool
    batch_transform: Callable[[Any], Any] | None
    backend: str
    own_steps: str
    allow_different_bits: bool
    record: Any  # not typed: this module must not import ddlp.recording, which has the Recorder
    snapshot_every_n_steps: int
    postpone_decoding: bool
    on_error: str
    max_replaced: float
    order_is_free: Callable[[], bool]

    @classmethod
    def of(cls, loader: DataLoader) -> LoaderConfig:
        """Return a loader's values as they are now. Its attributes have the names of the fields."""
        names = [field.name for field in fields(cls) if field.name != "order_is_free"]
        order_is_free = partial(_order_is_free, index_sampler_of(loader), loader.in_order)
        return cls(**{name: getattr(loader, name) for name in names}, order_is_free=order_is_free)

    # -- values that follow from the arguments -----------------------------------------------------------------------

    @cached_property
    def chosen(self) -> type[Strategy]:
        """The strategy's class. Raises ValueError if ``strategy`` does not name one."""
        if self.strategy is not None:
            return strategy_class(self.strategy)
        if self.csd is None and self.pool is None:
            return Cpu
        return Auto if self.order_is_free() else Ordered

    @cached_property
    def devices(self) -> tuple[Device | LeaseSource, ...]:
        """All devices and sources in ``csd``. Raises ValueError for the name of an unknown device."""
        if self.csd is None:
            return ()
        single = isinstance(self.csd, (str, Device)) or is_lease_source(self.csd)
        entries: Any = (self.csd,) if single else self.csd
        return tuple(Device.at(entry) if isinstance(entry, str) else entry for entry in entries)

    @property
    def engine_devices(self) -> tuple[Device, ...]:
        """The named devices, each with an engine of its own; none if the embedded engine is used."""
        return tuple(device for device in self.devices if isinstance(device, Device))

    @property
    def own_sources(self) -> tuple[LeaseSource, ...]:
        """The sources of the user's own."""
        return tuple(source for source in self.devices if not isinstance(source, Device))

    @property
    def target(self) -> torch.device | None:
        """Where batches are delivered; None: as CPU tensors, like DataLoader's."""
        return None if self.device is None else torch.device(self.device)

    @property
    def output_dtype(self) -> torch.dtype | None:
        """``output`` as a dtype; None: the dtype that the transform gives. A value that is not in `OUTPUTS` stays as it is."""
        return OUTPUTS.get(self.output, self.output) if isinstance(self.output, str) else self.output  # type: ignore

    @property
    def changes_images(self) -> bool:
        """Whether an argument asks for other images than the user's own code gives."""
        return self.output is not None or self.memory_format is not None or self.decode != "exact"

    @property
    def most_replaced(self) -> float | None:
        """The share of an epoch's samples that may be replaced, if their images are bad; None: a bad image raises."""
        return self.max_replaced if self.on_error == "replace" else None

    @property
    def cuts(self) -> bool:
        """Whether a transform may be cut after its known operators, if ddlp does not know all of its operators."""
        return self.own_steps != "off" and self.backend == "native"

    @property
    def dali_on_gpu(self) -> bool:
        """Whether DALI prepares the host's batches on the GPU where they are delivered."""
        target = self.target if self.backend == "dali" else None
        return target is not None and target.type == "cuda"

    # -- checks ------------------------------------------------------------------------------------------------------

    def check(self, index_sampler: Any, batched: bool) -> None:
        """Raise for the first value that is not allowed or contradicts another one.

        Args:
            index_sampler: the loader's sampler, or its batch sampler.
            batched: the loader makes batches, and no single samples.

        Raises:
            ValueError: for such a value; the message names the argument and its value.
            OtherSystem: if a device is asked for on a system other than Linux.
            ImportError: if ``backend`` needs DALI, and DALI can't be imported.
        """
        strategy = self.chosen
        self._check_values(strategy)
        if (self.csd is not None or self.pool is not None or strategy.needs_device) and (other := other_system()) is not None:
            raise other
        if self.backend != "native" and strategy.needs_device:
            with_it = f"backend={self.backend!r} with strategy={strategy.name!r}"
            raise ValueError(f"{with_it}: the host would prepare nothing; leave one out")
        for device in self.devices:
            if not isinstance(device, Device) and not is_lease_source(device):
                raise ValueError(
                    f"csd={device!r}: expected a device's name or address, a ddlp.Device, several of them, or None"
                )
        named = {device.label if isinstance(device, Device) else device.name: device for device in self.devices}
        if len(named) < len(self.devices) and any(is_lease_source(device) for device in self.devices):
            raise ValueError(f"csd=: each source needs a name of its own, and these have {', '.join(named)}")
        for name, what in (("csd", "device"), ("pool", "pool")):
            if getattr(self, name) is not None and not strategy.uses_device:
                raise ValueError(
                    f"{name}= with strategy={strategy.name!r}: the {what} would have nothing to do; leave one of them out"
                )
        if strategy.needs_length and not is_built_in(index_sampler):
            raise ValueError(
                f"strategy={strategy.name!r} needs the whole epoch's batches when it begins; "
                f"{type(index_sampler).__name__} is read as it goes. Use 'wrr' or 'ordered', or one of torch's own samplers"
            )
        if self.on_error == "replace":
            self._check_replacing(index_sampler, batched)
        target = self.target
        if self.transfer in WAYS and (target is None or target.type != "cuda"):
            raise ValueError(
                f"transfer={self.transfer!r} brings batches into a GPU's memory: give device='cuda', or take 'shared', "
                "'stream' or None"
            )
        if self.backend != "native":
            require_dali()

    def _check_replacing(self, index_sampler: Any, batched: bool) -> None:
        """Raise ValueError if bad samples can't be replaced with these arguments."""
        if self.backend != "native":
            raise ValueError(f"on_error='replace' with backend={self.backend!r}: only backend='native' replaces samples")
        if self.own_sources:
            name = self.own_sources[0].name
            raise ValueError(f"on_error='replace' with csd={name!r}: only engines tell which samples are bad")
        if not batched or (type(index_sampler) is BatchSampler and index_sampler.batch_size == 1):
            raise ValueError(
                "on_error='replace' puts another sample of the same batch in a bad one's place, and here a batch is one "
                "sample; set batch_size= to 2 or more"
            )

    def _check_values(self, strategy: type[Strategy]) -> None:
        """Check each value by itself, and ``ratio`` together with the strategy."""
        if self.ratio is not None and (not strategy.takes_ratio or not 0 <= self.ratio <= 1):
            takes = " or ".join(repr(name) for name, kind in STRATEGIES.items() if kind.takes_ratio)
            raise ValueError(f"ratio={self.ratio!r}: the host's share, 0 to 1, and only with strategy={takes}")
        if self.goal is not None and not (strategy.decides and isinstance(self.goal, Goal)):
            raise ValueError(f"goal={self.goal!r}: a ddlp.Goal, and only with strategy='auto'")
        if self.goal is not None and (self.goal.prices or self.goal.power) and not isinstance(self.pool, (int, type(None))):
            raise ValueError(
                f"pool={self.pool!r} with prices or watts in goal=: nobody knows those of an engine that comes later. Give "
                "pool= a number of engines, or leave them out"
            )
        if self.transfer not in (None, *TRANSFERS):
            raise ValueError(f"transfer={self.transfer!r}: expected one of {', '.join(TRANSFERS)}, or None")
        if self.audit is not None and (not isinstance(self.audit, int) or self.audit < 1):
            raise ValueError(f"audit={self.audit!r}: a number of batches, 1 or more, or None")
        if not isinstance(self.snapshot_every_n_steps, int) or self.snapshot_every_n_steps < 0:
            raise ValueError(f"snapshot_every_n_steps={self.snapshot_every_n_steps!r}: a number of batches, or 0: never")
        if self.spool_bytes is not None and self.spool_bytes < 1:
            raise ValueError(f"spool_bytes={self.spool_bytes!r}: a number of bytes, 1 or more, or None")
        if self.seed is not None and not isinstance(self.seed, int):
            raise ValueError(f"seed={self.seed!r}: an int, or None")
        if self.output_dtype is not None and self.output_dtype not in OUTPUTS.values():
            raise ValueError(f"output={self.output!r}: expected one of {', '.join(OUTPUTS)}, or None")
        if self.memory_format not in (None, torch.contiguous_format, torch.channels_last):
            raise ValueError(f"memory_format={self.memory_format!r}: torch.channels_last, torch.contiguous_format or None")
        one_of = {"decode": DECODES, "backend": BACKENDS, "on_error": ON_ERROR, "own_steps": OWN_STEPS}
        for name, allowed in one_of.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(allowed)}")
        if not (self.cache is False or self.cache == "auto" or isinstance(self.cache, Cache)):
            raise ValueError(f"cache={self.cache!r}: expected False, 'auto' or ddlp.Cache(directory, size)")
        if self.cache is not False and self.backend != "native":
            raise ValueError(f"cache={self.cache!r} with backend={self.backend!r}: only backend='native' keeps samples")
        if not isinstance(self.max_replaced, (int, float)) or not 0 <= self.max_replaced <= 1:
            raise ValueError(f"max_replaced={self.max_replaced!r}: a share of the epoch's samples, 0 to 1")


def _order_is_free(index_sampler: Any, in_order: bool) -> bool:
    return (is_random(index_sampler) or not in_order) and not torch.are_deterministic_algorithms_enabled()
