"""Memory for the samples of a batch."""

from __future__ import annotations

import numpy as np

from csd_engine.prepare.destination import Destination, FinishedPlace


class Memory(Destination):
    """Memory for all samples of a batch. ``images``: their bytes, or with a table numbers, with the channels last or first."""

    def __init__(
        self, samples: int, shape: tuple[int, ...], masks: int, table: np.ndarray | None = None, channels_last: bool = True
    ) -> None:
        self._bytes = np.zeros((samples, *shape), np.uint8)
        self._table, self._channels_last = table, channels_last
        self._finishes = table is not None or not channels_last
        self.images = self._finished(self._bytes) if self._finishes else self._bytes
        self.boxes = np.zeros((samples, masks, 4), np.int32) if masks else None
        self.done_to = 0  # samples go in order

    def _finished(self, pixels: np.ndarray) -> np.ndarray:
        if self._table is not None:
            pixels = np.stack([self._table[channel][pixels[..., channel]] for channel in range(pixels.shape[3])], axis=-1)
        return pixels if self._channels_last else np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))

    def place(self, part: slice) -> tuple[np.ndarray, np.ndarray | None]:
        return self._bytes[part], None if self.boxes is None else self.boxes[part]

    def done(self, part: slice) -> None:
        assert self.done_to <= part.start < part.stop
        self.done_to = part.stop
        if self._finishes:
            self.images[part] = self._finished(self._bytes[part])

    def finished_place(self, part: slice) -> FinishedPlace | None:
        if not self._finishes:
            return None
        boxes = None if self.boxes is None else self.boxes[part]
        return FinishedPlace(self.images[part], boxes, self._table, self._channels_last)
