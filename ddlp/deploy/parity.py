"""`ddlp parity NAME`: whether a device makes the same pixels as this host, operator by operator.

Each operator runs alone, with the parameters that matter, on a few images on both sides; every value is compared. The images
are made here and travel as pixels, so that decoders play no part; they have rows of their own, for which files travel, and so
has what a kernel does with files.
"""

from __future__ import annotations

import argparse
import datetime
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from csd_engine.errors import EngineError
from csd_engine.kernels.windows import PADDING_MODES
from csd_engine.tools.parity import Case, Result, pack_cases, read_results, run_cases
from csd_engine.transforms.parse import LEAVES
from csd_engine.transforms.resample import FILTERS, RESAMPLED, native_order
from csd_engine.transforms.timm_policies import NAMES as TIMM_OPERATORS
from csd_engine.transforms.torch_pixels import GRID_FILTERS, PIXELS, is_v2
from csd_engine.transforms.torch_resample import TORCH_FILTERS
from csd_engine.transforms.warp_steps import WARP_FILTERS
from ddlp.deploy.advice import upgrade
from ddlp.deploy.options import add_device
from ddlp.deploy.place import engine_module
from ddlp.deploy.shell import Shell
from ddlp.devices import address_book as book
from ddlp.devices.address_book import DeviceRecord
from ddlp.errors import DDLPError

__all__ = ["Parity", "Row", "compare_device", "table"]

_TIMEOUT_S = 600.0  # a slow board takes ten seconds
_BY_KERNEL = (*(f"{op} {name}" for op in ("Resize", "RandomResizedCrop") for name in RESAMPLED), "CenterCrop",
              "RandomHorizontalFlip", "RandomVerticalFlip", "RandAugment v1", "timm's RandAugment (")  # fmt: skip
DRAWS = 3  # of each random operator on each image

Data = dict[str, object]


@dataclass(frozen=True)
class Row:
    """One operator with its parameters, on all images.

    Attributes:
        name: what a person reads.
        values: uint8 values (and coordinates of boxes) compared.
        differ: how many of them differ.
        largest: the largest difference.
        error: where it failed on one side only, or gave another shape.
    """

    name: str
    values: int
    differ: int
    largest: int
    error: str = ""

    @property
    def same(self) -> bool:
        """Whether both sides make the same."""
        return not self.differ and not self.error

    def __str__(self) -> str:
        share = f"{self.differ / max(self.values, 1):.2%} of values differ, by at most {self.largest}"
        return f"{self.name}: {self.error or share}"


@dataclass(frozen=True)
class Parity:
    """All rows, and the versions that made them, here and there."""

    here: dict[str, str]
    there: dict[str, str]
    rows: tuple[Row, ...]

    @property
    def differing(self) -> tuple[Row, ...]:
        """The rows that differ."""
        return tuple(row for row in self.rows if not row.same)


def pixel_sources() -> dict[str, np.ndarray]:
    """Images as pixels: smooth and noisy, wide, tall and tiny, colour and grey."""

    def pattern(height: int, width: int, seed: int) -> np.ndarray:
        y, x, c = np.ogrid[:height, :width, :3]
        smooth = (y * (3 + c) * 256 // height + x * (2 + c) * 256 // width) % 512
        folded = np.where(smooth < 256, smooth, 511 - smooth)  # smooth, but for edges every few dozen pixels
        edges = ((y // 23 + x // 31 + c) % 5 == 0) * 90
        noise = np.random.PCG64(seed).random_raw(-(-height * width * 3 // 8)).view(np.uint8)[: height * width * 3]
        return np.clip(folded + edges + noise.reshape(height, width, 3) // 6 - 20, 0, 255).astype(np.uint8)

    tall = pattern(331, 113, 2)
    return {"wide": pattern(167, 251, 1), "tall": tall, "tiny": pattern(29, 37, 3), "grey": tall[:, ::-1, 1].copy()}


def file_sources(pixels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Image files of the kinds that data sets hold, as bytes."""
    wide, square = Image.fromarray(pixels["wide"]), Image.fromarray(pixels["wide"][:160, :160])
    exif = Image.Exif()
    exif[0x0112] = 6  # this orientation asks for a rotation, which neither side does
    jpegs: dict[str, tuple[Image.Image, dict[str, object]]] = {
        "JPEG 4:2:0": (wide, {"subsampling": 2}),
        "JPEG 4:2:2": (wide, {"subsampling": 1}),
        "JPEG 4:4:4": (wide, {"subsampling": 0}),
        "JPEG progressive": (wide, {"progressive": True}),
        "JPEG greyscale": (wide.convert("L"), {}),
        "JPEG CMYK": (wide.convert("CMYK"), {}),
        "JPEG quality 30": (wide, {"quality": 30}),
        "JPEG with EXIF": (wide, {"exif": exif}),
        "JPEG restart markers": (wide, {"restart_marker_blocks": 3}),
    }
    files = {name: _encoded(image, "JPEG", **options) for name, (image, options) in jpegs.items()}
    # The same blocks in another arrangement, as in a camera's picture after a rotation without loss.
    files["JPEG 4:4:0"] = _sampled(_encoded(square, "JPEG", subsampling=1), 0x21, 0x12)
    files["JPEG 4:1:1"] = _sampled(_encoded(square, "JPEG", subsampling=2), 0x22, 0x41)
    files["JPEG cut off"] = files["JPEG 4:2:0"][:-700]
    files |= {f"PNG {mode}": _encoded(wide.convert(mode), "PNG") for mode in ("RGB", "L", "P", "RGBA", "LA", "1")}
    files["PNG 16 bit"] = _encoded(Image.fromarray(pixels["grey"].astype(np.uint16) * 257), "PNG")
    files |= {kind: _encoded(wide, kind) for kind in ("BMP", "PPM", "GIF", "TIFF")}
    files["WebP"] = _encoded(wide, "WEBP", quality=80)
    return files


def _encoded(image: Image.Image, kind: str, **options: object) -> np.ndarray:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return np.frombuffer(out.getvalue(), np.uint8)


def _sampled(jpeg: np.ndarray, before: int, after: int) -> np.ndarray:
    """The file with another sampling of its first component; the number of blocks stays the same."""
    changed = bytearray(jpeg.tobytes())
    at = changed.index(b"\xff\xc0") + 11  # SOF0: length, precision, height, width, components, then the first one's number
    assert changed[at] == before
    changed[at] = after
    return np.frombuffer(bytes(changed), np.uint8)


def _op(name: str, **parameters: object) -> Data:
    return {"op": name, **parameters}


def operator_rows() -> dict[str, list[Data]]:
    """Pipelines to compare, by the name of their row."""
    size = [96, 128]
    rows: dict[str, list[Data]] = {}
    for filter_name in (*FILTERS, *TORCH_FILTERS):
        rows[f"Resize {filter_name}"] = [_op("Resize", size=size, max_size=None, interpolation=filter_name)]
    rows["Resize shorter side"] = [_op("Resize", size=64, max_size=None, interpolation="bilinear")]
    rows["Resize shorter side, at most"] = [_op("Resize", size=64, max_size=100, interpolation="bilinear")]
    rows["Resize longer side"] = [_op("Resize", size=None, max_size=100, interpolation="bilinear")]
    for filter_name in (*FILTERS, *TORCH_FILTERS):
        crop = _op("RandomResizedCrop", size=size, scale=[0.08, 1.0], ratio=[0.75, 4 / 3], interpolation=filter_name)
        rows[f"RandomResizedCrop {filter_name}"] = [crop]
    rows["CenterCrop"] = [_op("CenterCrop", size=[25, 31])]
    rows["CenterCrop of a smaller image"] = [_op("CenterCrop", size=[350, 300])]
    rows["FiveCrop"] = [_op("FiveCrop", size=[25, 31])]
    rows["TenCrop"] = [_op("TenCrop", size=[25, 31], vertical_flip=False)]
    rows["TenCrop, upside down"] = [_op("TenCrop", size=[25, 31], vertical_flip=True)]
    for mode in PADDING_MODES:
        padded = _op("RandomCrop", size=[33, 41], padding=[5, 6, 7, 8], pad_if_needed=False, fill=[7], padding_mode=mode)
        rows[f"RandomCrop, padding {mode}"] = [padded]
        rows[f"Pad {mode}"] = [_op("Pad", padding=[40, 3, 50, 60], fill=[9], padding_mode=mode)]
    needed = _op("RandomCrop", size=size, padding=None, pad_if_needed=True, fill=[0], padding_mode="constant")
    rows["RandomCrop, padded if needed"] = [needed]
    scaled = {"target_size": size, "scale_range": [0.3, 1.7], "interpolation": "bilinear"}
    rows["ScaleJitter, cropped or padded"] = [_op("ScaleJitter", **scaled), needed]
    rows["RandomShortestSize, the same"] = [
        _op("RandomShortestSize", min_size=[40, 64, 90], max_size=120, interpolation="bicubic"), needed
    ]
    rows["Pad by negative borders"] = [_op("Pad", padding=[-3, 4, -5, 6], fill=[255], padding_mode="constant")]
    rows["RandomHorizontalFlip"] = [_op("RandomHorizontalFlip", p=0.6)]
    rows["RandomVerticalFlip"] = [_op("RandomVerticalFlip", p=0.6)]
    rows["Grayscale, 1 channel"] = [_op("Grayscale", channels=1)]
    rows["Grayscale, 3 channels"] = [_op("Grayscale", channels=3)]
    rows["RandomGrayscale"] = [_op("RandomGrayscale", p=0.6)]
    rows["RandomErasing (boxes)"] = [_op("RandomErasing", p=0.9, scale=[0.02, 0.33], ratio=[0.3, 3.3])]
    rows["Cutout (boxes)"] = [_op("Cutout", holes=3, length=16)]
    flips = [[_op("RandomHorizontalFlip", p=0.6)], [_op("RandomVerticalFlip", p=0.5)], [_op("RandomGrayscale", p=0.5)]]
    rows["RandomApply"] = [{"op": "RandomApply", "ops": flips[0] + flips[1], "p": 0.6}]
    rows["RandomChoice"] = [{"op": "RandomChoice", "groups": flips, "p": [0.2, 0.5, 0.3]}]
    rows["RandomOrder"] = [{"op": "RandomOrder", "groups": flips}]
    rows["Views (the first)"] = [{"op": "Views", "groups": flips}]
    rows.update(augmentation_rows())
    return {**rows, **rows_of_torchs_pixels(rows), **timm_rows()}


def rows_of_torchs_pixels(rows: dict[str, list[Data]]) -> dict[str, list[Data]]:
    """The rows whose operators can make the pixels that torch makes of tensors, by each kind of its arithmetic."""
    selected: dict[str, list[Data]] = {}
    for whose in PIXELS[1:]:
        for name, ops in rows.items():
            moves = "interpolation" in ops[0]
            own = moves or whose in ("torch-v1", "torch-v2-fused")  # the other kinds have the colours of one of these
            if own and all(_has_torchs_pixels(op) for op in ops):
                variants = [{**op, "pixels": whose} for op in ops if op.get("v2", is_v2(whose)) == is_v2(whose)]
                selected.update({f"{name}, {whose}": variants} if variants else {})
    return selected


def _has_torchs_pixels(op: Data) -> bool:
    sampled = op.get("interpolation", "nearest") in GRID_FILTERS and not op.get("expand")
    return "pixels" in LEAVES[op["op"]].OPTIONAL and sampled if op["op"] in LEAVES else False


def augmentation_rows() -> dict[str, list[Data]]:
    """Colours, blur, rotation, maps, and torchvision's policies."""
    rows: dict[str, list[Data]] = {}
    factors: dict[str, object] = {"brightness": None, "contrast": None, "saturation": None}
    for name in factors:
        rows[f"ColorJitter {name} (Random)"] = [_op("ColorJitter", **{**factors, name: [0.3, 1.7]}, hue=None)]
    rows["ColorJitter hue (Random)"] = [_op("ColorJitter", **factors, hue=[-0.5, 0.5])]
    rows["Sharpness, sharper"] = [_op("Sharpness", factor=2.5)]
    rows["Sharpness, blurred"] = [_op("Sharpness", factor=0.2)]
    rows["Posterize"] = [_op("Posterize", bits=3)]
    rows["Solarize"] = [_op("Solarize", threshold=130.5)]
    rows["Invert"] = [_op("Invert")]
    rows["AutoContrast"] = [_op("AutoContrast")]
    rows["Equalize"] = [_op("Equalize")]
    rows["GaussianBlur (Random)"] = [_op("GaussianBlur", kernel_size=[9, 23], sigma=[0.1, 2.0])]
    for filter_name in WARP_FILTERS:
        how: Data = {"interpolation": filter_name, "fill": [90]}
        rows[f"RandomRotation {filter_name}"] = [_op("RandomRotation", degrees=[-60.0, 60.0], expand=False, center=None, **how)]
        rows[f"RandomAffine {filter_name}"] = [
            _op("RandomAffine", degrees=[-20.0, 20.0], translate=[0.1, 0.2], scale=[0.7, 1.4], shear=[-9.0, 9.0, -5.0, 5.0],
                center=None, v2=v2, **how)
            for v2 in (False, True)
        ]  # fmt: skip
        rows[f"RandomPerspective {filter_name}"] = [_op("Perspective", distortion_scale=0.5, **how)]
    rows["RandomRotation, expanded"] = [
        _op("RandomRotation", degrees=[90.0, 180.0], expand=True, center=None, interpolation="bilinear", fill=[0])
    ]
    for v2 in (False, True):
        how = {"interpolation": "bilinear", "fill": [128], "v2": v2}
        version = "v2" if v2 else "v1"
        rows[f"RandAugment {version} (Random)"] = [_op("RandAugment", num_ops=3, magnitude=14, bins=31, **how)]
        rows[f"TrivialAugmentWide {version} (Random)"] = [_op("TrivialAugmentWide", bins=31, **how)] * 2
        for policy in ("imagenet", "cifar10", "svhn"):
            rows[f"AutoAugment {policy} {version} (Random)"] = [_op("AutoAugment", policy=policy, **how)]
    return rows


def timm_rows() -> dict[str, list[Data]]:
    """timm's own: each operator of its policies, a policy with noise, its crops, its masks."""
    rows: dict[str, list[Data]] = {}
    how: Data = {"weights": None, "noise": 1.5, "most": 10.0, "interpolation": ["bilinear", "bicubic"], "fill": [120],
                 "translate_const": 60, "translate_pct": 0.45}  # fmt: skip
    for name in TIMM_OPERATORS:
        always = name.startswith(("Posterize", "AutoContrast", "Equalize", "Invert"))  # the same, or nearly always
        row = f"timm's {name}" + ("" if always else " (Random)")
        rows[row] = [_op("TimmAugment", policies=[[[name, 1.0, 6.0]]], layers=1, **how)]
    every = [[[name, 0.5, 9.0]] for name in TIMM_OPERATORS]
    rows["timm's RandAugment (Random)"] = [_op("TimmAugment", policies=every, layers=4, **how)]
    weighted = {**how, "weights": [1.0 + k % 3 for k in range(len(every))], "noise": "uniform"}
    rows["timm's RandAugment, weighted (Random)"] = [_op("TimmAugment", policies=every, layers=4, **weighted)]
    ratio: Data = {"longest": 0.3, "interpolation": "bicubic", "scale_p": 0.5, "scale": [0.8, 1.0], "scale_area": True,
                   "aspect_p": 0.5, "aspect": [0.9, 1.11]}  # fmt: skip
    rows["timm's ResizeKeepRatio (Random)"] = [_op("ResizeKeepRatio", size=[64, 80], **ratio)]
    for mode in ("constant", "reflect"):
        borders: Data = {"size": [140, 150], "fill": [7], "padding_mode": mode}
        rows[f"timm's CenterCropOrPad {mode}"] = [_op("CenterCropOrPad", **borders)]
        rows[f"timm's RandomCropOrPad {mode}"] = [_op("RandomCropOrPad", **borders)]
    erased: Data = {"p": 0.9, "scale": [0.02, 0.33], "ratio": [0.3, 3.3], "count": [1, 3]}
    rows["timm's RandomErasing (boxes)"] = [_op("ErasedBlocks", **erased, noise=False)]
    rows["timm's RandomErasing, noise (boxes)"] = [_op("ErasedBlocks", **erased, noise=True)]
    return rows


def _pipeline(ops: list[Data], mode: str, order: str) -> Data:
    return {"format": 1, "order": order, "mode": mode, "ops": ops}


def all_cases() -> tuple[dict[str, np.ndarray], list[tuple[str, Case]]]:
    """The sources by name; and (row, case)."""
    pixels = pixel_sources()
    files = file_sources(pixels)
    order = native_order()
    cases: list[tuple[str, Case]] = []
    for name in files:
        cases.append((f"decode {name}", Case(name, 0, _pipeline([], "RGB", order))))
    for name, ops in operator_rows().items():
        keys = range(DRAWS if "Random" in name or "Cutout" in name else 1)
        for source in pixels:
            mode = "L" if source == "grey" else "RGB"
            cases += [(name, Case(source, key, _pipeline(ops, mode, order))) for key in keys]
    for name, ops in operator_rows().items():  # from a file, a kernel does a pipeline's first operators in one call
        if name.startswith(_BY_KERNEL):
            keys = range(DRAWS if "Random" in name else 1)
            for source, mode in (("JPEG 4:2:0", "RGB"), ("JPEG greyscale", "L")):
                cases += [(f"{name}, from a JPEG", Case(source, key, _pipeline(ops, mode, order))) for key in keys]
    return {**pixels, **files}, cases


def compare(here: Result, there: Result, cases: Sequence[tuple[str, Case]]) -> Parity:
    """The rows of two results of the same cases."""
    rows: dict[str, Row] = {}
    for number, (name, case) in enumerate(cases):
        row, before = _compare_case(number, here, there), rows.get(name, Row(name, 0, 0, 0))
        error = f"{row.error} (on {case.source}, draw {case.index})" if row.error else ""
        rows[name] = Row(
            name, before.values + row.values, before.differ + row.differ, max(before.largest, row.largest),
            before.error or error,
        )  # fmt: skip
    return Parity(here.versions, there.versions, tuple(rows.values()))


def _compare_case(number: int, here: Result, there: Result) -> Row:
    ours, theirs = here.errors.get(number), there.errors.get(number)
    if ours is not None and theirs is not None:
        return Row("", 0, 0, 0)
    if number in there.same:
        return Row("", sum(arrays[number].size for arrays in (here.pixels, here.boxes) if number in arrays), 0, 0)
    if ours is not None or theirs is not None:
        return Row("", 0, 0, 0, f"fails {'here' if theirs is None else 'on the device'} only: {ours or theirs}")
    values = differ = largest = 0
    for kind in ("pixels", "boxes"):
        mine, other = getattr(here, kind).get(number), getattr(there, kind).get(number)
        if mine is None and other is None:
            continue
        if mine is None or other is None or mine.shape != other.shape:
            shapes = [None if array is None else array.shape for array in (mine, other)]
            return Row("", 0, 0, 0, f"{kind} of shape {shapes[0]} here, {shapes[1]} on the device")
        distance = np.abs(mine.astype(np.int64) - other)
        values, differ = values + distance.size, differ + int(np.count_nonzero(distance))
        largest = max(largest, int(distance.max(initial=0)))
    return Row("", values, differ, largest)


def compare_device(shell: Shell, record: DeviceRecord) -> Parity:
    """Run all cases on the device and here.

    Raises:
        ShellError: the device can't be asked, or its engine's Python fails.
        DDLPError: what it answered makes no sense.
    """
    sources, cases = all_cases()
    plain = [case for _, case in cases]
    here = run_cases(sources, plain)
    request = pack_cases(sources, plain, [here.digest(number) for number in range(len(plain))])
    command = engine_module(record.python, record.home, "csd_engine.tools.parity")
    with shell.stream(command, "comparing operators", input=request, timeout_s=_TIMEOUT_S) as read:
        reply = b"".join(iter(lambda: read(1 << 16), b""))
    try:
        there = read_results(reply)
    except ValueError as error:
        raise DDLPError(
            f"{record.name} answered the comparison of operators with something else ({error}). Bring this host's engine "
            f"there: {upgrade(record.name)}"
        ) from None
    return compare(here, there, cases)


def table(parity: Parity) -> str:
    """The comparison in Markdown. Its head names the versions on both sides."""

    def made_by(versions: Mapping[str, str]) -> str:
        return ", ".join(f"{name} {version}" for name, version in versions.items())

    lines = [
        f"Host: {made_by(parity.here)}.  ",
        f"Device: {made_by(parity.there)}.  ",
        f"Made on {datetime.date.today().isoformat()}.",
        "",
        "| operator | values compared | differ | largest difference |",
        "| --- | ---: | ---: | ---: |",
    ]
    for row in parity.rows:
        share = f"{row.differ:,} ({row.differ / row.values:.3%})" if row.differ else "0"
        values = f"{row.values:,}" if row.values or row.error else "fails on both sides"
        lines.append(f"| {row.name} | {values} | {row.error or share} | {row.largest} |")
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_device(parser)
    parser.add_argument("--table", action="store_true", help="print all operators as a table in Markdown")


def run(options: argparse.Namespace) -> int:
    """Compare and print; the exit status is 1 where an operator differs."""
    record = book.load(options.name)
    with Shell(record.destination, record.ssh_options) as shell:
        try:
            parity = compare_device(shell, record)
        except EngineError as error:
            raise DDLPError(str(error)) from error
    if options.table:
        print(table(parity))
    else:
        for row in parity.differing:
            print(row)
        print(f"{len(parity.rows) - len(parity.differing)} operators and decoders make the same pixels, "
              f"{len(parity.differing)} differ.")  # fmt: skip
    return 1 if parity.differing else 0
