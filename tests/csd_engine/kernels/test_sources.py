"""The kernel's C files: what they include, and what compilers warn of."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from csd_engine.kernels import compilers
from csd_engine.kernels.build import SOURCES, build_kernel, c_files
from tests.needs import need, need_zig

STRICT = ["-Werror", "-Wshadow", "-Wconversion"]  # beside build.py's -Wall -Wextra; a user's build only prints warnings
ALLOWED = {  # what the files of a folder may include of others; "": those of no folder but context.h
    "jpeg": {""},
    "resample": {""},
    "steps": {"", "resample"},
    "context": {"", "jpeg", "resample", "steps"},
    "batch": {"", "resample", "context"},
    "": set(),
}


def includes() -> dict[str, set[str]]:
    """The modules that each module includes. A module is a C file and its header: "jpeg/entropy"."""
    found: dict[str, set[str]] = {}
    for path in sorted(Path(SOURCES).rglob("*.[ch]")):
        module = path.relative_to(SOURCES).with_suffix("").as_posix()
        names = re.findall(r'^ *# *include "(.*)\.h"', path.read_text(), flags=re.M)
        found.setdefault(module, set()).update(name for name in names if name != module)
    return found


def folder(module: str) -> str:
    return "context" if module == "context" else module.rpartition("/")[0]


def test_modules_include_each_other_without_a_circle():
    graph = includes()
    assert len(graph) > 30 and set().union(*graph.values()) <= set(graph)
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_folders_include_only_what_they_may():
    wrong = [
        (module, name)
        for module, names in includes().items()
        for name in names
        if folder(name) not in {folder(module), *ALLOWED[folder(module)]}
    ]
    assert wrong == []


@pytest.mark.parametrize("how", ["-fsyntax-only", *(pytest.param(one, marks=pytest.mark.slow) for one in ("-O1", "-O3"))])
def test_gcc_has_nothing_to_say(tmp_path, how):
    need("gcc")
    build_kernel(str(tmp_path / "kernel.so"), "gcc", [*STRICT, how])


@pytest.mark.slow  # test_sanitizers.py has the parts that are for ARM compiled
@pytest.mark.parametrize("system", ["arm-linux-gnueabihf", "x86_64-linux-gnu", "aarch64-linux-gnu"])
def test_clang_has_nothing_to_say(tmp_path, system):
    """By clang, or by that of zig, which also compiles what is for ARM only. gcc looks at what is for x86_64 in each run."""
    compiler = "clang" if system == compilers.system() and shutil.which("clang") else ""
    if not compiler:
        need_zig()
    words = shlex.split(compiler or compilers.zig(system))
    flags = ["-c", "-O0", "-std=gnu11", "-Wall", "-Wextra", *STRICT, '-DDDLP_SOURCES=""', "-I", SOURCES]
    # not linked, or zig would compile libraries of its own
    done = subprocess.run([*words, *flags, *c_files()], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
