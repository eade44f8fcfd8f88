"""Results of the user's own steps before a `ddlp.CachePoint`: a data set that makes each once, and then runs what follows.

torch's workers ask it in the place of the user's data set. In the first epoch the data set's own code makes each sample, and
what reaches the point is kept. Later the steps behind the point run on that, and the target comes from the data set's
description. So the samples are those without a cache. Each process opens the shelf for itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import multiprocessing
import operator
import os
import time
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import numpy as np
import PIL
import torch
import torchvision
from torch.utils.data import get_worker_info

from csd_engine.arithmetic.keyed import KeyedRows
from csd_engine.cache.origins import origins_of
from csd_engine.cache.segments import Sample
from csd_engine.cache.shelf import CacheCounts, Shelf
from csd_engine.cache.shelves import Shelves
from csd_engine.data.base import Origins
from csd_engine.data.safe_open import OpenFile
from csd_engine.errors import CacheRefused
from csd_engine.prepare.cached_batch import shelf_key
from ddlp.caching.kept_values import from_bytes, to_bytes
from ddlp.caching.settings import Cache
from ddlp.errors import DDLPError
from ddlp.process.finalizers import when_dropped
from ddlp.process.platforms import other_system
from ddlp.process.user_warnings import warn_user
from ddlp.sampling.keyed_generators import GENERATORS, states
from ddlp.sampling.own_generators import own_generators
from ddlp.transforms import CachePoint, told_at_points
from ddlp.translate.datasets import PortableSet
from ddlp.translate.marked import Marked, marked_in
from ddlp.translate.self_described import other_structure

__all__ = ["Asked", "KeptSamples", "kept_samples"]

_MASK32 = (1 << 32) - 1


class Asked(NamedTuple):
    """What a loader asks for.

    Attributes:
        place: the cache's directory and its quota.
        as_pil: the loader's.
        seed: of what is drawn before a point with ``frozen_epochs``.
        workers: processes that ask for samples; 0: this one does.
    """

    place: Cache
    as_pil: bool
    seed: int
    workers: int


class _Reached(BaseException):
    """The point is reached, and nothing behind it is wanted."""


def kept_samples(dataset: Any, asked: Asked, last: KeptSamples | None = None) -> tuple[KeptSamples | None, str]:
    """Return the data set that keeps what reaches its `CachePoint`; None and why not in words, where nothing can be kept.

    Args:
        dataset: the loader's.
        asked: by the loader.
        last: of the last epoch. If it keeps the same, no sample is made to compare the data set with its description.

    Raises:
        DDLPError: the cache's directory can't be used.
        ValueError: as `marked_in`.
    """
    if (other := other_system()) is not None:
        return None, str(other)
    taken = marked_in(dataset, asked.as_pil)
    if taken is None:
        return None, "your own code makes the samples"
    if taken[0].reader().slow:
        return None, "objects are asked for a batch at a time, and draw the batch's random numbers; here each sample is alone"
    kept = KeptSamples(dataset, taken, asked)
    if (last is None or not kept.same_as(last)) and other_structure(taken[0]) is not None:
        return None, "the data set's own samples have another structure than its __ddlp__ describes"
    try:
        Shelves(asked.place.directory, asked.place.bytes)
    except CacheRefused as error:
        raise DDLPError(f"cache={asked.place!r}: {error}") from error
    return kept, ""


class KeptSamples:
    """A data set with the samples of the user's, by index. It is picklable if the user's is.

    Args:
        dataset: the user's.
        taken: it as parts, and its transform.
        asked: by the loader.

    Attributes:
        dataset, asked: the arguments.
        key: stands for the data set, the steps before the point and the versions, 32 hex digits.
        frozen: for how many epochs a random outcome is kept; None: nothing before the point is random.
    """

    def __init__(self, dataset: Any, taken: tuple[PortableSet, Marked], asked: Asked) -> None:
        self.dataset, self.asked = dataset, asked
        self._taken: tuple[PortableSet, Marked] | None = taken
        portable, marked = taken
        self.frozen = marked.point.frozen_epochs
        places = portable.some_absolute_places()
        libraries = tuple(library.__version__ for library in (torch, torchvision, np))
        modes = [(part.name, part.mode) for part in portable.parts]
        self.key = shelf_key(("point", modes, portable.starts, places, marked.told_by, libraries), ())
        self._about = {
            "data set": ", ".join(part.name for part in portable.parts), "first": next(iter(places), ""),
            "samples": portable.starts[-1], "point": f"CachePoint() after {marked}", "pillow": PIL.__version__,
        }  # fmt: skip
        self._counts = torch.zeros((asked.workers + 1, 3), dtype=torch.int64)  # of each process: hits, misses, bytes
        if asked.workers:
            self._counts.share_memory_()
        self._here: _OpenHere | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_taken": None, "_here": None}

    @property
    def counts(self) -> CacheCounts:
        """What all processes did in the last epoch."""
        return CacheCounts(*self._counts.sum(0).tolist())

    @property
    def line(self) -> str:
        """What is kept and where, in one line."""
        return f"{self._about['point']}, in {os.fspath(self.asked.place.directory)}"

    def same_as(self, other: KeptSamples) -> bool:
        """Return whether the other one keeps the same, for as many processes."""
        return self.dataset is other.dataset and (self.key, self.asked) == (other.key, other.asked)

    def go_on_as(self, other: KeptSamples) -> None:
        """Take what is behind the point, and the targets, from another one that keeps the same."""
        self._taken = other._taken
        if self._here is not None and other._taken is not None:
            self._here.take(*other._taken)

    def begin_epoch(self, epoch: int) -> None:
        """Open the epoch's shelf in this process. Raises DDLPError if the directory can't be used."""
        here = self._here
        if here is not None and here.pid == os.getpid() and here.epoch == epoch:
            return
        if self._taken is None:  # this is another process than the one that has made this object
            self._taken = marked_in(self.dataset, self.asked.as_pil)
            assert self._taken is not None
        portable, marked = self._taken
        frozen = marked.point.frozen_epochs
        window = 0 if frozen is None else epoch // frozen
        key = self.key if frozen is None else shelf_key((self.key, self.asked.seed, window), ())
        if here is None or here.pid != os.getpid() or here.shelf.key != key:
            self._here = None
            if here is not None and here.pid == os.getpid():
                here.end()
            try:
                shelves = Shelves(self.asked.place.directory, self.asked.place.bytes)
                if window:  # what was frozen before does not come again
                    shelves.forget(shelf_key((self.key, self.asked.seed, window - 1), ()))
                shelf = Shelf(shelves, key, self._about, portable.starts[-1], 1, warn_user)
            except (CacheRefused, OSError) as error:
                raise DDLPError(f"cache={self.asked.place!r}: {error}") from error
            info = get_worker_info()
            here = _OpenHere(shelf, self._counts[0 if info is None else info.id + 1].numpy())
            here.take(portable, marked)
            here.endings = [when_dropped(self, here.close)]
            if multiprocessing.parent_process() is not None:  # it ends without the interpreter's exit
                here.endings.append(Finalize(None, here.close, exitpriority=10))
        else:
            here.shelf.flush()
            here.shelf.begin()
        here.counts[:] = 0
        here.epoch, here.seed, here.window = epoch, self.asked.seed, window
        self._here = here

    def __getitem__(self, index: Any) -> Any:
        try:
            number = operator.index(index)
        except TypeError:  # a list, where a BatchSampler gives single items
            return self.dataset[index]
        here = self._here
        assert here is not None
        source, origins, value = here.look(number)
        if value is None:
            return here.make(self.dataset, number, source, origins, whole=True)
        for step in here.marked.behind:
            value = step(value)
        return value, here.portable.target(source)

    def fill(self, index: int) -> bool:
        """Have a sample kept, without the steps behind the point. Return whether it was made now."""
        here = self._here
        assert here is not None
        source, origins, value = here.look(index)
        if value is None and here.shelf.keeps:
            here.make(self.dataset, index, source, origins, whole=False)
            return True
        return False

    def flush(self) -> None:
        """End the file that this process fills, so that others find its samples. It is called after each epoch."""
        here = self._here
        if here is not None and here.pid == os.getpid():
            here.shelf.flush()
            here.counts[2] = here.shelf.counts.written_bytes

    def filled(self, epoch: int) -> Shelf:
        """Return this process's shelf for an epoch, with all that is on the disk. The next epoch begins anew."""
        self.begin_epoch(epoch)
        self.flush()
        assert self._here is not None
        self._here.epoch = -1
        return self._here.shelf


class _OpenHere:
    """A shelf that this process has open, for one epoch after another.

    Attributes:
        shelf, portable, marked: the shelf, the data set as parts, its transform.
        counts: int64 (3,), this process's row of the counts.
        epoch: the current one.
        seed, window: of what is drawn before a point with ``frozen_epochs``.
        endings: what closes it.
    """

    def __init__(self, shelf: Shelf, counts: np.ndarray) -> None:
        self.shelf, self.counts = shelf, counts
        self.pid, self.epoch, self.seed, self.window = os.getpid(), -1, 0, 0
        self.endings: list[Any] = []

    def take(self, portable: PortableSet, marked: Marked) -> None:
        """Set the data set and its transform."""
        self.portable, self.marked, self._reader = portable, marked, portable.reader()
        self._frozen = marked.point.frozen_epochs is not None
        self._own = own_generators(marked.before) if self._frozen else []

    def close(self) -> None:
        """End the file that is being filled, and give up the shelf's lock."""
        self.shelf.close()
        self.counts[2] = self.shelf.counts.written_bytes

    def end(self) -> None:
        """Close it now."""
        self.close()
        for ending in self.endings:
            ending.detach() if hasattr(ending, "detach") else ending.cancel()

    def look(self, index: int) -> tuple[int, Origins | None, Any]:
        """Return a sample's source index, what it is made of, and what is kept of it; None: nothing."""
        sources = self.portable.source(np.array([index], np.int64))
        source = int(sources[0])
        origins = origins_of(self._reader, sources)
        if origins is None and not self._reader.slow:
            origins = self._origins_of_array(source)
        value = None
        if origins is not None:
            entries = self.shelf.find(sources, origins)
            read = self.shelf.read(entries, [0]) if entries.hit[0] else None
            if read is not None:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    value = from_bytes(bytearray(read[0]))
        self.counts[0 if value is not None else 1] += 1
        return source, origins, value

    def _origins_of_array(self, source: int) -> Origins | None:
        """Return what a sample is made of that is no file: its pixels."""
        try:
            opened = self._reader.open(source)
        except Exception:  # the sample that fails reports it at its turn
            return None
        if isinstance(opened, OpenFile):
            os.close(opened.descriptor)
            return None
        pixels = np.ascontiguousarray(opened)
        name = hashlib.blake2b(pixels.tobytes(), digest_size=8).digest()
        return Origins(np.frombuffer(name, "<u8"), np.array([pixels.nbytes]), np.zeros(1, np.int64))

    def make(self, dataset: Any, index: int, source: int, origins: Origins | None, whole: bool) -> Any:
        """Have the user's data set make a sample, and keep what reaches the point.

        With ``frozen_epochs`` what stands before the point draws from numbers of its own, those of the first of these epochs.
        What stands behind draws as ever.
        """
        before = states()
        if self._frozen:
            key = int(KeyedRows(self.seed, self.window, np.array([source], np.uint64), np.zeros(1, np.int64)).u64()[0])
            for generator in GENERATORS.values():
                generator.seed(key)
            for own in self._own:
                own.set_random_seed(key & _MASK32)
        began = time.monotonic()
        reached = functools.partial(self._reached, before, source, origins, began, whole)
        try:
            with told_at_points(reached):
                return dataset[index]
        except _Reached:
            return None

    def _reached(
        self, before: dict[str, Any], source: int, origins: Origins | None, began: float, whole: bool,
        point: CachePoint, *inputs: Any,
    ) -> None:  # fmt: skip
        """Keep what a point gets, if it is the one that counts."""
        if point is not self.marked.point:
            return
        for name, generator in GENERATORS.items():
            if self._frozen:
                generator.put_back(before[name])
            elif generator.state() != before[name]:
                raise DDLPError(
                    f"CachePoint(): a step before it, {self.marked}, draws random numbers (from {name}): its first outcome "
                    "would be kept for ever. Move CachePoint() before it, or keep each outcome for k epochs by "
                    "CachePoint(frozen_epochs=k)"
                )
        if origins is not None and self.shelf.keeps:
            kept = to_bytes(inputs[0]) if len(inputs) == 1 else None
            if kept is None:
                self._refuse(inputs[0])
            else:
                row = Sample(source, origins.one(0), kept.reshape(1, -1, 1))
                self.shelf.keep([row], time.monotonic() - began)
        if not whole:
            raise _Reached

    def _refuse(self, value: Any) -> None:
        what = f"{type(value).__qualname__} {getattr(value, 'dtype', getattr(value, 'mode', ''))}".strip()
        self.shelf.tell_once(
            f"keeps no {what} at CachePoint(): PIL images, arrays and tensors of plain numbers on the CPU are kept"
        )
