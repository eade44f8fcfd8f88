"""Makes one batch's samples by a few calls of the kernel. Each call makes samples for some milliseconds.

Sample by sample, Python takes a tenth of a small image's time, and each thread waits for the GIL several times a sample. Here
it waits only once a call. A sample that the kernel refuses is made as it would be by itself.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Tuple, Union

import numpy as np

from csd_engine.data.base import Reader
from csd_engine.kernels.files import FilePlan, Files
from csd_engine.kernels.pixels import PixelSamples
from csd_engine.prepare.read_time import READING
from csd_engine.prepare.sample import prepare_sample
from csd_engine.transforms.pipeline import Pipeline

__all__ = ["KernelBatch"]

ENOUGH_S = 0.02  # short enough to notice a cancel soon; with 5 ms, and cold caches at each call, Python took 0.7 % of all time


class KernelBatch:
    """A batch whose samples the kernel makes in their order. It is for one thread, in a `with`.

    Args:
        reader: of the data set.
        pipeline: what to run.
        plan: the kernel's plan for it.
        calls: whose calls make the samples.
        sources, occurrences: int64 (n,).
        seed, epoch: with these the keys of all random draws.
        before_decoding: as for `prepare_sample`, for samples that the kernel refuses.
    """

    def __init__(
        self,
        reader: Reader,
        pipeline: Pipeline,
        plan: FilePlan,
        calls: Union[Files, PixelSamples],
        sources: np.ndarray,
        occurrences: np.ndarray,
        seed: int,
        epoch: int,
        before_decoding: Optional[Callable[[int], None]],
    ) -> None:
        self.samples = len(sources)  #: of the batch
        self._reader, self._pipeline, self._plan, self._calls, self._key = reader, pipeline, plan, calls, (seed, epoch)
        self._sources, self._occurrences, self._before_decoding = sources, occurrences, before_decoding
        self._refused = -1  # the position at which the kernel stopped because of the file or image
        self._read = False  # whether the kernel has that file's bytes

    def __enter__(self) -> KernelBatch:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Close what is open."""

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
            out, boxes, table, channels_last: as for `csd_engine.kernels.samples.samples_to`; the first sample made is out[0].

        Returns:
            The position of the first sample that is still not made.

        Raises:
            SampleError: the sample at `first` cannot be read, decoded or transformed.
        """
        if first != self._refused:
            stopped = self._calls.make(first, out, boxes, ENOUGH_S, table, channels_last)
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

    def _item(self, position: int) -> Tuple[int, int]:
        return int(self._sources[position]), int(self._occurrences[position])

    def _make_one(self, position: int, out: np.ndarray, boxes: Optional[np.ndarray]) -> None:
        """Make the sample that the kernel refused."""
        prepare_sample(self._reader, self._pipeline, self._item(position), *self._key, out, boxes, self._before_decoding)
