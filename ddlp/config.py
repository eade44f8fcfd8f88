"""What `DDLPLoader` is given, checked before anything begins: values that are none of those expected, and contradictions."""

from __future__ import annotations

from typing import Any

import torch

from csd_engine.transforms.reduced import DECODES
from ddlp.devices.device import Device
from ddlp.process.platforms import other_system
from ddlp.sampling.epoch_plan import is_built_in
from ddlp.schedule.strategies import STRATEGIES
from ddlp.sources.base import is_lease_source
from ddlp.sources.engine.shared_spool import TRANSFERS
from ddlp.sources.host.dali import require_dali
from ddlp.transfer.choose_transfer import WAYS
from ddlp.transfer.epilogue import DTYPES

__all__ = ["OUTPUTS", "check_arguments", "check_change"]

BACKENDS = ("native", "dali", "dali_cpu")
OUTPUTS = {str(t).removeprefix("torch."): t for t in DTYPES}

_KEPT_IN = {  # what is made once for all epochs, and of which arguments
    "_connections": ("csd", "transfer", "spool", "spool_bytes"),
    "_gpu_transfer": ("device", "transfer"),
}


def check_change(loader: Any, name: str) -> None:
    """Raises ValueError where an attribute is set of which something was made that all epochs share."""
    for kept, arguments in _KEPT_IN.items():
        if name in arguments and getattr(loader, kept, None) is not None:
            raise ValueError(
                f"{name} attribute should not be set after {type(loader).__name__} has begun an epoch with it; make another one"
            )


def check_arguments(loader: Any) -> None:
    """Raises ValueError for the first that can't be; ImportError for ``backend="dali"`` without DALI."""
    strategy = loader._wanted_strategy()
    if loader.ratio is not None and (not strategy.takes_ratio or not 0 <= loader.ratio <= 1):
        takes = " or ".join(repr(name) for name, one in STRATEGIES.items() if one.takes_ratio)
        raise ValueError(f"ratio={loader.ratio!r}: the host's share, 0 to 1, and only with strategy={takes}")
    if loader.transfer not in (None, *TRANSFERS):
        raise ValueError(f"transfer={loader.transfer!r}: expected one of {', '.join(TRANSFERS)}, or None")
    if loader.audit is not None and (not isinstance(loader.audit, int) or loader.audit < 1):
        raise ValueError(f"audit={loader.audit!r}: a number of batches, 1 or more, or None")
    if not isinstance(loader.snapshot_every_n_steps, int) or loader.snapshot_every_n_steps < 1:
        raise ValueError(f"snapshot_every_n_steps={loader.snapshot_every_n_steps!r}: a number of batches, 1 or more")
    if loader.spool_bytes is not None and loader.spool_bytes < 1:
        raise ValueError(f"spool_bytes={loader.spool_bytes!r}: a number of bytes, 1 or more, or None")
    if loader.seed is not None and not isinstance(loader.seed, int):
        raise ValueError(f"seed={loader.seed!r}: an int, or None")
    if loader._output is not None and loader._output not in OUTPUTS.values():
        raise ValueError(f"output={loader.output!r}: expected one of {', '.join(OUTPUTS)}, or None")
    if loader.memory_format not in (None, torch.contiguous_format, torch.channels_last):
        raise ValueError(f"memory_format={loader.memory_format!r}: torch.channels_last, torch.contiguous_format or None")
    if loader.decode not in DECODES:
        raise ValueError(f"decode={loader.decode!r}: expected one of {', '.join(DECODES)}")
    if loader.backend not in BACKENDS:
        raise ValueError(f"backend={loader.backend!r}: expected one of {', '.join(BACKENDS)}")
    if (loader.csd is not None or strategy.needs_device) and (other := other_system()) is not None:
        raise other
    if loader.backend != "native":
        if strategy.needs_device:
            with_it = f"backend={loader.backend!r} with strategy={strategy.name!r}"
            raise ValueError(f"{with_it}: the host would prepare nothing; leave one out")
        require_dali()
    for one in loader._devices:
        if not isinstance(one, Device) and not is_lease_source(one):
            raise ValueError(f"csd={one!r}: expected a device's name or address, a ddlp.Device, several of them, or None")
    if loader.csd is not None and not strategy.uses_device:
        raise ValueError(
            f"csd= with strategy={strategy.name!r}: the device would have nothing to do; leave one of them out"
        )
    if strategy.needs_length and not is_built_in(loader._index_sampler):
        raise ValueError(
            f"strategy={strategy.name!r} needs the whole epoch's batches when it begins; "
            f"{type(loader._index_sampler).__name__} is read as it goes. Use 'wrr' or 'ordered', or one of torch's own samplers"
        )
    target = loader._target
    if loader.transfer in WAYS and (target is None or target.type != "cuda"):
        raise ValueError(
            f"transfer={loader.transfer!r} brings batches into a GPU's memory: give device='cuda', or take 'shared', "
            "'stream' or None"
        )
