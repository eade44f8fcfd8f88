"""Compile the kernel: one shared library from the C files in src/, for this computer or, with a cross-compiler, for another.

    python -m csd_engine.kernels.build [--compiler CC] [--output FILE]

It needs only a C compiler with the C library's headers, or zig, which `pip install ziglang` installs. This module uses the
standard library only.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from typing import List, Optional, Sequence

from csd_engine.kernels import compilers

__all__ = ["KernelError", "LIBRARY", "SOURCES", "build_kernel", "c_files", "sources_hash"]

_HERE = os.path.dirname(os.path.abspath(__file__))

#: The directory of the sources. They include each other by their paths below it.
SOURCES = os.path.join(_HERE, "src")

#: The path of the library in an installation.
LIBRARY = os.path.join(_HERE, "_kernel.so")

# No contraction: a fused multiply-add would round the coefficients in another way than Pillow's build does.
_FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
_SHOWN_LINES = 8
_TIMEOUT_S = 600


class KernelError(Exception):
    """The kernel cannot be built or used; the message says why and what to do."""


def c_files() -> List[str]:
    """Return the paths of the C files to compile, in SOURCES and its directories."""
    return sorted(glob.glob(os.path.join(glob.escape(SOURCES), "**", "*.c"), recursive=True))


def sources_hash() -> str:
    """Return a hash (16 hex digits) of the sources. A library carries the hash of its own sources."""
    hasher = hashlib.blake2b(digest_size=8)
    for path in sorted(glob.glob(os.path.join(glob.escape(SOURCES), "**", "*.[ch]"), recursive=True)):
        with open(path, "rb") as stream:
            content = stream.read()
        name = os.path.relpath(path, SOURCES).replace(os.sep, "/")
        hasher.update(f"{name} {len(content)}\n".encode() + content)
    return hasher.hexdigest()


def build_kernel(target: str, compiler: str = "cc", flags: Sequence[str] = ()) -> None:
    """Compile the kernel into the file `target`. An older library there is replaced at once, never in part.

    Args:
        target: the shared library to write.
        compiler: the command; words after the first one are its arguments.
        flags: further arguments, after our own.

    Raises:
        KernelError: there is no such compiler, or it fails; quotes the first lines of its output.
    """
    target = os.path.abspath(target)
    try:
        descriptor, unfinished = tempfile.mkstemp(prefix="_kernel.", suffix=".tmp", dir=os.path.dirname(target))
    except OSError as error:
        raise KernelError(f"can't write {target}: {error.strerror or error}. Name another place (--output).") from error
    os.close(descriptor)
    made_from = f'-DDDLP_SOURCES="{sources_hash()}"'
    command = [*shlex.split(compiler), *_FLAGS, "-I", SOURCES, made_from, *flags, "-shared", "-o", unfinished, *c_files()]
    command += ["-Wl,--as-needed", "-lm", "-ldl"]
    try:
        _run(command)
        os.chmod(unfinished, 0o755)
        os.replace(unfinished, target)
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)


def _run(command: List[str]) -> None:
    try:
        with tempfile.TemporaryDirectory(prefix="ddlp-kernel-") as cache:  # for zig: it takes 60 MB, and is useless afterwards
            environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_TIMEOUT_S
            )
    except FileNotFoundError as error:
        raise KernelError(
            f"there is no C compiler named {command[0]!r}. Install one (Debian, Ubuntu: apt install gcc libc6-dev; "
            "without root: pip install ziglang)."
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"{command[0]} did not run to its end: {error}. Try it by hand: {shlex.join(command)}") from error
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip().splitlines()
        raise KernelError(
            "\n  ".join(
                [f"{command[0]} failed (exit status {done.returncode}):", *(said[:_SHOWN_LINES] or ["it said nothing"])]
            )
        )


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Build from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m csd_engine.kernels.build", description="Compile the kernel.")
    parser.add_argument("--compiler", help="command (default: $CC, else cc, gcc or clang, else zig from PyPI's ziglang)")
    parser.add_argument("--output", default=LIBRARY, help="the shared library to write (default: where it is looked for)")
    options = parser.parse_args(arguments)
    try:
        build_kernel(options.output, options.compiler or compilers.find() or "cc")
    except KernelError as error:
        print(f"no kernel: {error}", file=sys.stderr)
        return 1
    print(f"built {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
