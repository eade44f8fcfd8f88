"""Image data sets as users write them: a table with Pillow, Hugging Face's datasets, WebDataset. They can't travel.

All read the benchmarks' photographs, with torchvision's usual transforms for training.
"""

from __future__ import annotations

import importlib.util
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import Dataset, IterableDataset

from benchmarks.data import transform

__all__ = ["IMAGE_SETS", "missing"]


class Table(Dataset):
    """A list of paths and labels. Pillow opens the files."""

    def __init__(self, directory: Path) -> None:
        self._rows = _rows(directory)
        self._transform = transform("imagenet1")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        path, label = self._rows[index]
        with Image.open(path) as image:
            return self._transform(image.convert("RGB")), label


def _rows(directory: Path) -> list[tuple[Path, int]]:
    paths = sorted(path for path in (directory / "train").rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    labels = {folder: label for label, folder in enumerate(sorted({path.parent for path in paths}))}
    return [(path, labels[path.parent]) for path in paths]


def _hugging_face(directory: Path) -> Any:
    """Return a datasets.Dataset with the files' bytes in an Arrow table."""
    import datasets

    rows, prepare = _rows(directory), transform("imagenet1")

    def transformed(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {"pixels": [prepare(image.convert("RGB")) for image in batch["image"]], "label": batch["label"]}

    images = [{"bytes": path.read_bytes(), "path": None} for path, _ in rows]
    table = datasets.Dataset.from_dict({"image": images, "label": [label for _, label in rows]})
    return table.cast_column("image", datasets.Image()).with_transform(transformed)


def _web_dataset(directory: Path) -> IterableDataset:
    """Return WebDataset's own pipeline over one shard. The shard is made beside the files."""
    import webdataset

    shard = directory / "webdataset.tar"
    if not shard.exists():
        new = shard.with_suffix(".new")
        with tarfile.open(new, "w") as archive:
            for number, (path, label) in enumerate(_rows(directory)):
                archive.add(path, f"{number:06}.jpg")
                member, content = tarfile.TarInfo(f"{number:06}.cls"), str(label).encode()
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        new.rename(shard)
    pipeline: Any = webdataset.WebDataset(str(shard), shardshuffle=False).decode("pilrgb").to_tuple("jpg", "cls")
    dataset: IterableDataset = pipeline.map_tuple(transform("imagenet1"), int)
    return dataset


# How each is made from the photographs' directory, the package that it needs, and the aim.
IMAGE_SETS: dict[str, tuple[Callable[[Path], Any], str, float]] = {
    "table of files": (Table, "PIL", 1.8),
    "Hugging Face": (_hugging_face, "datasets", 1.5),
    "WebDataset": (_web_dataset, "webdataset", 1.5),
}


def missing(name: str) -> str:
    """Return the package that a set needs and that is missing here; "": none."""
    package = IMAGE_SETS[name][1]
    return "" if importlib.util.find_spec(package) else package
