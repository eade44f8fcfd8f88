"""Detection, segmentation, audio and tables: ten recipes that do not classify images."""

from __future__ import annotations

import random
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset
from torchvision import datasets as tv
from torchvision import tv_tensors
from torchvision.ops import masks_to_boxes
from torchvision.transforms import v2

from tests.recipes import fakes
from tests.recipes.pipelines import MEAN, STD
from tests.recipes.recipe import Recipe, Way

_VISION, _OTHERS = "Detection and segmentation", "Audio, tables and text"


def nothing(fixed: bool) -> None:
    """No transform."""
    return None


def listed(samples: Sequence[Any]) -> tuple[Any, ...]:
    """Detection's collate_fn: a tuple of images, a tuple of targets."""
    return tuple(zip(*samples, strict=True))


# -- detection and segmentation --------------------------------------------------------------------------------------


def ssd(fixed: bool) -> Any:
    """The joint transform of torchvision's detection references, without its zoom; the images keep different sizes."""
    same: list[Any] = [v2.ToImage(), v2.RandomHorizontalFlip(1.0 if fixed else 0.5)]
    drawn: list[Any] = [] if fixed else [v2.RandomPhotometricDistort(), v2.RandomIoUCrop()]
    return v2.Compose([*same, *drawn, v2.SanitizeBoundingBoxes(), v2.ToDtype(torch.float, scale=True)])


def fixed_size(fixed: bool) -> Any:
    """A joint transform to one size: image and boxes, or image and mask."""
    to_float = v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)
    return v2.Compose([v2.Resize((256, 256)), v2.RandomHorizontalFlip(1.0 if fixed else 0.5), v2.ToImage(), to_float])


def segmentation(fixed: bool) -> Any:
    """The joint transform of torchvision's segmentation references."""
    same = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0)} if fixed else {"scale": (0.25, 1.0)}
    return v2.Compose(
        [
            v2.RandomResizedCrop(240, antialias=True, **same),
            v2.RandomHorizontalFlip(1.0 if fixed else 0.5),
            v2.PILToTensor(),
            v2.ToDtype({torch.Tensor: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


def _wrapped(dataset: Any, keys: Sequence[str]) -> Any:
    """Wrap a data set by torchvision's own function, so that v2 knows its boxes and masks."""
    return tv.wrap_dataset_for_transforms_v2(dataset, target_keys=keys)


def voc_detection(root: Path, transform: Any) -> Any:
    """Boxes of VOC 2012."""
    return _wrapped(tv.VOCDetection(str(root), transforms=transform), ("boxes", "labels"))


def voc_segmentation(root: Path, transform: Any) -> Any:
    """Masks of VOC 2012."""
    return tv.wrap_dataset_for_transforms_v2(tv.VOCSegmentation(str(root), transforms=transform))


def coco_detection(root: Path, transform: Any) -> Any:
    """Boxes of COCO."""
    notes = str(root / "annotations" / "instances_train2017.json")
    return _wrapped(tv.CocoDetection(str(root / "train2017"), notes, transforms=transform), ("boxes", "labels"))


def pet_trimaps(root: Path, transform: Any) -> Any:
    """Trimaps of the pets."""
    pets = tv.OxfordIIITPet(str(root), target_types="segmentation", transforms=transform)
    return tv.wrap_dataset_for_transforms_v2(pets)


class PennFudan(Dataset):
    """The data set class of torchvision's tutorial on detection: boxes around the persons in masks."""

    def __init__(self, root: Path, transform: Any) -> None:
        self.root, self.transform = root / "PennFudanPed", transform
        self.images = sorted((self.root / "PNGImages").iterdir())
        self.masks = sorted((self.root / "PedMasks").iterdir())

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        image = tv_tensors.Image(Image.open(self.images[index]).convert("RGB"))
        mask = torch.from_numpy(np.array(Image.open(self.masks[index])))
        persons = torch.unique(mask)[1:]
        masks = (mask == persons[:, None, None]).to(torch.uint8)
        edges = masks_to_boxes(masks)
        boxes = tv_tensors.BoundingBoxes(edges, format="XYXY", canvas_size=tuple(mask.shape))
        target = {"boxes": boxes, "masks": tv_tensors.Mask(masks), "labels": torch.ones(len(persons), dtype=torch.int64)}
        return self.transform(image, target)


# -- audio, tables, text ---------------------------------------------------------------------------------------------


class Waves(Dataset):
    """WAV files, cut at random; a sample is the logarithm of the spectrum. Fixed: cut at the beginning."""

    def __init__(self, root: Path, fixed: bool) -> None:
        self.paths, self.fixed = sorted(root.glob("*/*.wav")), fixed
        self.labels = {name: label for label, name in enumerate(sorted({path.parent.name for path in self.paths}))}

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index]
        with wave.open(str(path)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
        first = 0 if self.fixed else random.randrange(len(samples) - 12_000)
        piece = torch.from_numpy(samples[first : first + 12_000])
        spectrum = torch.stft(piece, 400, 160, window=torch.hann_window(400), return_complex=True)
        return spectrum.abs().log1p(), self.labels[path.parent.name]


def waves(root: Path, fixed: Any) -> Any:
    """Open the WAV files. ``fixed``, in place of a transform, says whether the draws are fixed."""
    return Waves(root, fixed)


def are_fixed(fixed: bool) -> bool:
    """In place of a transform: for data sets that draw themselves."""
    return fixed


def tensors(root: Path, transform: Any) -> Any:
    """A table in memory."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(20_000, 32, generator=generator), torch.arange(20_000))


class Rows(Dataset):
    """Rows of a Parquet table as dicts."""

    def __init__(self, root: Path, transform: Any) -> None:
        import pyarrow.parquet

        columns = pyarrow.parquet.read_table(root / "rows.parquet").to_pydict()
        self.tokens, self.labels = columns.pop("tokens"), columns.pop("label")
        self.values = np.stack([np.asarray(column, np.float32) for column in columns.values()], 1)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.from_numpy(self.values[index]), "label": self.labels[index]}


class Tokens(Rows):
    """Texts as lists of tokens of different lengths."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.tokens[index]), self.labels[index]


def padded(samples: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts filled up to the longest of their batch."""
    texts, labels = zip(*samples, strict=True)
    return torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True), torch.tensor(labels)


def numbers(root: Path, transform: Any) -> Any:
    """Hugging Face's table of numbers, in torch's format."""
    import datasets

    datasets.disable_progress_bars()
    rows = datasets.load_dataset("parquet", data_files=str(root / "rows.parquet"), cache_dir=str(root / "cache"))["train"]
    return rows.remove_columns("tokens").with_format("torch")


def _vision(name: str, files: Any, opened: Any, transform: Any, way: Way = "host", **options: Any) -> Recipe:
    return Recipe(name, _VISION, files, opened, transform, way, **options)


def _other(name: str, files: Any, opened: Any, transform: Any = nothing, **options: Any) -> Recipe:
    return Recipe(name, _OTHERS, files, opened, transform, "host", **{"draws": "none", "batch": 64, **options})


_LISTS = {"collate_fn": listed}
RECIPES = [
    _vision("VOC, detection", fakes.voc, voc_detection, ssd, options=_LISTS),
    _vision("VOC, segmentation", fakes.voc, voc_segmentation, segmentation),
    _vision(
        "COCO, detection to one size", fakes.coco, coco_detection, fixed_size, "prefix", options=_LISTS, needs=("pycocotools",)
    ),
    _vision("Oxford pets, trimaps", fakes.pets, pet_trimaps, segmentation),
    _vision("Penn-Fudan, the tutorial's data set", fakes.penn_fudan, PennFudan, ssd, options=_LISTS, batch=4),
    _other("WAV files, spectra", fakes.waves, waves, are_fixed, draws="fixed", batch=16),
    _other("TensorDataset", fakes.nothing, tensors),
    _other("rows of a table, as dicts", fakes.features_table, Rows, needs=("pyarrow",)),
    _other("texts of unlike lengths, padded", fakes.features_table, Tokens, needs=("pyarrow",), options={"collate_fn": padded}),
    _other("Hugging Face, a table of numbers", fakes.features_table, numbers, needs=("datasets",)),
]

