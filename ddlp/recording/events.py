"""What is recorded of an epoch: one named tuple a kind of event, one JSON line each.

Names that end in ``at`` are moments, of the monotonic clock while the epoch runs, in seconds since its beginning where they are
written or read. Names that end in ``_s`` are durations in seconds.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, get_args, get_type_hints

from csd_engine.protocol.fields import MAX_INT, Check, count, integer, list_of, number, truth
from csd_engine.protocol.schema import checked_fields, one_of, text_of

__all__ = [
    "Decided",
    "EpochBegan",
    "EpochEnded",
    "Event",
    "Exhausted",
    "Fetched",
    "GpuUse",
    "HostBatch",
    "Joined",
    "LeaseCancelled",
    "LeaseFailed",
    "LeaseGiven",
    "Lost",
    "Published",
    "Rested",
    "Retires",
    "Step",
    "from_line",
    "to_line",
]

FORMAT = 1


class EpochBegan(NamedTuple):
    """The first line of a file: what ran. ``clock`` is the wall clock (Unix seconds) at moment 0."""

    format: int
    ddlp: str
    clock: float
    pid: int
    rank: int
    epoch: int
    strategy: str
    batches: int  # 0: not known when the epoch began
    batch_size: int
    workers: int
    fetchers: int
    devices: list[str]
    target: str  # where batches are delivered: cpu, cuda:0, ...
    processors: float = 0.0  # that this process may use; 0: not known, in a recording of before they were noted
    prepared_by: str = "ddlp"  # who makes the host's: ddlp; for user code or DataLoader torch's workers, or the training thread

    @property
    def travels(self) -> bool:
        """Whether a device could prepare the batches in this loader. It can't run user code, nor join torch's DataLoader."""
        return self.prepared_by == "ddlp"

    @property
    def itself(self) -> bool:
        """Whether the training thread makes the batches. Then it is the one host worker that is recorded."""
        return self.prepared_by == "training thread"


class HostBatch(NamedTuple):
    """A host worker worked on a batch. ``read_s``: its time for opening and reading files; ``cpu_s``: its processor time."""

    worker: int
    position: int
    began_at: float
    ended_at: float
    read_s: float
    cpu_s: float
    outcome: str  # made; dropped: the device's copy was first; failed: a sample could not be prepared


class Rested(NamedTuple):
    """A thread had nothing to do for a while. ``last``: it got no more work in this epoch."""

    who: str  # host, transfer
    number: int
    began_at: float
    ended_at: float
    last: bool


class Joined(NamedTuple):
    """A device joined the epoch."""

    device: str
    at: float
    workers: int
    quota: int  # batches in its spool
    ranks: int  # that share it
    node: str = ""  # the computer of an engine that is a pool's


class LeaseGiven(NamedTuple):
    """A device was told to prepare a batch."""

    device: str
    lease: int
    position: int
    at: float


class LeaseCancelled(NamedTuple):
    """A lease was taken back before it was published: the host makes or has made the batch."""

    device: str
    lease: int
    at: float


class LeaseFailed(NamedTuple):
    """A device could not prepare a batch."""

    device: str
    lease: int
    at: float
    reason: str


class Published(NamedTuple):
    """A device's batch is in its spool; ``busy_s`` is the worker's own time on it. ``position`` -1: it is no longer wanted."""

    device: str
    lease: int
    position: int
    at: float
    busy_s: float


class Retires(NamedTuple):
    """A device finishes what it has, and takes no more leases; after that it is lost."""

    device: str
    at: float
    reason: str


class Lost(NamedTuple):
    """A device is gone; its leases went back to the host."""

    device: str
    at: float
    reason: str


class Decided(NamedTuple):
    """ddlp has decided by itself. What holds when the epoch begins is its first decision.

    ``about``: devices (which take part), engines (how many of a pool), cache (what is kept) or workers (how many of the host).
    """

    about: str
    text: str
    at: float


class Fetched(NamedTuple):
    """A device's batch was brought into memory: read and verified until ``read_at``, converted until ``ended_at``."""

    fetcher: int
    device: str
    lease: int
    position: int
    began_at: float
    read_at: float
    ended_at: float
    trouble: str  # why it could not be used


class Step(NamedTuple):
    """The training thread asked for a batch, got it, and had it (targets joined, on its way to the device).

    Then it trained until it asked again. The counts are of batches, at ``got_at``: ready in memory, in the devices' spools.
    """

    position: int
    side: str  # cpu, csd
    samples: int
    asked_at: float
    got_at: float
    handed_at: float
    ready_host: int
    ready_csd: int
    in_spool: int
    held: int  # of the spools' quota: includes batches that are being written


class Exhausted(NamedTuple):
    """The training thread asked for a batch after all were delivered."""

    asked_at: float
    at: float


class GpuUse(NamedTuple):
    """How much an NVIDIA GPU is used, as NVML tells: all programs on it together.

    ``busy_percent``: the part of the time, of NVML's last sixth of a second to a second, in which a kernel ran there.
    """

    gpu: str  # gpuINDEX MODEL
    at: float
    busy_percent: int
    memory_used_bytes: int
    memory_bytes: int  # 0: neither is known


class EpochEnded(NamedTuple):
    """The last line. ``left_out``: events for which there was no room."""

    at: float
    left_out: int


Event = (
    EpochBegan | HostBatch | Rested | Joined | LeaseGiven | LeaseCancelled | LeaseFailed | Published | Retires | Lost | Decided
    | Fetched | Step | Exhausted | GpuUse | EpochEnded
)  # fmt: skip
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Event)}
_MOMENTS = {name: [field == "at" or field.endswith("_at") for field in kind._fields] for name, kind in _KINDS.items()}


def _moment(value: Any) -> float:
    return round(number(-_MOST_S, _MOST_S)(value), 6)  # as it was written: of shorter times a rate is no number


def _texts(value: Any) -> list[str]:
    return list(list_of(_text, _MOST_LANES)(value))


_MOST_S = 1e10  # three centuries
_MOST_LANES = 1 << 16  # workers or threads
_text = text_of(1 << 20)
_lanes = integer(0, _MOST_LANES)
_OWN_CHECKS: dict[str, Check] = {
    "position": integer(-1, MAX_INT), "workers": _lanes, "fetchers": _lanes, "ranks": integer(1, MAX_INT),
    "epoch": integer(-MAX_INT, MAX_INT), "outcome": one_of("made", "dropped", "failed"), "who": one_of("host", "transfer"),
    "side": one_of("cpu", "csd"), "prepared_by": one_of("ddlp", "torch's workers", "training thread"),
    "busy_percent": integer(0, 100), "about": one_of("devices", "engines", "cache", "workers"),
}  # fmt: skip
_CHECKS_BY_TYPE: dict[Any, Check] = {
    int: count, float: number(0, _MOST_S), str: _text, bool: truth, list[str]: _texts,
}  # fmt: skip
_CHECKS: dict[str, dict[str, Check]] = {
    name: {
        field: _OWN_CHECKS.get(field) or (_moment if moment else _CHECKS_BY_TYPE[hint])
        for (field, hint), moment in zip(get_type_hints(kind).items(), _MOMENTS[name], strict=True)
    }
    for name, kind in _KINDS.items()
}


def to_line(event: Event, origin: float) -> str:
    """An event as a line of JSON; its moments are from ``origin`` on."""
    name = type(event).__name__
    fields: dict[str, Any] = {"event": name}
    values: tuple[Any, ...] = event
    for field, value, moment in zip(event._fields, values, _MOMENTS[name], strict=True):
        if moment:
            value = round(value - origin, 6)
        elif isinstance(value, float) and field != "clock":
            value = round(value, 6)
        fields[field] = value
    return json.dumps(fields, separators=(",", ":"))


def from_line(line: str) -> Event:
    """The event of a line, with texts that are fit for a terminal.

    Raises ValueError where it is none: names the field, what was found, and what it must be.
    """
    try:
        fields = json.loads(line)
        kind = _KINDS[fields.pop("event")]
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not an event of a recorded run: {line[:80]!r} ({type(error).__name__}: {error})") from None
    checks, may_lack = _CHECKS[kind.__name__], kind._field_defaults
    needed = {field: check for field, check in checks.items() if field not in may_lack}
    event: Event = kind(**checked_fields(kind.__name__, fields, needed, checks))
    return event
