"""Makes one batch's files into samples. A file that the kernel refuses goes through Pillow, as it would by itself."""

from __future__ import annotations

import os
from typing import Callable, Optional

import numpy as np

from csd_engine.data.base import Reader
from csd_engine.data.image_files import MAX_FILE_BYTES, is_above_limit, most_pixels
from csd_engine.data.readahead import AHEAD
from csd_engine.kernels.files import FilePlan, Files
from csd_engine.prepare.kernel_batch import KernelBatch
from csd_engine.prepare.sample import prepare_by_pillow
from csd_engine.transforms.pipeline import Pipeline

__all__ = ["FileBatch"]


class FileBatch(KernelBatch):
    """The files of one batch. `of` makes it."""

    _calls: Files

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
        if plan is None or is_above_limit(plan.most_cropped):
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
            plan, paths, found.parts, seed, epoch, sources, occurrences, AHEAD, MAX_FILE_BYTES, most_pixels(), most_memory,
            reader.beneath,
        )  # fmt: skip
        return FileBatch(reader, pipeline, plan, files, sources, occurrences, seed, epoch, before_decoding)

    def close(self) -> None:
        """Close the files that were opened before their turn."""
        self._calls.close()

    def _make_one(self, position: int, out: np.ndarray, boxes: Optional[np.ndarray]) -> None:
        if not self._read:
            return super()._make_one(position, out, boxes)
        prepare_by_pillow(
            self._reader, self._pipeline, self._item(position), *self._key, self._calls.content(), out, boxes,
            self._before_decoding, self._calls.upright(position),
        )  # fmt: skip
