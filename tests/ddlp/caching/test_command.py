"""`ddlp cache`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from csd_engine.cache.segments import Sample
from csd_engine.cache.shelf import Shelf
from csd_engine.cache.shelves import Shelves
from csd_engine.data.base import Origin
from ddlp import cli

KEYS = ("ab" * 16, "cd" * 16)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    for key in KEYS:
        about = {"data set": "Folder", "point": "pixels", "samples": 9}
        shelf = Shelf(Shelves(tmp_path, 1 << 30), key, about, 9, 3, pytest.fail)
        for source in range(5):
            shelf.keep([Sample(source, Origin(1, 1, 1), np.full((20, 20, 3), source, np.uint8))], 0.5)
        shelf.close()
    (tmp_path / "shelf-notes.txt").write_text("mine")
    return str(tmp_path)


def test_ls(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "ls", "--dir", directory]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert sorted(line.split()[0] for line in lines[1:]) == ["abababababab", "cdcdcdcdcdcd"]
    assert all("5 of 9" in line and "Folder" in line and "2 s" in line for line in lines[1:])
    assert cli.main(["cache", "ls", "ab", "--json", "--dir", directory]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["key"], one["samples"], one["in_use"]) == (KEYS[0], 5, False)


def test_verify(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "verify", "--dir", directory]) == 0
    (file,) = Path(directory, f"shelf-{KEYS[1]}").glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[4100] ^= 1
    file.write_bytes(content)
    assert cli.main(["cache", "verify", "--dir", directory]) == 1
    assert f"cdcdcdcdcdcd/{file.name}: a sample's checksum is another one" in capsys.readouterr().out
    assert cli.main(["cache", "verify", "--dir", directory]) == 0


def test_forget(directory: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "forget", "--dir", directory]) == 2
    assert cli.main(["cache", "forget", "nothing", "--dir", directory]) == 1
    shelf = Shelf(Shelves(directory, 0), KEYS[0], {}, 9, 3, pytest.fail)
    assert cli.main(["cache", "forget", "--all", "--dir", directory]) == 1
    assert "abababababab" in capsys.readouterr().err
    shelf.close()
    assert cli.main(["cache", "forget", "abab", "--dir", directory]) == 0
    assert sorted(os.listdir(directory)) == [".lock", "shelf-notes.txt"]
    assert cli.main(["cache", "ls", "--dir", directory]) == 0
    assert "Nothing is kept." in capsys.readouterr().out


def test_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.main(["cache", "ls"]) == 0
    assert str(tmp_path / "ddlp" / "samples") in capsys.readouterr().err
    assert cli.main(["cache", "ls", "--dir", str(tmp_path / "other")]) == 1
