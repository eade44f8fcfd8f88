"""Run the kernel over damaged JPEGs: under sanitizers, or beside Pillow.

    python -m tests.fuzz.kernel --rounds 1000000 --seed 3     # under the address and undefined-behaviour sanitizers
    python -m tests.fuzz.kernel --guided 20000000 --seed 3    # under them too; libFuzzer looks for files that reach new code
    python -m tests.fuzz.kernel --seconds 600 --seed 3        # beside Pillow

Under sanitizers it ends with status 1, and the sanitizer's report, at the first read or write in a wrong place. Beside Pillow
it ends with status 1 at the first file that the kernel decodes to other pixels than Pillow, or decodes although Pillow refuses
it. --keep writes that file. --guided needs clang and its runtime (Debian: clang, libclang-rt-14-dev). It starts with the files
of tests/csd_engine/kernels/damaged_jpegs.zip, which the tests run too. --renew writes those that reach the most code back.
"""

from __future__ import annotations

import argparse
import glob
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, _imaging

from csd_engine import kernels
from csd_engine.kernels.build import SOURCES, c_files
from csd_engine.kernels.library import Context, Kernel
from tests.fuzz.pixels import KINDS, ON_PILLOW, random_size, region

_DRIVER = Path(__file__).with_suffix(".c")
FLAGS = ("-std=gnu11", "-O1", "-g", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def pillows_libjpeg() -> str:
    """Return the file of the libjpeg that Pillow is linked with; "" if it is not a file of its own."""
    linked = subprocess.run(["ldd", _imaging.__file__], stdout=subprocess.PIPE, text=True).stdout
    found = re.search(r"libjpeg\S* => (\S+)", linked)
    return found[1] if found else ""


def objects(directory: Path, compiler: str = "cc", flags: tuple[str, ...] = FLAGS) -> list[Path]:
    """Compile the kernel's files; returns the objects."""
    sources = c_files()
    subprocess.run([compiler, *flags, "-I", SOURCES, "-c", *sources], check=True, timeout=600, cwd=directory)
    return [directory / f"{Path(one).stem}.o" for one in sources]


def build(driver: Path, kernel: list[Path], directory: Path, compiler: str = "cc", flags: tuple[str, ...] = FLAGS) -> Path:
    """Compile a driver and link it with the kernel's objects; returns the program."""
    program = directory / driver.stem
    subprocess.run(
        [compiler, *flags, "-I", SOURCES, "-o", str(program), str(driver), *map(str, kernel), "-lm", "-ldl"],
        check=True,
        timeout=600,
    )
    return program


_ENTRIES = "000103000100000010000000 120103000100000001000000"  # a width, and the orientation
EXIF = b"\xff\xe1\0\x2e" + b"Exif\0\0II*\0\x08\0\0\0\x02\0" + bytes.fromhex(_ENTRIES) + bytes(4)
"""A segment that says that the image is upright."""


def fuzz(kernel: list[Path], directory: Path, rounds: int, seed: int) -> subprocess.CompletedProcess[str]:
    """Run the driver over two small files of each kind, and over the kept ones; return its status and output."""
    program = build(_DRIVER, kernel, directory)
    rng, generator = random.Random(seed), np.random.default_rng(seed)
    for number, make in enumerate(list(KINDS.values()) * 2):
        width, height = (min(side, 120) for side in random_size(rng))
        data = make(generator, width, height)
        if number >= len(KINDS):
            data = data[:2] + EXIF + data[2:]
        (directory / f"{number:02}.jpg").write_bytes(data)
    unpack(directory)
    files = sorted(glob.glob(str(directory / "*.jpg")))
    return subprocess.run(
        [str(program), pillows_libjpeg(), str(seed), str(rounds), *files],
        env={**os.environ, "ASAN_OPTIONS": "abort_on_error=0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


# -- guided by the code that is reached

KEPT = Path(__file__).parents[1] / "csd_engine/kernels/damaged_jpegs.zip"
_GUIDED_FLAGS = (*FLAGS, "-O2", "-fsanitize=fuzzer", "-DGUIDED")
_MOST_BYTES = 1200  # of a file that libFuzzer makes
_SIDE = 17  # of the images that it starts with: small ones are quick, and this one has cut blocks of every sampling


def unpack(directory: Path) -> None:
    """Write the kept files into a directory."""
    with zipfile.ZipFile(KEPT) as archive:
        archive.extractall(directory)


def hostile(jpeg: bytes) -> Iterator[bytes]:
    """Yield a baseline file with other headers: arithmetic coding, 12 bits, any process, a bomb; and cut off."""
    frame = jpeg.index(b"\xff\xc0")
    for process in (0xC1, 0xC2, 0xC3, 0xC5, 0xC9, 0xCA, 0xCB):
        yield jpeg[: frame + 1] + bytes([process]) + jpeg[frame + 2 :]
    yield jpeg[: frame + 4] + b"\x0c" + jpeg[frame + 5 :]
    yield jpeg[: frame + 5] + b"\xff\xff\xff\xff" + jpeg[frame + 9 :]
    yield from (jpeg[: len(jpeg) * part // 8] for part in range(1, 8))


def guided(directory: Path, runs: int, seed: int, renew: bool) -> int:
    """Let libFuzzer make `runs` files, beginning with a small one of each kind and the kept ones; returns its exit status."""
    try:
        kernel = objects(directory, "clang", _GUIDED_FLAGS)
        program = build(_DRIVER, kernel, directory, "clang", _GUIDED_FLAGS)
    except FileNotFoundError:
        print("fuzz: --guided needs clang (Debian: apt install clang libclang-rt-14-dev)", file=sys.stderr)
        return 2
    found, kept = directory / "found", directory / "kept"
    found.mkdir()
    kept.mkdir()
    generator = np.random.default_rng(seed)
    files = [make(generator, _SIDE, _SIDE) for make in KINDS.values()]
    files += [data[:2] + EXIF + data[2:] for data in files]
    files += hostile(files[0])
    for number, data in enumerate(files):
        (found / f"{number:03}").write_bytes(data)
    if KEPT.exists():
        unpack(found)
    environment = {**os.environ, "FUZZ_LIBJPEG": pillows_libjpeg()}
    limits = [f"-max_len={_MOST_BYTES}", "-timeout=60", "-rss_limit_mb=4096"]
    options = [f"-runs={runs}", f"-seed={seed}", "-print_final_stats=1", f"-artifact_prefix={os.getcwd()}/"]
    status = subprocess.run([str(program), str(found), *options, *limits], env=environment).returncode
    if renew and status == 0:
        options = ["-set_cover_merge=1", "-use_counters=0"]  # few files: counts of a line's runs don't matter
        subprocess.run([str(program), *options, *limits, str(kept), str(found)], env=environment, check=True)
        with zipfile.ZipFile(KEPT, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(kept.iterdir()):
                archive.writestr(zipfile.ZipInfo(f"{path.name}.jpg"), path.read_bytes())
    return status


# -- beside Pillow

SOS, DHT, DQT, DRI = 0xDA, 0xC4, 0xDB, 0xDD
_MOST_PIXELS = 1 << 18  # larger damaged files are left out; a header may claim any size
_POOL = 3  # files of each kind to choose from
_ROUNDS = 40  # damaged files between two new ones
_BYTES = (0x00, 0xFF, 0xD9, 0xD0, 0xD8, 0xDA, 0xC4, 0x01, 0x7F, 0x80, 0x11, 0x44)

Segment = tuple[int, bytearray, bytes]  # marker, content, and the coded bytes that follow it


def parts(jpeg: bytes) -> list[Segment]:
    """Return a file's segments between SOI and its end. Scans come with their bytes."""
    at, found = 2, []
    while at + 4 <= len(jpeg) and jpeg[at] == 0xFF and jpeg[at + 1] != 0xD9:
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        after = end
        if jpeg[at + 1] == SOS:
            scan_end = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL).search(jpeg, end)
            after = scan_end.start() if scan_end else len(jpeg)
        found.append((jpeg[at + 1], bytearray(jpeg[at + 4 : end]), jpeg[end:after]))
        at = after
    return found


def joined(segments: list[Segment]) -> bytes:
    """Return the file of these segments."""
    whole = [bytes([0xFF, mark]) + (len(body) + 2 & 0xFFFF).to_bytes(2, "big") + body + coded for mark, body, coded in segments]
    return b"".join([b"\xff\xd8", *whole, b"\xff\xd9"])


def _codes(rng: random.Random, table: bytearray) -> None:
    """Change a Huffman table: the number of codes of a length, or their symbols."""
    if len(table) < 18:
        return
    counts = [at for at in range(1, 17) if table[at]]
    what = rng.randrange(5)
    if what == 0 and counts:  # as many codes of a length as fit, or one less: the last of them is all ones
        at = rng.choice(counts)
        room = 1 << at
        for shorter in range(1, at):
            room -= table[shorter] << (at - shorter)
        if 0 < room < 256:
            table[at] = max(0, room - rng.randrange(2))
    elif what == 1 and counts:
        at = rng.choice(counts)
        table[at] += rng.choice((1, -1)) if table[at] < 255 else -1
    elif what == 2 and counts:  # the same number of codes, but one of another length
        source, to = rng.choice(counts), rng.randrange(1, 17)
        if table[to] < 255:
            table[source] -= 1
            table[to] += 1
    elif what <= 3:
        table[rng.randrange(17, len(table))] = rng.randrange(256)
    else:
        table[0] = rng.choice((0x00, 0x01, 0x02, 0x03, 0x04, 0x10, 0x11, 0x13, 0x14, 0x20))


def _changed_segment(rng: random.Random, segments: list[Segment]) -> None:
    """Change a field of one segment, by the layout that its marker tells."""
    mark, body, _ = rng.choice([one for one in segments if one[1]] or segments)
    if not body:
        return
    if mark == DHT:
        _codes(rng, body)
    elif mark == DRI and len(body) == 2:
        body[:] = rng.choice((0, 1, 2, 3, 5, 8, 100, 65535)).to_bytes(2, "big")
    elif mark == DQT:
        body[rng.randrange(len(body))] = rng.choice((0, 1, 2, 16, 255))
    elif mark == SOS:  # components, tables, band and bits of the scan
        body[rng.randrange(len(body))] = rng.choice((0, 1, 2, 3, 4, 5, 0x10, 0x11, 0x20, 0x21, 62, 63, 64))
    elif 0xC0 <= mark <= 0xC2 and len(body) >= 9:
        at = rng.choice((2, 4, *range(5, len(body))))  # the low bytes of height and width, then the components
        body[at] = rng.choice((0, 1, 2, 3, 7, 0x11, 0x12, 0x21, 0x22, 0x41, 0x14, 0x13, 0x44, rng.randrange(256)))
    else:
        body[rng.randrange(len(body))] = rng.randrange(256)


def _changed_order(rng: random.Random, segments: list[Segment]) -> None:
    """Leave a segment out, double it, move it, or change its marker or its scan's bytes."""
    at, what = rng.randrange(len(segments)), rng.randrange(6)
    mark, body, coded = segments[at]
    if what == 0 and len(segments) > 1:
        del segments[at]
    elif what == 1:
        segments.insert(rng.randrange(len(segments) + 1), (mark, bytearray(body), coded))
    elif what == 2:
        segments.insert(rng.randrange(len(segments)), segments.pop(at))
    elif what == 3:
        segments[at] = rng.choice((0xC0, 0xC1, 0xC2, DHT, DQT, DRI, 0xFE, 0xE0, 0xEE, mark)), body, coded
    elif coded and what == 4:  # add, change or remove a restart marker
        found = [match.start() for match in re.finditer(rb"\xff[\xd0-\xd7]", coded)]
        place = rng.choice(found) if found else rng.randrange(len(coded))
        new = rng.choice((b"", bytes([0xFF, 0xD0 | rng.randrange(8)]), b"\xff\xff"))
        segments[at] = mark, body, coded[:place] + new + coded[place + (2 if found and rng.random() < 0.5 else 0) :]
    elif coded:
        segments[at] = mark, body, coded[: rng.randrange(len(coded))]


def damaged(rng: random.Random, jpeg: bytes) -> bytes:
    """Return the file with a few changes: in its tables and headers, in its order, or in any bytes."""
    if rng.random() < 0.7:
        segments = parts(jpeg)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            (_changed_segment if rng.random() < 0.7 else _changed_order)(rng, segments)
        jpeg = joined(segments)
        if rng.random() < 0.8:
            return jpeg
    changed = bytearray(jpeg)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) if rng.random() < 0.5 else min(len(changed), 700))
        changed[at] = rng.choice(_BYTES) if rng.random() < 0.5 else changed[at] ^ 1 << rng.randrange(8)
    return bytes(changed if rng.random() < 0.8 else changed[: rng.randrange(len(changed))])


@dataclass
class Compared:
    """The number of damaged files, the number that the kernel decoded as Pillow does, and the first file that differs."""

    files: int = 0
    alike: int = 0
    differs: bytes | None = None
    why: str = ""


def difference(context: Context, rng: random.Random, jpeg: bytes) -> str | None:
    """Return how the kernel's pixels of a random part differ from Pillow's. "": they don't. None: nothing to compare."""
    size = context.take(jpeg)
    if size is None or size[0] * size[1] > _MOST_PIXELS:
        return None
    reduce = rng.choice((1, 1, 1, 2, 4, 8))
    width, height = (max(1, -(-side // reduce)) for side in size)
    left, top = (0, 0) if rng.random() < 0.3 else (rng.randrange(width), rng.randrange(height))
    across, down = rng.randint(1, width - left), rng.randint(1, height - top)
    out = np.empty((down, across, 3), dtype=np.uint8)
    if not context.sample(region(left, top, across, down, reduce), out):
        return None
    where = f"{across}x{down} at ({left}, {top}) of {width}x{height}, reduced by {reduce}"
    try:
        image = ON_PILLOW.decoded(jpeg, reduce)
    except Exception as error:  # noqa: BLE001 - a damaged file may raise anything
        return f"Pillow refuses {where}: {type(error).__name__}: {error}"
    if image is None:
        return None  # draft() would choose another scale
    same = image.size == (width, height) and np.array_equal(out, np.asarray(image)[top : top + down, left : left + across])
    return "" if same else f"other pixels: {where}; Pillow's image has {image.size}"


def compare(kernel: Kernel, seed: int, enough: Callable[[int], bool]) -> Compared:
    """Compare damaged files of every kind, with each variant of this processor, until a file differs or `enough(files)`."""
    rng, generator, context = random.Random(seed), np.random.default_rng(seed), kernel.context()
    best, found = kernel.variant, Compared()
    variants = [name for name in ("vnni", "avx2", "sse2", "neon", "c") if kernel.choose(name)]
    kinds, pool = list(KINDS), {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of damaged files
            while not enough(found.files):
                if found.files % _ROUNDS == 0:
                    number = found.files // _ROUNDS % (len(kinds) * _POOL)
                    width, height = (min(side, 70) for side in random_size(rng))
                    pool[number] = KINDS[kinds[number % len(kinds)]](generator, width, height)
                    kernel.choose(rng.choice(variants))
                jpeg = damaged(rng, pool[rng.choice(list(pool))])
                found.files += 1
                why = difference(context, rng, jpeg)
                if why:
                    found.differs, found.why = jpeg, f"{why}, variant {kernel.variant}"
                    break
                found.alike += why is not None
    finally:
        kernel.choose(best)
    return found


def beside_pillow(seconds: float, seed: int, keep: Path | None) -> int:
    """Run `compare` for so many seconds and print what it found; returns the exit status."""
    found = kernels.kernel()
    if found is None:
        print(f"fuzz: no kernel: {kernels.why_not()}", file=sys.stderr)
        return 1
    until = time.monotonic() + seconds
    result = compare(found, seed, lambda files: time.monotonic() > until)
    print(f"{result.files} damaged files, {result.alike} decoded as by Pillow {Image.__version__}, the others left to it")
    if result.differs is None:
        return 0
    print(f"file {result.files} of seed {seed} differs: {result.why}")
    if keep is not None:
        keep.write_bytes(result.differs)
    return 1


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200_000, metavar="N", help="damaged files (default %(default)s)")
    parser.add_argument("--guided", type=int, metavar="N", help="files that libFuzzer makes instead, by the code they reach")
    parser.add_argument("--renew", action="store_true", help="write the files that reach the most code to the tests' archive")
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws (default %(default)s)")
    parser.add_argument("--seconds", type=float, metavar="S", help="compare with Pillow instead, for so many seconds")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write the file that differs from Pillow here")
    options = parser.parse_args(arguments)
    if options.seconds is not None:
        return beside_pillow(options.seconds, options.seed, options.keep)
    with tempfile.TemporaryDirectory() as place:
        if options.guided is not None:
            return guided(Path(place), options.guided, options.seed, options.renew)
        done = fuzz(objects(Path(place)), Path(place), options.rounds, options.seed)
    print(done.stdout, end="")
    return 1 if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
