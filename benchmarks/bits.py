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
BY_ONE = ("GaussianBlur",)  # may differ by 1 in one of 10,000 values
_FILES = 60  # of each kind
_LARGEST, _LARGEST_OWN = 900, 300  # our own encoder is slow
_STEEP = 6  # an image of 1 x 900 has 256 x 230400 pixels after Resize(256)


@dataclass
class PixelCounts:
    """Counts by name, of a kind of JPEG or an operator: samples, those that the kernel decodes, values, values that differ.

    ``most``: the largest difference.
    """

    samples: dict[str, int] = field(default_factory=dict)
    by_kernel: dict[str, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    differing: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, by_kernel: bool, ours: np.ndarray, theirs: Image.Image) -> None:
        """Count a sample."""
        difference = np.abs(ours.astype(int) - np.asarray(theirs))
        self._count(name, 1, int(by_kernel), difference.size, int(np.count_nonzero(difference)), int(difference.max()))

    def join(self, other: PixelCounts) -> None:
        """Count the samples of another one."""
        for name in other.samples:
            self._count(name, *(counts[name] for counts in vars(other).values()))

    def _count(self, name: str, *figures: int) -> None:
        *sums, most = figures
        for counts, more in zip((self.samples, self.by_kernel, self.values, self.differing), sums, strict=True):
            counts[name] = counts.get(name, 0) + more
        self.most[name] = max(self.most.get(name, 0), most)

    def right(self, name: str) -> bool:
        """Whether these pixels are as close to torchvision's as promised."""
        if name in BY_ONE:
            return self.most[name] <= 1 and self.differing[name] * 10_000 <= self.values[name]
        return self.differing[name] == 0

    @property
    def all_right(self) -> bool:
        """Whether all are."""
        return all(map(self.right, self.samples))


def compare(module: str, works: Sequence[Mapping[str, Any]], tell: Say) -> PixelCounts:
    """Call ``turn(work)`` of a module for each work, in one process a core, and add up the counts. A work has a ``kind``."""
    tell(f"{len(works)} kinds of JPEG, on {len(os.sched_getaffinity(0))} cores")
    result = PixelCounts()
    for answer in on_all_cores(module, works, lambda answer: tell(f"  {answer['kind']}: done")):
        result.join(PixelCounts(**answer["counts"]))
    return result


def compare_kinds(samples: int, tell: Say, kinds: Sequence[str] = KINDS) -> PixelCounts:
    """Compare so many samples of each kind."""
    if samples < 1:
        raise BenchFailed(f"--bits {samples}: give the number of samples of each kind, 1 or more.")
    return compare("benchmarks.bits", [{"kind": kind, "samples": samples} for kind in kinds], tell)


def compare_kind(kind: str, samples: int, directory: Path) -> PixelCounts:
    """Compare the samples of one kind, with files made below `directory`."""
    paths = make_files(kind, min(_FILES, samples), directory)
    reader = translate_dataset(ImageFiles(paths, range(len(paths)))).reader()
    recipes = [(T.Compose(spec), translate(T.Compose([*spec, T.ToTensor()]), "RGB").pipeline) for spec in _RECIPES]
    plans = [file_plan(pipeline, kernel()) for _, pipeline in recipes]
    taken = [kernel_takes(path) for path in paths]
    counts = PixelCounts()
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
        counts.add(kind, taken[index], out, transform(image) if fixed else by_torchvision(image, drawn.primitives, how))
    return counts


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


def table(result: PixelCounts) -> str:
    """Return the figures as a table of text."""
    rows = [f"{'':28}{'samples':>9}{'by the kernel':>15}{'values':>16}{'differ':>9}{'by at most':>12}"]
    for name, samples in result.samples.items():
        rows.append(
            f"{name:28}{samples:9}{result.by_kernel[name]:15}{result.values[name]:16,}{result.differing[name]:9}"
            f"{result.most[name]:12}"
        )
    return "\n".join(rows)


def aims(result: PixelCounts) -> list[Aim]:
    """Return the aim: all are as promised."""
    return [Aim(f"torchvision's pixels, of {len(result.samples)}", len(result.samples), sum(map(result.right, result.samples)))]


def turn(work: Mapping[str, Any]) -> dict[str, Any]:
    """Compare a kind."""
    with tempfile.TemporaryDirectory(prefix="ddlp-bench-") as directory:
        counts = compare_kind(work["kind"], work["samples"], Path(directory))
    return {"kind": work["kind"], "counts": vars(counts)}
