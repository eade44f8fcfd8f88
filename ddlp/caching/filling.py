"""`loader.fill_cache()`: makes ahead of training what a loader's cache keeps."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info
from tqdm import tqdm

from csd_engine.cache.files import FILES, KeptFiles
from csd_engine.cache.origins import origins_of
from csd_engine.cache.shelf import Shelf
from csd_engine.data.base import Reader, at_hand
from csd_engine.errors import SampleError
from csd_engine.machine.sizes import size_text
from csd_engine.prepare.cached_batch import SampleCache
from csd_engine.prepare.destination import Destination
from csd_engine.prepare.started_batch import BatchRequest
from ddlp.caching.kept_samples import KeptSamples
from ddlp.errors import DDLPError
from ddlp.translate.portable import Portable

__all__ = ["Filled", "chunks_of", "fill", "fill_kept"]

_NOT_KEPT = "files that were changed in the last seconds are not kept"
_CHUNK = 32  # samples: so many are made between two looks for Ctrl-C


class Filled(NamedTuple):
    """What `DDLPLoader.fill_cache` has done.

    Attributes:
        samples: of the data set.
        kept: of these, what the cache has now.
        made: samples that it has made for that.
        failed: samples that could not be made. An epoch raises their errors in their places.
        written_bytes: of files that were finished.
        why: why it does not have all others; "": it has them, or they failed.
    """

    samples: int
    kept: int
    made: int
    failed: int
    written_bytes: int
    why: str

    def __str__(self) -> str:
        kept = f"{self.kept:,} of {self.samples:,} samples are kept, {self.made:,} made now, {size_text(self.written_bytes)}"
        failed = f"; {self.failed:,} could not be made" if self.failed else ""
        return kept + failed + (f"; the others are not kept: {self.why}" if self.why else "")


def _filled(shelf: Shelf, samples: int, new_samples: int, failed: int, written_bytes: int) -> Filled:
    """Return the result, with what is on the shelf now."""
    missing = shelf.held + failed < samples
    why = shelf.trouble or ("there is no more room" if shelf.full else _NOT_KEPT)
    return Filled(samples, min(shelf.held, samples), new_samples, failed, written_bytes, why if missing else "")


def chunks_of(sources: np.ndarray) -> Iterator[np.ndarray]:
    """Yield source indices in parts. Each call begins at another one: two that fill a shelf at once share the work."""
    begin = int(np.random.default_rng().integers(max(1, len(sources))))
    turned = np.roll(sources, -begin)
    for at in range(0, len(turned), _CHUNK):
        yield turned[at : at + _CHUNK]


def _progress(samples: int, shown: bool) -> tqdm:
    """Return the bar that `fill` moves, on standard error."""
    return tqdm(total=samples, desc="fill cache", unit=" samples", disable=not shown, leave=False)


def fill(cache: SampleCache, portable: Portable, workers: int, progress: bool) -> Filled:
    """Make each sample whose result the shelf lacks, and keep that.

    It may be stopped at any time; what was made until then is kept.

    Args:
        cache: what is kept.
        portable: the loader's samples.
        workers: threads, at least 1.
        progress: show a bar on standard error.
    """
    mapping = portable.dataset.sources
    sources = np.arange(portable.dataset.starts[-1]) if mapping is None else np.unique(mapping)
    work = _Filling(cache, portable)
    chunks, shelf = chunks_of(sources), cache.shelf
    shelf.wanted = lambda: True  # the user asks for it
    pool = ThreadPoolExecutor(workers, thread_name_prefix="ddlp-fill")
    running: dict[Future[None], int] = {}
    try:
        with _progress(len(sources), progress) as bar:
            for chunk in chunks:
                running[pool.submit(work.make, chunk)] = len(chunk)
                if len(running) > 2 * workers:
                    _take(running, bar)
                if not shelf.keeps:
                    break
            while running:
                _take(running, bar)
    finally:
        work.stopped.set()
        pool.shutdown(cancel_futures=True)
        shelf.flush()
    return _filled(shelf, len(sources), work.new_samples, work.failed, shelf.counts.written_bytes)


def _take(running: dict[Future[None], int], bar: tqdm) -> None:
    """Wait for a chunk. Raises its error."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        future.result()
        bar.update(running.pop(future))


def fill_kept(kept: KeptSamples, loader: DataLoader, epoch: int, progress: bool) -> Filled:
    """Do as `fill` where the user's own steps stand before a `ddlp.CachePoint`: in the loader's worker processes.

    Args:
        kept: the data set.
        loader: whose.
        epoch: of a point with ``frozen_epochs``, this epoch's outcomes.
        progress: show a bar on standard error.
    """
    dataset: Any = kept.dataset
    total, new_samples, failed = len(dataset), 0, 0
    order = [index for chunk in chunks_of(np.arange(total)) for index in chunk.tolist()]
    workers = loader.num_workers
    samples = DataLoader(
        _ToKeep(kept, epoch), _CHUNK, sampler=order, num_workers=workers, collate_fn=_counted,
        multiprocessing_context=loader.multiprocessing_context if workers else None, generator=torch.Generator(),
        worker_init_fn=_WorkerStart(kept, loader.worker_init_fn),
    )  # fmt: skip
    with _progress(total, progress) as bar:
        try:
            for count, new_now, failed_now in samples:
                new_samples, failed = new_samples + new_now, failed + failed_now
                bar.update(count)
        finally:
            shelf = kept.filled(epoch)
    return _filled(shelf, total, new_samples, failed, kept.counts.written_bytes)


class _ToKeep(Dataset[tuple[int, int]]):
    """Has each sample kept. Its own samples are (made, failed): 0 or 1."""

    def __init__(self, kept: KeptSamples, epoch: int) -> None:
        self._kept, self._epoch = kept, epoch

    def __len__(self) -> int:
        return len(self._kept.dataset)

    def __getitem__(self, index: int) -> tuple[int, int]:
        self._kept.begin_epoch(self._epoch)
        try:
            return int(self._kept.fill(index)), 0
        except DDLPError:
            raise
        except Exception:  # an epoch raises it in its place
            return 0, 1


class _WorkerStart:
    """Runs first in each worker: the user's worker_init_fn finds the user's data set in ``get_worker_info()``."""

    def __init__(self, kept: KeptSamples, init: Callable[[int], None] | None) -> None:
        self._kept, self._init = kept, init

    def __call__(self, worker: int) -> None:
        object.__setattr__(get_worker_info(), "dataset", self._kept.dataset)  # WorkerInfo refuses plain assignment
        if self._init is not None:
            self._init(worker)


def _counted(samples: list[tuple[int, int]]) -> tuple[int, int, int]:
    return len(samples), sum(new for new, _ in samples), sum(failed for _, failed in samples)


class _Filling:
    """Makes chunks of samples, in any thread.

    Attributes:
        stopped: set it, and chunks end with the sample that is made.
        new_samples, failed: how many samples were made, and how many could not be.
    """

    def __init__(self, cache: SampleCache, portable: Portable) -> None:
        self._shelf, self._reader, self._shape = cache.shelf, portable.dataset.reader(), portable.shape
        self._as_stored = cache.point == FILES
        self._boxes = portable.pipeline.boxes
        self._maker = cache.maker(self._reader, portable.pipeline, portable.shape, self._boxes)
        self.stopped, self.new_samples, self.failed = threading.Event(), 0, 0
        self._lock = threading.Lock()

    def make(self, sources: np.ndarray) -> None:
        """Make those of these samples that are missing. The results behind the cut are dropped."""
        origins = origins_of(self._reader, sources)
        if origins is not None:
            sources = sources[~self._shelf.find(sources, origins).hit]
        if not len(sources) or not self._shelf.keeps or self.stopped.is_set():
            return
        dropped, at, failed = _Dropped(len(sources), self._shape, self._boxes), 0, 0
        occurrences = np.zeros(len(sources), np.int64)
        with contextlib.ExitStack() as at_end:
            there = None
            if self._reader.slow:
                there = at_end.enter_context(at_hand(self._reader, sources.tolist(), lambda: not self.stopped.is_set()))
            if self._as_stored:
                return self._keep_files(sources, there)
            batch = at_end.enter_context(self._maker.start(BatchRequest(sources, occurrences, 0, 0, there)))
            while at < len(sources) and not self.stopped.is_set():
                try:
                    at = batch.make(at, dropped)
                except SampleError:
                    at, failed = at + 1, failed + 1
        self._count(at - failed, failed)

    def _keep_files(self, sources: np.ndarray, reader: Reader | None) -> None:
        """Keep the files of these samples that were brought. Nothing is decoded."""
        origins = origins_of(self._reader, sources)
        if origins is not None and reader is not None and not self.stopped.is_set():
            came = KeptFiles(self._shelf, reader, sources, origins).keep_missing()
            self._count(came, len(sources) - came)

    def _count(self, new_samples: int, failed: int) -> None:
        with self._lock:
            self.new_samples, self.failed = self.new_samples + new_samples, self.failed + failed


class _Dropped(Destination):
    """Memory for samples that nobody wants."""

    def __init__(self, samples: int, shape: tuple[int, int, int], boxes: int) -> None:
        self._images = np.empty((samples, *shape), np.uint8)
        self._boxes = np.zeros((samples, boxes, 4), np.int32) if boxes else None

    def place(self, part: slice) -> tuple[np.ndarray, np.ndarray | None]:
        return self._images[part], None if self._boxes is None else self._boxes[part]

    def done(self, part: slice) -> None:
        pass
