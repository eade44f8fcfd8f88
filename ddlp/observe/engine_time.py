"""What the devices' engines did, from what this host saw of them: leases given, taken back, published."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ddlp.observe.run import EpochTrace
from ddlp.observe.spans import Span
from ddlp.recording.events import Joined, LeaseCancelled, LeaseFailed, LeaseGiven, Lost, Published

__all__ = ["DeviceTime", "DeviceWork", "device_times", "on_workers"]


@dataclass(frozen=True)
class DeviceWork:
    """A device's work on a batch. The worker reports the time of a published batch; for the others it is what the host saw."""

    lease: int
    position: int
    span: Span
    published: bool


@dataclass
class DeviceTime:
    """One device in one epoch. Seconds are worker-seconds: their sum is ``workers`` times the wall's time."""

    device: str
    workers: int = 1
    quota: int = 0
    ranks: int = 1  # that share it
    work: list[DeviceWork] = field(default_factory=list)
    busy_s: float = 0.0
    waiting_s: float = 0.0  # without a lease although others followed, or with one that no worker had begun: it was on its
    # way, or other jobs had their turn
    idle_s: float = 0.0  # not there yet, lost, or nothing left to do


@dataclass
class _Queue:
    """A device's leases in the order in which they were given: the first ``workers`` of them are at work."""

    workers: int
    given: dict[int, tuple[int, float]] = field(default_factory=dict)  # lease -> position, when
    began: dict[int, float] = field(default_factory=dict)  # of those at work

    def begin(self, at: float) -> None:
        for lease in list(self.given)[: self.workers]:
            self.began.setdefault(lease, at)


def device_times(trace: EpochTrace) -> list[DeviceTime]:
    """Every device that joined."""
    joined = {event.device for event in trace.of(Joined)}
    known = dict.fromkeys((*trace.began.devices, *sorted(joined)))  # a pool's may have come after the epoch's beginning
    return [_device_time(trace, device) for device in known if device in joined]


def on_workers(device: DeviceTime) -> list[tuple[int, DeviceWork]]:
    """A device's work on one lane for each worker, without overlaps. Which worker did it is not known here.

    If a message took longer than the one before it, a batch's time reaches into the next one's; the next one begins later then.
    """
    until = [0.0] * max(1, device.workers)
    result = []
    for work in sorted(device.work, key=lambda work: work.span):
        begin, end = work.span
        lane = next((lane for lane, free in enumerate(until) if free <= begin), until.index(min(until)))
        begin, until[lane] = max(begin, until[lane]), max(end, until[lane])
        if end > begin:
            result.append((lane, replace(work, span=(begin, end))))
    return result


def _device_time(trace: EpochTrace, device: str) -> DeviceTime:
    time, queue = DeviceTime(device), _Queue(1)
    present, now = False, 0.0
    without_s = 0.0  # without a lease since the last event: waiting, if another lease follows, else idle
    in_hand_s = 0.0

    def until(moment: float) -> None:
        nonlocal now, without_s, in_hand_s
        passed_s, now = max(0.0, moment - now), max(now, moment)
        if present:
            in_hand = min(queue.workers, len(queue.given))
            in_hand_s += passed_s * in_hand
            without_s += passed_s * (queue.workers - in_hand)
        else:
            time.idle_s += passed_s * queue.workers

    for event in trace.events:
        if not isinstance(event, (Joined, Lost, LeaseGiven, LeaseCancelled, LeaseFailed, Published)) or event.device != device:
            continue
        if isinstance(event, Joined):
            queue.workers = time.workers = event.workers
            time.quota, time.ranks = event.quota, event.ranks
        until(event.at)
        if isinstance(event, Joined):
            present = True
        elif isinstance(event, Lost):
            present = False
            for lease in list(queue.given):
                _end(time, queue, lease, now, None)
        elif isinstance(event, LeaseGiven) or event.lease in queue.given:
            time.waiting_s += without_s
            without_s = 0.0
            if isinstance(event, LeaseGiven):
                queue.given[event.lease] = event.position, now
            else:
                _end(time, queue, event.lease, now, event.busy_s if isinstance(event, Published) else None)
        queue.begin(now)
    until(trace.wall_s)
    for lease in list(queue.given):
        _end(time, queue, lease, trace.wall_s, None)
    time.idle_s += without_s
    time.waiting_s += max(0.0, in_hand_s - time.busy_s)
    return time


def _end(time: DeviceTime, queue: _Queue, lease: int, at: float, busy_s: float | None) -> None:
    position, given_at = queue.given.pop(lease)
    began_at = queue.began.pop(lease, None)
    if busy_s is not None:
        span = max(at - busy_s, given_at), at
        time.busy_s += busy_s
    elif began_at is not None and at > began_at:
        span = began_at, at
        time.busy_s += at - began_at
    else:
        return
    time.work.append(DeviceWork(lease, position, span, busy_s is not None))
