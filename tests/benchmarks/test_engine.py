"""`python -m benchmarks.engine`, run small on this computer. tests/board/test_engine.py runs it on a board."""

from __future__ import annotations

import json

import numpy as np

from csd_engine.kernels import kernel
from tests.benchmarks.bench import bench
from tests.engine_process import make_jpegs

SMALL = ("--rounds", "2", "--seconds", "0.2", "--batch", "4")


def test_on_this_computer(tmp_path, capsys):
    make_jpegs(tmp_path, np.random.default_rng(7))
    assert bench(["engine", "--local", "--images", str(tmp_path), *SMALL, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["engine"]) == len(result["bare"]) == 2 and min(result["engine"] + result["bare"]) > 0
    assert result["workers"] == 1 and len(result["pillow"]) == 2 and result["images"] % 4 == 0
    assert result["kernel"] == ("none" if kernel() is None else kernel().variant)


def test_what_is_missing_is_said(tmp_path, capsys):
    assert bench(["engine"]) == 2
    assert "--local" in capsys.readouterr().err
    assert bench(["engine", "--local", "--images", str(tmp_path / "none")]) == 1
    assert "--images" in capsys.readouterr().err
