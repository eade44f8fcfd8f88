"""All that keeps a loader's samples from being prepared by ddlp, and whether that is worth a word where nobody asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset

from ddlp.errors import Untranslatable
from ddlp.process.platforms import OtherSystem
from ddlp.translate.datasets import LEAVES, translate_dataset
from ddlp.translate.portable import refusals
from ddlp.translate.transforms import obstacles_in

__all__ = ["has_images", "obstacles"]


def obstacles(loader: DataLoader, first: Untranslatable) -> list[Untranslatable]:
    """Each of them once, where ``portable`` has raised ``first``: of the loader, the data sets, and each operator.

    Of a data set that is not known its ``transform`` is looked at all the same.
    """
    if isinstance(first, OtherSystem):  # nothing else matters there
        return [first]
    found = list(refusals(loader))
    for dataset in () if isinstance(loader.dataset, IterableDataset) else _leaves(loader.dataset):
        try:
            transforms = [(part.transform, part.mode) for part in translate_dataset(dataset).parts]
        except Untranslatable as obstacle:
            found.append(obstacle)
            own = getattr(dataset, "transform", None)
            transforms = [] if own is None else [(own, "RGB")]
        for transform, mode in transforms:
            found += obstacles_in(transform, mode)
    return list({str(one): one for one in found}.values()) or [first]  # first: what only all parts together show


def has_images(dataset: Any) -> bool:
    """Whether it plainly has images: its type is one of those that ddlp knows, or its ``transform`` is torchvision's."""
    if isinstance(dataset, IterableDataset):
        return False
    return any(
        isinstance(one, tuple(LEAVES))
        or hasattr(type(one), "__ddlp__")
        or type(getattr(one, "transform", None)).__module__.startswith("torchvision.transforms.")
        for one in _leaves(dataset)
    )


def _leaves(dataset: Any) -> Iterator[Any]:
    if type(dataset) is Subset:
        yield from _leaves(dataset.dataset)
    elif type(dataset) is ConcatDataset:
        for one in dataset.datasets:
            yield from _leaves(one)
    else:
        yield dataset
