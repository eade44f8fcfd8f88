"""Data sets that can travel to a device: for users whose own Dataset class is a list of files or an array of images."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

from csd_engine.data.image_files import pillow_open
from csd_engine.errors import named

__all__ = ["ImageArrays", "ImageFiles", "TargetedImages", "image_in_memory"]


class TargetedImages(Dataset):
    """The base of ddlp's image data sets: targets of any type, and the transforms that torchvision's data sets have."""

    def __init__(
        self, targets: Sequence[Any], transform: Callable | None, target_transform: Callable | None
    ) -> None:
        self.targets = targets
        self.transform = transform
        self.target_transform = target_transform

    def image(self, index: int) -> Image.Image:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self._sample(self.image(index), index)

    def _sample(self, image: Any, index: int) -> tuple[Any, Any]:
        if self.transform is not None:
            image = self.transform(image)
        target = self.targets[index]
        return image, target if self.target_transform is None else self.target_transform(target)


def image_in_memory(content: bytes, where: str) -> Image.Image:
    """Return the image in these bytes, RGB. An error is of Pillow's type, and names the place where the bytes come from."""
    try:
        return pillow_open(io.BytesIO(content)).convert("RGB")
    except Exception as error:
        raise named(error, where)  # noqa: B904  its cause is set


class ImageFiles(TargetedImages):
    """A list of image files and a target for each. Samples are (image, target), as in torchvision's data sets.

    Args:
        paths: image files of any format that Pillow reads; they are opened as RGB.
        targets: one for each path, of any type that default_collate takes; they stay on the host.
        transform: is called with the PIL image. torchvision's operators travel to the device, see ``loader.explain()``.
        target_transform: is called with the target, on the host.
        transforms: in the place of both: is called with the image and the target, as torchvision.transforms.v2 does for
            detection and segmentation. A device makes the images, and the host has boxes, masks and key points follow.

    Raises:
        ValueError: if the numbers of paths and targets differ, or there is a ``transforms`` beside the others.

    A Dataset class of your own travels as well if it has a method ``__ddlp__`` that returns an `ImageFiles`,
    `ImageArrays`, torchvision data set, Subset or ConcatDataset with the same samples in the same order. A subclass with
    a ``__getitem__`` of its own needs a ``__ddlp__`` of its own. When the first epoch begins (or at ``explain()``), one sample
    is made both ways. If ``__getitem__`` gives another structure, for example a dict, its code prepares all batches, and ddlp
    says so.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        targets: Sequence[Any],
        transform: Callable | None = None,
        target_transform: Callable | None = None,
        transforms: Callable | None = None,
    ) -> None:
        if len(paths) != len(targets):
            raise ValueError(f"ImageFiles: {len(paths)} paths but {len(targets)} targets; give each path one target.")
        if transforms is not None and (transform is not None or target_transform is not None):
            raise ValueError("ImageFiles: transforms= gets image and target; leave transform= and target_transform= out.")
        super().__init__(targets, transform, target_transform)
        self.paths = paths
        self.transforms = transforms

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if self.transforms is None:
            return super().__getitem__(index)
        image, target = self.transforms(self.image(index), self.targets[index])
        return image, target

    def image(self, index: int) -> Image.Image:
        """Return the file's image, RGB."""
        with open(self.paths[index], "rb") as stream:
            return pillow_open(stream).convert("RGB")


class ImageArrays(TargetedImages):
    """Images in one array and a target for each. Samples are (image, target).

    Args:
        images: uint8, (n, height, width, 3) for RGB or (n, height, width) for grey.
        targets, transform, target_transform: as for `ImageFiles`.

    Raises:
        ValueError: if the dtype or shape is another one, or the numbers of images and targets differ.
    """

    def __init__(
        self,
        images: np.ndarray,
        targets: Sequence[Any],
        transform: Callable | None = None,
        target_transform: Callable | None = None,
    ) -> None:
        if images.dtype != np.uint8 or not (images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3)):
            raise ValueError(
                f"ImageArrays: images are {images.dtype} {images.shape}; "
                "uint8 of (n, height, width, 3) or (n, height, width) is needed."
            )
        if len(images) != len(targets):
            raise ValueError(f"ImageArrays: {len(images)} images but {len(targets)} targets; give each image one target.")
        super().__init__(targets, transform, target_transform)
        self.images = images

    def image(self, index: int) -> Image.Image:
        """Return one row of the array as an image."""
        return Image.fromarray(self.images[index])
