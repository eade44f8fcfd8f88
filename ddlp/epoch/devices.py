"""The devices of an epoch: who takes part, which leases they have, and what they have published."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ddlp.auto.controller import Controller
from ddlp.epoch.monitor import Monitor
from ddlp.schedule.ledger import RETIRED
from ddlp.sources.base import AttachedSource, Capacity, Resources

__all__ = ["Devices", "Published"]

_UNUSABLE = 5  # batches of a device that are missing or damaged, in a row: then it is not used any more
_MOST_TOLD = 16  # warnings of a device's batches that are missing or damaged


class Published(NamedTuple):
    """A batch that a device has published, and what fetches it."""

    position: int
    device: str
    lease: int
    source: AttachedSource
    handle: Any


@dataclass
class DeviceState:
    """One device in one epoch, beside the ledger's account and the rates.

    Attributes:
        source: takes the device's leases. It stays here after a loss, for the batches that it has published.
        gone: the device was lost, and may come back.
        barred: the device is not used again in this epoch.
        unusable: its published batches that could not be used.
        unusable_in_a_row: those since the last one that could be used.
    """

    source: AttachedSource | None = None
    gone: bool = False
    barred: bool = False
    unusable: int = 0
    unusable_in_a_row: int = 0


class Devices:
    """The part of an epoch that leases batches to devices. It is the `EpochSink` of their sources.

    Args:
        monitor: the state that the epoch's parts share. Its ledger has the devices that are expected already.
        resources: what lives in the epoch.
        controller: decides which devices take part, for a strategy that wants that.

    Attributes:
        states: each device's state, by its name.
    """

    def __init__(self, monitor: Monitor, resources: Resources, controller: Controller | None = None) -> None:
        self._monitor, self.resources, self._controller = monitor, resources, controller
        self._began_with = frozenset(monitor.ledger.devices)
        self.states: dict[str, DeviceState] = {name: DeviceState() for name in monitor.ledger.devices}
        self._published: dict[int, Published] = {}  # by lease
        self._ends = threading.Condition(monitor.lock)  # notified when a device's part in the epoch ends, or the epoch

    # -- under the lock ------------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Tell sources of dropped leases, and give leases. It is called after every event."""
        monitor, devices = self._monitor, self._monitor.ledger.devices
        self._drain()  # before the leases, since it gives back the space that they need
        if not monitor.closing:
            self._lease()
            while (retired := next((name for name in devices if devices[name].has_retired), None)) is not None:
                self.lost(retired, RETIRED)

    def _drain(self) -> None:
        """Tell sources of leases whose batches are not needed any more."""
        effects = self._monitor.ledger.effects
        while effects:
            effect = effects.popleft()
            self._published.pop(effect.lease, None)
            if (source := self.states[effect.device].source) is None:
                continue
            if effect.unpublished:
                self._monitor.hooks.lease_cancelled(effect.device, effect.lease)
            source.release(effect.lease)

    def _lease(self) -> None:
        """Lease batches to devices, as the strategy says."""
        ledger, strategy = self._monitor.ledger, self._monitor.strategy
        for name, device in self.states.items():  # without a source it has not joined; a lost one takes no leases
            while device.source is not None and (position := strategy.next_lease(name)) is not None:
                if self.resources.plan.wrong(position):  # the host raises the error
                    ledger.withhold(position)
                    continue
                lease = ledger.lease(name, position, time.monotonic())
                self._monitor.hooks.lease_given(name, lease, position)
                device.source.lease(lease, position)

    def take_published(self) -> Published | None:
        """Return the published batch that should be fetched now, if any. Its fetch has begun for the ledger."""
        monitor = self._monitor
        if monitor.closing or (position := monitor.strategy.next_fetch()) is None:
            return None
        _, lease = monitor.ledger.fetch(position, time.monotonic())
        return self._published.pop(lease)

    def unusable(self, name: str, position: int, trouble: str, vanished: bool) -> None:
        """Note that a device's batch is missing or damaged. Such ones cost time: a device that makes no others is barred.

        ``vanished``: its file is gone.
        """
        device, messages = self.states[name], self._monitor.messages
        device.unusable += 1
        device.unusable_in_a_row += 1
        if device.unusable_in_a_row >= _UNUSABLE:
            self.distrust(name, f"{_UNUSABLE} of its batches in a row could not be used, the last one since {trouble}")
        elif device.unusable <= _MOST_TOLD:
            text = f"{name}'s copy of batch {position} was not used ({trouble}); the host prepares it again."
            text += " Further ones are not reported." if device.unusable == _MOST_TOLD else ""
            if vanished:
                messages.vanished(name, text, time.monotonic())
            else:
                messages.warn(text)

    def waiting(self, waiting: bool) -> None:
        """Tell the sources that training waits for a batch, or that it does not wait any more."""
        for device in self.states.values():
            if device.source is not None:
                device.source.waiting(waiting)

    def detach(self) -> list[AttachedSource]:
        """End the devices' part at the end of the epoch. Returns their sources, which are to be closed."""
        sources = [device.source for device in self.states.values() if device.source is not None]
        for device in self.states.values():
            device.source = None
        self._ends.notify_all()
        return sources

    # -- calls by any thread -------------------------------------------------------------------------------------

    def expect(self, name: str) -> None:
        """Note that a further device is about to join."""
        with self._monitor.lock:
            if name not in self.states:
                self.states[name] = DeviceState()
                self._monitor.ledger.expect(name, time.monotonic())

    def joined(self, name: str, source: AttachedSource, capacity: Capacity) -> None:
        """Give a device leases from now on, unless its source was lost meanwhile. A lost device comes back by this call."""
        monitor = self._monitor
        monitor.hooks.joined(name, capacity, monitor.rates.device(name).ranks)
        with monitor.lock:
            before: AttachedSource | None = source
            device = self.states[name]
            if not monitor.closing and not device.barred and source.open:
                device.gone = False
                if not monitor.ledger.devices[name].failing:  # else its next published batch tells that it is back
                    monitor.messages.back(name)
                before = device.source
                monitor.rates.joined(name, capacity.workers)
                if self._controller is not None:
                    self._controller.transports[name] = capacity.transport
                    if capacity.carried:
                        self._controller.carried.add(name)
                came = name not in self._began_with or device.source is not None
                window = capacity.workers + capacity.ahead
                monitor.ledger.join(name, quota=capacity.batches, window=window, node=capacity.node)
                if came:
                    monitor.counts.changed(name, "it is back" if before is not None else "it came")
                self._drain()  # so that the previous source gets the releases of the batches that it has published
                device.source = source
                monitor.act()
        if before is not None:
            before.close()

    def published(self, name: str, lease: int, handle: Any, busy_s: float) -> None:
        """Note that a device's batch is ready, for example in its spool."""
        monitor = self._monitor
        with monitor.lock:
            account, source = monitor.ledger.devices[name], self.states[name].source
            position = account.outstanding.get(lease)
            monitor.hooks.published(name, lease, -1 if position is None else position, busy_s)
            if monitor.ledger.published(name, lease) and position is not None and source is not None:  # None: closed meanwhile
                self._published[lease] = Published(position, name, lease, source, handle)
                monitor.counts.published(position)
                monitor.rates.device(name).add(busy_s, self.resources.plan.size(position) / monitor.full_batch)
                if not account.retiring:
                    monitor.messages.back(name)
            monitor.act()

    def failed(self, name: str, lease: int, reason: str, *, fatal: bool, warned: bool) -> None:
        """Note that a device could not make a batch. ``warned``: the user knows the reason already.

        The host makes the batch. If the sample is at fault, it raises the sample's error.
        """
        monitor = self._monitor
        monitor.hooks.lease_failed(name, lease, "" if warned else reason)
        with monitor.lock:
            account = monitor.ledger.devices[name]
            if lease not in account.outstanding:
                return  # the lease was taken back meanwhile
            monitor.ledger.failed(name, lease, fatal)
            if account.failing:  # it would take all free batches, and leave each to the host
                self.lost(name, f"it can't prepare batches: {reason}")
            elif not warned:
                monitor.messages.warn(f"{name} could not prepare a batch, the host does: {reason}")
            monitor.act()

    def progressed(self, name: str, done: dict[int, int]) -> None:
        """Note how many samples of each lease a device has made."""
        ledger, plan = self._monitor.ledger, self.resources.plan
        with self._monitor.lock:
            for lease, samples in done.items():
                position = ledger.devices[name].outstanding.get(lease)
                if position is not None:
                    images = plan.size(position) * plan.views
                    ledger.progressed(name, lease, samples / max(1, images), time.monotonic())

    def measured(self, name: str, batches: Iterable[tuple[int, float]]) -> None:
        """Note (samples, busy seconds) of batches that a device has made for other ranks."""
        monitor = self._monitor
        with monitor.lock:
            for samples, busy_s in batches:
                monitor.rates.device(name).add(busy_s, samples / monitor.full_batch)
            monitor.act()

    def shared(self, name: str, ranks: int) -> None:
        """Note that ``ranks`` ranks share a device."""
        with self._monitor.lock:
            self._monitor.rates.shared(name, ranks)

    def absent(self, name: str, error: Exception, warned: bool) -> bool:
        """Note that an engine of this process does not start. The host makes its batches until it does, if the strategy allows.

        Warns of it unless it was ``warned`` before, and returns whether it is told now. The report of each epoch tells it.
        """
        monitor, reason = self._monitor, str(error)
        with monitor.lock:
            if monitor.strategy.needs_device and not set(monitor.ledger.devices_there) - {name}:
                self.lost(name, reason, error)
                return warned
            if monitor.closing or self.states[name].gone:
                return warned
            self.remark(name, f"it did not start: {reason}")
            if not warned:
                monitor.messages.warn(
                    f"the {name} takes no part yet, the host prepares its batches: {reason.rstrip('.')}. "
                    "It is tried again from time to time, without a further warning; strategy='cpu' does without it."
                )
            self.lost(name, reason, warned=True)
            return True

    def retires(self, name: str, reason: str, begun: Collection[int] | None = None) -> None:
        """Note that a device finishes what it has, and gets no more leases. ``begun``: of its leases; None: it finishes all."""
        monitor = self._monitor
        with monitor.lock:
            account = monitor.ledger.devices[name]
            if monitor.closing or not account.alive or (account.retiring and begun is None):
                return
            is_news = not account.retiring
            monitor.ledger.retire(name, begun)
            if is_news:
                monitor.hooks.retires(name, reason)
                monitor.messages.retires(name, reason)
                monitor.counts.changed(name, f"it retires: {reason}")
            monitor.act()

    def lost(self, name: str, reason: str, error: BaseException | None = None, warned: bool = False) -> None:
        """Note that a device is gone: its unpublished batches go back to the host. ``error`` is raised in the training thread.

        Warns of the loss, unless it was ``warned`` or there is an ``error``.
        """
        monitor = self._monitor
        if not monitor.closing:
            monitor.hooks.lost(name, reason)
        with monitor.lock:
            device, account = self.states[name], monitor.ledger.devices[name]
            quiet = warned or account.has_retired or error is not None
            if monitor.closing or device.gone:
                return
            device.gone = True
            self._ends.notify_all()
            monitor.messages.gone(name, None if quiet else reason)
            monitor.messages.notes.pop(name, None)
            was_there = account.alive and not account.retiring
            monitor.ledger.leave(name, time.monotonic())
            if was_there:
                monitor.counts.changed(name, reason)
            if error is not None:
                device.barred = True
                monitor.error = error
            monitor.act()

    def distrust(self, name: str, reason: str) -> None:
        """Note that a device's batches can't be trusted: none is used from now on. The device may be lost by now."""
        monitor = self._monitor
        with monitor.lock:
            monitor.ledger.distrust(name, time.monotonic())
            for position in [position for position in monitor.ready if not monitor.ledger.is_ready(position)]:
                del monitor.ready[position]
            device = self.states[name]
            if not device.barred:
                device.gone = device.barred = True
                self._ends.notify_all()
                monitor.messages.warn(f"device {name} is not used any more in this epoch: {reason.rstrip('.')}.")
            monitor.act()

    def note(self, name: str, text: str) -> None:
        """Keep, for the report, what a device says about itself (its spool is full, ...)."""
        with self._monitor.lock:
            self._monitor.messages.notes[name] = text
            self._monitor.ledger.hold_back(name, bool(text))
            self._monitor.act()

    def remark(self, name: str, text: str, about: str = "") -> None:
        """Keep a remark about a device for the report. It replaces an earlier remark ``about`` the same subject."""
        with self._monitor.lock:
            self._monitor.messages.remarks[name, about] = text

    def warn(self, text: str) -> None:
        """Have the training thread warn the user."""
        with self._monitor.lock:
            self._monitor.messages.warn(text)

    def for_host(self, most: int) -> list[int]:
        """Return the positions that the host makes next, at most ``most``."""
        with self._monitor.lock:
            return self._monitor.ledger.for_host(most)

    def lost_or_over(self, name: str) -> bool:
        """Wait until a device is lost, or the epoch is over for it. True if it was lost and may come back."""
        monitor = self._monitor
        with monitor.lock:
            device = self.states[name]
            while not (monitor.closing or device.gone):
                self._ends.wait()
            return not monitor.closing and not device.barred

    def over_within(self, seconds: float) -> bool:
        """Wait for ``seconds``, but not beyond the epoch's end. True if the epoch is over."""
        monitor = self._monitor
        with monitor.lock:
            return self._ends.wait_for(lambda: monitor.closing, seconds)
