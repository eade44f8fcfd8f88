"""The shelves of a worker process (`--cache`): what it keeps of its jobs' samples, and what makes batches with them.

A shelf belongs to a data set, to what is kept of it, and to the directories that the host may read: hosts share one only if
they may read the same. Each sample is looked at before it is taken from there, as if it were read: a file that is gone, has
changed, or may not be read is no hit.

What is kept is the engine's own choice, without measuring: the result of the operators that do the same every time, where it
has one size; else what a storage has sent; else nothing. docs/cache.md says why.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

import PIL

from csd_engine.batchfile.reader import Layout
from csd_engine.cache.files import FILES
from csd_engine.cache.shelf import ENTRY_BYTES, Shelf
from csd_engine.cache.shelves import Shelves
from csd_engine.data.base import Dataset, Reader, fingerprint
from csd_engine.data.roots import Roots
from csd_engine.errors import CacheRefused
from csd_engine.prepare.batch_maker import BatchMaker
from csd_engine.prepare.cached_batch import Kept, SampleCache, channels_of, shelf_key
from csd_engine.protocol.printable import printable
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.prefix import cache_point

__all__ = ["WorkerShelves"]

_IDLE_S = 60.0  # a shelf stays open so long without a job: a training opens a job an epoch, and trains and validates by turns
_LEAST_BYTES = 64 << 20
_SOME = 8  # samples whose places stand for the data set


@dataclass
class _OpenShelf:
    shelf: Shelf
    samples: int  # of its data set
    jobs: int = 0
    used_s: float = 0.0  # of the monotonic clock, when its last job ended


class WorkerShelves:
    """The shelves that a worker has open.

    Args:
        path: the cache's directory.
        quota_bytes: of all files there.
        memory_bytes: of the computer; 0: not known. Tables of open shelves take an eighth of it at most: hosts say how many
            samples a data set has.

    Raises:
        CacheRefused: it can't be used.
    """

    def __init__(self, path: str, quota_bytes: int, memory_bytes: int) -> None:
        self._shelves = Shelves(path, quota_bytes)
        self._most_samples = max(_LEAST_BYTES, memory_bytes // 8) // ENTRY_BYTES  # of all open shelves
        self._open: Dict[str, _OpenShelf] = {}

    def maker(
        self, reader: Reader, pipeline: Pipeline, layout: Layout, dataset: Dataset, roots: Roots
    ) -> Tuple[BatchMaker, Optional[SampleCache]]:
        """Return what makes a job's batches, and the cache that it uses; None: nothing is kept. `release` its shelf.

        Args:
            reader, dataset: of the job.
            pipeline, layout: of the job.
            roots: what the job's host may read.
        """
        shape = (layout.height, layout.width, layout.channels)
        plain = reader, pipeline, shape, layout.boxes
        point = None if dataset.carried else _point(reader, dataset, pipeline)
        if point is None:
            return BatchMaker(*plain), None
        try:
            cache = SampleCache(point, self._shelf(reader, dataset, roots, point))
        except CacheRefused as error:
            _tell(str(error))
            return BatchMaker(*plain), None
        return cache.maker(*plain), cache

    def _shelf(self, reader: Reader, dataset: Dataset, roots: Roots, point: Kept) -> Shelf:
        """Open a job's shelf, or take the open one. Raises CacheRefused."""
        samples = len(reader)
        places = [reader.where(samples * step // _SOME) for step in range(_SOME)] + [reader.where(samples - 1)]
        # A storage's fingerprint changes with each object's version, which each entry of the shelf has.
        identity = str(samples) if reader.slow else fingerprint(dataset)
        rights = roots.urls if reader.slow else roots.beneath
        key = shelf_key(("engine", identity, places, None if rights is None else sorted(set(rights))), (point,))
        self._close([name for name, opened in self._open.items() if name != key and opened.used_s < time.monotonic() - _IDLE_S])
        if key in self._open:
            self._open[key].shelf.begin()
        else:
            self._make_room(samples)
            about = {"data set": places[0], "samples": samples, "point": f"{point} (engine)", "pillow": PIL.__version__}
            shelf = Shelf(self._shelves, key, about, samples, channels_of(point), _tell)
            self._open[key] = _OpenShelf(shelf, samples)
        self._open[key].jobs += 1
        return self._open[key].shelf

    def _make_room(self, samples: int) -> None:
        """Close shelves without a job until there is memory for a further one's table. Raises CacheRefused: there is not."""
        idle = [name for name, opened in self._open.items() if not opened.jobs]
        idle.sort(key=lambda name: self._open[name].used_s)
        while samples + sum(opened.samples for opened in self._open.values()) > self._most_samples:
            if not idle:
                raise CacheRefused(f"nothing is kept of a data set of {samples} samples: its table takes too much memory.")
            self._close([idle.pop(0)])

    def release(self, shelf: Shelf) -> None:
        """Note that a job with this shelf is over. What it has kept can be found from now on, by all processes."""
        shelf.flush()
        opened = self._open[shelf.key]
        opened.jobs, opened.used_s = opened.jobs - 1, time.monotonic()

    def close(self) -> None:
        """Close all shelves."""
        self._close(list(self._open), in_use=True)

    def _close(self, keys: List[str], in_use: bool = False) -> None:
        for key in keys:
            if in_use or not self._open[key].jobs:
                self._open.pop(key).shelf.close()


def _point(reader: Reader, dataset: Dataset, pipeline: Pipeline) -> Optional[Kept]:
    """Return what is kept of a job's samples; None: nothing."""
    if not _can_change(reader):
        return None
    cut = cache_point(pipeline, dataset.image_size())
    if cut is not None and cut.fixed:
        return cut
    return FILES if reader.slow else None


def _can_change(reader: Reader) -> bool:
    """Return whether the samples lie in files or in a storage that tells their versions; arrays lie in memory already."""
    try:
        return len(reader) > 0 and (reader.versions([0]) if reader.slow else reader.places([0])) is not None
    except Exception:  # the sample that fails reports it at its turn
        return False


def _tell(line: str) -> None:
    print(f"csd_engine: {printable(line, 500)}", file=sys.stderr, flush=True)
