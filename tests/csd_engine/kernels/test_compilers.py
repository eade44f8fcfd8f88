"""Which compiler builds the kernel, and that pip is asked for zig where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from csd_engine.kernels import compilers
from tests.needs import need_zig

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """An empty directory that is all of PATH."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def add(path, script):
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_the_first_that_works_is_taken(programs, monkeypatch):
    add(programs / "cc", "exit 1")  # gcc without the C library's headers
    add(programs / "clang", "exit 0")
    assert compilers.find() == "clang"
    monkeypatch.setenv("CC", "mine")
    assert compilers.find() == "mine", "CC is taken unchecked"


def test_zig_is_taken_where_there_is_no_other(programs, monkeypatch):
    need_zig()
    assert "ziglang/zig cc " in compilers.find() and compilers.zig("sparc-linux-gnu") == ""
    monkeypatch.setitem(sys.modules, "ziglang", None)
    assert compilers.find() == ""


@pytest.mark.parametrize("hook", ["get_requires_for_build_wheel", "get_requires_for_build_editable"])
@pytest.mark.parametrize("cc, asked", [("exit 0", False), ("exit 1", True)])
def test_pip_is_asked_for_zig_where_no_compiler_works(programs, hook, cc, asked):
    add(programs / "cc", cc)
    program = f"import sys; sys.modules['ziglang'] = None; import build_backend; print(build_backend.{hook}())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "scripts")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert ("'ziglang" in done.stdout.splitlines()[-1]) == asked, done.stdout
