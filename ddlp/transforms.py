"""Transforms that torchvision lacks. They work in any torchvision pipeline, and can travel to a device."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["CachePoint", "Cutout", "Views", "told_at_points"]

_TOLD = threading.local()


class CachePoint(nn.Module):
    """Says in a transform that what stands before it is the same every time, code of your own included.

    It gives back what it gets, also with `torch.utils.data.DataLoader`. In a `ddlp.DDLPLoader` with ``cache=`` the results of
    the steps before it are kept on disk, and later epochs and runs begin there: docs/cache.md. Of several the last one counts.

        Compose([Crop(margin=8), Resize((256, 256)), CachePoint(key="crop 1"), RandomCrop(224), ToTensor()])

    Args:
        frozen_epochs: random steps may stand before it. Each sample's outcome is kept for so many epochs, and then drawn again.
            None: the loader refuses random steps before it, since their first outcome would be kept for ever.
        key: a name and version of your own for the steps before this point, required by a loader with ``cache=`` where code
            of your own is among them. Change it when these steps change, or an earlier version's results are used. Of the
            operators that ddlp knows it compares the parameters itself; "" is enough where all are such.

    Raises:
        ValueError: if ``frozen_epochs`` is no integer of at least 1, or ``key`` is no text.
    """

    def __init__(self, frozen_epochs: int | None = None, key: str = "") -> None:
        super().__init__()
        if frozen_epochs is not None and (type(frozen_epochs) is not int or frozen_epochs < 1):
            raise ValueError(f"CachePoint: frozen_epochs={frozen_epochs!r}: a number of epochs, 1 or more, or None")
        if not isinstance(key, str):
            raise ValueError(f"CachePoint: key={key!r}: expected a text")
        self.frozen_epochs = frozen_epochs
        self.key = key

    def forward(self, *inputs: Any) -> Any:
        """Return the image, or image and target, as they are."""
        call = getattr(_TOLD, "call", None)
        if call is not None:
            call(self, *inputs)
        return inputs if len(inputs) > 1 else inputs[0]

    def extra_repr(self) -> str:
        """Return the parameters for repr."""
        given = {"frozen_epochs": self.frozen_epochs, "key": self.key}
        return ", ".join(f"{name}={value!r}" for name, value in given.items() if value)


@contextlib.contextmanager
def told_at_points(call: Callable[..., None]) -> Iterator[None]:
    """Have ``call`` called with each `CachePoint` that this thread reaches, and with what it gets."""
    _TOLD.call = call
    try:
        yield
    finally:
        del _TOLD.call


class Cutout(nn.Module):
    """Fill squares around random points of a tensor image (DeVries and Taylor, arXiv 1708.04552).

    As in the authors' code, a square reaches ``length // 2`` to each side of a point uniform in the image and is
    clipped at the border. Put it after ToTensor; to fill with the mean, put it after Normalize as well. Here it
    draws from torch's global generator; on a device it draws from the sample's key.

    Args:
        length: the side of the squares in pixels, at least 1.
        n_holes: the number of squares, at least 1; they may overlap.
        fill: the value of the filled pixels, in the tensor's units.
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
        """Return a copy of a (..., height, width) tensor with the squares filled. TypeError for anything but a tensor."""
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
        """Return the parameters for repr."""
        return f"length={self.length}, n_holes={self.n_holes}, fill={self.fill}"


class Views:
    """Several views of one image, as SimCLR, MoCo and BYOL use them: a list with the result of each transform.

    ``Views(t, t)`` draws twice from one transform, ``Views(t1, t2)`` has one transform for each view. It is the whole transform
    of a data set. A loader's batch is then ``[[first views, second views, ...], targets]``, and each of the views is (batch,
    channels, height, width); the views may have several sizes. It can travel only if all views have the same channels, and end
    with the same ToTensor and Normalize.

    Args:
        transforms: at least one, each a callable on a PIL image. ValueError if there is none.
    """

    def __init__(self, *transforms: Callable[[Any], Any]) -> None:
        if not transforms:
            raise ValueError("Views(): no transform was given; pass one for each view, the same one twice for two alike")
        self.transforms = transforms

    def __call__(self, image: Any) -> list[Any]:
        """Return the result of each transform, in order."""
        return [transform(image) for transform in self.transforms]

    def __repr__(self) -> str:
        return f"Views({', '.join(map(repr, self.transforms))})"
