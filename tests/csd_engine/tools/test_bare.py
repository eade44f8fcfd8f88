"""The bare loop does the same work as the engine: the same files, crops and pixels."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from csd_engine.errors import EngineError
from csd_engine.tools.bare import _task, fill, measure
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.resample import FILTERS, native_order
from tests.engine_process import EPOCH, SEED, Recipe, make_jpegs


def only_crops(recipe):
    data = recipe.pipeline.to_data()
    return Pipeline.parse({**data, "order": native_order(), "ops": data["ops"][:1]})


def test_its_pixels_are_the_engines(tmp_path):
    root = tmp_path
    files = make_jpegs(root, np.random.default_rng(8))
    Image.open(root / files[3]).convert("CMYK").save(root / files[3])  # both convert it
    recipe = Recipe(root, files, tmp_path / "manifest")
    recipe.pipeline = only_crops(recipe)
    indices = list(range(len(files)))
    tasks = [_task(str(root / files[index]), index, recipe.pipeline, SEED, EPOCH)[0] for index in indices]
    rows = np.zeros((len(files), 32, 32, 3), np.uint8)
    fill(rows, tasks, FILTERS["bilinear"])
    assert np.array_equal(rows, recipe.expected([(index, 0) for index in indices]))
    assert len({box for _, box in tasks}) > 20


def test_each_batch_is_made_by_one_of_its_processes(recipe, jpegs, tmp_path):
    """A truncated file stops the process that reads it, wherever it stands in the order."""
    root, files = jpegs
    paths = [str(root / name) for name in files]
    assert measure(paths, only_crops(recipe), SEED, EPOCH, list(range(24)) * 2, 5, 2) > 0
    with pytest.raises(EngineError, match="crops and resizes only"):
        measure(paths, recipe.pipeline, SEED, EPOCH, list(range(24)), 5, 1)
    half = tmp_path / "half.jpg"
    half.write_bytes((root / files[0]).read_bytes()[:-600])
    for place in (0, 23):
        items = [24 if number == place else number for number in range(24)]
        with pytest.raises(EngineError, match="status"):
            measure([*paths, str(half)], only_crops(recipe), SEED, EPOCH, [1, *items], 4, 3)


def test_as_a_process(recipe, jpegs):
    root, files = jpegs
    work = {"paths": [str(root / name) for name in files], "pipeline": only_crops(recipe).to_data(), "seed": 0, "epoch": 0,
            "items": list(range(24)), "batch": 8, "processes": 1, "cpus": [min(os.sched_getaffinity(0))]}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "csd_engine.tools.bare"], input=json.dumps(work), capture_output=True, text=True, check=True
    )
    answer = json.loads(done.stdout)
    assert answer["images"] == 24 and answer["seconds"] > 0 and answer["pillow"]
