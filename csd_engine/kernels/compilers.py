"""Finds a C compiler: this computer's own, else zig, which PyPI has as `ziglang`. zig also compiles for other systems."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile

__all__ = ["find", "system", "works", "zig"]

_MACHINES = {40: "arm-linux-gnueabihf", 62: "x86_64-linux-gnu", 183: "aarch64-linux-gnu"}  # by ELF's numbers
_ARM, _HARD_FLOAT = 40, 0x400
_TIMEOUT_S = 60

# These arguments are for every processor of an architecture, and for glibc 2.17 and newer (manylinux2014). By default zig
# compiles for this processor alone. On 32-bit ARM the kernel looks for NEON at run time, so the rest must not need it.
_ZIG = {
    "x86_64-linux-gnu": ("-target", "x86_64-linux-gnu.2.17", "-mcpu=baseline"),
    "aarch64-linux-gnu": ("-target", "aarch64-linux-gnu.2.17", "-mcpu=baseline"),
    "arm-linux-gnueabihf": ("-target", "arm-linux-gnueabihf.2.17", "-mcpu=baseline-neon-d32"),
}


def system() -> str:
    """Return the GNU name of the system that this interpreter is compiled for; empty if we don't know it.

    It is read from the interpreter's file. `uname` tells of the Linux kernel, and a 64-bit one runs 32-bit systems too.
    """
    try:
        with open(sys.executable, "rb") as stream:
            head = stream.read(64)
        glibc = os.confstr("CS_GNU_LIBC_VERSION")  # for musl a library must be compiled in another way
    except (OSError, ValueError):
        return ""
    if len(head) < 64 or head[:4] != b"\x7fELF" or head[5] != 1 or not glibc:  # 1: little-endian
        return ""
    machine, flags = struct.unpack_from("<H", head, 18)[0], struct.unpack_from("<I", head, 36)[0]
    return "" if machine == _ARM and not flags & _HARD_FLOAT else _MACHINES.get(machine, "")


def works(compiler: str) -> bool:
    """Whether a command compiles C here. For example, gcc without the C library's headers does not."""
    command = shlex.split(compiler)
    if shutil.which(command[0]) is None:
        return False
    program = b"#include <dlfcn.h>\n#include <math.h>\nvoid *same(void *it) { return it; }\n"
    with tempfile.TemporaryDirectory(prefix="ddlp-compiler-") as scratch:
        command += ["-shared", "-fPIC", "-o", os.path.join(scratch, "library.so"), "-x", "c", "-", "-lm"]
        try:
            done = subprocess.run(
                command, input=program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
    return done.returncode == 0


def zig(target: str) -> str:
    """Return the command of zig as a C compiler for a system, by its GNU name; empty if ziglang is not installed.

    It is also empty for a system without arguments in the table above.
    """
    spec = importlib.util.find_spec("ziglang")
    if target not in _ZIG or spec is None or not spec.submodule_search_locations:
        return ""
    from importlib.metadata import version

    program = os.path.join(spec.submodule_search_locations[0], "zig")
    name = f'-DDDLP_COMPILER="zig {version("ziglang")}"'
    return shlex.join([program, "cc", *_ZIG[target], "-s", name])


def find() -> str:
    """Return the command of a C compiler for this computer: $CC, else cc, gcc or clang, else zig; empty: none works."""
    given = os.environ.get("CC")
    if given:
        return given
    for compiler in ("cc", "gcc", "clang"):
        if works(compiler):
            return compiler
    return zig(system())
