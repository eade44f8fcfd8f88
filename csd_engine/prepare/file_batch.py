"""The files of one batch, made into samples by few calls of the kernel: as many in each as a few milliseconds allow.

Sample by sample, Python costs a tenth of a small image's time, and threads of one process meet at its lock several times
each. Here they meet once in a while. What the kernel refuses goes through Pillow, as it would by itself.
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

ENOUGH_S = 0.02  # a cancel is heard soon; of calls of 5 ms, each with cold caches, Python was 0.7 % of all


def _most_pixels() -> Optional[int]:
    """Pillow's limit as C takes it: users set it to any number, 1e10 and inf among them. None: there is none."""
    limit = Image.MAX_IMAGE_PIXELS
    return None if limit is None or limit >= 1 << 63 else int(limit)


class FileBatch:
    """Made by `of`; for one thread, in a `with`. The samples are made in their order."""

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
        self._refused = -1  # the position that the kernel stopped at, if that was for the file's sake
        self._read = False  # whether it has the file's bytes

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
        """A batch; None where its samples are made one by one: without a plan, and where a sample is no file.

        Args:
            reader: of the data set.
            pipeline: what to run.
            plan: the kernel's for it, from `file_plan`.
            sources, occurrences: int64 (n,).
            seed, epoch: with these the keys of all random draws.
            most_memory: bytes; an image that takes so many at least to decode waits for `before_decoding`.
            before_decoding: as of `prepare_sample`; called for these, and before Pillow's turn.
        """
        if plan is None:
            return None
        try:
            found = reader.paths(sources.tolist())
            paths = os.fsencode("\0".join(found or ())).split(b"\0")
        except Exception:  # told at its turn by the sample that has it
            return None
        if found is None or len(paths) != len(found):  # C would read no further than to the 0 in one of them
            return None
        files = Files(
            plan, paths, seed, epoch, sources, occurrences, AHEAD, MAX_FILE_BYTES, _most_pixels(), most_memory, reader.beneath,
        )  # fmt: skip
        items = list(zip(sources.tolist(), occurrences.tolist()))
        return FileBatch(reader, pipeline, plan, files, items, seed, epoch, before_decoding)

    def __enter__(self) -> FileBatch:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close what was opened ahead of its turn."""
        self._files.close()

    def make(
        self,
        first: int,
        out: np.ndarray,
        boxes: Optional[np.ndarray],
        table: Optional[np.ndarray] = None,
        channels_last: bool = True,
    ) -> int:
        """Make some samples from `first` on, which has to be the first one not made.

        Args:
            first: position in the batch.
            out, boxes, table, channels_last: as of `Files.make`: the first sample made is out[0].

        Returns:
            The position of the first one not made now.

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
            prepare_by_pillow(*about, self._files.content(), out, boxes, self._before_decoding)
        else:
            prepare_sample(*about, out, boxes, self._before_decoding)
