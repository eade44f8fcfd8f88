"""The pixels of N draws of each operator, over all kinds of JPEG, against torchvision's.

A sample is a random crop, the operator and a flip. It is made from a file as host and engine make the samples of a batch.
torchvision's functions get the parameters that were drawn. GaussianBlur may differ by 1 in one of 10,000 values: torchvision
computes it on tensors, in another order. For RandomPerspective both sides begin with the same coefficients;
tests/ddlp/translate/test_augmentations.py tests that these are torchvision's.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torchvision import transforms as T

from benchmarks.bits import PixelCounts, aims, by_torchvision, compare, kernel_takes, make_files, prepare, table
from benchmarks.common import BenchFailed, add_output, command, emit, say
from csd_engine.arithmetic.keyed import Keyed
from csd_engine.kernels import kernel
from csd_engine.transforms.fileplan import file_plan
from ddlp.data.images import ImageFiles
from ddlp.translate.datasets import translate_dataset
from ddlp.translate.transforms import translate
from tests.jpegkinds import KINDS

_BILINEAR, _BICUBIC = T.InterpolationMode.BILINEAR, T.InterpolationMode.BICUBIC
TIMMS = "timm rand-m9-mstd0.5-inc1"


def _timms() -> Any:
    from timm.data.auto_augment import rand_augment_transform

    return rand_augment_transform("rand-m9-mstd0.5-inc1", {"img_mean": (124, 116, 104)})


OPERATORS: dict[str, Callable[[], Any]] = {
    "ColorJitter": lambda: T.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "RandomGrayscale": lambda: T.RandomGrayscale(0.5),
    "GaussianBlur": lambda: T.GaussianBlur((5, 23), (0.1, 2.0)),
    "RandomRotation": lambda: T.RandomRotation(180, _BILINEAR, fill=7),
    "RandomAffine": lambda: T.RandomAffine(20, (0.1, 0.2), (0.8, 1.2), (-9, 9, -9, 9), _BICUBIC, fill=(1, 2, 3)),
    "RandomPerspective": lambda: T.RandomPerspective(0.5, 1.0, _BILINEAR),
    "RandomPosterize": lambda: T.RandomPosterize(3, 1.0),
    "RandomSolarize": lambda: T.RandomSolarize(128, 1.0),
    "RandomEqualize": lambda: T.RandomEqualize(1.0),
    "RandomAutocontrast": lambda: T.RandomAutocontrast(1.0),
    "RandomInvert": lambda: T.RandomInvert(1.0),
    "RandomAdjustSharpness": lambda: T.RandomAdjustSharpness(2.0, 1.0),
    "AutoAugment": T.AutoAugment,
    "RandAugment": T.RandAugment,
    "TrivialAugmentWide": T.TrivialAugmentWide,
    TIMMS: _timms,
}
_SIDE, _FILES = 64, 20


def report_parts() -> list[tuple[str, list[str]]]:
    """Return what `python -m benchmarks --all` runs of this bench: titles and arguments."""
    return [("Each operator's bits", ["--draws", "2000"])]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--draws", type=int, default=2000, metavar="N", help="number of draws of each operator (%(default)s)")
    parser.add_argument("--operators", nargs="+", choices=list(OPERATORS), metavar="O", help="only these, of %(choices)s")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Compare and print. Return 1 if an operator is not as promised."""
    if options.draws < 1:
        raise BenchFailed(f"--draws {options.draws}: give the number of draws of each operator, 1 or more.")
    names = options.operators or list(OPERATORS)
    if TIMMS in names and importlib.util.find_spec("timm") is None:
        say(f"without {TIMMS}: pip install timm")
        names = [name for name in names if name != TIMMS]
    each = -(-options.draws // len(KINDS))
    result = compare("benchmarks.operators", [{"kind": kind, "draws": each, "names": names} for kind in KINDS], say)
    emit(options, result, table(result), aims(result))
    return 0 if result.all_right else 1


def compare_kind(kind: str, draws: int, names: list[str], directory: Path) -> PixelCounts:
    """Compare all operators over files of one kind, made below `directory`."""
    paths = make_files(kind, _FILES, directory)
    reader = translate_dataset(ImageFiles(paths, range(len(paths)))).reader()
    taken = [kernel_takes(path) for path in paths]
    counts = PixelCounts()
    for number, name in enumerate(names):
        steps = [T.RandomResizedCrop(_SIDE, (0.05, 1.0)), OPERATORS[name](), T.RandomHorizontalFlip(), T.ToTensor()]
        pipeline = translate(T.Compose(steps), "RGB").pipeline
        plan = file_plan(pipeline, kernel())
        for k in range(draws):
            index = k % len(paths)
            with Image.open(paths[index]) as opened:
                image = opened.convert("RGB")
            out = np.empty(pipeline.output_shape(None), np.uint8)
            prepare(reader, pipeline, plan, index, number * draws + k, out)
            drawn = pipeline.draw(image.size, Keyed(0, number * draws + k, index, 0))
            counts.add(name, taken[index], out, by_torchvision(image, drawn.primitives, _BILINEAR))
    return counts


def turn(work: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the operators over a kind."""
    with tempfile.TemporaryDirectory(prefix="ddlp-bench-") as directory:
        counts = compare_kind(work["kind"], work["draws"], work["names"], Path(directory))
    return {"kind": work["kind"], "counts": vars(counts)}


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
