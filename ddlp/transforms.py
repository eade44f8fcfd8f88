"""Transforms that torchvision lacks; usable in any torchvision pipeline, and portable to a device."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Cutout"]


class Cutout(nn.Module):
    """Fill squares around random points of a tensor image (DeVries and Taylor, arXiv 1708.04552).

    As in the authors' code a square reaches ``length // 2`` to each side of a point uniform in the image and is
    clipped at the border. Put it after ToTensor, and after Normalize for a fill of the mean. Here it draws from
    torch's global generator; on a device from the sample's key.

    Args:
        length: side of the squares in pixels, at least 1.
        n_holes: number of squares, at least 1; they may overlap.
        fill: value of the filled pixels, in the tensor's units.
    """

    def __init__(self, length: int, n_holes: int = 1, fill: float = 0.0) -> None:
        super().__init__()
        for name, value in (("length", length), ("n_holes", n_holes)):
            if type(value) is not int or value < 1:
                raise ValueError(f"Cutout: {name}={value!r}: expected an integer of at least 1")
        if not isinstance(fill, (int, float)) or fill != fill:
            raise ValueError(f"Cutout: fill={fill!r}: expected a number")
        self.length = length
        self.n_holes = n_holes
        self.fill = float(fill)

    def forward(self, image: Tensor) -> Tensor:
        """Copy of a (..., height, width) tensor with the squares filled; TypeError for anything but a tensor."""
        if not isinstance(image, Tensor):
            raise TypeError(f"Cutout takes a tensor, got {type(image).__name__}; put it after ToTensor or ToImage")
        height, width = image.shape[-2:]
        half = self.length // 2
        image = image.clone()
        for _ in range(self.n_holes):
            y = int(torch.randint(height, ()))
            x = int(torch.randint(width, ()))
            image[..., max(y - half, 0) : y + half, max(x - half, 0) : x + half] = self.fill
        return image

    def extra_repr(self) -> str:
        """Parameters for repr."""
        return f"length={self.length}, n_holes={self.n_holes}, fill={self.fill}"
