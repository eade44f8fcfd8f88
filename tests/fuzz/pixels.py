"""Compare the kernel with torchvision, value by value, over every kind of JPEG: on Pillow's images, or on tensors.

    python -m tests.fuzz.pixels                      # 20,000 samples, some minutes
    python -m tests.fuzz.pixels --samples 200000 --seed 7 --variant sse2
    python -m tests.fuzz.pixels --tensors v2         # decode_image, then v2's functions; v1: the older functions

Prints a line for each kind. Ends with status 1 if a single value differs, or if the kernel left a sample to Pillow.
"""

from __future__ import annotations

import argparse
import collections
import io
import math
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import InterpolationMode, functional
from torchvision.transforms.v2 import functional as functional_v2

from csd_engine.kernels import kernel, why_not
from csd_engine.kernels.library import Context, Job
from csd_engine.transforms.resample import RESAMPLED, native_order, vertical_first
from ddlp.translate.torch_pixels import torch_filter
from tests.progressive_jpeg import progressive_jpeg, segment

PILLOW = {number: InterpolationMode(name) for name, number in RESAMPLED.items() if name in ("bilinear", "bicubic")}
GENERATIONS = {"v1": functional, "v2": functional_v2}


def segments(jpeg: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, end) of the segments up to the first scan's header. start: the offset of the marker."""
    at = 2
    while True:
        marker, end = jpeg[at + 1], at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        yield marker, at, end
        if marker == 0xDA:
            return
        at = end


def noise(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Return waves of colour under noise of a random strength: edges, flat parts and all frequencies."""
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / rng.uniform(2, 40) + c) + np.cos(y / rng.uniform(2, 40) - c) for c in range(3)], axis=2)
    pixels = waves * 60 + 128 + rng.normal(0, rng.choice([1, 12, 40]), (height, width, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def encoded(image: Image.Image, **options: Any) -> bytes:
    """Return the image as Pillow's JPEG."""
    stream, most = io.BytesIO(), ImageFile.MAXBLOCK
    try:
        ImageFile.MAXBLOCK = 1 << 22  # for a noisy image Pillow guesses the size of a progressive file too small
        image.save(stream, options.pop("format", "JPEG"), **options)
    finally:
        ImageFile.MAXBLOCK = most
    return stream.getvalue()


def sampled(
    rng: np.random.Generator,
    width: int,
    height: int,
    factors: tuple[tuple[int, int], ...],
    rgb: bool = False,
    scans: bool = False,
) -> bytes:
    """Return a JPEG of three components with any (horizontal, vertical) sampling factors.

    Pillow can write only a few of these. So it writes a grey JPEG of as many blocks, and the header is changed to say that they
    are the blocks of three components. The picture is nonsense, each block is valid. scans: each component has its own scan.
    """
    across, down = (max(f[axis] for f in factors) for axis in (0, 1))
    mcus = math.ceil(width / 8 / across), math.ceil(height / 8 / down)
    if scans:
        counts = [
            (math.ceil(math.ceil(width * h / across) / 8), math.ceil(math.ceil(height * v / down) / 8)) for h, v in factors
        ]
    else:
        counts = [(mcus[0] * sum(h * v for h, v in factors), mcus[1])]
    streams, header = [], b""
    # A component gets only some of the DC differences, so its DC value would drift away. Restarts set it back.
    interval = int(rng.integers(1, 5))
    for number, (blocks, rows) in enumerate(counts):
        grey = noise(rng, blocks * 8, rows * 8).convert("L")
        each = interval * (1 if scans else blocks // mcus[0])
        jpeg = encoded(grey, quality=int(rng.integers(30, 95)), restart_marker_blocks=each)
        marks = {marker: (start, end) for marker, start, end in segments(jpeg)}
        if number == 0:  # later scans use the same tables, even if they were quantised with others
            header = b"".join(jpeg[start:end] for marker, start, end in segments(jpeg) if marker in (0xDB, 0xC4))
        streams.append(jpeg[marks[0xDA][1] : -2])
    size = b"\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big")
    parts = [b"\xff\xd8", segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([0 if rgb else 1])), header]
    parts.append(segment(0xC0, size + b"\x03" + b"".join(bytes([c + 1, h << 4 | v, 0]) for c, (h, v) in enumerate(factors))))
    parts.append(segment(0xDD, interval.to_bytes(2, "big")))
    for number, stream in enumerate(streams):
        components = [number] if scans else range(3)
        names = b"".join(bytes([c + 1, 0]) for c in components)
        parts += [segment(0xDA, bytes([len(components)]) + names + b"\0\x3f\0"), stream]
    return b"".join([*parts, b"\xff\xd9"])


def _plain(**options: Any) -> Callable[[np.random.Generator, int, int], bytes]:
    def make(rng: np.random.Generator, width: int, height: int) -> bytes:
        quality = int(rng.choice([10, 50, 75, 90, 98]))
        return encoded(noise(rng, width, height), quality=quality, **options)

    return make


def _odd(*factors: tuple[int, int], **options: Any) -> Callable[[np.random.Generator, int, int], bytes]:
    return lambda rng, width, height: sampled(rng, width, height, factors, **options)


def _scans(*factors: tuple[int, int], restarts: bool = False) -> Callable[[np.random.Generator, int, int], bytes]:
    def make(rng: np.random.Generator, width: int, height: int) -> bytes:
        interval = int(rng.integers(1, 9)) if restarts else 0
        return progressive_jpeg(rng, min(width, 150), min(height, 150), factors, interval=interval)  # made in Python, so slow

    return make


def _exif(rng: np.random.Generator, width: int, height: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112], exif[0x011A] = 6, 300.0  # turned by 90 degrees, which decoding leaves alone; dots per inch
    return encoded(noise(rng, width, height), exif=exif, icc_profile=rng.bytes(3000), comment=b"a comment", dpi=(72, 72))


#: How to make each kind. The kernel must decode all of them.
KINDS: dict[str, Callable[[np.random.Generator, int, int], bytes]] = {
    "4:2:0": _plain(subsampling=2),
    "4:2:2": _plain(subsampling=1),
    "4:4:4": _plain(subsampling=0),
    "4:4:0": _odd((1, 2), (1, 1), (1, 1)),
    "4:1:1": _odd((4, 1), (1, 1), (1, 1)),
    "4:1:0": _odd((4, 2), (1, 1), (1, 1)),
    "4:4:1": _odd((1, 4), (1, 1), (1, 1)),
    "2x2 2x1 1x2": _odd((2, 2), (2, 1), (1, 2)),
    "chroma finer": _odd((1, 1), (2, 2), (1, 1)),
    "grey": lambda rng, width, height: encoded(noise(rng, width, height).convert("L"), quality=80),
    "RGB": _plain(keep_rgb=True, subsampling=0),
    "RGB 2x2": _odd((2, 2), (1, 1), (1, 1), rgb=True),
    "progressive": _plain(progressive=True),
    "progressive 4:4:4": _plain(progressive=True, subsampling=0),
    "any scans 4:2:0": _scans((2, 2), (1, 1), (1, 1)),
    "any scans 4:2:2, restarts": _scans((2, 1), (1, 1), (1, 1), restarts=True),
    "any scans 2x2 2x1 1x2": _scans((2, 2), (2, 1), (1, 2)),
    "any scans, grey": _scans((2, 2)),
    "three scans": _odd((2, 2), (1, 1), (1, 1), scans=True),
    "optimised": _plain(optimize=True),
    "restart blocks": _plain(restart_marker_blocks=3),
    "restart rows": _plain(restart_marker_rows=1, subsampling=1),
    "exif, icc, dpi": _exif,
    "garbage behind": lambda rng, width, height: _plain()(rng, width, height) + b"\xff\xd8garbage\xff\xff\x00" + rng.bytes(40),
}  # fmt: skip


@dataclass
class Tally:
    """Counts of one kind's samples: all, those that differ, and those that the kernel left to Pillow."""

    samples: int = 0
    differ: int = 0
    refused: int = 0


@dataclass(frozen=True)
class Reference:
    """What the kernel is compared with.

    Attributes:
        functions: torchvision's, of v1 or v2.
        tensors: they work on tensors, not on Pillow's images.
        filters: the kernel's numbers, and the names of those that make the same.
    """

    functions: ModuleType
    tensors: bool
    filters: dict[int, InterpolationMode]

    @classmethod
    def on_tensors(cls, functions: ModuleType) -> Reference | None:
        """Return torchvision on tensors; None where this processor's torch has other arithmetic than ddlp."""
        names = {mode: torch_filter(functions, mode.value, True) for mode in PILLOW.values()}
        if None in names.values():
            return None
        return cls(functions, True, {RESAMPLED[str(name)]: mode for mode, name in names.items()})

    def decoded(self, jpeg: bytes, reduce: int) -> Any:
        """Return the image or the tensor, scaled by 1 / reduce as draft() does; None: it chooses another scale."""
        if self.tensors:
            return decode_jpeg(torch.frombuffer(bytearray(jpeg), dtype=torch.uint8), mode=ImageReadMode.RGB)
        image: Image.Image = Image.open(io.BytesIO(jpeg))
        if reduce > 1:
            image.draft(None, (max(image.width // reduce, 1), max(image.height // reduce, 1)))
            if image.decoderconfig[0] != reduce:  # type: ignore[attr-defined]
                return None
        return image.convert("RGB")

    def pixels(self, image: Any) -> np.ndarray:
        """Return the (height, width, 3) values of an image or a tensor."""
        return image.permute(1, 2, 0).numpy() if self.tensors else np.asarray(image)


ON_PILLOW = Reference(functional, False, PILLOW)


def random_job(
    rng: random.Random, width: int, height: int, by: Reference = ON_PILLOW
) -> tuple[Job, Callable[[Any], Any]]:
    """Return a job for an image of this size, and a function that does the same by torchvision."""
    F = by.functions
    left, top = rng.randrange(width), rng.randrange(height)
    across, down = rng.randint(1, width - left), rng.randint(1, height - top)
    if rng.random() < 0.2:
        left, top, across, down = 0, 0, width, height
    resized = rng.random() < 0.75
    full_width, full_height = (rng.randint(1, 256), rng.randint(1, 256)) if resized else (across, down)
    number = rng.choice(list(by.filters)) if resized else 0
    # The whole resized image, or torchvision's centre crop of it.
    out_width, out_height = full_width, full_height
    if rng.random() < 0.4:
        out_width, out_height = rng.randint(1, full_width), rng.randint(1, full_height)
    out_left, out_top = int(round((full_width - out_width) / 2.0)), int(round((full_height - out_height) / 2.0))
    horizontal, vertical = rng.random() < 0.5, rng.random() < 0.2

    def reference(image: Any) -> Any:
        if resized:
            size = [full_height, full_width]
            image = F.resized_crop(image, top, left, down, across, size, by.filters[number], antialias=True)
        else:
            image = F.crop(image, top, left, down, across)
        image = F.center_crop(image, [out_height, out_width])
        image = F.hflip(image) if horizontal else image
        return F.vflip(image) if vertical else image

    job = Job(
        left=left, top=top, width=across, height=down, full_width=full_width, full_height=full_height, filter=number,
        out_left=out_left, out_top=out_top, out_width=out_width, out_height=out_height,
        flip_horizontal=horizontal, flip_vertical=vertical, reduce=1, channels=3,
        vertical_first=vertical_first(native_order(), across, down, full_width, full_height),
    )  # fmt: skip
    return job, reference


def region(left: int, top: int, width: int, height: int, reduce: int = 1, channels: int = 3) -> Job:
    """Return a job for a part of an image, at its size."""
    return Job(left=left, top=top, width=width, height=height, full_width=width, full_height=height, out_width=width,
               out_height=height, reduce=reduce, channels=channels)  # fmt: skip


def check(
    context: Context, jpeg: bytes, rng: random.Random, jobs: int, tally: Tally, by: Reference = ON_PILLOW
) -> None:
    """Compare `jobs` random jobs on one file."""
    reduce = 1 if by.tensors else rng.choice((1, 1, 1, 2, 4, 8))
    image = by.decoded(jpeg, reduce)
    if image is None:
        return
    taken = context.take(jpeg) is not None
    for _ in range(jobs):
        height, width = by.pixels(image).shape[:2]
        job, reference = random_job(rng, width, height, by)
        job.reduce = reduce
        out = np.empty((job.out_height, job.out_width, 3), dtype=np.uint8)
        tally.samples += 1
        if not taken or not context.sample(job, out):
            tally.refused += 1
        elif not np.array_equal(out, by.pixels(reference(image))):
            tally.differ += 1


def random_size(rng: random.Random) -> tuple[int, int]:
    """Return a width and a height in pixels: tiny, narrow or as of a photograph, and rarely multiples of 8."""
    most = rng.choice((17, 40, 130, 300, 300, 900))
    return rng.randint(1, most), rng.randint(1, most if rng.random() < 0.8 else 17)


def run(context: Context, samples: int, seed: int, by: Reference = ON_PILLOW) -> dict[str, Tally]:
    """Compare at least so many samples, every kind in turn."""
    rng, generator = random.Random(seed), np.random.default_rng(seed)
    tallies: dict[str, Tally] = collections.defaultdict(Tally)
    while sum(tally.samples for tally in tallies.values()) < samples:
        for kind, make in KINDS.items():
            check(context, make(generator, *random_size(rng)), rng, 8, tallies[kind], by)
    return tallies


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000, metavar="N", help="samples at least (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws (default %(default)s)")
    parser.add_argument("--variant", choices=("avx2", "sse2", "neon", "c"), help="kernel variant (default: the best here)")
    parser.add_argument("--tensors", choices=GENERATIONS, help="compare with this generation's functions on tensors")
    options = parser.parse_args(arguments)
    found = kernel()
    if found is None:
        print(f"pixels: no kernel: {why_not()}", file=sys.stderr)
        return 1
    if options.variant and not found.choose(options.variant):
        print(f"pixels: this processor has no {options.variant}", file=sys.stderr)
        return 1
    by = Reference.on_tensors(GENERATIONS[options.tensors]) if options.tensors else ON_PILLOW
    if by is None:
        print(f"pixels: torch resamples otherwise by {torch.backends.cpu.get_cpu_capability()}", file=sys.stderr)
        return 1
    tallies = run(found.context(), options.samples, options.seed, by)
    for kind, tally in tallies.items():
        print(f"{kind:18} {tally.samples:6} samples, {tally.differ} differ, {tally.refused} left to Pillow")
    total = Tally(*(sum(getattr(t, name) for t in tallies.values()) for name in ("samples", "differ", "refused")))
    print(
        f"{'all':18} {total.samples:6} samples, {total.differ} differ, {total.refused} left to Pillow "
        f"(Pillow {Image.__version__}, {found.variant})"
    )
    return 1 if total.differ or total.refused else 0


if __name__ == "__main__":
    sys.exit(main())
