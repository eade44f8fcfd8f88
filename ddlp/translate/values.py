"""Finds what torchvision's tensor operators do to each byte value: the operators themselves run on all 256 values."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors

from ddlp.errors import Untranslatable
from ddlp.transfer.epilogue import DTYPES, Epilogue, Noise

__all__ = ["Values"]

KEEP = "keep it and let the host prepare everything (strategy='cpu')"
BATCH = "move it behind the loader as batch_transform=, where it sees the whole batch"


class Values:
    """A tensor image (channels, 1, 256 + masks): column v holds the values of byte v. The last columns hold the masks' fills.

    ``tensor`` is None as long as the image is still a PIL image.
    """

    def __init__(self) -> None:
        self.tensor: Tensor | None = None
        self.masks = 0
        self.noise: list[Noise] = []

    def apply(self, transform: Any, channels: int) -> bool:
        """Run a value operator, and return whether anything changed. Raises Untranslatable if it can't be one here."""
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
            if changed and self.noise:
                raise Untranslatable(name, "it changes values behind an operator that fills with noise, which is drawn for "
                                     "the finished image", [f"move it before {self.noise[0].name}", KEEP])
            self.tensor = after
            return changed
        raise Untranslatable(name, "it changes the image's shape or type in a way that a table of values can't "
                             "express", [BATCH, KEEP])

    @property
    def bytes_only(self) -> bool:
        """Whether the image is a uint8 tensor with the values of the PIL image, and nothing masks it."""
        tensor = self.tensor
        if tensor is None or tensor.dtype != torch.uint8 or self.masks:
            return False
        return bool((tensor.as_subclass(Tensor)[:, 0] == torch.arange(256)).all())

    def has_channels(self, channels: int | None) -> None:
        """Give the image, which is `bytes_only`, another number of channels. None: chance decides; a later check refuses it."""
        assert self.tensor is not None
        if channels not in (None, len(self.tensor)):
            rows = self.tensor.as_subclass(Tensor)[:1].expand(channels, -1, -1).clone()
            is_wrapped = isinstance(self.tensor, tv_tensors.TVTensor)
            self.tensor = tv_tensors.wrap(rows, like=self.tensor) if is_wrapped else rows

    def add_fill(self, name: str, value: Any) -> list[float]:
        """Add a mask that fills with ``value`` (a number or one a channel); return the fill in the image's dtype."""
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

    def add_noise(self, name: str, by_pixel: bool) -> None:
        """Let the last mask be filled with noise. Another mask is added: its box holds the seed of the noise."""
        self.add_fill(name, 0.0)
        self.noise.append(Noise(name, self.masks - 2, by_pixel))

    def byte_of(self, fill: Any) -> list[int] | None:
        """The byte of each channel whose value is ``fill`` (a number or one a channel) here; None if there is none."""
        assert self.tensor is not None
        values = self.tensor.as_subclass(Tensor)[:, 0, :256]
        wanted = torch.empty((len(values), 1), dtype=values.dtype)
        wanted[...] = torch.tensor(fill, dtype=torch.float64).reshape(-1, 1)
        matches = values == wanted
        return matches.to(torch.uint8).argmax(1).tolist() if bool(matches.any(1).all()) else None

    def epilogue(self) -> Epilogue:
        """Return the epilogue with the table that was found. Untranslatable if none of our output dtypes can hold it."""
        if self.tensor is None:
            raise Untranslatable("the transform", "it yields PIL images, and a batch needs tensors",
                                 ["add ToTensor() (or v2.ToImage() and v2.ToDtype) as its last step", KEEP])
        if self.tensor.dtype not in DTYPES:
            usual = self.tensor.dtype == torch.get_default_dtype()
            raise Untranslatable("the transform", f"it yields {self.tensor.dtype}" + ", torch's default dtype now" * usual,
                                 ["convert to torch.float32, float16, bfloat16 or uint8", KEEP])
        tensor = self.tensor.as_subclass(Tensor)[:, 0]
        values = tensor.to(torch.float32)
        table, fills = values[:, :256].contiguous(), values[:, 256:].T.contiguous()
        if tensor.dtype == torch.uint8:
            if not bool((table == torch.arange(256)).all()):
                raise Untranslatable("the transform", "it changes values and yields uint8",
                                     ["end with a float type", KEEP])
            return self._with_noise(Epilogue(None, fills, torch.uint8))
        return self._with_noise(Epilogue(table, fills, tensor.dtype))

    def _with_noise(self, epilogue: Epilogue) -> Epilogue:
        try:
            return dataclasses.replace(epilogue, noise=tuple(self.noise))
        except ValueError as error:
            raise Untranslatable("the transform", str(error), ["end with a float type", KEEP]) from error


def _all_bytes(channels: int) -> Image.Image:
    row = np.arange(256, dtype=np.uint8)[None]
    return Image.fromarray(row if channels == 1 else np.ascontiguousarray(np.repeat(row[..., None], channels, 2)))


def _identical(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.as_subclass(Tensor), b.as_subclass(Tensor))
