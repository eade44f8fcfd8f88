"""Describes torchvision's data sets, and ours, as files or arrays; the targets stay on the host.

A data set is taken only if the code of a known class makes its samples, or if its class describes itself. A subclass may have
its own ``__getitem__``, and its samples would silently be wrong: such a subclass stays user code.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import inspect
import itertools
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset
from torchvision import datasets as tv

from csd_engine.data.base import Reader, Source
from csd_engine.data.joined import JoinedReader
from csd_engine.errors import SampleError, noted
from ddlp.data.huggingface import HUGGING_FACE, HuggingFaceImages
from ddlp.data.images import ImageArrays, ImageFiles
from ddlp.data.objects.dataset import ImageObjects
from ddlp.data.objects.tars import TarObjects
from ddlp.data.tars import TarImages
from ddlp.errors import Untranslatable
from ddlp.sampling.sampler_order import as_indices
from ddlp.translate.arrays import fer2013, image_arrays, qmnist
from ddlp.translate.files import SameSizeFileLeaf, folder, image_files
from ddlp.translate.huggingface import hugging_face_images
from ddlp.translate.leaf import WAYS, DictSample, Leaf, class_name, name_of
from ddlp.translate.objects import stored_images
from ddlp.translate.parts import tar_images
from ddlp.translate.timm_sets import timm_images
from ddlp.translate.torchvision_files import TORCHVISION_FILES

_SOME = 16  # samples


class PortableSet:
    """A data set as parts, and the map from its indices to source indices. Source indices count through all parts.

    ``resolve`` makes that map, int64 (length,), when an epoch needs it, since a list of a million indices takes time. It is
    None if each index is its source index. ``described``: the data sets that describe themselves, each with its description.
    """

    def __init__(
        self,
        parts: list[Leaf],
        resolve: Callable[[], np.ndarray] | None = None,
        length: int = 0,
        described: Sequence[tuple[Any, Any]] = (),
    ) -> None:
        self.parts = parts
        self.described = list(described)
        self.starts = [0, *itertools.accumulate(len(p) for p in parts)]
        self._resolve = resolve
        self._length = length
        self.directory = ""

    def open_in(self, directory: str | None = None) -> None:
        """Let relative paths of files stay relative to this directory, whatever becomes of the current one. None: to that."""
        if directory is None:
            with contextlib.suppress(OSError):  # it was removed, and then has no path
                directory = os.getcwd()
        self.directory = directory or ""
        for part in self.parts:
            object.__setattr__(part, "directory", self.directory)

    def __len__(self) -> int:
        return self.starts[-1] if self._resolve is None else self._length

    @property
    def sources_are_indices(self) -> bool:
        """Whether an index is its source index."""
        return self._resolve is None

    @functools.cached_property
    def sources(self) -> np.ndarray | None:
        """The source index of each index, int64, as `source` gives them; None if they are the same."""
        return None if self._resolve is None else self._resolve()

    def source(self, indices: np.ndarray) -> np.ndarray:
        """Source indices of the data set's own indices, int64; -1 for an index that it does not have, or that is no integer."""
        n = len(self)
        if indices.dtype == object:
            indices = np.fromiter((_number(index, n) for index in indices), np.int64, len(indices))
        lowest, highest = (int(indices.min()), int(indices.max())) if len(indices) else (0, -1)
        if lowest < 0:
            indices = np.where(indices < 0, indices + n, indices)
        if highest < n and lowest >= -n:
            return indices if self.sources is None else self.sources[indices]
        there, sources = (indices >= 0) & (indices < n), np.full(len(indices), -1)
        sources[there] = indices[there] if self.sources is None else self.sources[indices[there]]
        return sources

    @functools.cached_property
    def each_once(self) -> bool:
        """Whether different indices are different sources."""
        if self.sources is None:
            return True
        seen = np.zeros(int(self.starts[-1]) + 1, dtype=bool)  # the last one for what does not exist
        seen[self.sources] = True
        return int(np.count_nonzero(seen)) == len(self.sources)

    def part(self, source: int) -> tuple[Leaf, int]:
        """The part of a source index, and the index within it."""
        k = bisect.bisect_right(self.starts, source) - 1
        return self.parts[k], source - self.starts[k]

    def target(self, source: int) -> Any:
        """The target as the data set would give it. Runs the user's target_transform."""
        part, index = self.part(source)
        (target,) = part.targets([index])
        if part.target_transform is None:
            return target
        return _transformed(part.target_transform, [target], [source], self.where)[0]

    def targets(self, sources: np.ndarray) -> list[Any]:
        """The targets of source indices (int64), as `target` gives each."""
        if len(self.parts) > 1:
            return [self.target(source) for source in sources.tolist()]
        transform = self.parts[0].target_transform
        numbers: list[int] = sources.tolist()
        targets = self.parts[0].targets(numbers)
        return targets if transform is None else _transformed(transform, targets, numbers, self.where)

    def where(self, source: int) -> str:
        """Where the sample of a source index lies, for messages."""
        part, index = self.part(source)
        return part.where(index)

    @property
    def keys(self) -> DictSample | None:
        """How samples that are dicts are made; None: they are (image, target)."""
        return self.parts[0].keys if self.parts else None

    @property
    def has_target_transform(self) -> bool:
        """Whether user code runs on the targets."""
        return any(p.target_transform is not None for p in self.parts)

    def some_places(self) -> list[str]:
        """Where some samples lie, of all parts, which stand for the data set."""
        return [place for _, place in self._some()]

    def some_absolute_places(self) -> list[str]:
        """Do as `some_places`, by absolute paths, which don't depend on the current directory, or URLs."""
        return [place if part.slow else os.path.abspath(os.path.join(self.directory, place)) for part, place in self._some()]

    def _some(self) -> list[tuple[Leaf, str]]:
        count = self.starts[-1]
        numbers = sorted({count * step // _SOME for step in range(_SOME)} | {count - 1}) if count else []
        return [(part, part.where(index)) for part, index in map(self.part, numbers)]

    def reader(self) -> Reader:
        """Return the reader that opens single samples by source index."""
        return _PartReader(self.parts)


def _number(index: Any, n: int) -> int:
    """Return an index as a number; ``n``, which is beyond the data set's end, if it can't be one of its indices."""
    try:
        number = operator.index(index)
    except TypeError:
        return n
    return number if -n <= number < n else n


def _transformed(
    transform: Callable, targets: list[Any], sources: list[int], where: Callable[[int], str]
) -> list[Any]:
    """Return what the user's target_transform gives for each target. What it raises gets a note with the sample's place."""
    results: list[Any] = []
    try:
        for target in targets:
            results.append(transform(target))
    except Exception as error:
        noted(error, f"It was raised for the target of sample {where(sources[len(results)])}.")
        raise
    return results


class _PartReader(JoinedReader):
    """Reads the data set's parts, and closes none: other epochs read them too."""

    def __init__(self, parts: list[Leaf]) -> None:
        super().__init__(parts)
        self._closed = False

    def open(self, index: int) -> Source:
        part, k = self._part(index)
        fetch = part.fetch([k])
        if fetch is None:
            return part.open(k)
        with contextlib.closing(fetch):
            there = fetch.wait(lambda: not self._closed)
            if there is None:
                raise SampleError(part.where(k), "its epoch is over")
            return there.open(k)

    def close(self) -> None:
        """See `Reader.close`. Nobody waits any longer for a storage that does not answer."""
        self._closed = True


def translate_dataset(dataset: Any) -> PortableSet:
    """Return the data set as a PortableSet.

    Raises:
        Untranslatable: no known class makes its samples and it does not describe itself, or it is set to open images in
            another way.
    """
    if type(dataset) is Subset:
        inner = translate_dataset(dataset.dataset)
        indices = dataset.indices
        return PortableSet(inner.parts, lambda: inner.source(_subset(indices)), len(indices), inner.described)
    if type(dataset) is ConcatDataset:
        return _concat([translate_dataset(d) for d in dataset.datasets])
    describe = getattr(type(dataset), "__ddlp__", None)
    if describe is not None:
        _refuse_samples_of_its_own(dataset)
        described = describe(dataset)
        if type(described) is type(dataset):
            raise Untranslatable(name_of(dataset), "its __ddlp__ returns its own type", (WAYS,))
        portable = translate_dataset(described)
        if len(portable) != len(dataset):
            raise Untranslatable(
                name_of(dataset), f"its __ddlp__ describes {len(portable)} samples, it has {len(dataset)}", (WAYS,)
            )
        portable.described.append((dataset, described))
        return portable
    return PortableSet([_leaf(dataset)])


DECIDING = ("__getitem__", "__getitems__", "__getattribute__", "__getattr__", "image", "loader", "_loader")
"""The attributes of a class that decide what its samples are. All other attributes are data, which the leaf reads."""


def known_class(dataset: Any) -> type | None:
    """The first class that ddlp knows among the data set's class and its base classes; None: it knows none of them."""
    return next((kind for kind in type(dataset).__mro__ if kind in LEAVES or class_name(kind) in NAMED), None)


def _leaf(dataset: Any) -> Leaf:
    """The leaf of a data set of a known class, or of a subclass of one that overrides nothing of `DECIDING`."""
    own, known = type(dataset), known_class(dataset)
    if known is None:
        raise Untranslatable(
            name_of(dataset), "its type is not exactly one that ddlp knows, so its samples may be made in any way",
            _ways(dataset),
        )
    for name in DECIDING:
        if inspect.getattr_static(own, name, None) is not inspect.getattr_static(known, name, None):
            raise Untranslatable(
                name_of(dataset), f"it has a {name} of its own, so its samples may be others than {known.__name__}'s",
                _ways(dataset),
            )
    leaf = (LEAVES.get(known) or NAMED[class_name(known)])(dataset)
    if own is not known and len(leaf) != len(dataset):
        raise Untranslatable(
            name_of(dataset), f"it says that it has {len(dataset)} samples, and {known.__name__}'s code gives {len(leaf)}",
            _ways(dataset),
        )
    return leaf


def _ways(dataset: Any) -> tuple[str, ...]:
    """The ways out for a data set of the user's own class."""
    if class_name(type(dataset)) == HUGGING_FACE:
        way = "leave its with_transform or set_transform out, and give the loader ddlp.HuggingFaceImages(dataset, transform)"
        return (f"{way}, where transform is torchvision's for one image",)
    files = "ddlp.ImageFiles(self.paths, self.targets, self.transform)"
    if isinstance(dataset, tv.DatasetFolder):
        files = "ddlp.ImageFiles([path for path, _ in self.samples], self.targets, self.transform, self.target_transform)"
    return WAYS, f"give its class a method that does so: def __ddlp__(self): return {files}"


def _refuse_samples_of_its_own(dataset: Any) -> None:
    """Raise Untranslatable if a subclass makes its samples itself: the ``__ddlp__`` that it inherits does not describe them."""
    for kind in type(dataset).__mro__:
        if "__ddlp__" in vars(kind):
            return
        for own in ("__getitem__", "__getitems__"):
            if own in vars(kind):
                raise Untranslatable(
                    name_of(dataset), f"{kind.__qualname__} has a {own} of its own, unknown to the __ddlp__ that it inherits",
                    (f"give {kind.__qualname__} a __ddlp__(self) of its own",),
                )  # fmt: skip


def _concat(sets: list[PortableSet]) -> PortableSet:
    parts = [part for dataset in sets for part in dataset.parts]
    described = [pair for dataset in sets for pair in dataset.described]
    if sets and all(dataset.sources_are_indices for dataset in sets):
        return PortableSet(parts, described=described)

    def resolve() -> np.ndarray:
        maps, start = [np.zeros(0, np.int64)], 0
        for dataset in sets:
            maps.append(np.arange(start, start + len(dataset)) if dataset.sources is None else _moved(dataset.sources, start))
            start += dataset.starts[-1]
        return np.concatenate(maps)

    return PortableSet(parts, resolve, sum(map(len, sets)), described)


def _subset(indices: Sequence[Any]) -> np.ndarray:
    """Return a Subset's indices as `as_indices` does. Those that are integers already are not taken one by one."""
    with contextlib.suppress(ValueError):  # a list of lists
        array = np.asarray(indices)
        if array.dtype.kind == "i" and array.ndim == 1:
            return array.astype(np.int64, copy=False)
    return as_indices(list(indices))


def _moved(sources: np.ndarray, start: int) -> np.ndarray:
    return np.where(sources < 0, sources, sources + start)


def _known(**makers: Callable[[Any], Leaf]) -> dict[type, Callable[[Any], Leaf]]:
    """torchvision's classes of these names, as far as this torchvision has them."""
    return {getattr(tv, name): maker for name, maker in makers.items() if hasattr(tv, name)}


LEAVES: dict[type, Callable[[Any], Leaf]] = {
    tv.ImageFolder: folder,
    tv.DatasetFolder: folder,
    **_known(EuroSAT=functools.partial(folder, kind=SameSizeFileLeaf), FER2013=fer2013),
    ImageFiles: image_files,
    ImageArrays: image_arrays("images", "targets"),
    HuggingFaceImages: hugging_face_images,
    TarImages: tar_images,
    ImageObjects: stored_images,
    TarObjects: stored_images,
    tv.CIFAR10: image_arrays("data", "targets"),
    tv.CIFAR100: image_arrays("data", "targets"),
    tv.MNIST: image_arrays("data", "targets", integers=True),
    tv.FashionMNIST: image_arrays("data", "targets", integers=True),
    tv.KMNIST: image_arrays("data", "targets", integers=True),
    tv.QMNIST: qmnist,
    tv.SEMEION: image_arrays("data", "labels", integers=True),
    tv.STL10: image_arrays("data", "labels", channels_first=True, integers=True),
    tv.SVHN: image_arrays("data", "labels", channels_first=True, integers=True),
    tv.USPS: image_arrays("data", "targets", integers=True),
    **TORCHVISION_FILES,
}
"""The data sets that ddlp knows: the class that makes the samples, and the function that makes a leaf. A new one needs a line.

Each function was compared with torchvision's ``__getitem__`` (see the tests). EMNIST is an MNIST; ImageNet and Country211
are ImageFolders."""

NAMED: dict[str, Callable[[Any], Leaf]] = {"timm.data.dataset.ImageDataset": timm_images}
"""The same for packages that are not imported here, by the full name of the class."""
