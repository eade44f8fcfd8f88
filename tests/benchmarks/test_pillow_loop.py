"""The bare loop does the same work as the engine: the same files, crops and pixels."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from benchmarks.engine import LOOP, crops_of
from benchmarks.pillow_loop import fill, measure
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.resample import native_order
from tests.engine_process import EPOCH, SEED, Recipe, make_jpegs

BILINEAR = int(Image.Resampling.BILINEAR)


def test_its_pixels_are_the_engines(tmp_path):
    files = make_jpegs(tmp_path, np.random.default_rng(8))
    Image.open(tmp_path / files[3]).convert("CMYK").save(tmp_path / files[3])  # both convert it
    recipe = Recipe(tmp_path, files, tmp_path / "manifest")
    data = recipe.pipeline.to_data()
    recipe.pipeline = Pipeline.parse({**data, "order": native_order(), "ops": data["ops"][:1]})
    crops = crops_of(recipe.pipeline, tmp_path, files, SEED, EPOCH)
    rows = np.zeros((len(files), 32, 32, 3), np.uint8)
    fill(rows, [(str(tmp_path / name), crops[index]) for index, name in enumerate(files)], BILINEAR)
    assert np.array_equal(rows, recipe.expected([(index, 0) for index in range(len(files))]))
    assert len(set(crops)) > 20


def test_each_batch_is_made_by_one_of_its_processes(tmp_path):
    """A truncated file stops the process that reads it, wherever it stands in the order."""
    files = make_jpegs(tmp_path, np.random.default_rng(8))
    half = tmp_path / "half.jpg"
    half.write_bytes((tmp_path / files[0]).read_bytes()[:-600])
    work = {"paths": [*(str(tmp_path / name) for name in files), str(half)], "crops": [(0, 0, 9, 9)] * 25, "size": 8,
            "resample": BILINEAR, "cpus": [min(os.sched_getaffinity(0))]}  # fmt: skip
    assert measure(**work, items=list(range(24)) * 2, batch=5, processes=2) > 0
    for place in (0, 23):
        items = [24 if number == place else number for number in range(24)]
        with pytest.raises(RuntimeError, match="status"):
            measure(**work, items=[1, *items], batch=4, processes=3)
    done = subprocess.run(
        [sys.executable, "-c", LOOP], input=json.dumps({**work, "items": [0], "batch": 8, "processes": 1}),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert float(done.stdout) > 0
