"""Translates timm's ImageDataset, without importing timm."""

from __future__ import annotations

from typing import Any

from ddlp.errors import Untranslatable
from ddlp.translate.files import FileLeaf, GreyFileLeaf, pairs
from ddlp.translate.leaf import WAYS, class_name, name_of

__all__ = ["timm_images"]

_FOLDER = "timm.data.readers.reader_image_folder.ReaderImageFolder"
_LEAVES = {"RGB": FileLeaf, "L": GreyFileLeaf}


def timm_images(dataset: Any) -> FileLeaf:
    """The leaf of an ImageDataset over a folder, as ``timm.data.create_dataset`` makes it.

    If a file can't be read, timm warns and takes the next file's sample. Here it is an error.
    """
    for wrong, why in (
        (class_name(type(dataset.reader)) != _FOLDER, f"its reader is a {type(dataset.reader).__qualname__}, no folder's"),
        (dataset.load_bytes, "it gives bytes (load_bytes=True)"),
        (dataset.input_img_mode not in _LEAVES, f"its input_img_mode is {dataset.input_img_mode!r}"),
        (dataset.additional_features is not None, "it has additional_features"),
    ):
        if wrong:
            raise Untranslatable(name_of(dataset), why, (WAYS,))
    files, targets = pairs(dataset.reader.samples)
    target_transform = dataset.target_transform

    def finished(those: list[int]) -> list[Any]:
        return [
            -1 if target is None else target if target_transform is None else target_transform(target)
            for target in targets(those)
        ]

    return _LEAVES[dataset.input_img_mode](name_of(dataset), dataset.transform, finished, None, files)
