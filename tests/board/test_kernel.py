"""The kernel on an emulated ARM board without a compiler: the host compiles it with gcc and zig, and it gives Pillow's bits."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ddlp.devices import address_book as book
from tests.board.boards import path_without_cross_compilers
from tests.board.test_deploying import address_book, arguments, ddlp, epoch, images  # noqa: F401

COMPILER = "arm-linux-gnueabihf-gcc"


# test_doctor.py's board has gcc's kernel. Of test_training.py's boards one has zig's, the other none.
@pytest.mark.slow
def test_cross_compiled_checked_and_bit_identical(
    board: Any,
    images: list[Path],  # noqa: F811
    ddlp: Callable[..., str],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if shutil.which(COMPILER) is None:
        assert "CI" not in os.environ, f"no {COMPILER}: apt install gcc-arm-linux-gnueabihf libc6-dev-armhf-cross"
        pytest.skip(f"no {COMPILER}: apt install gcc-arm-linux-gnueabihf libc6-dev-armhf-cross")
    no_cross_compiler = path_without_cross_compilers(tmp_path / "programs")
    expected, _ = epoch(images, strategy="cpu")

    def check(kernel: str) -> None:
        (told,) = json.loads(ddlp("status", "csd0", "--json"))
        assert told["status"]["versions"]["kernel"] == kernel
        got, report = epoch(images, csd="csd0", strategy="csd")
        assert report.batches_csd and all(torch.equal(got[k], expected[k]) for k in expected)

    with monkeypatch.context() as without:
        without.setenv("PATH", no_cross_compiler)
        without.setitem(sys.modules, "ziglang", None)
        told = ddlp(*arguments(board, "--kernel", "auto"))
    assert f"none: Pillow does the work, because there is no C compiler on the device, and there is no {COMPILER} on" in told
    assert "apt-get install gcc libc6-dev there, or apt-get install gcc-arm-linux-gnueabihf or pip install ziglang on" in told
    check("none")

    if importlib.util.find_spec("ziglang") is None:
        assert "CI" not in os.environ, "no ziglang: scripts/test.sh installs it"
    else:
        with monkeypatch.context() as without:
            without.setenv("PATH", no_cross_compiler)
            assert "neon, cross-compiled with zig" in ddlp("deploy", "--name", "csd0")
        check("neon")
        assert "none, as you chose" in ddlp("deploy", "--name", "csd0", "--kernel", "none")
        check("none")

    told = ddlp("deploy", "--name", "csd0", "--kernel", "auto")
    assert f"neon, cross-compiled with {COMPILER}" in told and "decodes with Pillow's libjpeg-turbo 2.1" in told
    assert book.load("csd0").kernel.startswith("neon, cross-compiled")
    check("neon")
    assert "Nothing had to be changed." in ddlp("deploy", "--name", "csd0")
    assert "differ" in ddlp("parity", "csd0")  # exit status 0: no operator differs. test_doctor.py's table has all of them
    ddlp("deploy", "--name", "csd0", "--uninstall")
    assert board.run("ls -A ~ddlp").stdout.split() == board.run("ls -A /etc/skel; echo .ssh").stdout.split()
