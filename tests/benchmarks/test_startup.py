"""`python -m benchmarks.startup`, run small."""

import json
import os

import pytest
from PIL import Image

from benchmarks.data import MEANS_KB, set_directory
from benchmarks.startup import _around
from tests.benchmarks.bench import bench


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs, one for each side")
def test_a_short_run(tmp_path, capsys, forked):
    directory = set_directory(tmp_path, "imagenet1", MEANS_KB[0])
    (directory / "train" / "class").mkdir(parents=True)
    for k in range(5):
        Image.effect_noise((60 + k, 50), 40).save(directory / "train" / "class" / f"{k}.jpg")
    (directory / "dataset.json").write_text("{}")  # marks the set as complete
    arguments = ["--data", str(tmp_path), "--rounds", "1", "--workers", "1", "--sizes", "small", "--batch", "4", "--json"]
    assert bench(["startup", *arguments]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [line["name"] for line in result["lines"]] == ["DataLoader", "DDLPLoader, cpu", "DDLPLoader, wrr"]
    assert all(len(line["seconds"]) == 1 and 0 < line["seconds"][0] < 60 for line in result["lines"])
    peer, *ours = result["lines"]
    measured = [aim["measured"] for aim in result["aims"]]
    assert measured == [pytest.approx(peer["seconds"][0] / line["seconds"][0]) for line in ours]


def test_a_large_set_repeats_its_files_class_by_class():
    there = [("a/1", 0), ("a/2", 0), ("b/1", 1)]
    assert _around(there, 7) == [("a/1", 0)] * 3 + [("a/2", 0)] * 3 + [("b/1", 1)]
