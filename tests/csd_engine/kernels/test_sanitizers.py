"""The kernel under sanitizers: its loops and its reading of scans alone, which emulated processors of boards compute alike,
and the whole kernel over damaged files, beside Pillow too. One file, so that it is compiled once for all of them.

`python -m tests.fuzz.kernel` runs over damaged files for longer.
"""

import functools
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest

from csd_engine.kernels.build import c_files
from tests.fuzz.kernel import build, compare, fuzz, pillows_libjpeg
from tests.needs import need
from tests.progressive_jpeg import progressive_jpeg

HASHES, COEFFICIENTS = (Path(__file__).with_name(name) for name in ("hashes.c", "coefficients.c"))
PARTS = (  # the parts that know nothing of JPEG
    "axis", "blur", "colour*", "draws", "keyed", "passes_*", "plan", "planes", "processor", "resample", "steps", "sum",
    "table*", "torch*", "variant", "warp*", "windows",
)  # fmt: skip
SCANS = ("progressive", "scan*", "huffman", "header", "processor", "variant")  # the parts that need no libjpeg
ROUNDS = "30"
BOARDS = [
    ("arm-linux-gnueabihf-gcc", "qemu-arm-static", "max", {"c", "neon"}),
    ("arm-linux-gnueabihf-gcc", "qemu-arm-static", "cortex-a9,neon=off", {"c"}),
    ("aarch64-linux-gnu-gcc", "qemu-aarch64-static", "max", {"c", "neon"}),
]
NAMES = ["armhf", "armhf without NEON", "arm64"]


def chosen(paths, parts):
    """The files of these parts of the kernel: of its sources, or of its objects."""
    return [path for path in map(Path, paths) if any(fnmatch(path.stem, part) for part in parts)]


def run(program, *arguments, emulator=()):
    """Run a driver: {variant: hashes}."""
    done = subprocess.run([*emulator, program, *arguments], stdout=subprocess.PIPE, timeout=300, text=True)
    assert done.returncode == 0, done.stdout
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.fixture(scope="session")  # before the other fixtures, so that all that is missing is named at once
def board(request):
    """A board's processor, of BOARDS."""
    need("cc", *request.param[:2])
    return request.param


@pytest.fixture(scope="module")
def here(tmp_path_factory, sanitized):
    """What this processor computes, under the address and undefined-behaviour sanitizers."""
    return run(build(HASHES, chosen(sanitized, PARTS), tmp_path_factory.mktemp("here")), ROUNDS)


def test_all_variants_compute_the_same_within_their_buffers(here):
    assert len(here) > 1 and len(set(here.values())) == 1, here


# A resource whose size makes a 32-bit counter wrap around to its beginning.
ROUND_AND_ROUND = b"\xff\xed\x00\x1cPhotoshop 3.0\x008BIM\x04\x04\x00\x00\xff\xff\xff\xf4"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Progressive files, 4:2:0 and grey."""
    place, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    for number in range(12):
        factors = ((2, 2), (1, 1), (1, 1)) if number % 3 else ((1, 1),)
        jpeg = progressive_jpeg(rng, 97, 81, factors, interval=number % 4)
        (place / f"{number:02}.jpg").write_bytes(jpeg[:2] + ROUND_AND_ROUND * (number == 5) + jpeg[2:])
    return sorted(map(str, place.iterdir()))


@pytest.fixture(scope="module")
def read_here(tmp_path_factory, files, sanitized):
    """The coefficients that this processor reads, with and without BMI2, under the sanitizers."""
    return run(build(COEFFICIENTS, chosen(sanitized, SCANS), tmp_path_factory.mktemp("read")), *files)


def test_scans_are_read_alike_by_all_variants(read_here, files):
    (found,) = set(read_here.values())
    assert int(found.split()[1]) >= 2 * len(files)  # whole files, parts of files, and some of the damaged ones


@pytest.fixture(scope="module")
def for_board(tmp_path_factory):
    """for_board(compiler, driver, parts): the program, compiled once for all processors that run it."""

    @functools.cache
    def compiled(compiler, driver, parts):
        flags = ["-std=gnu11", "-ffp-contract=off", "-O2", "-static"]
        return build(driver, chosen(c_files(), parts), tmp_path_factory.mktemp("board"), compiler, flags)

    return compiled


@pytest.mark.parametrize("board", BOARDS, ids=NAMES, indirect=True)
@pytest.mark.some(1)
def test_boards_compute_the_same(board, here, for_board):
    compiler, emulator, cpu, variants = board
    found = run(for_board(compiler, HASHES, PARTS), ROUNDS, emulator=[emulator, "-cpu", cpu])
    assert set(found) == variants
    assert set(found.values()) == set(here.values())


@pytest.mark.parametrize("board", BOARDS[1:], ids=NAMES[1:], indirect=True)
@pytest.mark.some(1)
def test_boards_read_scans_alike(board, read_here, files, for_board):
    compiler, emulator, cpu, variants = board
    found = run(for_board(compiler, COEFFICIENTS, SCANS), *files, emulator=[emulator, "-cpu", cpu])
    assert set(found) == variants
    assert set(found.values()) == set(read_here.values())


@pytest.mark.parametrize("driver, rounds", [("wild_steps.c", 2000), ("wild_pixels.c", 2000)])
def test_wild_numbers_make_no_byte_go_astray(sanitized, tmp_path, driver, rounds):
    program = build(Path(__file__).with_name(driver), sanitized, tmp_path)
    done = subprocess.run([str(program), "3", str(rounds)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-6000:]
    found = re.search(r"(\d+) done, (\d+) refused", done.stdout)
    assert found and min(map(int, found.groups())) > 300


def test_damaged_files_make_no_byte_go_astray(sanitized, tmp_path):
    if not pillows_libjpeg():
        pytest.skip("this Pillow has its libjpeg inside itself")
    done = fuzz(sanitized, tmp_path, rounds=2500, seed=0)
    assert done.returncode == 0, done.stdout[-6000:]
    found = re.search(r"(\d+) made, (\d+) refused, \d+ turned, (\d+) in a batch", done.stdout)
    assert found and min(map(int, found.groups()[:2])) > 1000 and int(found[3]) > 100


def test_damaged_tables_headers_and_bytes_have_pillows_pixels_or_are_left_to_it(kernel):
    found = compare(kernel, 5, lambda files: files >= 5000)
    assert found.differs is None, f"file {found.files}: {found.why}"
    assert 500 < found.alike < 4500
