"""What a chain of torchvision's tensor operators does to each byte: the operators themselves run on all 256 values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors

from ddlp.errors import Untranslatable
from ddlp.transfer.epilogue import DTYPES, Epilogue

__all__ = ["Values"]

KEEP = "keep it and let the host prepare everything (strategy='cpu')"
BATCH = "move it behind the loader as batch_transform=, where it sees the whole batch"


class Values:
    """A tensor image (channels, 1, 256 + masks): column v holds the values of byte v, the last ones masks' fills.

    ``tensor`` is None as long as the image is still a PIL image.
    """

    def __init__(self) -> None:
        self.tensor: Tensor | None = None
        self.masks = 0

    def apply(self, transform: Any, channels: int) -> bool:
        """Run a value operator; returns whether anything changed. Raises Untranslatable if it isn't one here."""
        before: Any = self.tensor.clone() if self.tensor is not None else _all_bytes(channels)
        name = repr(transform)
        try:
            after = transform(self.tensor.clone() if self.tensor is not None else before)
        except Exception as error:
            raise Untranslatable(
                name, f"it fails here with {type(error).__name__}: {error}", ["correct the transform", KEEP]
            ) from error
        if isinstance(after, Image.Image) and isinstance(before, Image.Image):
            if after.mode == before.mode and after.tobytes() == before.tobytes():
                return False
        elif isinstance(after, Tensor) and tuple(after.shape) == (channels, 1, 256 + self.masks):
            changed = self.tensor is None or type(after) is not type(before) or not _identical(after, before)
            self.tensor = after
            return changed
        raise Untranslatable(name, "it changes the image's shape or type in a way that a table of values can't "
                             "express", [BATCH, KEEP])

    def add_fill(self, name: str, value: Any) -> list[float]:
        """Add a mask that fills with ``value`` (a number or one a channel); returns the fill as the image has it."""
        assert self.tensor is not None
        fill = torch.tensor(value, dtype=torch.float32).reshape(-1)
        if len(fill) not in (1, len(self.tensor)):
            raise Untranslatable(name, f"its {len(fill)} values don't fit an image of {len(self.tensor)} channel(s)",
                                 ["give one value, or one a channel", KEEP])
        column = torch.empty((len(self.tensor), 1, 1), dtype=self.tensor.dtype)
        column[...] = fill[:, None, None]
        joined = torch.cat([self.tensor.as_subclass(Tensor), column], 2)
        if isinstance(self.tensor, tv_tensors.TVTensor):
            joined = tv_tensors.wrap(joined, like=self.tensor)
        self.tensor = joined
        self.masks += 1
        return column.reshape(-1).to(torch.float64).tolist()

    def byte_of(self, fill: Any) -> list[int] | None:
        """The byte of each channel whose value is ``fill`` (a number or one a channel) here; None if there is none."""
        assert self.tensor is not None
        values = self.tensor.as_subclass(Tensor)[:, 0, :256]
        wanted = torch.empty((len(values), 1), dtype=values.dtype)
        wanted[...] = torch.tensor(fill, dtype=torch.float64).reshape(-1, 1)
        matches = values == wanted
        return matches.to(torch.uint8).argmax(1).tolist() if bool(matches.any(1).all()) else None

    def epilogue(self) -> Epilogue:
        """Epilogue with the table that was found; Untranslatable where no output dtype of ours holds it."""
        if self.tensor is None:
            raise Untranslatable("the transform", "it yields PIL images, and a batch needs tensors",
                                 ["add ToTensor() (or v2.ToImage() and v2.ToDtype) as its last step", KEEP])
        if self.tensor.dtype not in DTYPES:
            raise Untranslatable("the transform", f"it yields {self.tensor.dtype}",
                                 ["convert to torch.float32, float16, bfloat16 or uint8", KEEP])
        tensor = self.tensor.as_subclass(Tensor)[:, 0]
        values = tensor.to(torch.float32)
        table, fills = values[:, :256].contiguous(), values[:, 256:].T.contiguous()
        if tensor.dtype == torch.uint8:
            if not bool((table == torch.arange(256)).all()):
                raise Untranslatable("the transform", "it changes values and yields uint8",
                                     ["end with a float type", KEEP])
            return Epilogue(None, fills, torch.uint8)
        return Epilogue(table, fills, tensor.dtype)


def _all_bytes(channels: int) -> Image.Image:
    row = np.arange(256, dtype=np.uint8)[None]
    return Image.fromarray(row if channels == 1 else np.ascontiguousarray(np.repeat(row[..., None], channels, 2)))


def _identical(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.as_subclass(Tensor), b.as_subclass(Tensor))
