"""The ledger: the state of every batch of an epoch, and who holds it.

It is pure: it uses no thread, socket, file or clock. Callers report events (a claim made, a file published, a device gone)
with their times. The ledger keeps the rules by which each batch comes exactly once, and tells which copies to drop.

All code that changes an epoch's state is here: the ledger, its account of each device, and the messages for a device. Each
batch may exist in two copies. `ddlp.schedule.states` has the states of the copies, as tables, and argues why the pair is right.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from ddlp.schedule.ranges import RangeSet
from ddlp.schedule.states import CsdCopy, Entry, Event, HostCopy, LedgerError

__all__ = ["RETIRED", "Account", "Ledger", "LedgerError", "Release", "Side"]

RETIRED = "it has retired"  # the reason of a loss that was in order
FAILURES = 3  # failed leases in a row; fewer may be the fault of the data, which then fail on the host as well


class Side(Enum):
    """The side that prepared a delivered batch."""

    __hash__ = object.__hash__  # fast; Enum's hash is in Python, and each delivery is counted by its side

    HOST = "cpu"
    CSD = "csd"


@dataclass(frozen=True)
class Release:
    """Tell the device that this lease's batch is not needed (any more), so that it stops working on it, or removes its file.

    ``unpublished``: as far as is known, it has not published it.
    """

    device: str
    lease: int
    unpublished: bool = False


@dataclass
class Account:
    """How much one device may hold, and what it holds."""

    quota: int = 0  # batches in its spool at most, including those that are being written
    window: int = 0  # unpublished leases at most
    node: str = ""  # the computer that it runs on, for people
    alive: bool = False
    retiring: bool = False  # it finishes what it has, and gets no more leases
    joining: bool = True
    expected_s: float = math.inf  # when it began to join
    left_s: float = 0.0  # when it was lost
    held: int = 0
    hanging: set[int] = field(default_factory=set)  # leases whose fetch was given up, and has not ended
    held_back: bool = False  # it says that it has no room at the moment
    outstanding: dict[int, int] = field(default_factory=dict)  # lease -> position, in the order given
    failures: int = 0  # failed leases in a row, without a published one between them; a loss and a return do not end the row

    @property
    def failing(self) -> bool:
        """True if it seems unable to prepare any batch."""
        return self.failures >= FAILURES

    @property
    def at_work(self) -> bool:
        """True if it takes leases, and its spool answers."""
        return self.alive and not self.retiring and not self.hanging

    @property
    def there(self) -> bool:
        """True if it is at work or about to join, False if it is lost or retires."""
        return self.at_work or self.joining

    @property
    def has_room(self) -> bool:
        """True if it may be given a lease now: there is room in its window and its spool."""
        return self.at_work and self.held < self.quota and len(self.outstanding) < self.window

    @property
    def has_retired(self) -> bool:
        """True if it retires, and nothing of it is left to make or to fetch."""
        return self.alive and self.retiring and not self.held

    @property
    def shut_out(self) -> bool:
        """True if others fill its spool: it holds no published batch of this epoch whose delivery would free space."""
        return self.held_back and self.held == len(self.outstanding)


class Ledger:
    """The state of an epoch of ``batches`` batches (None: not known yet, see `extend` and `close`).

    ``host_slots`` limits the host's batches, prepared or in work. ``fetch_slots`` limits the devices' batches in this
    process's memory. ``delivered`` are the positions that were trained on before a resume.
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
        self.free = RangeSet()  # nobody has claimed or leased these yet
        self.returned = RangeSet()  # these came back from a device, and are for the host
        self.in_spool = RangeSet()  # a device's file of these is in the spool
        self.ready_host = RangeSet()
        self.ready_csd = RangeSet()
        self.devices: dict[str, Account] = {}
        self.retired = False  # a device retires, or has retired
        self.effects: deque[Release] = deque()
        self._open: dict[int, Entry] = {}
        self._claims: dict[int, int] = {}  # claims that a worker still works on, including dropped ones -> position
        self._leases: dict[int, int] = {}  # leases whose copy is wanted, until delivery -> position
        self.fetching: dict[int, tuple[str, float]] = {}  # leases being read -> the device, and since when
        self._in_memory_csd = 0
        self._in_memory_host = 0  # claims, including dropped ones, and ready batches
        self._numbers = 0
        # Leases: in the first, the host was first, or the device had not begun them when it retired; in the second, the device
        # failed, is gone, or the file is damaged.
        self.taken_back = self.came_back = 0
        position = 0
        for start, stop in [*self.delivered.ranges(), (self.length, self.length)]:
            if stop > self.length:
                raise ValueError(f"delivered batches up to {stop} do not fit an epoch of {self.length}")
            self.free.add_range(position, start)
            position = stop

    # -- queries ------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """True when every batch has been delivered."""
        return self.closed and len(self.delivered) == self.length

    @property
    def free_host_slots(self) -> int:
        """How many batches the host may claim now. A dropped claim keeps its slot until its worker stops."""
        return self.host_slots - self._in_memory_host

    @property
    def free_fetch_slots(self) -> int:
        """How many batches may be fetched into memory now."""
        return self.fetch_slots - self._in_memory_csd

    @property
    def host_in_work(self) -> int:
        """How many batches the host's workers work on."""
        return len(self._claims)

    @property
    def devices_there(self) -> list[str]:
        """The devices that are at work or about to join."""
        return [name for name, account in self.devices.items() if account.there]

    def entry(self, position: int) -> Entry | None:
        """Return the entry of a batch; None if the batch is free, returned or delivered."""
        return self._open.get(position)

    def leased(self) -> Iterator[Entry]:
        """Yield the batches that are leased to a device and not published."""
        return (self._open[p] for account in self.devices.values() for p in account.outstanding.values())

    def on_their_way(self) -> Iterator[Entry]:
        """Yield the batches that are being fetched, in the order in which that began, and of which the host has no copy yet."""
        entries = map(self._fetched, self.fetching)
        return (entry for entry in entries if entry is not None and entry.host is HostCopy.NONE)

    def is_ready(self, position: int) -> bool:
        """True if a verified copy waits in memory."""
        entry = self._open.get(position)
        return entry is not None and (entry.host is HostCopy.READY or entry.csd is CsdCopy.READY)

    def for_host(self, most: int) -> list[int]:
        """Return the batches that the host makes next unless something changes, those in work first: at most ``most``."""
        return list(itertools.islice(itertools.chain(self._claims.values(), self.returned, self.free), most))

    def wanted(self, claim: int) -> bool:
        """False once a claim was dropped: its worker may stop early."""
        if claim not in self._claims:
            return False
        entry = self._open.get(self._claims[claim])
        return entry is not None and entry.claim == claim

    # -- the epoch's length, if the sampler is read as it goes ---------------------------------------------------

    def extend(self, batches: int = 1) -> None:
        """Add further batches that the sampler gave."""
        if self.closed:
            raise LedgerError("the epoch is closed, no batch can be added")
        self.free.add_range(self.length, self.length + batches)
        self.length += batches

    def close(self) -> None:
        """Note that the sampler has ended."""
        self.closed = True

    # -- the host ------------------------------------------------------------------------------------------------

    def resize_host_slots(self, slots: int) -> None:
        """Let the host hold ``slots`` batches from now on.

        Slots are taken away when they are free. One free slot stays: strategies keep it for the batch whose turn it is.
        """
        self.host_slots = max(slots, self.host_slots - max(0, self.free_host_slots - 1))

    def claim(self, position: int) -> int:
        """Claim a batch for a worker of the host: one that is free or came back, or one of a device that is late.

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
        """Note that the worker has made the batch. False if the copy is not wanted any more: throw it away."""
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
        """Note that a device is about to join. ``now``: leave it out if the device may take any time to join."""
        account = self.devices.setdefault(device, Account())
        account.joining, account.expected_s = True, now

    def no_longer_expect(self, device: str) -> None:
        """Stop waiting for a device that takes too long to join. It may still join."""
        self.devices[device].joining = False

    def join(self, device: str, *, quota: int, window: int, node: str = "") -> None:
        """Let a device have leases: at most ``quota`` batches in its spool, and ``window`` of them unpublished.

        A lost device may join again. Batches that it had published, and that nobody has read, were lost with it.
        """
        self._drop_published(device)
        account = self.devices.setdefault(device, Account())
        account.quota, account.window, account.node = quota, window, node
        account.alive, account.retiring, account.joining = True, False, False

    def retire(self, device: str, begun: Collection[int] | None = None) -> None:
        """Let a device finish what it has, and give it no more leases. It may join again.

        Args:
            begun: the leases that it finishes; its others come back, since it will not begin them. None: it finishes all.
        """
        account = self.devices[device]
        account.retiring, account.joining, self.retired = True, False, True
        for lease, position in list(account.outstanding.items()):
            if begun is not None and lease not in begun:
                entry = self._open[position]
                self._drop_csd(entry)
                self._settle(entry)

    def leave(self, device: str, now: float) -> int:
        """Note that a device is gone. Its unpublished leases come back, and its published batches may still be read.

        Returns how many leases came back.
        """
        account = self.devices[device]
        account.alive = account.joining = account.held_back = False
        account.left_s = now
        gone = list(account.outstanding.values())
        for position in gone:
            self._lose_csd(self._open[position])
        return len(gone)

    def hold_back(self, device: str, held_back: bool) -> None:
        """Note that a device's spool has no room for leases now, or has room again."""
        self.devices[device].held_back = held_back

    def distrust(self, device: str, now: float) -> None:
        """Note that a device has computed wrong pixels. It gets no more leases, and none of its batches is delivered now."""
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
        """True if the device takes part and has room in its window and its spool."""
        return self.devices[device].has_room

    def lease(self, device: str, position: int, now: float) -> int:
        """Lease a free batch to a device, and reserve its space in the spool. Returns the lease's number."""
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

    def withhold(self, position: int) -> None:
        """Leave a free batch to the host, since no device can make it."""
        if not self.free.discard(position):
            raise LedgerError(f"batch {position} is not free to be left to the host")
        self.returned.add(position)

    def progressed(self, device: str, lease: int, fraction: float, now: float) -> None:
        """Note that the device has prepared ``fraction`` (0 to 1) of a lease."""
        entry = self._leased(device, lease)
        if entry is not None and fraction > entry.progress:
            entry.progress, entry.progress_s = fraction, now

    def published(self, device: str, lease: int) -> bool:
        """Note that a lease's file is in the spool. False (and a `Release`) if nobody expects the file."""
        entry = self._leased(device, lease)
        if entry is None:
            if lease not in self._leases:  # if it is there, the same message came twice
                self.effects.append(Release(device, lease))
            return False
        entry.step_csd(Event.PUBLISH)
        self.in_spool.add(entry.position)
        account = self.devices[device]
        del account.outstanding[lease]
        account.failures = 0
        return True

    def failed(self, device: str, lease: int, fatal: bool = False) -> None:
        """Give a batch back to the host, since the device can't prepare it (``fatal``: nor any other batch)."""
        entry = self._leased(device, lease)
        if entry is not None:
            self._lose_csd(entry)
            self.devices[device].failures += FAILURES if fatal else 1

    def fetch(self, position: int, now: float = math.inf) -> tuple[str, int]:
        """Begin to read and verify a published batch. Returns its device and lease. ``now``: leave it out if it can't hang."""
        entry = self._open[position]
        entry.step_csd(Event.FETCH)
        self.in_spool.remove(position)
        self._in_memory_csd += 1
        assert entry.device is not None and entry.lease is not None
        self.fetching[entry.lease] = entry.device, now
        return entry.device, entry.lease

    def read(self, lease: int) -> None:
        """Note that a fetched batch is read and verified. Its remaining steps on the host can't hang because of a device."""
        if lease in self.fetching:
            self.fetching[lease] = self.fetching[lease][0], math.inf

    def give_up(self, lease: int) -> str:
        """Give up a fetch that hangs. All batches of its device come back. Returns the device's name.

        The device gets no lease before the fetch has ended.
        """
        device, _ = self.fetching.pop(lease)
        self._in_memory_csd -= 1
        account = self.devices[device]
        account.hanging.add(lease)
        if (entry := self._fetched(lease)) is not None:  # if None, the host's copy was first
            self._lose_csd(entry)
        self.effects.extend(Release(device, other_lease, unpublished=True) for other_lease in account.outstanding)
        for position in list(account.outstanding.values()):
            self._lose_csd(self._open[position])
        self._drop_published(device)
        return device

    def verified(self, lease: int) -> bool:
        """Note that a fetched batch is complete in memory. False if it must be thrown away.

        That is so if the host's copy was first, or the fetch was given up.
        """
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
        """Note that a fetched batch is damaged or missing: its file is released, and the batch comes back.

        False if nobody needs it: the host's copy was first, or the fetch was given up.
        """
        entry = self._end_fetch(lease)
        if entry is None:
            return False
        self._lose_csd(entry)
        return True

    # -- delivery ------------------------------------------------------------------------------------------------

    def deliver(self, position: int) -> Side:
        """Deliver a READY batch to the training loop. Only this is final."""
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

    # -- rules ---------------------------------------------------------------------------------------------------

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
        else:  # the fetch was given up
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
            self.effects.append(Release(entry.device, entry.lease, unpublished=True))
            self.taken_back += 1
        self._end_lease(entry)
        entry.step_csd(Event.DROP)

    def _lose_csd(self, entry: Entry) -> None:
        self.came_back += 1
        self._end_lease(entry)
        entry.step_csd(Event.LOSE)
        self._settle(entry)

    def _end_lease(self, entry: Entry) -> None:
        """Give back a lease's place in the window and its space in the spool."""
        if entry.csd is CsdCopy.LEASED:
            assert entry.device is not None and entry.lease is not None
            del self.devices[entry.device].outstanding[entry.lease]
            self.devices[entry.device].held -= 1
        elif entry.csd is CsdCopy.READY:  # its space was given back when the batch was verified
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
        """Give a batch back to the host if nobody holds it any more."""
        if entry.host is HostCopy.NONE and entry.csd is CsdCopy.NONE:
            del self._open[entry.position]
            self.returned.add(entry.position)
