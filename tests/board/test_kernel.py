"""The kernel on an emulated ARM board without a compiler: the host compiles it with gcc and zig, and it gives Pillow's bits."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.board.boards import path_without_cross_compilers
from tests.board.test_deploying import address_book, arguments, ddlp, epoch, images  # noqa: F401
from tests.needs import need_zig

COMPILER = "arm-linux-gnueabihf-gcc"


@pytest.fixture
def check(images: list[Path], ddlp: Callable[..., str]) -> Callable[[str], None]:  # noqa: F811
    """Check which kernel csd0 has, and that its batches have the host's bits."""
    expected, _ = epoch(images, strategy="cpu")

    def run(kernel: str) -> None:
        (told,) = json.loads(ddlp("status", "csd0", "--json"))
        assert told["status"]["versions"]["kernel"] == kernel
        got, report = epoch(images, csd="csd0", strategy="csd")
        assert report.batches_csd and all(torch.equal(got[k], expected[k]) for k in expected)

    return run


@pytest.mark.slow  # of test_two_boards.py's boards one has zig's kernel, the other none
def test_no_compiler_then_zig(
    board: Any,
    ddlp: Callable[..., str],  # noqa: F811
    check: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need_zig()
    monkeypatch.setenv("PATH", path_without_cross_compilers(tmp_path / "programs"))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "ziglang", None)
        told = ddlp(*arguments(board, "--kernel", "auto"))
    assert f"none: Pillow does the work, because there is no C compiler on the device, and there is no {COMPILER} on" in told
    assert "apt-get install gcc libc6-dev there, or apt-get install gcc-arm-linux-gnueabihf or pip install ziglang on" in told
    check("none")
    assert "neon, cross-compiled with zig" in ddlp("deploy", "--name", "csd0")
    check("neon")
    assert "Nothing had to be changed." in ddlp("deploy", "--name", "csd0")
    assert "differ" in ddlp("parity", "csd0")  # exit status 0: no operator differs
    assert "none, as you chose" in ddlp("deploy", "--name", "csd0", "--kernel", "none")
    check("none")
    ddlp("deploy", "--name", "csd0", "--uninstall")
    assert board.run("ls -A ~ddlp").stdout.split() == board.run("ls -A /etc/skel; echo .ssh").stdout.split()
