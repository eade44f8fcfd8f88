"""`python -m benchmarks.engine`, run small: on this computer, and on a device over SSH."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.engine import IMAGES
from csd_engine.kernels import kernel
from ddlp.devices import address_book as book
from tests.benchmarks.bench import bench
from tests.ddlp.deploy.sshd import Sshd
from tests.engine_process import EngineProcess, make_jpegs
from tests.needs import need

ROOT = Path(__file__).parents[2]
SMALL = ("--rounds", "2", "--seconds", "0.2", "--batch", "4")


@pytest.fixture
def images(tmp_path):
    (tmp_path / "images").mkdir()
    make_jpegs(tmp_path / "images", np.random.default_rng(7))
    return tmp_path / "images"


def check(capsys, *arguments):
    assert bench(["engine", *arguments, *SMALL, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["engine"]) == len(result["bare"]) == 2 and min(result["engine"] + result["bare"]) > 0
    assert result["images"] % (4 * result["workers"]) == 0
    return result


def test_on_this_computer(images, capsys):
    result = check(capsys, "--local", "--images", str(images))
    assert result["workers"] == 1 and len(result["pillow"]) == 2
    assert result["kernel"] == ("none" if kernel() is None else kernel().variant)


@pytest.fixture
def device(images, tmp_path, monkeypatch) -> Iterator[EngineProcess]:
    """csd0: an engine of two workers on a computer that is reached by SSH. Its path of the images differs from the host's."""
    need("ssh", "sshd")
    there = tmp_path / "there"
    shutil.copytree(images, there / "images")
    sshd, home = Sshd(tmp_path / "sshd"), Path(tempfile.mkdtemp(prefix="e-"))
    (sshd.home / "our own").mkdir()
    (sshd.home / "our own" / "current").symlink_to(ROOT)
    monkeypatch.setenv("DDLP_HOME", str(tmp_path / "book"))
    engine = EngineProcess(home, "--root", f"{images}={there / 'images'}", workers=2)
    roots = ((str(tmp_path / "labels"), "/labels"), (str(images), str(there / "images")))
    book.save(book.DeviceRecord(
        "csd0", "board", sshd.options, engine.address, roots,
        str(engine.spool), str(engine.spool), str(sshd.home / "our own"), sys.executable, "0" * 32, "x86_64",
    ))  # fmt: skip
    for key in ("server.key", "host.key_secret"):
        shutil.copy(engine.keys / key, book.directory("csd0") / key)
    yield engine
    assert engine.end() == 0
    sshd.stop()
    shutil.rmtree(home)


def test_on_a_device(device, images, tmp_path, capsys, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for path in images.rglob("*.jpg"):  # the host reads only the names: both sides of the comparison run on the device
        path.write_bytes(b"")
    assert check(capsys, "csd0", "--images", str(images / "class1"))["workers"] == 2
    assert check(capsys, "csd0")["workers"] == 2  # uses the first root that has images
    for elsewhere in (tmp_path / "there", IMAGES):
        assert bench(["engine", "csd0", "--images", str(elsewhere), *SMALL]) == 1
        assert "below none of csd0's roots" in capsys.readouterr().err
    shutil.rmtree(images)
    assert bench(["engine", "csd0", *SMALL]) == 1
    assert f"({tmp_path / 'labels'}, {images}). Mount them" in capsys.readouterr().err
    assert list(Path().iterdir()) == [], "the command made images"


def test_what_is_missing_is_said(tmp_path, capsys):
    assert bench(["engine"]) == 2
    assert "--local" in capsys.readouterr().err
    assert bench(["engine", "--local", "--images", str(tmp_path / "none")]) == 1
    assert "--images" in capsys.readouterr().err
