"""The pixels of N draws of each operator, over all kinds of JPEG, against torchvision's.

A sample is a random crop, the operator and a flip. It is made from a file as host and engine make the samples of a batch.
torchvision's functions get the parameters that were drawn. GaussianBlur may differ by 1 in one of 10,000 values: torchvision
computes it on tensors, in another order. For RandomPerspective both sides begin with the same coefficients;
tests/ddlp/translate/test_augmentations.py tests that these are torchvision's.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torchvision import transforms as T

from benchmarks.bits import by_torchvision, kernel_takes, make_files, prepare
from benchmarks.common import Aim, BenchFailed, Say, add_output, command, emit, on_all_cores, say
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
BY_ONE = ("GaussianBlur",)  # may differ by 1 in one of 10,000 values
_SIDE, _FILES = 64, 20


@dataclass
class OperatorBits:
    """Counts by operator: draws, draws from files that the kernel decodes, values compared, values that differ.

    ``most``: the largest difference.
    """

    draws: dict[str, int] = field(default_factory=dict)
    by_kernel: dict[str, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    differing: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)

    def add(self, answer: dict[str, Any]) -> None:
        """Add the counts of one operator over one kind of JPEG."""
        name = answer["operator"]
        for counts, key in (
            (self.draws, "draws"), (self.by_kernel, "by_kernel"), (self.values, "values"), (self.differing, "differing")
        ):  # fmt: skip
            counts[name] = counts.get(name, 0) + answer[key]
        self.most[name] = max(self.most.get(name, 0), answer["most"])

    def right(self, name: str) -> bool:
        """Whether the operator's pixels are as close as promised."""
        if name in BY_ONE:
            return self.most[name] <= 1 and self.differing[name] * 10_000 <= self.values[name]
        return self.differing[name] == 0


def report_parts(quick: bool) -> list[tuple[str, list[str]]]:
    """Return what `python -m benchmarks --all` runs of this bench: titles and arguments."""
    return [("Each operator's bits", ["--draws", "30" if quick else "2000"])]


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
    result = compare(options.draws, names, say)
    emit(options, result, table(result), aims(result))
    return 0 if all(result.right(name) for name in result.draws) else 1


def compare(draws: int, names: list[str], tell: Say) -> OperatorBits:
    """Compare so many draws of each operator, divided among the kinds of JPEG, in one process a core."""
    each = -(-draws // len(KINDS))
    tell(
        f"{each} draws of each of {len(names)} operators for each of {len(KINDS)} kinds of JPEG, "
        f"on {len(os.sched_getaffinity(0))} cores"
    )
    works = [{"kind": kind, "draws": each, "names": names} for kind in KINDS]
    result = OperatorBits()
    for reply in on_all_cores("benchmarks.operators", works, lambda reply: tell(f"  {reply['kind']}: done")):
        for answer in reply["answers"]:
            result.add(answer)
    return result


def compare_kind(kind: str, draws: int, names: list[str], directory: Path) -> list[dict[str, Any]]:
    """Compare all operators over files of one kind, made below `directory`."""
    paths = make_files(kind, _FILES, directory)
    reader = translate_dataset(ImageFiles(paths, range(len(paths)))).reader()
    taken = [kernel_takes(path) for path in paths]
    answers = []
    for number, name in enumerate(names):
        steps = [T.RandomResizedCrop(_SIDE, (0.05, 1.0)), OPERATORS[name](), T.RandomHorizontalFlip(), T.ToTensor()]
        pipeline = translate(T.Compose(steps), "RGB").pipeline
        plan = file_plan(pipeline, kernel())
        answer: dict[str, Any] = {"operator": name, "draws": draws, "by_kernel": 0, "values": 0, "differing": 0, "most": 0}
        for k in range(draws):
            index = k % len(paths)
            with Image.open(paths[index]) as opened:
                image = opened.convert("RGB")
            out = np.empty(pipeline.output_shape(None), np.uint8)
            prepare(reader, pipeline, plan, index, number * draws + k, out)
            drawn = pipeline.draw(image.size, Keyed(0, number * draws + k, index, 0))
            difference = np.abs(out.astype(int) - np.asarray(by_torchvision(image, drawn.primitives, _BILINEAR)))
            answer["by_kernel"] += taken[index]
            answer["values"] += difference.size
            answer["differing"] += int(np.count_nonzero(difference))
            answer["most"] = max(answer["most"], int(difference.max()))
        answers.append(answer)
    return answers


def table(result: OperatorBits) -> str:
    """Return the figures as a table of text."""
    rows = [f"{'':28}{'draws':>8}{'by the kernel':>15}{'values':>14}{'differ':>9}{'by at most':>12}"]
    for name, draws in result.draws.items():
        rows.append(
            f"{name:28}{draws:8}{result.by_kernel[name]:15}{result.values[name]:14,}{result.differing[name]:9}"
            f"{result.most[name]:12}"
        )
    return "\n".join(rows)


def aims(result: OperatorBits) -> list[Aim]:
    """Return the aim: all operators are as promised."""
    right = sum(result.right(name) for name in result.draws)
    return [Aim(f"operators as promised, of {len(result.draws)}", len(result.draws), right)]


def turn(work: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the operators over a kind."""
    with tempfile.TemporaryDirectory(prefix="ddlp-bench-") as directory:
        answers = compare_kind(work["kind"], work["draws"], work["names"], Path(directory))
    return {"kind": work["kind"], "answers": answers}


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
