"""Makes the files of one batch into samples by a few calls of the kernel. Each call makes samples for some milliseconds.

Sample by sample, Python takes a tenth of a small image's time, and each thread waits for the GIL several times a sample. Here
it waits only once a call. A file that the kernel refuses goes through Pillow, as it would by itself.
"""

from __future__ import annotations

import os
from typing import Any, Callable, List, Optional, Tuple

import numpy as np
from PIL import Image

from csd_engine.data.base import Reader
from csd_engine.data.image_files import MAX_FILE_BYTES
from csd_engine.data.readahead import AHEAD
from csd_engine.kernels.files import FilePlan, Files
from csd_engine.prepare.read_time import READING
from csd_engine.prepare.sample import prepare_by_pillow, prepare_sample
from csd_engine.transforms import Pipeline

__all__ = ["FileBatch"]

ENOUGH_S = 0.02  # short enough to notice a cancel soon; with 5 ms, and cold caches at each call, Python took 0.7 % of all time


def _most_pixels() -> Optional[int]:
    """Pillow's limit in a form for C. Users set it to any number, also to 1e10 or inf. None: there is no limit."""
    limit = Image.MAX_IMAGE_PIXELS
    return None if limit is None or limit >= 1 << 63 else int(limit)


class FileBatch:
    """The files of one batch. `of` makes it. It is for one thread, in a `with`. The samples are made in their order."""

    def __init__(
        self,
        reader: Reader,
        pipeline: Pipeline,
        plan: FilePlan,
        files: Files,
        items: List[Tuple[int, int]],
        seed: int,
        epoch: int,
        before_decoding: Optional[Callable[[int], None]],
    ) -> None:
        self._reader, self._pipeline, self._plan, self._seed, self._epoch = reader, pipeline, plan, seed, epoch
        self._files, self._items, self._before_decoding = files, items, before_decoding
        self._refused = -1  # the position at which the kernel stopped because of the file
        self._read = False  # whether the kernel has that file's bytes

    @staticmethod
    def of(
        reader: Reader,
        pipeline: Pipeline,
        plan: Optional[FilePlan],
        sources: np.ndarray,
        occurrences: np.ndarray,
        seed: int,
        epoch: int,
        most_memory: Optional[int] = None,
        before_decoding: Optional[Callable[[int], None]] = None,
    ) -> Optional[FileBatch]:
        """Make a batch; None if its samples must be made one by one: there is no plan, or a sample is not a file.

        Args:
            reader: of the data set.
            pipeline: what to run.
            plan: the kernel's plan for it, from `file_plan`.
            sources, occurrences: int64 (n,).
            seed, epoch: with these the keys of all random draws.
            most_memory: bytes; an image that takes at least so many to decode waits for `before_decoding`.
            before_decoding: as for `prepare_sample`; called for these images, and before Pillow decodes.
        """
        if plan is None:
            return None
        try:
            found = reader.places(sources.tolist())
            if found is None:
                return None
            paths = os.fsencode("\0".join(found.paths)).split(b"\0")
        except Exception:  # the sample that fails reports it at its turn
            return None
        if len(paths) != len(found.paths):  # a path contains a 0: C would read no further
            return None
        files = Files(
            plan, paths, found.parts, seed, epoch, sources, occurrences, AHEAD, MAX_FILE_BYTES, _most_pixels(), most_memory,
            reader.beneath,
        )  # fmt: skip
        items = list(zip(sources.tolist(), occurrences.tolist()))
        return FileBatch(reader, pipeline, plan, files, items, seed, epoch, before_decoding)

    def __enter__(self) -> FileBatch:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close the files that were opened before their turn."""
        self._files.close()

    def make(
        self,
        first: int,
        out: np.ndarray,
        boxes: Optional[np.ndarray],
        table: Optional[np.ndarray] = None,
        channels_last: bool = True,
    ) -> int:
        """Make some samples from `first` on, which must be the first one not made.

        Args:
            first: position in the batch.
            out, boxes, table, channels_last: as for `Files.make`; the first sample made is out[0].

        Returns:
            The position of the first sample that is still not made.

        Raises:
            SampleError: the sample at `first` cannot be read, decoded or transformed.
        """
        if first != self._refused:
            stopped = self._files.make(first, out, boxes, ENOUGH_S, table, channels_last)
            READING.seconds += stopped.reading_s
            if stopped.refused:
                self._refused, self._read = stopped.next, stopped.read
            if stopped.next > first:
                return stopped.next
        place = out[0] if table is None and channels_last else np.empty(self._plan.shape, dtype=np.uint8)
        self._make_one(first, place, None if boxes is None else boxes[0])
        if table is not None:
            self._plan.kernel.table(place[np.newaxis], table, out[:1], channels_last)
        elif not channels_last:
            self._plan.kernel.planes(place[np.newaxis], out[:1])
        return first + 1

    def _make_one(self, position: int, out: np.ndarray, boxes: Optional[np.ndarray]) -> None:
        """Make the sample that the kernel refused."""
        about = self._reader, self._pipeline, self._items[position], self._seed, self._epoch
        if self._read:
            prepare_by_pillow(*about, self._files.content(), out, boxes, self._before_decoding, self._files.upright(position))
        else:
            prepare_sample(*about, out, boxes, self._before_decoding)
