"""The kernel's loops by themselves: under sanitizers, and on emulated processors of boards: the same values everywhere."""

import glob
import os
import shutil
import subprocess

import pytest

import csd_engine.kernels

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.join(os.path.dirname(os.path.abspath(csd_engine.kernels.__file__)), "src")
PARTS = ["axis", "passes_*", "resample", "sum", "table", "planes", "variant", "windows"]  # those that know nothing of JPEG
ROUNDS = "120"


def run(place, compiler, flags, emulator=()):
    """Compile hashes.c with the loops and run it: {variant: hashes}."""
    program = str(place / "hashes")
    files = [file for part in PARTS for file in sorted(glob.glob(os.path.join(SOURCES, part + ".c")))]
    command = [compiler, "-std=gnu11", "-ffp-contract=off", "-I", SOURCES, *flags, "-o", program]
    subprocess.run([*command, os.path.join(HERE, "hashes.c"), *files, "-lm"], check=True, timeout=300)
    done = subprocess.run([*emulator, program, ROUNDS], stdout=subprocess.PIPE, timeout=300, text=True)
    assert done.returncode == 0, done.stdout
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """What this processor computes, under the address and undefined-behaviour sanitizers."""
    if not shutil.which("cc"):
        pytest.skip("needs a C compiler (cc)")
    flags = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    return run(tmp_path_factory.mktemp("here"), "cc", flags)


def test_all_variants_compute_the_same_within_their_buffers(here):
    assert len(here) > 1 and len(set(here.values())) == 1, here


@pytest.mark.parametrize(
    "compiler, emulator, cpu, variants",
    [
        ("arm-linux-gnueabihf-gcc", "qemu-arm-static", "max", {"c", "neon"}),
        ("arm-linux-gnueabihf-gcc", "qemu-arm-static", "cortex-a9,neon=off", {"c"}),
        ("aarch64-linux-gnu-gcc", "qemu-aarch64-static", "max", {"c", "neon"}),
    ],
    ids=["armhf", "armhf without NEON", "arm64"],
)
def test_boards_compute_the_same(here, tmp_path, compiler, emulator, cpu, variants):
    for tool in (compiler, emulator):
        if not shutil.which(tool):
            pytest.skip(f"needs {tool} (Debian: gcc-arm-linux-gnueabihf gcc-aarch64-linux-gnu qemu-user-static)")
    found = run(tmp_path, compiler, ["-O2", "-static"], [emulator, "-cpu", cpu])
    assert set(found) == variants
    assert set(found.values()) == set(here.values())
