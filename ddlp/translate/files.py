"""Data sets of image files: torchvision's folders and `ddlp.ImageFiles`."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
import torchvision
from PIL import Image
from torchvision import datasets as tv
from torchvision.transforms import v2

from csd_engine.data.base import Places, Source
from csd_engine.data.files import FileSet
from csd_engine.data.image_files import open_sample, pillow_open
from csd_engine.errors import SampleError
from ddlp.data.images import ImageFiles
from ddlp.errors import Untranslatable
from ddlp.translate.leaf import Leaf, Upload, name_of
from ddlp.translate.torch_pixels import decodes_as_pillow

__all__ = ["FileLeaf", "GreyFileLeaf", "JointFileLeaf", "SameSizeFileLeaf", "check_loader", "folder", "image_files", "pairs"]


@dataclass(frozen=True, eq=False)
class FileLeaf(Leaf):
    """Image files of any format that Pillow reads, opened as RGB. Messages name them as the data set does."""

    files: Sequence[str | os.PathLike[str]]

    def __len__(self) -> int:
        return len(self.files)

    def open(self, index: int) -> Source:
        """See `Reader.open`."""
        named, path = self.where(index), self._path(index)
        if path == named:
            return open_sample(path)
        try:
            return open_sample(path)._replace(path=named)
        except SampleError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.filename == path:
                cause.filename = named
            raise SampleError(named, error.why) from cause

    def _path(self, index: int) -> str:
        return os.path.join(self.directory, os.fspath(self.files[index]))

    def where(self, index: int) -> str:
        """See `Reader.where`."""
        return os.fspath(self.files[index])

    def places(self, indices: list[int]) -> Places | None:
        """See `Reader.places`."""
        files, directory = self.files, self.directory
        named = [os.fspath(files[k]) for k in indices]
        return Places([path if path[:1] == "/" else os.path.join(directory, path) for path in named])

    def describe(self, upload: Upload) -> FileSet:
        """See `Leaf.describe`."""
        return upload.files(self.files, self.directory)


@dataclass(frozen=True, eq=False)
class GreyFileLeaf(FileLeaf):
    """Image files opened as grey."""

    @property
    def mode(self) -> str:
        """See `Leaf.mode`."""
        return "L"


@dataclass(frozen=True, eq=False)
class SameSizeFileLeaf(FileLeaf):
    """Image files of one size, which the first of them tells. A file of another size is an error of its batch."""

    @functools.cached_property
    def size(self) -> tuple[int, int] | None:
        """See `Leaf.size`. None if the first file can't be read."""
        try:
            with Image.open(self.files[0]) as image:
                return image.size
        except (IndexError, OSError):
            return None


@dataclass(frozen=True, eq=False)
class JointFileLeaf(FileLeaf):
    """Image files whose transform changes image and target together. ``raw``: as `Leaf.from_raw`."""

    joint: Callable
    raw: Callable[[Any, tuple[int, int]], Any] | None = None

    @property
    def transforms(self) -> Callable:
        """See `Leaf.transforms`."""
        return self.joint

    @property
    def from_raw(self) -> Callable[[Any, tuple[int, int]], Any] | None:
        """See `Leaf.from_raw`."""
        return self.raw

    def image_size(self, index: int) -> tuple[int, int]:
        """See `Leaf.image_size`. It reads the file's header."""
        with open(self._path(index), "rb") as stream:
            return pillow_open(stream).size


_DECODE_IMAGE = tuple(getattr(torchvision.io, name) for name in ("decode_image", "read_image") if hasattr(torchvision.io, name))


class _SamplePaths(Sequence):
    """The paths of (path, target) pairs, without a copy of a million strings."""

    def __init__(self, samples: Sequence[tuple[str, Any]]) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        return self._samples[index][0]

    def __iter__(self) -> Iterator[str]:
        return map(itemgetter(0), self._samples)


def pairs(samples: Sequence[tuple[str, Any]]) -> tuple[Sequence[str], Callable[[list[int]], list[Any]]]:
    """The files of (file, target) pairs, and the function that gives their targets."""
    return _SamplePaths(samples), lambda those: [samples[k][1] for k in those]


def check_loader(dataset: Any, attribute: str = "loader") -> None:
    """Raise Untranslatable if a data set's loader opens images in another way than torchvision's own, which gives RGB.

    torchvision's older data sets have no such attribute; they open their files as that loader does.
    """
    loader = vars(dataset).get(attribute, tv.folder.pil_loader)
    if loader is tv.folder.pil_loader:
        return
    decoder = loader.func if type(loader) is functools.partial else loader
    if getattr(decoder, "__module__", "").partition(".")[0] == "torchcodec" or decoder in _DECODE_IMAGE:
        raise Untranslatable(
            name_of(dataset),
            f"its loader={decoder.__name__} gives tensors of as many channels and bits as each file has",
            (f"for JPEG files pass loader=functools.partial({decoder.__module__.rpartition('.')[0]}.decode_image, mode='RGB')",
             "leave loader= out"),
        )  # fmt: skip
    if loader is not tv.folder.default_loader:
        raise Untranslatable(name_of(dataset), "it has a loader= of its own", ("leave loader= out",))
    if torchvision.get_image_backend() != "PIL":
        raise Untranslatable(
            name_of(dataset), f"torchvision's image backend is {torchvision.get_image_backend()}",
            ("torchvision.set_image_backend('PIL')",),
        )  # fmt: skip


def folder(dataset: tv.DatasetFolder, kind: type[FileLeaf] = FileLeaf) -> FileLeaf:
    """The leaf of an ImageFolder or DatasetFolder; Untranslatable if it does not open images as torchvision's loader does."""
    files, targets = pairs(dataset.samples)
    transform = dataset.transform
    decoder = _decoder_of_rgb(vars(dataset).get("loader"))
    if decoder is not None:
        if (other := next(itertools.filterfalse(_is_jpeg, files), None)) is not None:
            raise Untranslatable(
                name_of(dataset), f"its loader={decoder.__name__} makes other pixels than Pillow of files that are no JPEGs: "
                f"{other} may be one", ("leave loader= out",),
            )  # fmt: skip
        if not decodes_as_pillow(decoder):
            raise Untranslatable(
                name_of(dataset), f"its loader={decoder.__name__} makes other pixels than Pillow of JPEG files here",
                ("leave loader= out",),
            )  # fmt: skip
        transform = v2.Compose([v2.PILToTensor(), *([] if transform is None else [transform])])
    else:
        check_loader(dataset)
    return kind(name_of(dataset), transform, targets, dataset.target_transform, files)


def _decoder_of_rgb(loader: Any) -> Callable[..., torch.Tensor] | None:
    """The function that a loader decodes by, if it gives RGB in bytes whatever a file's own channels are.

    torchvision's does with mode="RGB"; torchcodec's does unless it is told otherwise.
    """
    given: dict[str, Any] = {}
    if type(loader) is functools.partial and not loader.args:
        loader, given = loader.func, dict(loader.keywords)
    codec = sys.modules.get("torchcodec.decoders")
    if codec is not None and loader is getattr(codec, "decode_image", None):
        decoder, given = loader, {"mode": "RGB", **given}
        if given.pop("output_dtype", torch.uint8) is not torch.uint8:
            return None
    elif loader in _DECODE_IMAGE:
        decoder = _DECODE_IMAGE[0]
    else:
        return None
    mode = given.pop("mode", None)
    return decoder if not given and getattr(mode, "name", str(mode)).upper() == "RGB" else None


def _is_jpeg(path: str) -> bool:
    """By its name. decode_image makes 16 bits of a PNG that has so many, where Pillow makes 8."""
    return path.lower().endswith((".jpg", ".jpeg"))


def image_files(dataset: ImageFiles) -> FileLeaf:
    """The leaf of an ImageFiles."""
    targets = dataset.targets

    def some(those: list[int]) -> list[Any]:
        return [targets[k] for k in those]

    if dataset.transforms is not None:
        return JointFileLeaf("ImageFiles", None, some, None, dataset.paths, dataset.transforms)
    return FileLeaf("ImageFiles", dataset.transform, some, dataset.target_transform, dataset.paths)
