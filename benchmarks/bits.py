"""`python -m benchmarks.host --bits N`: the pixels of N samples of every kind of JPEG against torchvision's on PIL images.

Our samples are made as host and engine make those of a batch. If there is a compiled kernel, it draws and decodes them.
torchvision gets the crop that our pipeline drew in Python. The images have 1 to 900 pixels a side. The transforms are crops,
resizes with and without a crop after them, by every filter of the kernel, and flips.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torchvision import transforms as T
from torchvision.transforms import functional as F

from benchmarks.common import Aim, BenchFailed, Say, on_all_cores
from csd_engine.arithmetic.keyed import Keyed
from csd_engine.data.base import Reader
from csd_engine.kernels import kernel
from csd_engine.kernels.files import FilePlan
from csd_engine.prepare.kernel_calls import file_calls
from csd_engine.prepare.sample import prepare_sample
from csd_engine.prepare.started_batch import BatchRequest
from csd_engine.transforms.colour_steps import AutoContrast, Blur, Enhance, Equalize, Hue, Table
from csd_engine.transforms.fileplan import file_plan
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.primitives import Crop, Flip, Gray, Primitive, Resize
from csd_engine.transforms.warp_steps import Turn, Warp
from ddlp.data.images import ImageFiles
from ddlp.translate.datasets import translate_dataset
from ddlp.translate.transforms import translate
from tests.jpegkinds import KINDS, encode_kind, picture

_MODES = T.InterpolationMode
_FLIPS = [T.RandomHorizontalFlip(), T.RandomVerticalFlip(0.2)]
_RECIPES: tuple[list[Any], ...] = (
    [T.RandomResizedCrop(224, interpolation=_MODES.BILINEAR), *_FLIPS],
    [T.Resize(256), T.CenterCrop(224)],
    [T.RandomResizedCrop((160, 96), scale=(0.02, 1), ratio=(0.3, 3), interpolation=_MODES.BICUBIC), *_FLIPS],
    [T.Resize(232, interpolation=_MODES.BICUBIC), T.CenterCrop(224)],
    [T.RandomResizedCrop(33, scale=(0.5, 1)), *_FLIPS],
    [T.Resize(96, interpolation=_MODES.LANCZOS), T.RandomCrop(64), *_FLIPS],
    [T.RandomResizedCrop(80, interpolation=_MODES.BOX), *_FLIPS],
    [T.Resize((64, 90), interpolation=_MODES.HAMMING), *_FLIPS],
    [T.Resize((64, 48)), *_FLIPS],
)
_FILES = 60  # of each kind
_LARGEST, _LARGEST_OWN = 900, 300  # our own encoder is slow
_STEEP = 6  # an image of 1 x 900 has 256 x 230400 pixels after Resize(256)


@dataclass
class Bits:
    """Counts by kind of JPEG: all samples, those that the kernel made, and those that differ from torchvision's."""

    samples: dict[str, int] = field(default_factory=dict)
    by_kernel: dict[str, int] = field(default_factory=dict)
    differing_by_kind: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    @property
    def differing(self) -> int:
        """The number of samples that differ in any value, over all kinds."""
        return sum(self.differing_by_kind.values())


def compare(samples: int, tell: Say, kinds: Sequence[str] = KINDS) -> Bits:
    """Compare so many samples of each kind, in one process a core."""
    if samples < 1:
        raise BenchFailed(f"--bits {samples}: give the number of samples of each kind, 1 or more.")
    tell(f"{samples} samples of each of {len(kinds)} kinds of JPEG, on {len(os.sched_getaffinity(0))} cores")

    def report(answer: dict[str, Any]) -> None:
        tell(f"  {answer['kind']:18} {answer['differing']} of {samples} differ")

    result = Bits()
    for answer in on_all_cores("benchmarks.bits", [{"kind": kind, "samples": samples} for kind in kinds], report):
        kind = answer["kind"]
        result.samples[kind], result.by_kernel[kind] = samples, answer["by_kernel"]
        result.differing_by_kind[kind] = answer["differing"]
        result.examples += answer["examples"]
    return result


def compare_kind(kind: str, samples: int, directory: Path) -> dict[str, Any]:
    """Compare the samples of one kind, with files made below `directory`."""
    paths = make_files(kind, min(_FILES, samples), directory)
    reader = translate_dataset(ImageFiles(paths, range(len(paths)))).reader()
    recipes = [(T.Compose(spec), translate(T.Compose([*spec, T.ToTensor()]), "RGB").pipeline) for spec in _RECIPES]
    plans = [file_plan(pipeline, kernel()) for _, pipeline in recipes]
    taken = [kernel_takes(path) for path in paths]
    differing = by_kernel = 0
    examples: list[str] = []
    for k in range(samples):
        index = k % len(paths)
        with Image.open(paths[index]) as opened:
            image = opened.convert("RGB")
        steep = max(image.size) > _STEEP * min(image.size)
        number = k // len(paths) % len(recipes) if not steep else k // len(paths) % 3 * 2
        transform, pipeline = recipes[number]
        drawn = pipeline.draw(image.size, Keyed(0, k, index, 0))
        out = np.empty(pipeline.output_shape(None), np.uint8)
        prepare(reader, pipeline, plans[number], index, k, out)
        # A transform that draws nothing is called as it is. Else torchvision's functions are, with what we have drawn.
        fixed = all(isinstance(step, (T.Resize, T.CenterCrop)) for step in transform.transforms)
        how = transform.transforms[0].interpolation
        expected = transform(image) if fixed else by_torchvision(image, drawn.primitives, how)
        by_kernel += taken[index]
        if not np.array_equal(out, np.asarray(expected)):
            differing += 1
            if len(examples) < 5:
                most = int(np.abs(out.astype(int) - np.asarray(expected)).max())
                examples.append(f"{kind} {image.size}, {drawn.primitives}: differs by up to {most}")
    return {"kind": kind, "differing": differing, "by_kernel": by_kernel, "examples": examples}


def prepare(reader: Reader, pipeline: Pipeline, plan: FilePlan | None, index: int, epoch: int, out: np.ndarray) -> None:
    """Make one sample as the samples of a batch are made."""
    calls = file_calls(reader, plan, BatchRequest(np.array([index]), np.array([0]), 0, epoch))
    if calls is not None:
        with contextlib.closing(calls):
            if not calls.make(0, out[np.newaxis], None, 1.0).refused:
                return
    prepare_sample(reader, pipeline, (index, 0), 0, epoch, out)


def make_files(kind: str, count: int, directory: Path) -> list[Path]:
    """Make files of sizes from one pixel up, small ones as often as large ones."""
    drawn = np.random.default_rng(sum(kind.encode()))
    largest = _LARGEST if kind in KINDS[:9] else _LARGEST_OWN
    paths = []
    for number in range(count):
        width, height = (int(size) for size in np.exp(drawn.uniform(0, np.log(largest), 2)).round())
        if number % 3:  # two thirds have a photograph's ratio of width and height
            height = max(1, int(width * drawn.uniform(0.6, 1.6)))
        paths.append(directory / f"{number:03}.jpg")
        paths[-1].write_bytes(encode_kind(kind, picture(number, (width, min(height, largest))), int(drawn.integers(30, 98))))
    return paths


_ENHANCE = {
    "brightness": F.adjust_brightness,
    "contrast": F.adjust_contrast,
    "saturation": F.adjust_saturation,
    "sharpness": F.adjust_sharpness,
}


def by_torchvision(image: Image.Image, primitives: Sequence[Primitive], interpolation: T.InterpolationMode) -> Image.Image:
    """Apply torchvision's functions with what was drawn. torchvision also turns and warps by Pillow's `Image.transform`."""
    for step in primitives:
        if isinstance(step, Crop):
            image = F.crop(image, step.top, step.left, step.height, step.width)
        elif isinstance(step, Resize):
            image = F.resize(image, [step.height, step.width], interpolation)
        elif isinstance(step, Flip):
            image = F.hflip(image) if step.horizontal else F.vflip(image)
        elif isinstance(step, Gray):
            image = F.rgb_to_grayscale(image, step.channels)
        elif isinstance(step, Enhance):
            image = _ENHANCE[step.what](image, step.factor)
        elif isinstance(step, Hue):
            image = F.adjust_hue(image, (step.shift - 256 * (step.shift > 127)) / 255)
        elif isinstance(step, AutoContrast):
            image = F.autocontrast(image)
        elif isinstance(step, Equalize):
            image = F.equalize(image)
        elif isinstance(step, Blur):
            image = F.gaussian_blur(image, list(step.size), list(step.sigma))
        elif isinstance(step, (Table, Turn, Warp)):  # torchvision's lookup tables and maps are these calls of Pillow's
            image = step.by_pillow(image, "")
        else:
            raise BenchFailed(f"the pipeline drew {step!r}, which this comparison does not know.")
    return image


def kernel_takes(path: Path) -> bool:
    """Whether the kernel decodes the file; else Pillow does."""
    c_kernel = kernel()
    return c_kernel is not None and c_kernel.context().take(path.read_bytes()) is not None


def table(result: Bits) -> str:
    """Return the figures as a table of text."""
    rows = [f"{'':20}{'samples':>9}{'by the kernel':>15}{'differ':>9}"]
    for kind, samples in result.samples.items():
        rows.append(f"{kind:20}{samples:9}{result.by_kernel[kind]:15}{result.differing_by_kind[kind]:9}")
    total = sum(result.samples.values())
    rows.append(f"{'together':20}{total:9}{sum(result.by_kernel.values()):15}{result.differing:9}")
    return "\n".join([*rows, *result.examples])


def aims(result: Bits) -> list[Aim]:
    """Return the aim: no sample differs."""
    total = sum(result.samples.values())
    return [Aim(f"equal to torchvision on PIL, samples of {total}", total, total - result.differing)]


def turn(work: Mapping[str, Any]) -> dict[str, Any]:
    """Compare a kind."""
    with tempfile.TemporaryDirectory(prefix="ddlp-bench-") as directory:
        return compare_kind(work["kind"], work["samples"], Path(directory))
