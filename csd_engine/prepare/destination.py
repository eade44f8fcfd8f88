"""Where the samples of a batch go while they are made. Host, engine and tests each have memory of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Optional, Tuple

import numpy as np

__all__ = ["Destination", "FinishedPlace"]


class FinishedPlace(NamedTuple):
    """Memory for samples in the form that is delivered. The kernel can make this form directly.

    Attributes:
        out, boxes, table, channels_last: as for `csd_engine.kernels.files.Files.make`.
    """

    out: np.ndarray
    boxes: Optional[np.ndarray]
    table: Optional[np.ndarray]
    channels_last: bool


class Destination(ABC):
    """The destination of the samples of one batch. `part` is a slice of positions in the batch."""

    @abstractmethod
    def place(self, part: slice) -> Tuple[np.ndarray, Optional[np.ndarray]]:
        """Return memory for these samples, or only for the first ones if there is less room: at least for one.

        Returns:
            images, uint8 (n, height, width, channels), and boxes, int32 (n, masks, 4), or None for a pipeline without masks.
            Both are C-contiguous and are filled until `done` is called.
        """

    @abstractmethod
    def done(self, part: slice) -> None:
        """Take these samples. They are finished, in the memory that `place` returned last."""

    def finished_place(self, part: slice) -> Optional[FinishedPlace]:
        """Return memory for these samples in their final form. None: their bytes go to the memory of `place`.

        A sample that the kernel can't make goes through `place` and `done` in any case.
        """
        return None
