"""A batch while its samples are made: by the kernel's calls on many images, or one by one.

Sample by sample, Python takes a tenth of a small image's time, and each thread waits for the GIL several times a sample. By
calls it waits only once a call, which makes samples for some milliseconds.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Tuple, Union

import numpy as np

from csd_engine.data.base import Reader
from csd_engine.data.readahead import ReadAhead
from csd_engine.kernels.files import Files, SampleCalls
from csd_engine.prepare.destination import Destination, FinishedPlace
from csd_engine.prepare.read_time import READING
from csd_engine.prepare.sample import prepare_by_pillow, prepare_sample
from csd_engine.transforms.pipeline import Pipeline

__all__ = ["BatchRequest", "StartedBatch"]

ENOUGH_S = 0.02  # short enough to notice a cancel soon; with 5 ms, and cold caches at each call, Python took 0.7 % of all time


class BatchRequest(NamedTuple):
    """Which samples are to be made, and how.

    Attributes:
        sources, occurrences: int64 (n,).
        seed, epoch: with these the keys of all random draws.
        reader: of these sources, if they have been brought into memory (`csd_engine.data.base.Fetch`); None: the data set's.
        large_bytes: an image that takes so many bytes to decode waits for `before_decoding`; None: none waits.
        before_decoding: as for `prepare_sample`; may be called for smaller images too.
        known: the data set is known to have all these sources, so they are not checked. The check takes as long as a small
            batch.
    """

    sources: np.ndarray
    occurrences: np.ndarray
    seed: int
    epoch: int
    reader: Optional[Reader] = None
    large_bytes: Optional[int] = None
    before_decoding: Optional[Callable[[int], None]] = None
    known: bool = False

    def at(self, positions: Union[slice, np.ndarray]) -> BatchRequest:
        """Return the request for some of the samples, by their positions in this one."""
        return self._replace(sources=self.sources[positions], occurrences=self.occurrences[positions])

    def item(self, position: int) -> Tuple[int, int]:
        """Return (source index, occurrence) of a sample."""
        return int(self.sources[position]), int(self.occurrences[position])


class StartedBatch:
    """A batch whose samples are being made, in their order. It is for one thread, in a `with`: it has files open.

    Args:
        reader: of the data set. A `ReadAhead` is closed with the batch.
        pipeline: what to run.
        request: the samples.
        calls: the kernel's calls that make these samples, many at a time. What they refuse is made by itself, as each sample
            is if this is None.
    """

    def __init__(
        self,
        reader: Reader,
        pipeline: Pipeline,
        request: BatchRequest,
        calls: Optional[SampleCalls] = None,
    ) -> None:
        self.calls = calls
        self._reader, self._pipeline, self._request = reader, pipeline, request
        self._refused = -1  # the position at which the calls stopped because of the file or image
        self._read = False  # whether the kernel has that file's bytes

    def __enter__(self) -> StartedBatch:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close the files that were opened before their turn."""
        for opened in (self._reader, self.calls):
            if isinstance(opened, (ReadAhead, Files)):
                opened.close()

    def make(self, first: int, to: Destination) -> int:
        """Make some samples from position `first` on, the first one not made: for some milliseconds, but at least one.

        Returns:
            The position of the first sample that is still not made.

        Raises:
            SampleError: the sample at `first` cannot be read, decoded or transformed.
        """
        if self.calls is not None and first != self._refused:
            end = self._call(self.calls, first, to)
            if end > first:
                return end
        return self._make_one(first, to)

    def _call(self, calls: SampleCalls, first: int, to: Destination) -> int:
        """Have one call make samples, and return where it stopped."""
        rest = slice(first, len(self._request.sources))
        finished = to.finished_place(rest)
        place = FinishedPlace(*to.place(rest), None, True) if finished is None else finished
        stopped = calls.make(first, place.out, place.boxes, ENOUGH_S, place.table, place.channels_last)
        READING.seconds += stopped.reading_s
        if stopped.refused:
            self._refused, self._read = stopped.next, stopped.read
        if finished is None and stopped.next > first:
            to.done(slice(first, stopped.next))
        return stopped.next

    def _make_one(self, position: int, to: Destination) -> int:
        """Make one sample by itself, and return the position behind it."""
        part, request, calls = slice(position, position + 1), self._request, self.calls
        images, boxes = to.place(part)
        place = images[0], None if boxes is None else boxes[0]
        about = self._reader, self._pipeline, request.item(position), request.seed, request.epoch
        if isinstance(calls, Files) and self._read and position == self._refused:
            prepare_by_pillow(*about, calls.content(), *place, request.before_decoding, calls.upright(position))
        else:
            prepare_sample(*about, *place, request.before_decoding)
        to.done(part)
        return position + 1
