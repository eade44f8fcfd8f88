"""The kernel that `ddlp deploy` brings to a device on this machine: compiled there, here, or none. tests/board: on ARM."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from csd_engine.kernels.compilers import system
from csd_engine.machine.build import build
from ddlp.deploy.kernel import NotMade, cross_compile
from tests.ddlp.deploy.local_device import Device, ddlp, epoch, tree
from tests.ddlp.deploy.quick import compile_once
from tests.needs import need


@pytest.fixture
def needs_a_compiler() -> None:
    need("cc", "ssh", "sshd")


def where(device: Device) -> Path:
    return device.home / "engines" / build() / "csd_engine" / "kernels"


def status(capsys: pytest.CaptureFixture[str]) -> str:
    (told,) = json.loads(ddlp(capsys, "status", "csd0", "--json"))
    kernel: str = told["status"]["versions"]["kernel"]
    assert told["warnings"] == [] and kernel in ddlp(capsys, "status", "csd0")
    return kernel


def doctor(capsys: pytest.CaptureFixture[str]) -> dict[str, dict]:
    answer = json.loads(ddlp(capsys, "doctor", "csd0", "--json"))
    return {one["check"]: one for one in answer["checks"]}


def test_without_zig_too_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    with pytest.raises(NotMade, match="there is no aarch64-linux-gnu-gcc on this host") as caught:
        cross_compile("aarch64-linux-gnu", tmp_path / "kernel.so")
    assert caught.value.way_out == "apt-get install gcc-aarch64-linux-gnu or pip install ziglang on this host"


@pytest.mark.parametrize("target", ["arm-linux-gnueabihf", "aarch64-linux-gnu", "x86_64-linux-gnu"])
@pytest.mark.some(1)
def test_a_cross_compiled_kernel_asks_for_no_new_glibc(target: str, tmp_path: Path) -> None:
    """Linked as usual, it would need the host's version of dlopen: GLIBC_2.34."""
    need("cc" if target == system() else f"{target}-gcc")
    assert "gcc" in compile_once(target, tmp_path / "kernel.so") or target == system()
    needed = re.findall(rb"GLIBC_(\d+)\.(\d+)", (tmp_path / "kernel.so").read_bytes())
    assert all((int(major), int(minor)) <= (2, 17) for major, minor in needed)  # 2.17 is the first glibc for aarch64


@pytest.mark.slow
def test_compiled_there_taken_away_compiled_here(needs_a_compiler: None, make_device: Callable[..., Device], capsys) -> None:
    device = make_device()
    told = ddlp(capsys, *device.arguments("--kernel", "auto"))
    assert "compiled on the device with cc" in told and "decodes with Pillow's libjpeg-turbo" in told
    assert re.search(rf"^kernel +{status(capsys)}, compiled on the device", told, re.MULTILINE)
    found = doctor(capsys)["kernel"]
    assert found["level"] == "ok" and f"{status(capsys)}, compiled on the device" in found["what"]
    before = tree(device.home)
    assert "Nothing had to be changed." in ddlp(capsys, "deploy", "--name", "csd0") and tree(device.home) == before
    expected = epoch(device, strategy="cpu")
    got = epoch(device, csd="csd0", strategy="csd")
    assert device.report.batches_csd and all(torch.equal(got[k], expected[k]) for k in expected)

    engine = device.engine()
    assert "none, as you chose" in ddlp(capsys, "deploy", "--name", "csd0", "--kernel", "none")
    assert status(capsys) == "none" and device.engine() != engine and not list(where(device).glob("_kernel*"))
    found = doctor(capsys)["kernel"]
    assert found["level"] == "ok" and "as you chose" in found["what"]
    assert "Nothing had to be changed." in ddlp(capsys, "deploy", "--name", "csd0"), "the choice must stay"
    got = epoch(device, csd="csd0", strategy="csd")
    assert all(torch.equal(got[k], expected[k]) for k in expected)

    assert "cross-compiled with cc" in ddlp(capsys, "deploy", "--name", "csd0", "--kernel", "cross")
    assert status(capsys) != "none" and "Nothing had to be changed." in ddlp(capsys, "deploy", "--name", "csd0")
    (where(device) / "_kernel.so").write_bytes(b"damaged")
    assert "cross-compiled with cc" in ddlp(capsys, "deploy", "--name", "csd0") and status(capsys) != "none"
