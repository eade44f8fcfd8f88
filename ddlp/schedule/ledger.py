"""Who holds what: the state of every batch of an epoch.

Pure: no thread, socket, file or clock. Callers report events (a claim made, a file published, a device gone) with
their times; the ledger keeps the rules that make each batch come exactly once, and says which copies to drop.

Each batch may exist in two copies; `ddlp.schedule.states` has their states and why the pair is right.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum

from ddlp.schedule.accounts import FAILURES, Account
from ddlp.schedule.effects import Cancel, Effect, Release
from ddlp.schedule.ranges import RangeSet
from ddlp.schedule.states import CsdCopy, Entry, Event, HostCopy, LedgerError

__all__ = ["Cancel", "Effect", "Ledger", "LedgerError", "Release", "Side"]


class Side(Enum):
    """Who prepared a delivered batch."""

    __hash__ = object.__hash__  # Enum's own is in Python, and each delivery is counted by its side

    HOST = "cpu"
    CSD = "csd"


class Ledger:
    """The state of an epoch of ``batches`` batches (None: not known yet, see `extend` and `close`).

    ``host_slots`` bounds the batches that the host holds prepared or in work. ``fetch_slots`` bounds the devices'
    batches in this process's memory. ``delivered`` are positions already trained on (a resume).
    """

    def __init__(
        self, batches: int | None, *, host_slots: int, fetch_slots: int = 2, delivered: Iterable[tuple[int, int]] = ()
    ) -> None:
        if host_slots < 2 or fetch_slots < 2:
            raise ValueError(f"at least 2 host and fetch slots are needed, got {host_slots} and {fetch_slots}")
        self.length = batches or 0
        self.closed = batches is not None
        self.host_slots = host_slots
        self.fetch_slots = fetch_slots
        self.delivered = RangeSet(delivered)
        self.free = RangeSet()  # nobody has touched these
        self.returned = RangeSet()  # came back from a device: the host's
        self.in_spool = RangeSet()  # a device's file is in the spool
        self.ready_host = RangeSet()
        self.ready_csd = RangeSet()
        self.devices: dict[str, Account] = {}
        self.effects: deque[Effect] = deque()
        self._open: dict[int, Entry] = {}
        self._claims: dict[int, int] = {}  # claims a worker is still busy with, dropped ones included
        self._leases: dict[int, int] = {}  # leases whose copy is wanted, until delivery
        self.fetching: dict[int, tuple[str, float]] = {}  # leases being read: whose, and since when
        self._in_memory_csd = 0
        self._in_memory_host = 0  # claims, dropped ones included, and ready batches
        self._numbers = 0
        self.taken_back = self.came_back = 0  # leases: the host was first; the device failed, is gone, or damaged it
        position = 0
        for start, stop in [*self.delivered.ranges(), (self.length, self.length)]:
            if stop > self.length:
                raise ValueError(f"delivered batches up to {stop} do not fit an epoch of {self.length}")
            self.free.add_range(position, start)
            position = stop

    # -- what is there ------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """True when every batch has been delivered."""
        return self.closed and len(self.delivered) == self.length

    @property
    def free_host_slots(self) -> int:
        """Batches that the host may take up now. A dropped claim keeps its slot until its worker lets go."""
        return self.host_slots - self._in_memory_host

    @property
    def free_fetch_slots(self) -> int:
        """Batches that may be fetched into memory now."""
        return self.fetch_slots - self._in_memory_csd

    @property
    def host_in_work(self) -> int:
        """Batches that workers of the host are busy with."""
        return len(self._claims)

    @property
    def devices_there(self) -> list[str]:
        """The devices at work or about to join."""
        return [name for name, account in self.devices.items() if account.there]

    def entry(self, position: int) -> Entry | None:
        """The holders of a batch; None where it is free, returned or delivered."""
        return self._open.get(position)

    def leased(self) -> Iterator[Entry]:
        """The batches that a device was told to prepare and has not published."""
        return (self._open[p] for account in self.devices.values() for p in account.outstanding.values())

    def is_ready(self, position: int) -> bool:
        """True where a verified copy waits in memory."""
        entry = self._open.get(position)
        return entry is not None and (entry.host is HostCopy.READY or entry.csd is CsdCopy.READY)

    def wanted(self, claim: int) -> bool:
        """False once a claim was dropped: its worker may stop early."""
        position = self._claims.get(claim)
        entry = self._open.get(position) if position is not None else None
        return entry is not None and entry.claim == claim

    # -- the epoch's length, where the sampler is read as it goes ------------------------------------------------

    def extend(self, batches: int = 1) -> None:
        """The sampler gave further batches."""
        if self.closed:
            raise LedgerError("the epoch is closed, no batch can be added")
        self.free.add_range(self.length, self.length + batches)
        self.length += batches

    def close(self) -> None:
        """The sampler has ended."""
        self.closed = True

    # -- the host ------------------------------------------------------------------------------------------------

    def claim(self, position: int) -> int:
        """A worker of the host takes up a batch: one that is free or came back, or a device's that is late.

        Returns the claim's number.
        """
        if self.free_host_slots < 1:
            raise LedgerError(f"no host slot for batch {position}")
        entry = self._take(position)
        entry.step_host(Event.CLAIM)
        self._numbers += 1
        entry.claim = self._numbers
        self._claims[self._numbers] = position
        self._in_memory_host += 1
        return self._numbers

    def made(self, claim: int) -> bool:
        """The worker has finished. False where the copy is not wanted any more: throw it away."""
        position = self._claims.pop(claim)
        entry = self._open.get(position)
        if entry is None or entry.claim != claim:
            self._in_memory_host -= 1
            return False
        entry.step_host(Event.MADE)
        self.ready_host.add(position)
        self._drop_csd(entry)
        return True

    # -- the devices ---------------------------------------------------------------------------------------------

    def expect(self, device: str, now: float = math.inf) -> None:
        """A device is about to join. ``now``: unless it may take any time for that."""
        account = self.devices.setdefault(device, Account())
        account.joining, account.expected_s = True, now

    def no_longer_expect(self, device: str) -> None:
        """A device that was about to join takes too long to be waited for. It may join all the same."""
        self.devices[device].joining = False

    def join(self, device: str, *, quota: int, window: int) -> None:
        """A device may be given leases: ``quota`` batches in its spool, ``window`` of them unpublished.

        One that was lost may join again. What it had published then and nobody has read went with it.
        """
        self._drop_published(device)
        account = self.devices.setdefault(device, Account())
        account.quota, account.window = quota, window
        account.alive, account.joining = True, False

    def leave(self, device: str, now: float) -> int:
        """A device is gone. Its unpublished leases come back (returns how many); what it published may still be read."""
        account = self.devices[device]
        account.alive = account.joining = account.held_back = False
        account.left_s = now
        gone = list(account.outstanding.values())
        for position in gone:
            self._lose_csd(self._open[position])
        return len(gone)

    def hold_back(self, device: str, held_back: bool) -> None:
        """A device says that its spool has no room for leases now, or that it has again."""
        self.devices[device].held_back = held_back

    def distrust(self, device: str, now: float) -> None:
        """A device has computed wrong pixels: it gets no more leases, and of what it made nothing is delivered any more."""
        self.leave(device, now)
        for entry in list(self._open.values()):
            if entry.device == device:
                self._lose_csd(entry)

    def _drop_published(self, device: str) -> None:
        for position in list(self.in_spool):
            entry = self._open[position]
            if entry.device == device:
                self._lose_csd(entry)

    def can_lease(self, device: str) -> bool:
        """True where the device is there and has room in its window and its spool."""
        return self.devices[device].has_room

    def lease(self, device: str, position: int, now: float) -> int:
        """Give a free batch to a device; its space in the spool is reserved. Returns the lease's number."""
        if not self.can_lease(device):
            raise LedgerError(f"device {device} has no room for batch {position}")
        if position not in self.free:
            raise LedgerError(f"batch {position} is not free to be leased")
        entry = self._take(position)
        entry.step_csd(Event.LEASE)
        self._numbers += 1
        entry.lease, entry.device = self._numbers, device
        entry.progress, entry.progress_s = 0.0, now
        account = self.devices[device]
        account.outstanding[self._numbers] = position
        account.held += 1
        self._leases[self._numbers] = position
        return self._numbers

    def progressed(self, device: str, lease: int, fraction: float, now: float) -> None:
        """The device has prepared this part (0 to 1) of a lease."""
        entry = self._leased(device, lease)
        if entry is not None and fraction > entry.progress:
            entry.progress, entry.progress_s = fraction, now

    def published(self, device: str, lease: int) -> bool:
        """A file stands in the spool. False (and a `Release`) where nobody expects it."""
        entry = self._leased(device, lease)
        if entry is None:
            if lease not in self._leases:  # else the same message came twice
                self.effects.append(Release(device, lease))
            return False
        entry.step_csd(Event.PUBLISH)
        self.in_spool.add(entry.position)
        account = self.devices[device]
        del account.outstanding[lease]
        account.failures = 0
        return True

    def failed(self, device: str, lease: int, fatal: bool = False) -> None:
        """The device can't prepare this batch (``fatal``: nor any other): back to the host."""
        entry = self._leased(device, lease)
        if entry is not None:
            self._lose_csd(entry)
            self.devices[device].failures += FAILURES if fatal else 1

    def fetch(self, position: int, now: float = math.inf) -> tuple[str, int]:
        """A published batch is being read and verified. Returns its device and lease. ``now``: unless it can't hang."""
        entry = self._open[position]
        entry.step_csd(Event.FETCH)
        self.in_spool.remove(position)
        self._in_memory_csd += 1
        assert entry.device is not None and entry.lease is not None
        self.fetching[entry.lease] = entry.device, now
        return entry.device, entry.lease

    def give_up(self, lease: int) -> str:
        """A fetch hangs: all that its device has comes back, which gets no lease before that has ended. Returns its name."""
        device, _ = self.fetching.pop(lease)
        self._in_memory_csd -= 1
        account = self.devices[device]
        account.hanging.add(lease)
        if (entry := self._fetched(lease)) is not None:  # None: the host's copy was first
            self._lose_csd(entry)
        self.effects.extend(Cancel(device, one) for one in account.outstanding)
        for position in list(account.outstanding.values()):
            self._lose_csd(self._open[position])
        self._drop_published(device)
        return device

    def verified(self, lease: int) -> bool:
        """A fetched batch is whole, in memory. False where the host's copy was first, or it was given up: throw it away."""
        entry = self._end_fetch(lease)
        if entry is None:
            return False
        self._in_memory_csd += 1
        entry.step_csd(Event.VERIFY)
        self.ready_csd.add(entry.position)
        self._return_space(entry)
        if entry.host is HostCopy.CLAIMED:
            entry.step_host(Event.DROP)
            entry.claim = None
        return True

    def damaged(self, lease: int) -> bool:
        """A fetched batch is not what it should be, or not there: the file goes, the batch comes back.

        False where nobody misses it: the host's copy was first, or it was given up.
        """
        entry = self._end_fetch(lease)
        if entry is None:
            return False
        self._lose_csd(entry)
        return True

    # -- delivery ------------------------------------------------------------------------------------------------

    def deliver(self, position: int) -> Side:
        """The training loop takes a READY batch. This alone is final."""
        entry = self._open.get(position)
        if entry is None:
            raise LedgerError(f"batch {position} is not there to be delivered")
        if entry.host is HostCopy.READY:
            entry.step_host(Event.DELIVER)
            self.ready_host.remove(position)
            self._in_memory_host -= 1
            side = Side.HOST
        else:
            entry.step_csd(Event.DELIVER)
            self.ready_csd.remove(position)
            self._in_memory_csd -= 1
            self._forget_lease(entry)
            side = Side.CSD
        del self._open[position]
        self.delivered.add(position)
        return side

    # -- the rules behind ----------------------------------------------------------------------------------------

    def _take(self, position: int) -> Entry:
        if self.free.discard(position) or self.returned.discard(position):
            entry = self._open[position] = Entry(position)
            return entry
        if position not in self._open:
            raise LedgerError(f"batch {position} was delivered or is not in the epoch")
        return self._open[position]

    def _leased(self, device: str, lease: int) -> Entry | None:
        account = self.devices.get(device)
        position = account.outstanding.get(lease) if account else None
        return None if position is None else self._open[position]

    def _end_fetch(self, lease: int) -> Entry | None:
        if self.fetching.pop(lease, None) is not None:
            self._in_memory_csd -= 1
        else:  # it was given up
            for account in self.devices.values():
                account.hanging.discard(lease)
        return self._fetched(lease)

    def _fetched(self, lease: int) -> Entry | None:
        position = self._leases.get(lease)
        return None if position is None else self._open[position]

    def _drop_csd(self, entry: Entry) -> None:
        if entry.csd is CsdCopy.NONE:
            return
        assert entry.device is not None and entry.lease is not None
        if entry.csd is CsdCopy.LEASED:
            self.effects.append(Cancel(entry.device, entry.lease))
            self.taken_back += 1
        self._end_lease(entry)
        entry.step_csd(Event.DROP)

    def _lose_csd(self, entry: Entry) -> None:
        self.came_back += 1
        self._end_lease(entry)
        entry.step_csd(Event.LOSE)
        self._settle(entry)

    def _end_lease(self, entry: Entry) -> None:
        """Give back what a lease holds: its place in the window, its space in the spool."""
        if entry.csd is CsdCopy.LEASED:
            assert entry.device is not None and entry.lease is not None
            del self.devices[entry.device].outstanding[entry.lease]
            self.devices[entry.device].held -= 1
        elif entry.csd is CsdCopy.READY:  # its space was given back when it was verified
            self.ready_csd.remove(entry.position)
            self._in_memory_csd -= 1
        else:
            if entry.csd is CsdCopy.PUBLISHED:
                self.in_spool.remove(entry.position)
            self._return_space(entry)
        self._forget_lease(entry)

    def _return_space(self, entry: Entry) -> None:
        assert entry.device is not None and entry.lease is not None
        self.devices[entry.device].held -= 1
        self.effects.append(Release(entry.device, entry.lease))

    def _forget_lease(self, entry: Entry) -> None:
        assert entry.lease is not None
        del self._leases[entry.lease]
        entry.lease = entry.device = None

    def _settle(self, entry: Entry) -> None:
        """A batch that nobody holds any more goes back to the head."""
        if entry.host is HostCopy.NONE and entry.csd is CsdCopy.NONE:
            del self._open[entry.position]
            self.returned.add(entry.position)
