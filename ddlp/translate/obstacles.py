"""Finds all reasons why ddlp can't prepare a loader's samples, and whether to tell a user who did not ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset

from ddlp.errors import Untranslatable
from ddlp.process.platforms import OtherSystem
from ddlp.translate.datasets import known_class, translate_dataset
from ddlp.translate.portable import joint_transform, refusals
from ddlp.translate.transforms import obstacles_in

__all__ = ["has_images", "obstacles"]


def obstacles(loader: DataLoader, first: Untranslatable) -> list[Untranslatable]:
    """Return each obstacle once, after ``portable`` has raised ``first``: in the loader, the data sets, and each operator.

    The ``transform`` of an unknown data set is examined too.
    """
    if isinstance(first, OtherSystem):  # nothing else matters on another system
        return [first]
    reasons = list(refusals(loader))
    for dataset in () if isinstance(loader.dataset, IterableDataset) else _leaves(loader.dataset):
        try:
            parts = translate_dataset(dataset).parts
            reasons += [joint_transform(part.name) for part in parts if part.transforms is not None]
            transforms = [(part.transform, part.mode) for part in parts if part.transforms is None]
        except Untranslatable as obstacle:
            reasons.append(obstacle)
            own = getattr(dataset, "transform", None)
            transforms = [] if own is None else [(own, "RGB")]
        for transform, mode in transforms:
            reasons += obstacles_in(transform, mode, getattr(loader, "as_pil", False))
    # first: it may show only in all parts together
    return list({str(reason): reason for reason in reasons}.values()) or [first]


def has_images(dataset: Any) -> bool:
    """Whether a data set surely has images: ddlp knows its type, it describes itself, or its ``transform`` is torchvision's."""
    if isinstance(dataset, IterableDataset):
        return False
    return any(
        known_class(leaf) is not None
        or hasattr(type(leaf), "__ddlp__")
        or type(getattr(leaf, "transform", None)).__module__.startswith("torchvision.transforms.")
        for leaf in _leaves(dataset)
    )


def _leaves(dataset: Any) -> Iterator[Any]:
    if type(dataset) is Subset:
        yield from _leaves(dataset.dataset)
    elif type(dataset) is ConcatDataset:
        for part in dataset.datasets:
            yield from _leaves(part)
    else:
        yield dataset
