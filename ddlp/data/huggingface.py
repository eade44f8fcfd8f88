"""The image column of a Hugging Face dataset with a torchvision transform. This module does not import their package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset

__all__ = ["HUGGING_FACE", "HuggingFaceImages"]

HUGGING_FACE = "datasets.arrow_dataset.Dataset"


class HuggingFaceImages(Dataset):
    """A Hugging Face ``datasets.Dataset`` whose images go through a torchvision transform. Samples are its rows, as dicts.

    It replaces ``dataset.with_transform(function)``: a function on rows is user code, but a transform on one image can travel.

    Args:
        dataset: map-style, with a column of ``datasets.Image``. Its format (``with_format("torch")``) applies to the other
            columns.
        transform: is called with the PIL image, which is upright and RGB, as ``row["image"].convert("RGB")`` is.
        image: the column's name.

    Raises:
        ValueError: if the data set is of another kind, has no such column of images, or has a function from ``with_transform``.
    """

    def __init__(self, dataset: Any, transform: Callable | None = None, image: str = "image") -> None:
        kinds = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(dataset).__mro__]
        if HUGGING_FACE not in kinds:
            raise ValueError(
                f"HuggingFaceImages: a {HUGGING_FACE} is needed, got a {kinds[0]}. Give it one split, which is not streamed."
            )
        feature = dataset.features.get(image)
        if type(feature).__qualname__ != "Image" or not feature.decode:
            raise ValueError(
                f"HuggingFaceImages: its column {image!r} is {feature!r}, none of images to decode; there are "
                f"{', '.join(dataset.column_names)}. Name it in image=, or dataset.cast_column({image!r}, datasets.Image())."
            )
        dataset_format = dataset.format
        if dataset_format["type"] == "custom":
            raise ValueError(
                "HuggingFaceImages: the data set has a function as its with_transform or set_transform, which makes its "
                "samples. Give the data set without it (dataset.with_format(None)), and transform= a transform of one image."
            )
        shown = dataset_format["columns"]
        if image not in shown:
            raise ValueError(f"HuggingFaceImages: its format leaves {image!r} out. Add it to the format's columns.")
        self.dataset = dataset
        self.transform = transform
        self.names = tuple(shown)
        self.image = image
        others = [name for name in shown if name != image]
        self._others = dataset.select_columns(others) if others else None
        self._images = dataset.with_format(None).select_columns([image])

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = self._images[index][self.image].convert("RGB")
        if self.transform is not None:
            image = self.transform(image)
        (others,) = self.others([index])
        return {name: image if name == self.image else others[name] for name in self.names}

    def others(self, indices: list[int]) -> list[dict[str, Any]]:
        """Return the rows without their images, in the data set's format."""
        if self._others is None:
            return [{} for _ in indices]
        columns = self._others[indices]
        return [{name: values[k] for name, values in columns.items()} for k in range(len(indices))]
