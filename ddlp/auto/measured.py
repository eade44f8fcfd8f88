"""What was measured of a run: plain data for `ddlp.auto.decide`.

The symbols are FastFlow's (Um et al., PVLDB 16(5), 2023). None means: not known.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from csd_engine.protocol.fields import MAX_INT, MAX_TEXT, Check, integer, list_of, number, optional, truth
from csd_engine.protocol.schema import checked_fields, one_of, text_of

__all__ = ["Measured", "OffloadPath", "Transport"]

Transport = Literal["spool", "stream"]  # through a shared file system, or over the engine's socket


@dataclass(frozen=True)
class OffloadPath:
    """One source, and the way in which its batches reach training.

    Attributes:
        source: the name of the source: a device, an engine.
        batches_per_s: full batches a second of the source, beside a host at work (Rthp).
        transport: how its batches come to the host.
        workers: workers of the source that make batches at the same time.
        host_cpu_s_per_batch: processor seconds of the host to take one of its batches (Ocycle), with what the host does to it.
        bytes_per_batch: bytes of one of its batches, as they are transferred.
        bandwidth_bytes_per_s: bytes a second of its own link or disk.
        spool_bytes: room for batches that are in work or wait to be fetched.
        carried: the source sees no copy of the data set, so the host sends it the files of each batch (FastFlow's p'1). Ocycle
            has reading and sending them in it.
    """

    source: str
    batches_per_s: float
    transport: Transport = "stream"
    workers: int = 1
    host_cpu_s_per_batch: float | None = None
    bytes_per_batch: float | None = None
    bandwidth_bytes_per_s: float | None = None
    spool_bytes: float | None = None
    carried: bool = False

    def __str__(self) -> str:
        return f"{self.source} by {self.transport}{' (data carried)' if self.carried else ''}"


@dataclass(frozen=True)
class Measured:
    """One run's figures, each for full batches of one rank.

    Attributes:
        step_s: seconds of a training step that does not wait for data (1 / Gthp).
        host_batches_per_s: batches a second as they reach training while only the host makes them (Lthp). If training does not
            wait for data, that is the step's rate, and the host might make more.
        host_cpu_s_per_batch: processor seconds of the host's own path for a batch (Pcycle).
        host_processors: processors that this process may use, by affinity and cgroup quota; may be a fraction.
        transfer_bytes_per_s: bytes a second that the host can take in from all sources together.
        paths: of each source, one.
    """

    step_s: float | None = None
    host_batches_per_s: float | None = None
    host_cpu_s_per_batch: float | None = None
    host_processors: float | None = None
    transfer_bytes_per_s: float | None = None
    paths: tuple[OffloadPath, ...] = ()

    @staticmethod
    def from_data(data: Any) -> Measured:
        """Return the figures that `dataclasses.asdict` has made data of. Figures that it lacks are not known.

        Raises Misfit if a field is unknown, or not what it must be.
        """
        return Measured(**checked_fields("Measured", data, {}, _MEASURED))


def _path(data: Any) -> OffloadPath:
    return OffloadPath(**checked_fields("OffloadPath", data, _NEEDED, _PATH))


_ABOVE_ZERO = number(1e-300, 1e300)
_NEEDED: dict[str, Check] = {"source": text_of(MAX_TEXT), "batches_per_s": _ABOVE_ZERO}
_PATH: dict[str, Check] = {
    **dict.fromkeys((field.name for field in fields(OffloadPath)), optional(_ABOVE_ZERO)), **_NEEDED,
    "transport": one_of(*get_args(Transport)), "workers": integer(1, MAX_INT), "carried": truth,
    "host_cpu_s_per_batch": optional(number(0, 1e300)), "spool_bytes": optional(number(0, 1e300)),
}  # fmt: skip
_MEASURED: dict[str, Check] = {
    **dict.fromkeys((field.name for field in fields(Measured)), optional(_ABOVE_ZERO)), "paths": list_of(_path, 1000),
}  # fmt: skip
