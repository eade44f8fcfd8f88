"""Checks what an epoch and its lease source promise each other (`ddlp.sources.base`), from a record of all calls.

`Contract.watching` wraps a source's `attach`. Each call is recorded before it is passed on, because the other side may answer
before the call returns. In between, calls can also be delayed, damaged and lost, as `Faults` says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from csd_engine.errors import DamagedBatch
from ddlp.sources.base import AttachedSource, Capacity, EpochSink, PreparedBatch

OVERTAKEN = 4  # a lease is forgotten if this times the workers' number of later leases are published before it


@dataclass
class Lease:
    """One lease: who holds it, and what has happened to it."""

    number: int
    position: int
    source: RecordedSource
    published: int = 0
    under_way: bool = False  # it is published, and the epoch may not know it yet
    handle: Any = None
    fetched: bool = False
    failed: bool = False
    overtaken: int = 0  # by how many later leases
    ended: str = ""  # cancelled, released, failed or lost; "" until then

    @property
    def name(self) -> str:
        return f"lease {self.number} (batch {self.position})"


@dataclass
class Faults:
    """The faults between source and epoch."""

    join_s: float = 0.0  # delay until the source joins
    publish_s: float = 0.0  # delay of each message that a batch is published
    damaged: Callable[[int], bool] = lambda _: False  # whether a batch is damaged, by its position


@dataclass
class Contract:
    """The record of one loader's source.

    ``holds``: whether an attached source still holds anything for a lease.
    """

    holds: Callable[[Any, int], bool]
    faults: Faults = field(default_factory=Faults)
    sinks: list[RecordedSink] = field(default_factory=list)  # one per epoch
    broken: list[str] = field(default_factory=list)
    lock: Any = field(default_factory=threading.RLock)

    def watching(self, attach: Callable[[Any, EpochSink], None]) -> Callable[[Any, Any], None]:
        """Replaces a source's `attach`."""

        def watched(source: Any, sink: EpochSink) -> None:
            recorded = RecordedSink(self, sink)
            self.sinks.append(recorded)
            attach(source, recorded)

        return watched

    @property
    def sink(self) -> RecordedSink:
        """The last epoch's sink."""
        return self.sinks[-1]

    def breaks(self, text: str) -> None:
        """Note that a rule is broken."""
        self.broken.append(text)

    def check(self, whole: bool = True) -> None:
        """Call it after the epochs. ``whole``: all their batches were asked for. Raises AssertionError with what is wrong."""
        with self.lock:
            found = list(self.broken)
            for sink in self.sinks:
                found += [f"{number} closes of one attached source" for s in sink.sources if (number := s.closes) != 1]
                found += [text for lease in sink.leases.values() for text in _wrong(lease, whole)]
        assert not found, "\n".join(found)


def _wrong(lease: Lease, whole: bool) -> list[str]:
    """What is wrong with a lease at the end of its epoch."""
    found = []
    if whole and not lease.ended:
        found.append(f"{lease.name} was never released, cancelled, failed or lost")
    if not lease.published and not lease.failed and lease.overtaken > OVERTAKEN * lease.source.capacity.workers:
        found.append(f"{lease.name} came to nothing: {lease.overtaken} given later were published before it was taken back")
    return found


class RecordedSink:
    """What the source sees as the `EpochSink`. It records calls and passes them on to the epoch."""

    def __init__(self, contract: Contract, sink: EpochSink) -> None:
        self.contract, self.inner = contract, sink
        self.sources: list[RecordedSource] = []  # in the order in which they joined
        self.leases: dict[int, Lease] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def joined(self, name: str, source: AttachedSource, capacity: Capacity) -> None:
        self.inner.over_within(self.contract.faults.join_s)
        recorded = RecordedSource(self, source, capacity)
        with self.contract.lock:
            self.sources.append(recorded)
        self.inner.joined(name, recorded, capacity)

    def published(self, name: str, lease: int, handle: Any, busy_s: float) -> None:
        if self.contract.faults.publish_s:
            time.sleep(self.contract.faults.publish_s)
        with self.contract.lock:
            held = self.leases.get(lease)
            if held is None:
                self.contract.breaks(f"lease {lease} was published, and was never given")
            elif held.published or held.failed:
                self.contract.breaks(f"{held.name} was answered twice")
            if held is not None:
                held.published, held.handle, held.under_way = held.published + 1, handle, True
                for other in self.leases.values():
                    if other.source is held.source and other.number < lease and not other.published and not other.ended:
                        other.overtaken += 1
        self.inner.published(name, lease, handle, busy_s)
        if held is not None:
            held.under_way = False

    def failed(self, name: str, lease: int, reason: str, *, fatal: bool, warned: bool) -> None:
        with self.contract.lock:
            held = self.leases.get(lease)
            if held is None:
                self.contract.breaks(f"lease {lease} failed, and was never given")
            else:
                if held.published or held.failed:
                    self.contract.breaks(f"{held.name} was answered twice")
                held.failed, held.ended = True, held.ended or "failed"
        self.inner.failed(name, lease, reason, fatal=fatal, warned=warned)

    def lost(self, name: str, reason: str, error: BaseException | None = None, warned: bool = False) -> None:
        sources = list(self.sources)  # without sources that join meanwhile
        self._lost(sources)
        self.inner.lost(name, reason, error, warned)
        self._lost(sources)  # leases that were given in between

    def _lost(self, sources: list[RecordedSource]) -> None:
        with self.contract.lock:
            for lease in self.leases.values():
                if lease.source in sources and not lease.published and not lease.ended:
                    lease.ended = "lost"


class RecordedSource:
    """What the epoch sees as the `AttachedSource`. It records calls and passes them on to the source."""

    def __init__(self, sink: RecordedSink, inner: AttachedSource, capacity: Capacity) -> None:
        self.sink, self.inner, self.capacity = sink, inner, capacity
        self.contract, self.closes = sink.contract, 0

    @property
    def open(self) -> bool:
        return self.inner.open

    def lease(self, lease: int, position: int) -> None:
        with self.contract.lock:
            self._not_closed("lease")
            held = [one for one in self.sink.leases.values() if one.source is self and not one.ended]
            if lease in self.sink.leases:
                self.contract.breaks(f"lease {lease} was given twice")
            if any(one.position == position for one in held):
                self.contract.breaks(f"batch {position} was given to the source twice at once")
            if len(held) >= self.capacity.batches:
                self.contract.breaks(f"lease {lease} is beyond the source's {self.capacity.batches} batches")
            if sum(not one.published for one in held) > self.capacity.workers:
                self.contract.breaks(f"lease {lease} is beyond what {self.capacity.workers} workers and one ahead make")
            self.sink.leases[lease] = Lease(lease, position, self)
        self.inner.lease(lease, position)

    def release(self, lease: int) -> None:
        how = self._end(lease)
        self.inner.release(lease)
        if how == "released" and self.contract.holds(self.inner, lease):
            self.contract.breaks(f"lease {lease} was released, and the source holds it still")

    def _end(self, number: int) -> str:
        """Return how the lease ends: it is released once the epoch knows that it was published, and cancelled before."""
        with self.contract.lock:
            lease = self.sink.leases.get(number)
            known = lease is not None and lease.published and (lease.ended or not lease.under_way)
            how = "released" if known else "cancelled"
            self._not_closed(how)
            if lease is None:
                self.contract.breaks(f"lease {number} was {how}, and was never given")
                return how
            # A cancelled, lost or failed lease is released as well if it is published afterwards.
            if lease.ended == "released" or (lease.ended and how == "cancelled"):
                self.contract.breaks(f"{lease.name} was {lease.ended} before it was {how}")
            lease.ended = how
            return how

    def waiting(self, waiting: bool) -> None:
        self._not_closed("waiting")
        self.inner.waiting(waiting)

    def fetch(self, number: int, position: int, handle: Any) -> PreparedBatch:
        with self.contract.lock:
            lease = self.sink.leases.get(number)
            if lease is None or lease.position != position or not lease.published or lease.handle is not handle:
                self.contract.breaks(f"lease {number} was fetched as batch {position}, and is not published as that")
        if self.contract.faults.damaged(position):
            raise DamagedBatch(f"batch {position}: another checksum")
        batch = self.inner.fetch(number, position, handle)
        if lease is not None:
            lease.fetched = True
        return batch

    def close(self) -> None:
        with self.contract.lock:
            self.closes += 1
        self.inner.close()

    def _not_closed(self, what: str) -> None:
        if self.closes:
            self.contract.breaks(f"{what}, after the source was closed")
