"""Translates torchvision's data sets that are lists of image files: where each class keeps its files and targets."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torchvision import datasets as tv
from torchvision import transforms as v1
from torchvision.datasets.vision import StandardTransform
from torchvision.transforms import v2
from torchvision.tv_tensors._dataset_wrapper import VisionDatasetTVTensorWrapper

from ddlp.errors import Untranslatable
from ddlp.translate.files import FileLeaf, GreyFileLeaf, JointFileLeaf, check_loader, pairs
from ddlp.translate.leaf import WAYS, Leaf, name_of

__all__ = ["TORCHVISION_FILES"]

Maker = Callable[[Any], Leaf]
Targets = Callable[[list[int]], list[Any]]

_RGB = "begin its transform with torchvision.transforms.v2.RGB()"


class _Joined(Sequence):
    """The paths of files, each joined when it is asked for, as the data set does."""

    def __init__(self, count: int, path: Callable[[int], str]) -> None:
        self._count, self._path = count, path

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if not -self._count <= index < self._count:
            raise IndexError(index)
        return self._path(index % self._count)


def _each(of: Callable[[int], Any]) -> Targets:
    return lambda those: [of(k) for k in those]


def _lists(files: str, targets: str, loader: str = "loader") -> Maker:
    """Return the maker for data sets with files and targets in two lists with these names."""

    def leaf(dataset: Any) -> Leaf:
        check_loader(dataset, loader)
        return FileLeaf(
            name_of(dataset), dataset.transform, _each(getattr(dataset, targets).__getitem__), dataset.target_transform,
            getattr(dataset, files),
        )  # fmt: skip

    return leaf


def _pairs(samples: str) -> Maker:
    """Return the maker for data sets with (file, target) pairs in one list of this name."""

    def leaf(dataset: Any) -> Leaf:
        check_loader(dataset)
        files, targets = pairs(getattr(dataset, samples))
        return FileLeaf(name_of(dataset), dataset.transform, targets, dataset.target_transform, files)

    return leaf


def _joint(dataset: Any) -> tuple[Any, Any]:
    """The transform and target_transform of a data set that calls its ``transforms``."""
    both = dataset.transforms
    if both is None:
        return None, None
    if type(both) is not StandardTransform:
        raise Untranslatable(
            name_of(dataset), "its transforms= changes image and target together, and targets stay here",
            ("give it a transform= and a target_transform=",),
        )  # fmt: skip
    return both.transform, both.target_transform


def _places(dataset: Any) -> Leaf:
    check_loader(dataset)
    files, targets = pairs(dataset.imgs)
    transform, target_transform = _joint(dataset)
    return FileLeaf(name_of(dataset), transform, targets, target_transform, files)


def _pets(dataset: Any) -> Leaf:
    transform, target_transform = _joint(dataset)
    known = {"category": dataset._labels, "binary-category": dataset._bin_labels}
    kinds = dataset._target_types
    if not set(kinds) <= set(known):
        raise Untranslatable(
            name_of(dataset), f"its target_types {', '.join(kinds)} have images among them",
            ("leave 'segmentation' out of target_types",),
        )  # fmt: skip
    labels = [known[kind] for kind in kinds]
    return FileLeaf(name_of(dataset), transform, _several(labels, empty=None), target_transform, dataset._images)


def _several(columns: Sequence[Any], empty: Any) -> Targets:
    """The targets of one column as they are, or those of several columns as tuples."""
    if not columns:
        return lambda those: [empty] * len(those)
    if len(columns) == 1:
        return _each(columns[0].__getitem__)
    return lambda those: [tuple(column[k] for column in columns) for k in those]


def _captions(files: Callable[[Any, int], str], count: str, targets: Callable[[Any, int], Any]) -> Maker:
    """Return the maker for data sets that look up the file and the captions of each sample."""

    def leaf(dataset: Any) -> Leaf:
        check_loader(dataset)
        return FileLeaf(
            name_of(dataset), dataset.transform, _each(lambda k: targets(dataset, k)), dataset.target_transform,
            _Joined(len(getattr(dataset, count)), lambda k: files(dataset, k)),
        )  # fmt: skip

    return leaf


def _first(transform: Any) -> Any:
    """The first operator that runs."""
    while type(transform) in (v1.Compose, v2.Compose, nn.Sequential):
        inside = list(transform if isinstance(transform, nn.Sequential) else transform.transforms)
        if not inside:
            return None
        transform = inside[0]
    return transform


def _require_rgb(dataset: Any) -> None:
    """Raise Untranslatable unless the transform begins with RGB(): the data set does not convert grey files to RGB."""
    if not isinstance(_first(dataset.transform), getattr(v2, "RGB", ())):
        raise Untranslatable(
            name_of(dataset), "it gives each image in its file's own mode, grey files as grey images", (_RGB, WAYS)
        )


def _caltech(folder: str, name: Callable[[int, int], str]) -> Maker:
    def leaf(dataset: Any) -> Leaf:
        _require_rgb(dataset)
        kinds = getattr(dataset, "target_type", ["category"])
        if set(kinds) != {"category"}:
            raise Untranslatable(
                name_of(dataset), "its target_type 'annotation' is read from a file for each sample",
                ("leave 'annotation' out of target_type",),
            )  # fmt: skip
        root, categories, y, index = dataset.root, dataset.categories, dataset.y, dataset.index
        files = _Joined(len(y), lambda k: os.path.join(root, folder, categories[y[k]], name(y[k], index[k])))
        return FileLeaf(
            name_of(dataset), dataset.transform, _several([y] * len(kinds), None), dataset.target_transform, files
        )

    return leaf


def _celeba(dataset: Any) -> Leaf:
    """The leaf of a CelebA. The data set does not convert its images, but all that were published are in colour."""
    root = os.path.join(dataset.root, dataset.base_folder, "img_align_celeba")
    columns = {
        "attr": lambda k: dataset.attr[k, :],
        "identity": lambda k: dataset.identity[k, 0],
        "bbox": lambda k: dataset.bbox[k, :],
        "landmarks": lambda k: dataset.landmarks_align[k, :],
    }
    of = [columns[kind] for kind in dataset.target_type]

    def targets(those: list[int]) -> list[Any]:
        if len(of) == 1:
            return [of[0](k) for k in those]
        return [tuple(column(k) for column in of) for k in those] if of else [None] * len(those)

    names = dataset.filename
    return FileLeaf(
        name_of(dataset), dataset.transform, targets, dataset.target_transform if of else None,
        _Joined(len(dataset.attr), lambda k: os.path.join(root, names[k])),
    )  # fmt: skip


def _inaturalist(dataset: Any) -> Leaf:
    if vars(dataset).get("loader") is None:
        _require_rgb(dataset)
    else:
        check_loader(dataset)
    index, root, categories = dataset.index, dataset.root, dataset.all_categories

    def target(kind: str) -> Callable[[int], Any]:
        if kind == "full":
            return lambda k: index[k][0]
        return lambda k: dataset.categories_map[index[k][0]][kind]

    of = [target(kind) for kind in dataset.target_type]

    def targets(those: list[int]) -> list[Any]:
        return [of[0](k) if len(of) == 1 else tuple(target_at(k) for target_at in of) for k in those]

    files = _Joined(len(index), lambda k: os.path.join(root, categories[index[k][0]], index[k][1]))
    return FileLeaf(name_of(dataset), dataset.transform, targets, dataset.target_transform, files)


def _omniglot(dataset: Any) -> Leaf:
    kind: type[FileLeaf] = GreyFileLeaf
    if vars(dataset).get("loader") is not None:
        check_loader(dataset)
        kind = FileLeaf
    images, folder, characters = dataset._flat_character_images, dataset.target_folder, dataset._characters
    return kind(
        name_of(dataset), dataset.transform, _each(lambda k: images[k][1]), dataset.target_transform,
        _Joined(len(images), lambda k: os.path.join(folder, characters[images[k][1]], images[k][0])),
    )  # fmt: skip


_MAKERS: dict[str, Maker] = {
    "Caltech101": _caltech("101_ObjectCategories", lambda y, index: f"image_{index:04d}.jpg"),
    "Caltech256": _caltech("256_ObjectCategories", lambda y, index: f"{y + 1:03d}_{index:04d}.jpg"),
    "CelebA": _celeba,
    "CLEVRClassification": _lists("_image_files", "_labels"),
    "DTD": _lists("_image_files", "_labels"),
    "FGVCAircraft": _lists("_image_files", "_labels"),
    "Flickr8k": _captions(lambda d, k: d.ids[k], "ids", lambda d, k: d.annotations[d.ids[k]]),
    "Flickr30k": _captions(lambda d, k: os.path.join(d.root, d.ids[k]), "ids", lambda d, k: d.annotations[d.ids[k]]),
    "Flowers102": _lists("_image_files", "_labels"),
    "Food101": _lists("_image_files", "_labels"),
    "GTSRB": _pairs("_samples"),
    "Imagenette": _pairs("_samples"),
    "INaturalist": _inaturalist,
    "LFWPeople": _lists("data", "targets", "_loader"),
    "Omniglot": _omniglot,
    "OxfordIIITPet": _pets,
    "Places365": _places,
    "RenderedSST2": _pairs("_samples"),
    "SBU": _captions(lambda d, k: os.path.join(d.root, "dataset", d.photos[k]), "photos", lambda d, k: d.captions[k]),
    "StanfordCars": _pairs("_samples"),
    "SUN397": _lists("_image_files", "_labels"),
}

@dataclass(frozen=True)
class _CocoTarget:
    """Makes targets of COCO's annotations by torchvision's own code. It pickles."""

    dataset: Any  # of wrap_dataset_for_transforms_v2

    def __call__(self, raw: tuple[int, list[Any]], size: tuple[int, int]) -> Any:
        index, annotations = raw
        image = torch.empty(()).expand(1, size[1], size[0])  # it is asked for its size alone
        return self.dataset._wrapper(index, (image, annotations))[1]


def _wrapped(dataset: Any) -> Leaf:
    """The leaf of a CocoDetection that wrap_dataset_for_transforms_v2 has wrapped."""
    inner, joint = dataset._dataset, dataset.transforms
    if type(inner) is not tv.CocoDetection:
        raise Untranslatable(
            name_of(dataset), "wrap_dataset_for_transforms_v2 makes its samples, and ddlp knows how from a CocoDetection alone",
            (WAYS,),
        )  # fmt: skip
    if joint is None or type(joint) is StandardTransform:
        raise Untranslatable(
            name_of(dataset), "it has no transforms=, which changes image and boxes together",
            ("give CocoDetection a transforms= of torchvision.transforms.v2",),
        )  # fmt: skip
    files = _Joined(len(inner.ids), lambda k: os.path.join(inner.root, inner.coco.imgs[inner.ids[k]]["file_name"]))
    annotations = _each(lambda k: (k, inner._load_target(inner.ids[k])))
    return JointFileLeaf(name_of(dataset), None, annotations, None, files, joint, _CocoTarget(dataset))


TORCHVISION_FILES: dict[type, Maker] = {getattr(tv, name): leaf for name, leaf in _MAKERS.items() if hasattr(tv, name)}
TORCHVISION_FILES[VisionDatasetTVTensorWrapper] = _wrapped
"""The maker of a leaf for each class that this torchvision has. Country211 and ImageNet are ImageFolders."""
