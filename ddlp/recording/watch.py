"""An epoch that is watched: what its threads do is told to observers. An epoch that is not watched knows nothing of this."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ddlp
from csd_engine.prepare.read_time import READING
from ddlp.epoch.executor import FETCHERS, EpochExecutor
from ddlp.epoch.gpu_prefetch import PendingTransfer
from ddlp.epoch.iterator import EpochIterator
from ddlp.epoch.prepared import Delivered
from ddlp.recording.events import (
    FORMAT,
    EpochBegan,
    Event,
    Exhausted,
    Fetched,
    HostBatch,
    Joined,
    LeaseCancelled,
    LeaseFailed,
    LeaseGiven,
    Lost,
    Published,
    Rested,
    Step,
)
from ddlp.process.ranks import here
from ddlp.schedule.ledger import Ledger
from ddlp.sources.base import DeviceJob
from ddlp.sources.host.dali import DaliHost
from ddlp.sources.host.native import EpochSpec, PreparedBatch, Unwanted
from ddlp.transfer.to_device import MoveAndTransform

if TYPE_CHECKING:
    from ddlp.loader import DDLPLoader

__all__ = ["Observer", "WatchedIterator", "WatchedRun"]


class Observer:
    """What can be watched of an epoch. Methods are called by the epoch's threads, several at once, some under its lock."""

    clock: float | None = None  # the wall clock at its beginning, where the observer keeps time
    wants_whole = False  # it looks at all batches' indices when the epoch is over

    def began(self, iterator: WatchedIterator, event: EpochBegan) -> None:
        """The epoch is ready; its threads run already, and may have been seen. Must not keep the iterator."""

    def saw(self, event: Event) -> None:
        """Something happened."""

    def reading(self, lease: int, position: int, path: Path) -> None:
        """A device's batch is about to be read."""

    def read(self, lease: int, position: int, pixels: PreparedBatch) -> None:
        """It was read and verified; bytes as they came, or finished where it landed in an accelerator's memory."""

    def handed(self, delivered: Delivered, batch: Any) -> None:
        """The training thread has a batch, targets joined; the user's batch_transform comes after this."""

    def closed(self) -> None:
        """The epoch is over, all its threads have ended."""


class _Fetch:
    """A device's batch that a fetcher has in hand."""

    def __init__(self, device: str, lease: int, position: int) -> None:
        self.device, self.lease, self.position = device, lease, position
        self.began_at = time.monotonic()


class _Hands(threading.local):
    """What the thread that looks has in hand: its number among its kind, and, of a fetcher, the batch."""

    number = -1
    fetch: _Fetch | None = None
    host: tuple[int, float, float, float] | None = None  # of a worker: position, began_at, read and processor seconds


class _Watch:
    """What a run's threads pass through. Holds no run: a run that nobody uses must be free to go."""

    def __init__(self, observers: tuple[Observer, ...]) -> None:
        self._observers = observers
        self.hands = _Hands()

    def saw(self, event: Event) -> None:
        for observer in self._observers:
            observer.saw(event)

    def prepare(
        self,
        inner: Callable[[int, Callable[[], bool], bool], PreparedBatch],
        position: int,
        wanted: Callable[[], bool],
        finished: bool,
    ) -> PreparedBatch:
        """Around the making of a host batch; `finish`, which comes next, tells of it."""
        self.hands.host = position, time.monotonic(), READING.seconds, time.thread_time()
        try:
            made = inner(position, wanted, finished)
        except Unwanted:
            self._told_host("dropped")
            raise
        except BaseException:
            self._told_host("failed")
            raise
        return made

    def _told_host(self, outcome: str) -> None:
        assert self.hands.host is not None
        position, began_at, read_s, cpu_s = self.hands.host
        self.hands.host = None
        read_s, cpu_s = READING.seconds - read_s, time.thread_time() - cpu_s
        self.saw(HostBatch(self.hands.number, position, began_at, time.monotonic(), read_s, cpu_s, outcome))

    def read(self, inner: DeviceJob, device: str, lease: int, position: int, path: Path) -> PreparedBatch:
        """Around the reading of a device's batch."""
        fetch = self.hands.fetch = _Fetch(device, lease, position)
        try:
            for observer in self._observers:
                observer.reading(lease, position, path)
            pixels = inner.read(lease, position, path)
        except BaseException as error:
            self._told_fetch(fetch, time.monotonic(), str(error) or type(error).__name__)
            raise
        for observer in self._observers:
            observer.read(lease, position, pixels)
        return pixels

    def finish(self, inner: Callable[[PreparedBatch], PreparedBatch | PendingTransfer], pixels: PreparedBatch) -> PreparedBatch | PendingTransfer:
        """Around the last step of a batch, in the thread that made or fetched it."""
        fetch = self.hands.fetch
        if fetch is None:
            try:
                finished = inner(pixels)
            except BaseException:
                self._told_host("failed")
                raise
            self._told_host("made")
            return finished
        read_at = time.monotonic()
        try:
            finished = inner(pixels)
        except BaseException as error:
            self._told_fetch(fetch, read_at, str(error) or type(error).__name__)
            raise
        self._told_fetch(fetch, read_at, "")
        return finished

    def _told_fetch(self, fetch: _Fetch, read_at: float, trouble: str) -> None:
        self.hands.fetch = None
        self.saw(
            Fetched(
                self.hands.number, fetch.device, fetch.lease, fetch.position, fetch.began_at, read_at, time.monotonic(), trouble
            )
        )

    def closed(self, inner: Callable[[], None]) -> None:
        """Around the end of a run."""
        inner()
        for observer in self._observers:
            observer.closed()


class _WatchedJob:
    """A device's job, watched."""

    def __init__(self, inner: DeviceJob, device: str, watch: _Watch) -> None:
        self._inner, self._device, self._watch = inner, device, watch
        self.release, self.waiting, self.close = inner.release, inner.waiting, inner.close

    @property
    def open(self) -> bool:
        return self._inner.open

    def lease(self, lease: int, position: int) -> None:
        self._watch.saw(LeaseGiven(self._device, lease, position, time.monotonic()))
        self._inner.lease(lease, position)

    def cancel(self, lease: int) -> None:
        self._watch.saw(LeaseCancelled(self._device, lease, time.monotonic()))
        self._inner.cancel(lease)

    def read(self, lease: int, position: int, path: Path) -> PreparedBatch:
        return self._watch.read(self._inner, self._device, lease, position, path)


class WatchedRun(EpochExecutor):
    """An `EpochExecutor` whose threads tell observers what they do."""

    asked_at = got_at = 0.0  # of the batch that the training thread was given last

    def __init__(
        self,
        spec: EpochSpec,
        ledger: Ledger,
        *others: Any,
        observers: tuple[Observer, ...],
        finish: Callable[[PreparedBatch], PreparedBatch | PendingTransfer],
        on_closed: Callable[[], None],
        **options: Any,
    ) -> None:
        self._watch = watch = _Watch(observers)
        self._workers_numbers, self._fetchers_numbers = itertools.count(), itertools.count()
        super().__init__(
            spec, ledger, *others, finish=partial(watch.finish, finish), on_closed=partial(watch.closed, on_closed), **options
        )

    def saw(self, event: Event) -> None:
        """Tell the observers."""
        self._watch.saw(event)

    def _preparing(self, dali: DaliHost | None) -> Callable[[int, Callable[[], bool], bool], PreparedBatch]:
        return partial(self._watch.prepare, super()._preparing(dali))

    def next_batch(self, timeout_s: float = 0.0) -> Delivered | None:
        """As `EpochExecutor.next_batch`."""
        asked_at = time.monotonic()
        delivered = super().next_batch(timeout_s)
        self.asked_at, self.got_at = asked_at, time.monotonic()
        if delivered is None:
            self.saw(Exhausted(asked_at, self.got_at))
        return delivered

    def _host_worker(self) -> None:
        self._watch.hands.number = next(self._workers_numbers)
        super()._host_worker()

    def _next_run(self) -> list[tuple[int, int]]:
        began_at = time.monotonic()
        run = super()._next_run()
        self.saw(Rested("host", self._watch.hands.number, began_at, time.monotonic(), not run))
        return run

    def _fetcher(self) -> None:
        self._watch.hands.number = next(self._fetchers_numbers) % FETCHERS  # more: in the place of one that hangs
        super()._fetcher()

    def _next_fetch(self) -> Any:
        began_at = time.monotonic()
        fetch = super()._next_fetch()
        self.saw(Rested("transfer", self._watch.hands.number, began_at, time.monotonic(), fetch is None))
        return fetch

    def joined(self, device: str, job: DeviceJob, *, quota: int, workers: int) -> None:
        """As `EpochExecutor.joined`."""
        self.saw(Joined(device, time.monotonic(), workers, quota, self.rates.device(device).ranks))
        super().joined(device, _WatchedJob(job, device, self._watch), quota=quota, workers=workers)

    def published(self, device: str, lease: int, path: Path, busy_s: float) -> None:
        """As `EpochExecutor.published`."""
        position = self.ledger.devices[device].outstanding.get(lease, -1)
        self.saw(Published(device, lease, position, time.monotonic(), busy_s))
        super().published(device, lease, path, busy_s)

    def failed(self, device: str, lease: int, reason: str, *, fatal: bool, told: bool) -> None:
        """As `EpochExecutor.failed`."""
        self.saw(LeaseFailed(device, lease, time.monotonic(), "" if told else reason))
        super().failed(device, lease, reason, fatal=fatal, told=told)

    def lost(self, device: str, reason: str, error: BaseException | None = None, told: bool = False) -> None:
        """As `EpochExecutor.lost`."""
        if not self._closing:
            self.saw(Lost(device, time.monotonic(), reason))
        super().lost(device, reason, error, told)


class WatchedIterator(EpochIterator):
    """An `EpochIterator` over a `WatchedRun`."""

    def __init__(self, observers: tuple[Observer, ...], loader: DDLPLoader, *others: Any, **options: Any) -> None:
        self._observers = observers
        self.run_kind = partial(WatchedRun, observers=observers)
        self.wants_whole = any(observer.wants_whole for observer in observers)
        try:
            super().__init__(loader, *others, **options)
        except BaseException:
            for observer in observers:
                observer.closed()
            raise
        self._users_transform = self._hand_over.batch_transform
        self._hand_over = MoveAndTransform(self._device, None)
        ledger, ranks = self.run.ledger, here()
        for observer in observers:
            event = EpochBegan(
                FORMAT,
                ddlp.__version__,
                clock=observer.clock or time.time(),
                pid=self.run._pid,
                rank=0 if ranks is None else ranks.rank,
                epoch=self.spec.epoch,
                strategy=self.run.strategy.name,
                batches=ledger.length,
                batch_size=self.run._full_batch,
                workers=max(1, loader.num_workers),
                fetchers=FETCHERS if ledger.devices else 0,
                devices=list(ledger.devices),
                target="cpu" if loader._target is None else str(loader._target),
            )
            observer.began(self, event)

    def _finish(self, delivered: Delivered) -> Any:
        batch = super()._finish(delivered)
        for observer in self._observers:
            observer.handed(delivered, batch)
        if self._users_transform is not None:
            batch = self._users_transform(batch)
        run, ledger = self.run, self.run.ledger
        assert isinstance(run, WatchedRun)
        run.saw(
            Step(
                delivered.position, delivered.side.value, self._plan.size(delivered.position), run.asked_at, run.got_at,
                time.monotonic(), len(ledger.ready_host), len(ledger.ready_csd), len(ledger.in_spool),
                sum(account.held for account in ledger.devices.values()),
            )
        )  # fmt: skip
        return batch
