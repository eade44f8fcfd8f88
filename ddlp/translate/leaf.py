"""The base class for the kinds of data sets. Each kind has a file beside this one.

A kind is a subclass of `Leaf`. `ddlp.translate.datasets.LEAVES` says which data sets become which kind.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from csd_engine.data.arrays import ArraySet
from csd_engine.data.base import Dataset, Reader
from csd_engine.data.files import FileSet

__all__ = ["WAYS", "DictSample", "Leaf", "Upload", "class_name", "name_of"]

WAYS = "describe it: dataset = ddlp.ImageFiles(paths, targets, transform), or ddlp.ImageArrays(images, targets, transform)"


def name_of(dataset: Any) -> str:
    """A data set's name in messages."""
    return type(dataset).__qualname__


def class_name(kind: type) -> str:
    """A class's full name. ddlp knows classes of packages that need not be installed by it."""
    return f"{kind.__module__}.{kind.__qualname__}"


class DictSample(NamedTuple):
    """The form of samples that are dicts. A target is the dict without the image.

    Attributes:
        names: the keys of a sample, in its order.
        image: the key of its image.
    """

    names: tuple[str, ...]
    image: str

    def join(self, image: Any, target: Any) -> dict[str, Any]:
        """Make a sample, or a batch, from its image and its target."""
        return {name: image if name == self.image else target[name] for name in self.names}

    def split(self, sample: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the image and the target of a sample that `join` made."""
        return sample[self.image], {name: value for name, value in sample.items() if name != self.image}


class Upload(NamedTuple):
    """The functions by which a leaf brings its data to the device.

    Attributes:
        files: takes paths, and the directory of relative ones (""; the current one), and returns the description of these files
            once their manifest is ready to be sent.
        array: takes images, uint8 (n, h, w) or (n, h, w, 3), and returns their description once they are put on the SSD or
            are ready to be sent.
        reads: whether the device may read the storage at a URL itself.

    The first two raise OSError if the directory for the data to send can't be written.
    """

    files: Callable[[Sequence[str | os.PathLike[str]], str], FileSet]
    array: Callable[[np.ndarray], ArraySet]
    reads: Callable[[str], bool]


@dataclass(frozen=True, eq=False)
class Leaf(Reader, ABC):
    """A data set that is not made of others, and its reader on the host.

    Args:
        name: for messages.
        transform: the user's, on one image.
        targets: gives the targets of the samples with these numbers, before ``target_transform``. It takes all of them in one
            call, since one Python call for each takes longer than the pixels of a small image.
        target_transform: the user's, on one target.

    Attributes:
        directory: relative paths of files are relative to it; "": to the current one. `PortableSet.open_in` sets it.
    """

    name: str
    transform: Callable | None
    targets: Callable[[list[int]], list[Any]]
    target_transform: Callable | None
    directory: str = field(init=False, default="")

    @property
    def mode(self) -> str:
        """Pillow's mode of the images, as the data set itself would open them."""
        return "RGB"

    @property
    def size(self) -> tuple[int, int] | None:
        """(width, height) of every image in pixels; None if each has its own."""
        return None

    @property
    def keys(self) -> DictSample | None:
        """How samples that are dicts are made; None: they are (image, target)."""
        return None

    @property
    def transforms(self) -> Callable | None:
        """The user's joint transform, on an image and its target, in the place of the two others; None: there is none."""
        return None

    @property
    def from_raw(self) -> Callable[[Any, tuple[int, int]], Any] | None:
        """What makes the target that ``transforms`` gets, of one that ``targets`` gives and its image's (width, height)."""
        return None

    def image_size(self, index: int) -> tuple[int, int]:
        """Return (width, height) of one image, for its target to follow; only of data sets with ``transforms``."""
        raise NotImplementedError

    @abstractmethod
    def describe(self, upload: Upload) -> Dataset:
        """Return the data set's description for the engine. ``upload`` brings the data that the device needs."""
