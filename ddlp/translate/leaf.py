"""What ddlp needs of a data set of its users: the base of the kinds, each in a file beside this one.

A kind is a `Leaf`, and `ddlp.translate.datasets.LEAVES` says which data sets become one.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from csd_engine.data.arrays import ArraySet
from csd_engine.data.base import Dataset, Source
from csd_engine.data.files import FileSet

__all__ = ["WAYS", "Leaf", "Upload", "name_of"]

WAYS = "describe it: dataset = ddlp.ImageFiles(paths, targets, transform), or ddlp.ImageArrays(images, targets, transform)"


def name_of(dataset: Any) -> str:
    """A data set's name in messages."""
    return type(dataset).__qualname__


class Upload(NamedTuple):
    """How a leaf brings what the device needs of it to the device.

    Attributes:
        files: takes paths, and returns the description of these files once their manifest is ready to be sent.
        array: takes images, uint8 (n, h, w) or (n, h, w, 3), and returns their description once they are put on the SSD or
            are ready to be sent.

    Both raise OSError where the directory of what is sent can't be written.
    """

    files: Callable[[Sequence[str | os.PathLike[str]]], FileSet]
    array: Callable[[np.ndarray], ArraySet]


@dataclass(frozen=True, eq=False)
class Leaf(ABC):
    """A data set that is not made of others. Its samples are numbered from 0.

    Args:
        name: for messages.
        transform: the user's, on one image.
        targets: gives the targets of so many samples, before ``target_transform``: of all in one call, since a call of
            Python's for each costs more than a small image's pixels.
        target_transform: the user's, on one target.
    """

    name: str
    transform: Callable | None
    targets: Callable[[list[int]], list[Any]]
    target_transform: Callable | None

    @abstractmethod
    def __len__(self) -> int:
        """The number of samples."""

    @property
    def mode(self) -> str:
        """Pillow's mode of the images, as the data set itself would open them."""
        return "RGB"

    @property
    def size(self) -> tuple[int, int] | None:
        """(width, height) of every image in pixels; None where each has its own."""
        return None

    @abstractmethod
    def open(self, index: int) -> Source:
        """One sample for the host, as `csd_engine.data.base.Reader.open`."""

    @abstractmethod
    def where(self, index: int) -> str:
        """A sample's place for messages."""

    def paths(self, indices: list[int]) -> list[str] | None:
        """As `csd_engine.data.base.Reader.paths`: where the files of these samples lie; None unless each is a whole file."""
        return None

    def rows(self) -> np.ndarray | None:
        """All samples where they are one array, uint8 (n, h, w) or (n, h, w, 3); else None."""
        return None

    @abstractmethod
    def describe(self, upload: Upload) -> Dataset:
        """The data set as the engine is told of it, with what the device needs of it brought there by ``upload``."""
