"""Each row of `ddlp parity` beside torchvision's (or timm's) own call with the same numbers.

A row's operator gets parameters over their whole range: both ends first, then uniform numbers between them, the intervals of
random ones fixed by (x, x). v1's operator and v2's take turns. What no interval fixes, such as the place of a crop, is drawn
once: torchvision gets the numbers that ddlp draws. ddlp makes the images as host and engine make those of a batch; torchvision
runs the very object that ddlp translates, on the PIL image.

A value that differs is ddlp's fault unless it is shown whose it is: torchvision is run again with correctly rounded sines in
the place of the C library's ("C library"), or with a perspective that is solved exactly ("LAPACK"), and must then make ddlp's
image; or a blur's exact value lies within a thousandth of the boundary of rounding ("float32 sums").
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import PIL.Image
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets.folder import pil_loader
from torchvision.transforms import autoaugment, functional, transforms, v2
from torchvision.transforms.v2 import _augment, _auto_augment, _color, _container, _misc, _transform
from torchvision.transforms.v2 import _geometry as geometry
from torchvision.transforms.v2.functional import _geometry as matrices

from benchmarks.common import Aim, BenchFailed, Say, add_output, command, emit, on_all_cores, say
from benchmarks.torchvision_calls import ON_TENSORS, ROWS, Span
from csd_engine.arithmetic import angles
from csd_engine.arithmetic.keyed import Keyed
from csd_engine.tools.parity import Case, run_cases, versions
from csd_engine.transforms import policies
from csd_engine.transforms.torch_pixels import PILLOW, is_v2
from csd_engine.transforms.torch_resample import TORCH_FILTERS
from csd_engine.transforms.warps import perspective_coefficients
from ddlp.deploy.parity import all_cases, file_sources, operator_rows, pixel_sources
from ddlp.transforms import Views
from ddlp.translate.torch_pixels import torch_filter, torchs_pixels
from ddlp.translate.transforms import steps_of, translate, translate_steps

__all__ = ["Compared", "Table", "all_names", "compare_row"]

DRAWS = 40
_BY_C_LIBRARY = 3_000_000  # values of which one may differ because of the C library
_FROM_A_JPEG = ", from a JPEG"


# -- the same numbers for torchvision --------------------------------------------------------------------------------------


class _Empty:
    def __init__(self, keyed: Keyed) -> None:
        self._keyed = keyed

    def uniform_(self, low: Any, high: Any) -> torch.Tensor:
        """What torch draws from an interval of one number, or ddlp's number in torch's type."""
        number = self._keyed.uniform(float(low), float(high))
        return torch.empty(1).uniform_(float(low), float(high)) if low == high else torch.tensor([number])


class _Torch:
    """The module torch, which draws from a sample's stream."""

    def __init__(self, keyed: Keyed) -> None:
        self._keyed = keyed

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *_: Any) -> _Empty:
        return _Empty(self._keyed)

    def rand(self, *_: Any) -> torch.Tensor:
        return torch.tensor([self._keyed.uniform()])

    def randint(self, low: int, high: int | None = None, size: Any = None) -> torch.Tensor:
        first, end = (0, low) if not isinstance(high, int) else (low, high)
        return torch.tensor([first + self._keyed.below(end - first)])

    def randperm(self, n: int) -> torch.Tensor:
        return torch.tensor(self._keyed.permutation(n))


class _Random:
    """The module random for timm, likewise. `random` is called for a sign; for a chance that is certain in `sizes`."""

    def __init__(self, keyed: Keyed, sizes: bool) -> None:
        self._keyed, self._sizes = keyed, sizes
        self.uniform = keyed.uniform

    def random(self) -> float:
        return self._keyed.uniform() if self._sizes else 0.9 if self._keyed.below(2) == 0 else 0.1

    def gauss(self, mean: float, std: float) -> float:
        return mean + std * self._keyed.normal()

    def choice(self, several: Sequence[Any]) -> Any:
        return several[self._keyed.below(len(several))]

    def randint(self, low: int, high: int) -> int:
        return low + self._keyed.below(high - low + 1)


class _Numpy:
    """The module numpy for timm's RandAugment, which chooses operators by it."""

    def __init__(self, keyed: Keyed) -> None:
        self.random, self._keyed = self, keyed

    def choice(self, several: Sequence[Any], count: int, replace: bool, p: Any) -> list[Any]:
        if replace:
            return [several[self._keyed.below(len(several))] for _ in range(count)]
        left = [1.0 + k % 3 for k in range(len(several))]
        chosen = []
        for _ in range(count):
            chosen.append(self._keyed.weighted(left))
            left[chosen[-1]] = 0.0
        return [several[number] for number in chosen]


@contextlib.contextmanager
def _changed(name: str, value: Any, modules: Sequence[Any]) -> Iterator[None]:
    """Give modules another value of this name, for a while."""
    before = [getattr(module, name) for module in modules]
    try:
        for module in modules:
            setattr(module, name, value)
        yield
    finally:
        for module, old in zip(modules, before, strict=True):
            setattr(module, name, old)


@contextlib.contextmanager
def _drawing(keyed: Keyed) -> Iterator[None]:
    """torchvision and timm draw from this stream."""
    modules = (transforms, geometry, _augment, _color, _misc, _container, _transform)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_changed("torch", _Torch(keyed), modules))
        if "timm" in sys.modules:
            from timm.data import auto_augment, random_erasing
            from timm.data import transforms as sizes

            stack.enter_context(_changed("random", _Random(keyed, False), [auto_augment]))
            stack.enter_context(_changed("np", _Numpy(keyed), [auto_augment]))
            stack.enter_context(_changed("random", _Random(keyed, True), (sizes, random_erasing)))
            stack.enter_context(_changed("_get_pixels", _no_pixels(keyed), [random_erasing]))
        yield


def _no_pixels(keyed: Keyed) -> Callable[..., torch.Tensor]:
    """timm's values of an erased rectangle, as zeros. Behind a noisy one's place ddlp draws its seed, by four numbers."""

    def pixels(per_pixel: bool, *_: Any, **__: Any) -> torch.Tensor:
        for _number in range(4 if per_pixel else 0):
            keyed.below(1 << 31)
        return torch.zeros(1)

    return pixels


def _by_policy(t: Any, image: Any, keyed: Keyed) -> Any:
    """torchvision's operators of a policy. Names, levels and signs are those that ddlp draws, strengths torchvision's."""
    if isinstance(t, (v1.RandAugment, v2.RandAugment)):
        for _ in range(t.num_ops):
            name = policies.RAND.names[keyed.below(len(policies.RAND.names))]
            image = _apply(t, image, name, t.magnitude, 31, name in policies.RAND.signed and keyed.below(2) == 0)
    elif isinstance(t, (v1.TrivialAugmentWide, v2.TrivialAugmentWide)):
        name = policies.WIDE.names[keyed.below(len(policies.WIDE.names))]
        level = None if name in policies.WIDE.plain else keyed.below(31)
        image = _apply(t, image, name, level, 31, name in policies.WIDE.signed and keyed.below(2) == 0)
    else:
        pairs = t.policies if isinstance(t, v1.AutoAugment) else t._policies
        pair = pairs[keyed.below(len(pairs))]
        chances, signs = [keyed.uniform() for _ in pair], [keyed.below(2) for _ in pair]
        for (name, p, level), chance, sign in zip(pair, chances, signs, strict=True):
            if chance <= p:
                image = _apply(t, image, name, level, 10, name in policies.AUTO.signed and sign == 0)
    return image


def _apply(t: Any, image: Any, name: str, level: int | None, bins: int, negative: bool) -> Any:
    first = type(t).__module__ == autoaugment.__name__
    channels, height, width = functional.get_dimensions(image)
    if first:
        sides = () if isinstance(t, v1.TrivialAugmentWide) else ((height, width),)
        magnitudes, _ = t._augmentation_space(bins, *sides)[name]
    else:
        spaced, _ = t._AUGMENTATION_SPACE[name]
        magnitudes = spaced(bins, height, width)
    if level is None or magnitudes is None or magnitudes.ndim == 0:
        magnitude = 0.0
    else:
        magnitude = float(magnitudes[level]) * (-1 if negative else 1)
    if not first:
        return t._apply_image_or_video_transform(image, name, magnitude, t.interpolation, t._fill)
    fill = [float(t.fill)] * channels if isinstance(image, torch.Tensor) else t.fill
    return autoaugment._apply_op(image, name, magnitude, t.interpolation, fill)


_POLICIES = tuple(getattr(m, name) for m in (v1, v2) for name in ("RandAugment", "TrivialAugmentWide", "AutoAugment"))
_SEVERAL = (v1.FiveCrop, v2.FiveCrop, v1.TenCrop, v2.TenCrop)


def _theirs(t: Any, image: Image.Image, index: int) -> np.ndarray:
    """What torchvision or timm makes of an image: uint8 (height, width, channels); of an eraser, where it has erased."""
    keyed = Keyed(0, 0, index, 0)
    with _drawing(keyed):
        if type(t).__name__ == "RandomErasing":
            mask: torch.Tensor = t(torch.ones(1, image.height, image.width)) == 1
            return mask.permute(1, 2, 0).numpy().astype(np.uint8)
        if type(t).__name__ == "AugmentOp":
            keyed.below(1)  # for ddlp it is a list of one
        before, last = (t.transforms[:-1], t.transforms[-1]) if isinstance(t, v2.Compose) else ([], t)
        if isinstance(last, _POLICIES):
            for step in before:
                image = step(image)
            result: Any = _by_policy(last, image, keyed)
        elif isinstance(t, Views):
            result = t.transforms[0](image)
        else:
            result = t(image)
        if isinstance(result, torch.Tensor):
            result = result.permute(1, 2, 0).contiguous()
    images = [np.asarray(view) for view in (result if isinstance(t, _SEVERAL) else [result])]
    return np.concatenate([pixels if pixels.ndim == 3 else pixels[..., np.newaxis] for pixels in images])


def _ours(t: Any, source: str, sources: Mapping[str, np.ndarray], index: int, mode: str) -> np.ndarray:
    """What ddlp makes, as `_theirs`. Raises ValueError if it refuses."""
    erases = type(t).__name__ == "RandomErasing"
    if erases:
        translation = translate(v1.Compose([v1.ToTensor(), t]), mode)
    elif isinstance(t, Views):
        translation = translate(Views(*(v1.Compose([view, v1.PILToTensor()]) for view in t.transforms)), mode)
    else:
        translation, _ = translate_steps(steps_of(t, mode), mode)
    result = run_cases(sources, [Case(source, index, translation.pipeline.to_data())])
    if 0 in result.errors:
        raise ValueError(result.errors[0])
    pixels = result.pixels[0]
    if not erases:
        return pixels
    mask = np.ones((*pixels.shape[:2], 1), np.uint8)
    for top, left, bottom, right in result.boxes[0][:: 2 if getattr(t, "per_pixel", False) else 1]:
        mask[top:bottom, left:right] = 0
    return mask


# -- whose a difference is -------------------------------------------------------------------------------------------------


class _CorrectMath:
    """The module math with correctly rounded sines and the like in the place of the C library's."""

    tan, atan = staticmethod(angles.tangent), staticmethod(angles.arctangent)

    def __getattr__(self, name: str) -> Any:
        return getattr(math, name)

    @staticmethod
    def sin(x: float) -> float:
        return angles.sine_cosine(x)[0]

    @staticmethod
    def cos(x: float) -> float:
        return angles.sine_cosine(x)[1]


def _exactly(start: Sequence[Sequence[int]], end: Sequence[Sequence[int]]) -> list[float]:
    return list(perspective_coefficients([(x, y) for x, y in start], [(x, y) for x, y in end]))


WHOSE: dict[str, Callable[[], Any]] = {
    "C library": lambda: _changed("math", _CorrectMath(), (functional, matrices, autoaugment, _auto_augment, PIL.Image)),
    "LAPACK": lambda: _changed("_get_perspective_coeffs", _exactly, (functional, geometry, matrices)),
}


def _whose(t: Any, image: Image.Image, index: int, ours: np.ndarray, theirs: np.ndarray) -> str:
    """Whose this difference is; "ddlp" if nothing else is shown."""
    for name, changed in WHOSE.items():
        with changed():
            if np.array_equal(_theirs(t, image, index), ours):
                return name
    if type(t).__name__ == "GaussianBlur":
        exact, differ = _blurred(t, image), ours != theirs
        parts = np.stack([ours, theirs, exact])[:, differ]
        if np.all(np.abs(parts[:2] - parts[2]) < 0.501):
            return "float32 sums"
    return "ddlp"


def _blurred(t: Any, image: Image.Image) -> np.ndarray:
    """A blur in double precision, not rounded."""
    pixels = np.asarray(image).reshape(image.height, image.width, -1).astype(np.float64)
    for axis, taps in ((1, t.kernel_size[0]), (0, t.kernel_size[1])):
        at = np.arange(taps) - taps // 2
        weights = np.exp(-0.5 * (at / float(np.float32(t.sigma[0]))) ** 2)
        padded = np.pad(pixels, [(taps // 2, taps // 2) if k == axis else (0, 0) for k in range(3)], mode="reflect")
        count = pixels.shape[axis]
        parts = [np.take(padded, np.arange(k, k + count), axis) * weights[k] / weights.sum() for k in range(taps)]
        pixels = np.sum(parts, axis=0)
    return pixels


# -- rows ------------------------------------------------------------------------------------------------------------------


@dataclass
class Compared:
    """One row.

    Attributes:
        name, parameters: as `ROWS` has them.
        trials: images compared.
        values: uint8 values compared; of an eraser one for each pixel: erased or not.
        differ: values that differ; ``largest``: by at most so much.
        whose: of the differing images, how many are whose.
        values_whose: of the differing values.
        refused: images that torchvision refuses.
        error: what ddlp alone refuses, or another shape.
    """

    name: str
    parameters: str
    trials: int = 0
    values: int = 0
    differ: int = 0
    largest: int = 0
    whose: dict[str, int] = field(default_factory=dict)
    values_whose: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    error: str = ""

    @property
    def right(self) -> bool:
        """Whether nothing differs that is ddlp's."""
        return not self.error and "ddlp" not in self.whose


@dataclass
class Table:
    """All rows, and the versions that made them."""

    versions: dict[str, str]
    rows: list[Compared] = field(default_factory=list)


@functools.lru_cache(maxsize=1)
def _sources() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    pixels = pixel_sources()
    return pixels, file_sources(pixels)


def compare_row(name: str, draws: int) -> Compared:
    """Compare one row: so many trials on each of its images."""
    pixels, files = _sources()
    if name.startswith("decode "):
        return _compare_decoding(name, files)
    plain = name.removesuffix(_FROM_A_JPEG)
    parameters, make = {**ROWS, **ON_TENSORS}[plain]
    row = Compared(name, parameters)
    wanted = ("JPEG 4:2:0", "JPEG greyscale") if name != plain else tuple(pixels)
    for source in wanted:
        grey = source == "grey"
        if grey and plain.startswith("timm's"):
            continue  # timm's fills are of three channels
        with Image.fromarray(pixels[source]) if source in pixels else _loaded(files[source]) as image:
            for trial in range(draws):
                t = make((v1, v2)[trial % 2] if draws > 1 else v1, Span(name, trial // 2))
                _compare(row, t, source, {**pixels, **files}, image, trial, "L" if grey else "RGB")
    return row


def _compare(row: Compared, t: Any, source: str, sources: Any, image: Image.Image, index: int, mode: str) -> None:
    """Add one trial."""
    answers: list[Any] = []
    for make in (lambda: _ours(t, source, sources, index, mode), lambda: _theirs(t, image, index)):
        try:
            answers.append(make())
        except (ValueError, OSError, RuntimeError, TypeError, ZeroDivisionError) as error:
            answers.append(error)
    ours, theirs = answers
    if isinstance(theirs, Exception):
        row.refused += 1
    elif isinstance(ours, Exception) or ours.shape != theirs.shape:
        shapes = [answer if isinstance(answer, Exception) else answer.shape for answer in answers]
        row.error = row.error or f"{t!r} on {source}, draw {index}: ddlp {shapes[0]}, torchvision {shapes[1]}"
    else:
        _add(row, ours, theirs, lambda: _whose(t, image, index, ours, theirs))


def _add(row: Compared, ours: np.ndarray, theirs: np.ndarray, whose: Callable[[], str]) -> None:
    distance = np.abs(ours.astype(int) - theirs)
    row.trials, row.values = row.trials + 1, row.values + distance.size
    row.largest = max(row.largest, int(distance.max(initial=0)))
    differ = int(np.count_nonzero(distance))
    if differ:
        name = whose()
        row.differ += differ
        row.whose[name] = row.whose.get(name, 0) + 1
        row.values_whose[name] = row.values_whose.get(name, 0) + differ


def _loaded(content: np.ndarray) -> Image.Image:
    """torchvision's image of a file, as ImageFolder has it."""
    with tempfile.NamedTemporaryFile(prefix="ddlp-bench-") as file:
        file.write(content.tobytes())
        file.flush()
        return pil_loader(file.name)


def _compare_decoding(name: str, files: Mapping[str, np.ndarray]) -> Compared:
    row, source = Compared(name, ""), name.removeprefix("decode ")
    data = translate(v1.PILToTensor()).pipeline.to_data()
    result = run_cases(files, [Case(source, 0, data)])
    try:
        theirs = np.asarray(_loaded(files[source]))
    except OSError as error:
        row.refused, row.error = 1, "" if 0 in result.errors else f"torchvision alone refuses it: {error}"
        return row
    if 0 in result.errors:
        row.error = f"ddlp alone refuses it: {result.errors[0]}"
    else:
        _add(row, result.pixels[0], theirs, lambda: "ddlp")
    return row


def all_names() -> list[str]:
    """The rows of `ddlp parity` that torchvision or timm has, in their order, and those of operators on tensors.

    Of torch's filters and pixels only those of this process's torch: with another ATEN_CPU_CAPABILITY it has others.
    """
    names = list(dict.fromkeys(name for name, _ in all_cases()[1]))
    own = {torch_filter(m.functional, name, True) for m in (v1, v2) for name in ("bilinear", "bicubic")}
    others = tuple(f" {name}" for name in TORCH_FILTERS if name not in own)
    others += tuple(name for name, ops in operator_rows().items() if not _of_this_torch(ops[0]))
    return [
        name for name in names
        if name.startswith("decode ")
        or (name.removesuffix(_FROM_A_JPEG) in ROWS and not name.removesuffix(_FROM_A_JPEG).endswith(others))
    ] + list(ON_TENSORS)  # fmt: skip


def _of_this_torch(op: Mapping[str, Any]) -> bool:
    """Whether an operator has Pillow's pixels, or those of this process's torch."""
    whose = op.get("pixels", PILLOW)
    return whose == PILLOW or whose == torchs_pixels((v2 if is_v2(whose) else v1).functional, "interpolation" in op)


# -- the command -----------------------------------------------------------------------------------------------------------


def report_parts() -> list[tuple[str, list[str]]]:
    """Return what `python -m benchmarks --all` runs of this bench: titles and arguments."""
    return [("Each row of ddlp parity beside torchvision", ["--draws", str(DRAWS)])]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--draws", type=int, default=DRAWS, metavar="N",
                        help="how many sets of parameters each operator gets on each image (%(default)s)")  # fmt: skip
    parser.add_argument("--rows", nargs="+", metavar="TEXT", help="only rows whose name begins so")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Compare and print. Return 1 if a row differs by ddlp's fault."""
    if options.draws < 1:
        raise BenchFailed(f"--draws {options.draws}: give the number of sets of parameters, 1 or more.")
    names = [name for name in all_names() if not options.rows or name.startswith(tuple(options.rows))]
    if not names:
        raise BenchFailed(f"--rows {' '.join(options.rows)}: no row begins so; `ddlp parity NAME --table` lists all.")
    result = compare(names, options.draws, say)
    emit(options, result, table(result), aims(result))
    return 0 if all(row.right for row in result.rows) else 1


def compare(names: Sequence[str], draws: int, tell: Say) -> Table:
    """Compare rows, in one process a core."""
    cores = len(os.sched_getaffinity(0))
    works = [{"names": list(names[k :: 4 * cores]), "draws": draws} for k in range(4 * cores)]
    done: dict[str, Compared] = {}

    def add(answer: dict[str, Any]) -> None:
        done.update((row["name"], Compared(**row)) for row in answer["rows"])
        tell(f"{len(done)} of {len(names)} rows")

    on_all_cores("benchmarks.torchvision_rows", [work for work in works if work["names"]], add)
    return Table(versions(), [done[name] for name in names])


def table(result: Table) -> str:
    """The comparison in Markdown."""
    lines = [
        f"Made on {datetime.date.today().isoformat()}.",
        "",
        "| operator | parameters | values compared | differ | largest difference | whose |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for row in result.rows:
        values = f"{row.values:,}" if row.values else "both refuse it"
        share = f"{row.differ:,} (1 of {row.values // row.differ:,})" if row.differ else "0"
        whose = ", ".join(f"{name}: {number:,} in {row.whose[name]} of {row.trials:,} images"
                          for name, number in row.values_whose.items())  # fmt: skip
        lines.append(f"| {row.name} | {row.parameters} | {values} | {row.error or share} | {row.largest} | {whose} |")
    compared = sum(row.values for row in result.rows)
    lines.append(f"| all | | {compared:,} | {sum(row.differ for row in result.rows):,} | "
                 f"{max(row.largest for row in result.rows)} | |")  # fmt: skip
    return "\n".join(lines)


def aims(result: Table) -> list[Aim]:
    """Return the aims: no difference is ddlp's, and few are the C library's."""
    values = sum(row.values for row in result.rows)
    library = sum(row.values_whose.get("C library", 0) for row in result.rows)
    return [
        Aim(f"rows without a difference of ddlp's, of {len(result.rows)}", len(result.rows),
            sum(row.right for row in result.rows)),
        Aim("values to each that differs by the C library", _BY_C_LIBRARY, values / library if library else math.inf),
    ]  # fmt: skip


def turn(work: Mapping[str, Any]) -> dict[str, Any]:
    """Compare some rows."""
    torch.set_num_threads(1)
    return {"rows": [vars(compare_row(name, work["draws"])) for name in work["names"]]}


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
