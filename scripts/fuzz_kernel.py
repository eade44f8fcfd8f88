"""Run the kernel over damaged JPEGs under the address and undefined-behaviour sanitizers.

    python -m scripts.fuzz_kernel --rounds 1000000 --seed 3

Ends with status 1, and the sanitizer's report, at the first byte that is read or written where it must not be.
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
from pathlib import Path

import numpy as np
from PIL import _imaging

import csd_engine.kernels
from scripts.check_kernel import KINDS, random_size

SOURCES = Path(csd_engine.kernels.__file__).parent / "src"
FLAGS = ("-std=gnu11", "-O1", "-g", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def pillows_libjpeg() -> str:
    """Return the file of the libjpeg that Pillow is linked with; "" if it is not a file of its own."""
    linked = subprocess.run(["ldd", _imaging.__file__], stdout=subprocess.PIPE, text=True).stdout
    found = re.search(r"libjpeg\S* => (\S+)", linked)
    return found[1] if found else ""


def build(directory: Path, compiler: str = "cc") -> Path:
    """Compile the kernel with the driver; returns the program."""
    program = directory / "fuzz"
    sources = [Path(__file__).with_suffix(".c"), *sorted(SOURCES.glob("*.c"))]
    subprocess.run(
        [compiler, *FLAGS, "-I", str(SOURCES), "-o", str(program), *map(str, sources), "-lm", "-ldl"], check=True, timeout=600
    )
    return program


_ENTRIES = "000103000100000010000000 120103000100000001000000"  # a width, and the orientation
EXIF = b"\xff\xe1\0\x2e" + b"Exif\0\0II*\0\x08\0\0\0\x02\0" + bytes.fromhex(_ENTRIES) + bytes(4)
"""A segment that says that the image is upright."""


def fuzz(directory: Path, rounds: int, seed: int) -> subprocess.CompletedProcess[str]:
    """Build the program, make two small files of each kind and run it over them; its output tells what came of it."""
    program = build(directory)
    rng, generator = random.Random(seed), np.random.default_rng(seed)
    for number, make in enumerate(list(KINDS.values()) * 2):
        width, height = (min(side, 120) for side in random_size(rng))
        data = make(generator, width, height)
        if number >= len(KINDS):
            data = data[:2] + EXIF + data[2:]
        (directory / f"{number:02}.jpg").write_bytes(data)
    files = sorted(glob.glob(str(directory / "*.jpg")))
    return subprocess.run(
        [str(program), pillows_libjpeg(), str(seed), str(rounds), *files],
        env={**os.environ, "ASAN_OPTIONS": "abort_on_error=0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200_000, metavar="N", help="damaged files (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="everything is drawn from it (default %(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        done = fuzz(Path(place), options.rounds, options.seed)
    print(done.stdout, end="")
    return 1 if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
