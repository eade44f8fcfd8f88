"""Makes one batch's images that lie in memory, as pixels, into samples. What the kernel refuses goes one by one."""

from __future__ import annotations

from typing import Callable, Optional

import numpy as np

from csd_engine.data.base import Reader
from csd_engine.data.image_files import is_above_limit
from csd_engine.kernels.files import FilePlan
from csd_engine.kernels.pixels import PixelSamples
from csd_engine.prepare.kernel_batch import KernelBatch
from csd_engine.transforms.pipeline import Pipeline

__all__ = ["PixelBatch"]


class PixelBatch(KernelBatch):
    """The images of one batch. `of` makes it."""

    @staticmethod
    def of(
        reader: Reader,
        pipeline: Pipeline,
        plan: Optional[FilePlan],
        sources: np.ndarray,
        occurrences: np.ndarray,
        seed: int,
        epoch: int,
        before_decoding: Optional[Callable[[int], None]] = None,
    ) -> Optional[PixelBatch]:
        """Make a batch; None if there is no plan, or a sample is no array in memory. Arguments as for `KernelBatch`."""
        if plan is None or is_above_limit(plan.most_cropped):
            return None
        try:
            pixels = reader.pixels(sources)
        except Exception:  # the sample that fails reports it at its turn
            return None
        if pixels is None:
            return None
        calls = PixelSamples(plan, pixels, seed, epoch, sources, occurrences)
        return PixelBatch(reader, pipeline, plan, calls, sources, occurrences, seed, epoch, before_decoding)
