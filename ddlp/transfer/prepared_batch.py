"""A batch on its way from where it was made to the training thread, and its state."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ddlp.stats.replaced import Replaced
from ddlp.transfer.device_stream import StreamEvent

__all__ = ["BatchState", "PreparedBatch"]


class BatchState(enum.Enum):
    """The state of a `PreparedBatch`."""

    BYTES = "bytes"  # uint8 samples as both sides make them, before the epilogue
    TENSORS = "tensors"  # the epilogue's result, in the memory of this host
    ON_DEVICE = "on device"  # the epilogue's result, in the memory of an accelerator
    WHOLE = "whole"  # the result of the user's own steps and collate_fn, with the targets
    FAILED = "failed"  # a sample could not be prepared


@dataclass(frozen=True)
class PreparedBatch:
    """A batch that is ready for the training thread.

    Attributes:
        images: (batch, height, width, channels) uint8 in `BatchState.BYTES`; later (batch, channels, height, width) in the
            epilogue's dtype, flat if views have several sizes (`Epilogue.sizes`). Empty if the batch failed or is whole.
        boxes: int32 (batch, masks, 4), which the epilogue fills; None: there are none, or the epilogue has filled them.
        event: in `BatchState.ON_DEVICE`: the images may be used after it.
        error: in `BatchState.FAILED`: raised in the batch's place.
        whole: in `BatchState.WHOLE`: what the training loop gets.
        replaced: the samples in the place of bad ones. Their targets are joined.
    """

    images: torch.Tensor
    boxes: torch.Tensor | None = None
    state: BatchState = BatchState.BYTES
    event: StreamEvent | None = None
    error: BaseException | None = None
    whole: Any = None
    replaced: tuple[Replaced, ...] = ()

    def sources(self, planned: np.ndarray) -> np.ndarray:
        """Return the source index of each sample, int64. ``planned``: as the plan has them, without replaced samples."""
        if not self.replaced:
            return planned
        sources = planned.copy()
        for sample in self.replaced:
            sources[sample.place] = sample.source
        return sources

    @classmethod
    def failed(cls, error: BaseException) -> PreparedBatch:
        """Return a batch that replaces one with a sample that can't be prepared."""
        return cls(torch.empty(0), None, BatchState.FAILED, error=error)

    @classmethod
    def made_whole(cls, batch: Any, replaced: tuple[Replaced, ...] = ()) -> PreparedBatch:
        """Return a batch of the user's code, as the training loop gets it."""
        return cls(torch.empty(0), None, BatchState.WHOLE, whole=batch, replaced=replaced)
