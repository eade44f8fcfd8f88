"""One epoch at work: the ledger and the strategy, and the threads that act on what they say.

A monitor: one lock around the ledger, and a condition for each kind of thread (`ddlp.epoch.waiting`). Each thread asks the
strategy one question and does what it answers, outside the lock. The training thread asks `next_delivery`; the host's workers
`next_claim`; the fetcher `next_fetch`; leases are given whenever something has changed. Nobody polls: who waits is woken when
there is an answer for it, and looks up once a second for what only the clock can tell (a lease has stalled, a fetch hangs).
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from csd_engine.errors import WrongPixels
from ddlp.epoch.device_events import DeviceEvents
from ddlp.epoch.gpu_prefetch import GpuPrefetcher, PendingTransfer
from ddlp.epoch.prepared import Delivered, Failure
from ddlp.epoch.threads import Threads
from ddlp.epoch.user_messages import UserMessages
from ddlp.epoch.waiting import Waiting
from ddlp.process.user_warnings import warn_user
from ddlp.schedule.claim_chunks import ClaimChunker
from ddlp.schedule.ledger import Cancel, Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.strategies import STALLED_AT_LEAST_S, Strategy
from ddlp.sources.base import DeviceJob
from ddlp.sources.host.dali import DaliHost
from ddlp.sources.host.native import EpochSpec, PreparedBatch, Unwanted, prepare_batch
from ddlp.stats.live import Life, Live, devices_live
from ddlp.stats.report import Counts, EpochReport

LOOK_UP_S = 1.0
FETCHERS = 2  # one batch comes over the network, or waits for a slow file system, while another one is finished
WAITING_S = 0.05  # a wait longer than this is told to the devices, so that they work for us first


class EpochExecutor(DeviceEvents):
    """An epoch from its first batch to its last, or to `close`.

    ``finish`` turns a batch's pixels into what is delivered; it runs in the worker that made them or fetched them. With
    ``on_cpu`` the host's own batches go through the epilogue before, sample by sample.
    ``full_batch``: its samples, 0: not known yet; ``on_closed`` is called when the run is over; ``dali`` may make host batches.
    """

    def __init__(
        self,
        spec: EpochSpec,
        ledger: Ledger,
        strategy: Strategy,
        rates: Rates,
        *,
        workers: int,
        finish: Callable[[PreparedBatch], PreparedBatch | PendingTransfer],
        on_cpu: bool,
        full_batch: int,
        on_closed: Callable[[], None],
        dali: DaliHost | None = None,
    ) -> None:
        self.spec, self.ledger, self.strategy, self.rates = spec, ledger, strategy, rates
        self._finish, self._on_cpu, self._on_closed = finish, on_cpu, on_closed
        rates.full_batch = full_batch or rates.full_batch
        self._runs = ClaimChunker(ledger, strategy, rates.host)
        self._ready: dict[int, PreparedBatch | Failure | PendingTransfer] = {}
        self._ahead = None if spec.gpu_transfer is None else GpuPrefetcher(self._ready, ledger, strategy)
        self._waiting = Waiting(ledger, strategy, self._runs, self._ahead)
        self._lock = self._waiting.lock
        self._files: dict[int, tuple[DeviceJob, Path]] = {}  # lease -> its file, and who reads it
        self._jobs: dict[str, DeviceJob] = {}
        self._gone: set[str] = set()  # lost; may come back
        self._barred: set[str] = set()  # not to be used again in this epoch
        self._ends = threading.Condition(self._lock)  # of a device's part in the epoch, or of the epoch
        self.counts = Counts(ledger, spec.epoch)
        self.handing: int | None = None  #: delivered last, until the iterator has made of it what the training loop gets
        self._left: tuple[float, float] | None = None  # the training thread was given a batch: when, part of a full one
        self._closing = False
        self._error: BaseException | None = None
        self._messages = UserMessages()
        self._pid = os.getpid()
        self._prepare = self._preparing(dali)
        rates.host.parallel = workers
        self._threads = Threads()
        try:
            for _ in range(workers):
                self._threads.start(partial(self._work, self._host_worker))
            for _ in range(FETCHERS if ledger.devices else 0):
                self._threads.start(partial(self._work, self._fetcher), may_hang=True)
        except BaseException:  # as many threads as there may be, or Ctrl-C
            self.close()
            raise

    def _preparing(self, dali: DaliHost | None) -> Callable[[int, Callable[[], bool], bool], PreparedBatch]:
        """What makes a batch of the host."""
        return partial(prepare_batch, self.spec) if dali is None else dali.begin(self.warn, self.remark)

    # -- the training thread -------------------------------------------------------------------------------------

    def next_batch(self, timeout_s: float = 0.0) -> Delivered | None:
        """The next batch; None once all are delivered.

        Raises the error of a sample that can't be prepared, in its batch's place and once; RuntimeError after
        ``timeout_s`` (0: never), as DataLoader does.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("this iterator belongs to the parent process; call iter() on the loader in this one")
        began = time.monotonic()
        deadline = began + timeout_s if timeout_s > 0 else None
        told = False
        with self._lock, contextlib.ExitStack() as at_end:
            if self._left is not None:
                left_s, part = self._left
                self.rates.trained(began - left_s, part)
                self._left = None
            while True:
                if self._error is not None:
                    error, self._error = self._error, None
                    try:
                        raise error
                    finally:
                        del error  # it holds this frame by its traceback: a circle would keep the loader
                if self.ledger.done:
                    self.counts.ended_s = self.counts.ended_s or time.monotonic()
                    return None
                if self._closing:  # what was ready is gone
                    raise RuntimeError("this iteration was closed; call iter() on the loader for a new one")
                if (position := self.strategy.next_delivery()) is not None:
                    break
                now = time.monotonic()
                if (late := self.strategy.late_device(now)) is not None:
                    self._too_late(late)
                if self.strategy.hanging_fetch(now) is not None:
                    self._act()
                if deadline is not None and now >= deadline:
                    raise RuntimeError(f"DataLoader timed out after {timeout_s} seconds")
                if not told and now - began >= WAITING_S:
                    told = True
                    at_end.callback(self._tell_waiting, False)  # also where it ends by an error, or by Ctrl-C
                    self._tell_waiting(True)
                self.counts.asked_s = began
                limit = min(LOOK_UP_S if told else WAITING_S, math.inf if deadline is None else max(0.0, deadline - now))
                self._waiting.rest(self._waiting.training, limit)
            made = self._ready[position]
            if isinstance(made, PendingTransfer):
                made = made.there()  # no room: raises, and the batch is the next one still
            self.handing = None if isinstance(made, Failure) else position
            side = self.ledger.deliver(position)
            del self._ready[position]
            now, samples = time.monotonic(), self.spec.plan.size(position)
            self._left = now, samples / self._full_batch
            self.counts.delivered(position, side, samples, began, now)
            self._act()
        if isinstance(made, Failure):
            try:
                raise made.error
            finally:
                del made  # as above
        return Delivered(position, side, made)

    def extend(self, batches: int, ended: bool) -> None:
        """The sampler gave further batches, or has ended."""
        with self._lock:
            self.ledger.extend(batches)
            if ended:
                self.ledger.close()
            self._act()

    def report(self) -> EpochReport:
        """What the epoch did so far."""
        with self._lock:
            notes = self._messages.for_report()
            return self.counts.report(self.strategy.name, self.rates, self._full_batch, notes)

    def live(self, life: Life) -> Live:
        """Where the epoch stands at this moment; ``life``: its loader's."""
        with self._lock:
            ledger = self.ledger
            return Live(
                self.report(), life.total(), ledger.length if ledger.closed else None, len(ledger.delivered),
                self.counts.waiting_now_s, len(ledger.ready_host), len(ledger.ready_csd),
                devices_live(ledger, self.rates, self._full_batch),
            )  # fmt: skip

    def delivered(self) -> list[tuple[int, int]]:
        """Positions delivered, as ranges."""
        with self._lock:
            return self.ledger.delivered.ranges()

    def close(self) -> None:
        """End all threads and give the devices' space back. May be called twice, and from any thread."""
        if os.getpid() != self._pid:
            return  # a forked child: the threads and the devices are its parent's
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self.counts.ended_s = self.counts.ended_s or time.monotonic()
            jobs, self._jobs = list(self._jobs.values()), {}
            self._waiting.wake_all()
            self._ends.notify_all()
        try:
            for job in jobs:
                job.close()  # first: a batch that is on the way is not waited for
            if not self._threads.join(STALLED_AT_LEAST_S) and not self._messages.hanging:  # else it was told
                warn_user("ddlp: a device's spool does not answer; the threads that read from it are left to themselves")
        finally:  # Ctrl-C: the threads end by themselves
            self._ready.clear()
            self.spec.reader.close()
            self.spec.pool.close()
            self._on_closed()

    def _work(self, loop: Callable[[], None]) -> None:
        """A thread's life. An error that its loop does not reckon with ends the epoch: what it had in hand never comes."""
        try:
            loop()
        except BaseException as error:  # raised again in the training thread
            with self._lock:
                self._error = None if self._closing else self._error or error
            self.close()

    # -- the host's workers --------------------------------------------------------------------------------------

    def _host_worker(self) -> None:
        cpu = time.thread_time()
        run: list[tuple[int, int]] = []
        while run := run or self._next_run():
            made = [self._make(position, claim) for position, claim in run]
            with self._lock:
                cpu = self.counts.cpu(cpu)
                self._hand_in(run, made)
                run = [] if self._closing or self._ahead is not None else self._runs.claim(time.monotonic())  # locked anyway
                self._act()
            made.clear()  # an error holds its raiser's frames, the loader among them: not while this thread waits

    def _next_run(self) -> list[tuple[int, int]]:
        while True:
            if self._ahead is not None:
                self._ahead.bring(self._lock)
            with self._lock:
                if self._closing:
                    return []
                if run := self._runs.claim(time.monotonic()):
                    self._act()
                    return run
                if self._ahead is None or self._ahead.next() is None:
                    self._waiting.rest(self._waiting.workers, LOOK_UP_S)

    def _make(self, position: int, claim: int) -> tuple[PreparedBatch | PendingTransfer | Failure | None, float]:
        """Make a batch. Returns it, or None where it is not wanted any more, and the seconds that it took."""
        began = time.monotonic()
        try:
            made = self._finish(self._prepare(position, partial(self._wanted, claim), self._on_cpu))
            return made, time.monotonic() - began
        except Unwanted:
            return None, 0.0
        except BaseException as error:  # raised again in the training thread, in this batch's place
            return Failure(error), 0.0

    def _hand_in(self, run: list[tuple[int, int]], made: list[tuple[PreparedBatch | PendingTransfer | Failure | None, float]]) -> None:
        for (position, claim), (batch, busy_s) in zip(run, made, strict=True):
            if isinstance(batch, (PreparedBatch, PendingTransfer)):
                self.rates.host.add(busy_s, self._part(position))
            if self.ledger.made(claim) and batch is not None:
                self._ready[position] = batch

    def _wanted(self, claim: int) -> bool:
        """Asked before each sample, so without the lock: the ledger looks up two entries, and `made` has the last word."""
        return not self._closing and self.ledger.wanted(claim)

    # -- the devices' batches ------------------------------------------------------------------------------------

    def _fetcher(self) -> None:
        cpu = time.thread_time()
        fetch: tuple[int, str, int, tuple[DeviceJob, Path]] | None = None
        while (fetch := fetch or self._next_fetch()) is not None:
            position, device, lease, (job, path) = fetch
            made: PreparedBatch | PendingTransfer | None = None
            trouble, vanished = "", False
            try:
                made = self._finish(job.read(lease, position, path))
                if isinstance(made, PendingTransfer):
                    made.call()  # at once: of a device's batches there are few in memory
            except WrongPixels as error:
                self._distrust(device, str(error))
            except BaseException as error:
                trouble, vanished = str(error) or type(error).__name__, isinstance(error.__cause__, FileNotFoundError)
            with self._lock:
                cpu = self.counts.cpu(cpu)
                given_up = lease not in self.ledger.fetching
                if made is None:
                    # A lost device's end was told already, and a file may go once the host's copy was first.
                    if self.ledger.damaged(lease) and self.ledger.devices[device].alive and not self._closing:
                        text = f"{device}'s copy of batch {position} was not used ({trouble}); the host prepares it again."
                        if vanished:
                            self._messages.vanished(device, text, time.monotonic())
                        else:
                            self._messages.warn(text)
                elif self.ledger.verified(lease):
                    self._ready[position] = made
                fetch = None if given_up else self._fetch()  # while the lock is held anyway
                self._act()
            if given_up:
                return  # another thread is in this one's place

    def _next_fetch(self) -> tuple[int, str, int, tuple[DeviceJob, Path]] | None:
        with self._lock:
            while not self._closing:
                if (fetch := self._fetch()) is not None:
                    self._waiting.wake(False)
                    return fetch
                self._waiting.rest(self._waiting.fetchers, None)
        return None

    def joined(self, device: str, job: DeviceJob, *, quota: int, workers: int) -> None:
        """A device may be given leases from now on; one that was lost comes back so. Unless it was lost meanwhile."""
        with self._lock:
            before: DeviceJob | None = job
            if not self._closing and device not in self._barred and job.open:
                self._gone.discard(device)
                if not self.ledger.devices[device].failing:  # else its first batch tells
                    self._messages.back(device)
                before = self._jobs.get(device)
                self.rates.device(device).parallel = workers
                self.ledger.join(device, quota=quota, window=workers + 1)
                self._drain()  # what it published before goes with the job it had then
                self._jobs[device] = job
                self._act()
        if before is not None:
            before.close()

    def published(self, device: str, lease: int, path: Path, busy_s: float) -> None:
        """A device's batch stands in the spool."""
        with self._lock:
            position, job = self.ledger.devices[device].outstanding.get(lease), self._jobs.get(device)
            if self.ledger.published(device, lease) and position is not None and job is not None:  # None: closed meanwhile
                self._files[lease] = job, path
                self.counts.published(position)
                self.rates.device(device).add(busy_s, self._part(position))
                self._messages.back(device)
            self._act()

    # -- under the lock ------------------------------------------------------------------------------------------

    def _fetch(self) -> tuple[int, str, int, tuple[DeviceJob, Path]] | None:
        """Take the published batch that should be brought in now, if any."""
        if self._closing or (position := self.strategy.next_fetch()) is None:
            return None
        device, lease = self.ledger.fetch(position, time.monotonic())
        return position, device, lease, self._files.pop(lease)

    def _act(self) -> None:
        """After every event: give up what hangs, pass on what the ledger has dropped, give leases, wake who can go on."""
        while not self._closing and (hanging := self.strategy.hanging_fetch(time.monotonic())) is not None:
            self._messages.hangs(self.ledger.give_up(hanging))
            with contextlib.suppress(RuntimeError):  # no more threads may be started: one fetcher less
                self._threads.start(partial(self._work, self._fetcher), may_hang=True)  # in the place of the one that hangs
        self._drain()  # first: the space that a lease needs is given back before it
        if not self._closing:
            for device, job in self._jobs.items():  # a lost device stays here, for the files it published
                while (position := self.strategy.next_lease(device)) is not None:
                    job.lease(self.ledger.lease(device, position, time.monotonic()), position)
        self._waiting.wake(self._error is not None)

    def _drain(self) -> None:
        while self.ledger.effects:
            effect = self.ledger.effects.popleft()
            self._files.pop(effect.lease, None)
            if (job := self._jobs.get(effect.device)) is not None:
                job.cancel(effect.lease) if isinstance(effect, Cancel) else job.release(effect.lease)

    def _tell_waiting(self, waiting: bool) -> None:
        for job in self._jobs.values():
            job.waiting(waiting)
