"""What was measured in the first steps of a run: plain data for `ddlp.auto.decide`.

The symbols are FastFlow's (Um et al., PVLDB 16(5), 2023). None means: not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, get_args

from csd_engine.protocol.fields import MAX_INT, MAX_TEXT, Check, integer, list_of, number, optional, truth
from ddlp.schema import Misfit, checked_fields, text_of

__all__ = ["DType", "Measured", "OffloadPath", "Part", "Transport", "check_numbers"]

Transport = Literal["spool", "stream"]  # through a shared file system, or over the engine's socket
DType = Literal["uint8", "float32"]
Part = Literal["whole", "prefix"]  # of the pipeline: the host does what a prefix leaves
_T = TypeVar("_T")


def check_numbers(of: object, *, above_zero: tuple[str, ...] = (), not_negative: tuple[str, ...] = ()) -> None:
    """Check that these attributes of a dataclass are finite numbers in their range, or None.

    Raises ValueError with the attribute, its value and what was expected.
    """
    for name in (*above_zero, *not_negative):
        value = getattr(of, name)
        low = "above 0" if name in above_zero else "of at least 0"
        if value is None:
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < 0 or (value == 0 and name in above_zero):
            raise ValueError(f"{type(of).__name__}: {name}={value!r}; give a finite number {low}, or None if it is not known")


@dataclass(frozen=True)
class OffloadPath:
    """One way in which one source's batches reach training, and the figures of this way.

    Attributes:
        source: the name of the source: a device, an engine.
        transport: how its batches come to the host.
        dtype: the type of the images in its batches.
        part: what the source does of the pipeline.
        workers: workers of the source that make batches at the same time.
        alone_batches_per_s: full batches a second of the source while the host makes none (Rthp).
        with_host_batches_per_s: the same while the host makes batches as well. It is lower if both share processors or disks.
        host_cpu_s_per_batch: processor seconds of the host to take one of its batches (Ocycle); for a prefix with the rest of
            the pipeline.
        bytes_per_batch: bytes of one of its batches, as they are transferred.
        bandwidth_bytes_per_s: bytes a second of its own link or disk.
        spool_bytes: room for batches that are in work or wait to be fetched.
        carried: the source sees no copy of the data set, so the host sends it the files of each batch (FastFlow's p'1). Ocycle
            has reading and sending them in it.
        source_bytes_per_batch: bytes of these files.
    """

    source: str
    transport: Transport = "stream"
    dtype: DType = "uint8"
    part: Part = "whole"
    workers: int = 1
    alone_batches_per_s: float | None = None
    with_host_batches_per_s: float | None = None
    host_cpu_s_per_batch: float | None = None
    bytes_per_batch: float | None = None
    bandwidth_bytes_per_s: float | None = None
    spool_bytes: float | None = None
    carried: bool = False
    source_bytes_per_batch: float | None = None

    def __post_init__(self) -> None:
        for name, known in (("transport", Transport), ("dtype", DType), ("part", Part)):
            if getattr(self, name) not in get_args(known):
                raise ValueError(f"OffloadPath: {name}={getattr(self, name)!r}; give one of {', '.join(get_args(known))}")
        check_numbers(
            self,
            above_zero=(
                "workers", "alone_batches_per_s", "with_host_batches_per_s", "bytes_per_batch", "bandwidth_bytes_per_s",
                "source_bytes_per_batch",
            ),
            not_negative=("host_cpu_s_per_batch", "spool_bytes"),
        )  # fmt: skip

    def __str__(self) -> str:
        whole = "whole pipeline" if self.part == "whole" else "prefix of the pipeline"
        return f"{self.source} by {self.transport} ({self.dtype}, {whole}{', data carried' if self.carried else ''})"

    @property
    def batches_per_s(self) -> float | None:
        """The source's rate beside a host at work, or alone if only that is known."""
        return self.with_host_batches_per_s or self.alone_batches_per_s


@dataclass(frozen=True)
class Measured:
    """One run's figures, each for full batches of one rank.

    Attributes:
        step_s: seconds of a training step that does not wait for data (1 / Gthp).
        loader_batches_per_s: batches a second as they reach training while only the host makes them (Lthp). If training does
            not wait for data, that is the step's rate, and the host might make more.
        host_cpu_s_per_batch: processor seconds of the host's own path for a batch (Pcycle).
        host_processors: processors that this process may use, by affinity and cgroup quota; may be a fraction.
        transfer_bytes_per_s: bytes a second that the host can take in from all sources together.
        relative_error: the standard error of the rates, as a part of them: 0.005 for 100 batches whose times vary by 5 %.
        paths: the ways of all sources.
    """

    step_s: float | None = None
    loader_batches_per_s: float | None = None
    host_cpu_s_per_batch: float | None = None
    host_processors: float | None = None
    transfer_bytes_per_s: float | None = None
    relative_error: float | None = None
    paths: tuple[OffloadPath, ...] = ()

    def __post_init__(self) -> None:
        check_numbers(
            self,
            above_zero=(
                "step_s", "loader_batches_per_s", "host_cpu_s_per_batch", "host_processors", "transfer_bytes_per_s",
            ),
            not_negative=("relative_error",),
        )  # fmt: skip
        names = [str(path) for path in self.paths]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"Measured: paths has {twice[0]} {names.count(twice[0])} times; give each way of a source once")

    @property
    def host_batches_per_s(self) -> float | None:
        """The host's rate alone: as measured, else processors / Pcycle; None if neither is known."""
        if self.loader_batches_per_s is not None:
            return self.loader_batches_per_s
        if self.host_processors is None or self.host_cpu_s_per_batch is None:
            return None
        return self.host_processors / self.host_cpu_s_per_batch

    @staticmethod
    def from_data(data: Any) -> Measured:
        """Return the figures that `dataclasses.asdict` has made data of. Figures that it lacks are not known.

        Raises Misfit if a field is unknown, or not what it must be.
        """
        checks = {**_figures(Measured), "paths": list_of(_path, _MOST_PATHS)}
        return _made(Measured, checked_fields("Measured", data, {}, checks))


_MOST_PATHS = 1000


def _figures(kind: type[Measured] | type[OffloadPath]) -> dict[str, Check]:
    return dict.fromkeys((one.name for one in fields(kind)), optional(number(0, 1e300)))


def _path(data: Any) -> OffloadPath:
    texts = dict.fromkeys(("source", "transport", "dtype", "part"), text_of(MAX_TEXT))
    checks = {**_figures(OffloadPath), **texts, "workers": integer(1, MAX_INT), "carried": truth}
    return _made(OffloadPath, checked_fields("OffloadPath", data, {"source": checks["source"]}, checks))


def _made(kind: Callable[..., _T], found: Mapping[str, Any]) -> _T:
    try:
        return kind(**found)
    except ValueError as error:
        raise Misfit(str(error)) from None
