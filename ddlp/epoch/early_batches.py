"""`EarlyBatches`: the first batches of an epoch that has not begun, made while the host would have nothing to do.

The epoch is a prediction. When it begins, `fits` compares the prediction with the facts. The epoch's workers take what fits.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from csd_engine.batchfile.checksum import Checksum
from csd_engine.cache.origins import origins_at
from csd_engine.cache.shelf import CacheCounts
from csd_engine.transforms.prefix import draw_nothing
from ddlp.sources.base import EpochSpec, PreparedBatch
from ddlp.sources.host.native import prepare_batch
from ddlp.stats.thread_cpu import thread_cpu_s

__all__ = ["EarlyBatch", "EarlyBatches"]

_ROWS = 16  # rows of an array that are summed at a time


class EarlyBatch(NamedTuple):
    """A batch that was made before its epoch began.

    Attributes:
        batch: as `ddlp.sources.base.HostSource.prepare` returns it.
        busy_s, cpu_s: what it took a worker, in seconds and in processor seconds.
        origin: the result of `_origin` from before it was made.
        cached: how many of its samples came from the cache; None: there is no cache.
        given_up: files that the cache had given up before; 0: there is no cache.
    """

    batch: PreparedBatch
    busy_s: float
    cpu_s: float
    origin: bytes
    cached: CacheCounts | None
    given_up: int


class EarlyBatches:
    """Makes an epoch's first batches in threads of its own, which end when there is no more room. Any thread may use it.

    A batch that fails is left to the epoch, which raises its error. So is one with samples that the cache is still to keep: the
    threads only read there.

    Args:
        predict: returns the spec of the epoch as far as it is known; None if it can't be known. It runs in one of the threads.
        finished: as for `ddlp.sources.base.HostSource.prepare`.
        counts: of the loader's cache in the epoch before; None: it has none.
    """

    def __init__(self, predict: Callable[[], EpochSpec | None], finished: bool, counts: CacheCounts | None) -> None:
        self._predict: Callable[[], EpochSpec | None] | None = predict
        self._finished, self._counts = finished, counts
        self._spec: EpochSpec | None = None
        self._lock = threading.RLock()  # used itself in `with`, see `ddlp.epoch.conditions`
        self._changed = threading.Condition(self._lock)
        self._made: dict[int, EarlyBatch] = {}
        self._in_work: set[int] = set()
        self._threads = self._most = 0  # how many threads and batches there may be
        self._running = 0
        self._complete = False  # no further batch is begun
        self._closing = False
        self._pid = os.getpid()
        self.begun = 0  #: batches that were begun, from the first one on

    def grow(self, threads: int, batches: int) -> None:
        """Let so many threads make so many batches in all. Smaller numbers than before change nothing."""
        with self._lock:
            self._threads, self._most = max(self._threads, threads), max(self._most, batches)
            self._start()

    @property
    def ready(self) -> int:
        """How many batches are made, and not taken."""
        return len(self._made)

    def fits(self, spec: EpochSpec, finished: bool) -> bool:
        """Whether the batches are those of the epoch that has begun now. No further one is begun."""
        if os.getpid() != self._pid:
            return False
        with self._lock:
            self._complete = True
            mine = self._spec
            if mine is None or self._closing or not self.begun or self.begun > len(spec.plan):
                return False
            begun = range(self.begun)
        drawn = spec.replaces or not draw_nothing(spec.pipeline.operators)  # else the samples are the same in all epochs
        return (
            finished == self._finished
            and mine.gpu_transfer is spec.gpu_transfer
            and mine.cache is spec.cache
            and (mine.shape, mine.plan.views, mine.replaces) == (spec.shape, spec.plan.views, spec.replaces)
            and mine.pipeline.digest == spec.pipeline.digest
            and mine.epilogue.does_what(spec.epilogue)
            and mine.epilogue.memory_format == spec.epilogue.memory_format
            and (not drawn or (mine.seed, mine.epoch) == (spec.seed, spec.epoch))
            and all(np.array_equal(mine.plan.sources(k), spec.plan.sources(k)) for k in begun)
            and (not drawn or all(np.array_equal(mine.plan.occurrences(k), spec.plan.occurrences(k)) for k in begun))
        )

    def take(self, spec: EpochSpec, position: int, wanted: Callable[[], bool]) -> EarlyBatch | None:
        """Return a batch for the epoch that has begun, once. A batch in work is waited for while ``wanted`` returns True.

        None if it was not begun, has failed, or if its files or rows have changed since. Also if the cache has given up a file
        since: then the epoch makes its samples again, and keeps them.
        """
        if self._closing:  # the usual case: saves taking the lock
            return None
        with self._lock:
            while position in self._in_work and not self._closing and wanted():
                self._changed.wait(0.1)
            early = self._made.pop(position, None)
            if not (self._made or self._in_work):
                self.close()  # all are taken
        if early is None or _origin(spec, position) != early.origin or _given_up(spec) != early.given_up:
            return None
        if spec.cache is not None and early.cached is not None:
            spec.cache.shelf.count(early.cached)
        return early

    def close(self) -> None:
        """Drop all batches. The threads end with the part of a batch that they are at; nobody waits for them."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closing, self._predict = True, None
            self._made.clear()
            self._changed.notify_all()
            if not self._running:
                self._free()

    def _start(self) -> None:
        """Start as many threads as there is work for; before the prediction one. Called under the lock."""
        while not self._closing and self._running < self._threads and self.begun < self._limit():
            if self._spec is None and self._running:
                break
            thread = threading.Thread(target=self._work, name=f"ddlp-early-{self._running}", daemon=True)
            self._running += 1
            try:
                thread.start()
            except RuntimeError:  # no more threads can be started: nothing is made early
                self._running -= 1
                break

    def _limit(self) -> int:
        """Return how many batches may be begun in all, as far as it is known."""
        if self._complete:
            return 0
        return self._most if self._spec is None else min(self._most, len(self._spec.plan))

    def _work(self) -> None:
        """Make batches, while there is room. The first thread makes the prediction."""
        try:
            spec = self._spec
            if spec is None and (spec := self._predicted()) is None:
                return
            cpu = thread_cpu_s()
            while (position := self._next()) is not None:
                early, began, given_up = None, time.monotonic(), _given_up(spec)
                with contextlib.suppress(Exception):  # the epoch's own worker makes it again, and raises the error
                    if (origin := _origin(spec, position)) is not None:
                        with self._reading(spec) as cached:
                            batch = prepare_batch(spec, position, self._wanted, self._finished)
                        before, cpu = cpu, thread_cpu_s()
                        early = EarlyBatch(batch, time.monotonic() - began, cpu - before, origin, cached, given_up)
                        del batch
                with self._lock:
                    self._in_work.discard(position)
                    if early is not None and not self._closing:
                        self._made[position] = early
                    self._changed.notify_all()
        finally:
            with self._lock:
                self._running -= 1
                if self._closing and not self._running:
                    self._free()

    def _reading(self, spec: EpochSpec) -> contextlib.AbstractContextManager[CacheCounts | None]:
        if spec.cache is None or self._counts is None:
            return contextlib.nullcontext()
        return spec.cache.shelf.reading(self._counts)

    def _predicted(self) -> EpochSpec | None:
        """Make the spec, and have the other threads started."""
        predict, spec = self._predict, None
        with contextlib.suppress(Exception):  # the user has changed what it is made of, and iter() will tell what is wrong
            spec = None if predict is None else predict()
        with self._lock:
            self._predict = None
            self._spec = spec
            if spec is None:
                self._closing = True
            elif not self._closing:
                self._start()
        return spec

    def _next(self) -> int | None:
        """Begin the next batch. Returns its position; None if there is no room, or they are not wanted any more."""
        with self._lock:
            if self._closing or self.begun >= self._limit():
                return None
            position = self.begun
            self.begun += 1
            self._in_work.add(position)
            return position

    def _wanted(self) -> bool:
        return not self._closing

    def _free(self) -> None:
        """Free what the batches were made of. Called under the lock."""
        if self._spec is not None:
            self._spec.reader.close()
            self._spec.pool.close()
            self._spec = None


def _given_up(spec: EpochSpec) -> int:
    return 0 if spec.cache is None else spec.cache.shelf.given_up


def _origin(spec: EpochSpec, position: int) -> bytes | None:
    """Return bytes that change if what a batch is made of changes: its files, the rows of an array, or the listing of objects.

    None: not known. So it is with objects whose listing has no ETags.
    """
    with contextlib.suppress(Exception):  # the sample that fails reports it at its turn
        sources = spec.plan.sources(position)
        if spec.reader.slow:
            versions = spec.reader.versions(sources.tolist())
            return None if versions is None else b"".join(column.tobytes() for column in versions)
        rows = spec.reader.rows()
        if rows is not None:
            summed = Checksum()
            for first in range(0, len(sources), _ROWS):
                summed.update(memoryview(np.ascontiguousarray(rows[sources[first : first + _ROWS]])).cast("B"))
            return f"{rows.shape[1:]} {summed.hexdigest()}".encode()
        places = spec.reader.places(sources.tolist())
        if places is None:
            return None
        parts = {} if places.parts is None else dict(zip(places.paths, places.parts.descriptors.tolist(), strict=True))
        files = [os.stat(path if opened < 0 else opened)[1:3] for path, opened in parts.items()]  # the path may name another
        return b"".join(column.tobytes() for column in origins_at(places)) + repr(files).encode()
    return None
