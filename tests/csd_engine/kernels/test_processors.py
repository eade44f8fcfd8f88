"""The kernel's loops and its reading of scans, tested alone: under sanitizers, and on emulated processors of boards. The
values must be the same everywhere."""

import glob
import os
import shutil
import subprocess

import numpy as np
import pytest

import csd_engine.kernels
from scripts.progressive_jpeg import progressive_jpeg

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.join(os.path.dirname(os.path.abspath(csd_engine.kernels.__file__)), "src")
PARTS = [  # the parts that know nothing of JPEG
    "axis", "draws", "keyed", "passes_*", "plan", "processor", "resample", "sum", "table*", "planes", "variant", "windows"
]  # fmt: skip
SCANS = ["progressive", "scan*", "huffman", "header", "processor", "variant"]  # the parts that need no libjpeg
ROUNDS = "120"
SANITIZERS = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
BOARDS = [
    ("arm-linux-gnueabihf-gcc", "qemu-arm-static", "max", {"c", "neon"}),
    ("arm-linux-gnueabihf-gcc", "qemu-arm-static", "cortex-a9,neon=off", {"c"}),
    ("aarch64-linux-gnu-gcc", "qemu-aarch64-static", "max", {"c", "neon"}),
]
NAMES = ["armhf", "armhf without NEON", "arm64"]


def run(place, compiler, flags, emulator=(), driver="hashes.c", parts=PARTS, arguments=(ROUNDS,)):
    """Compile the driver with these parts of the kernel and run it: {variant: hashes}."""
    program = str(place / "program")
    files = [file for part in parts for file in sorted(glob.glob(os.path.join(SOURCES, part + ".c")))]
    command = [compiler, "-std=gnu11", "-ffp-contract=off", "-I", SOURCES, *flags, "-o", program]
    subprocess.run([*command, os.path.join(HERE, driver), *files, "-lm"], check=True, timeout=300)
    done = subprocess.run([*emulator, program, *arguments], stdout=subprocess.PIPE, timeout=300, text=True)
    assert done.returncode == 0, done.stdout
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def need(*tools):
    packages = "gcc libc6-dev qemu-user-static"
    packages += " gcc-arm-linux-gnueabihf libc6-dev-armhf-cross gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
    for tool in tools:
        if not shutil.which(tool):
            assert "CI" not in os.environ, f"no {tool}: apt install {packages}"
            pytest.skip(f"no {tool}: apt install {packages}")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """What this processor computes, under the address and undefined-behaviour sanitizers."""
    need("cc")
    return run(tmp_path_factory.mktemp("here"), "cc", SANITIZERS)


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
def read_here(tmp_path_factory, files):
    """The coefficients that this processor reads, with and without BMI2, under the sanitizers."""
    need("cc")
    return run(tmp_path_factory.mktemp("read"), "cc", SANITIZERS, (), "coefficients.c", SCANS, files)


def test_scans_are_read_alike_by_all_variants(read_here, files):
    (found,) = set(read_here.values())
    assert int(found.split()[1]) >= 2 * len(files)  # whole files, parts of files, and some of the damaged ones


@pytest.mark.parametrize("compiler, emulator, cpu, variants", BOARDS, ids=NAMES)
def test_boards_compute_the_same(here, tmp_path, compiler, emulator, cpu, variants):
    need(compiler, emulator)
    found = run(tmp_path, compiler, ["-O2", "-static"], [emulator, "-cpu", cpu])
    assert set(found) == variants
    assert set(found.values()) == set(here.values())


@pytest.mark.parametrize("compiler, emulator, cpu, variants", BOARDS[1:], ids=NAMES[1:])
def test_boards_read_scans_alike(read_here, files, tmp_path, compiler, emulator, cpu, variants):
    need(compiler, emulator)
    found = run(tmp_path, compiler, ["-O2", "-static"], [emulator, "-cpu", cpu], "coefficients.c", SCANS, files)
    assert set(found) == variants
    assert set(found.values()) == set(read_here.values())
