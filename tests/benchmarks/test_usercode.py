"""`python -m benchmarks.usercode`, run small."""

import json

import pytest

from benchmarks.user_images import IMAGE_SETS, missing
from benchmarks.usercode import SETS
from tests.benchmarks.bench import bench


def test_a_short_run(capsys):
    arguments = ["--rounds", "1", "--batch", "4", "--part", "0.001", "--workers", "0"]
    assert bench(["usercode", *arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(line["data"], line["workers"]) for line in result["lines"]] == [(name, 0) for name in SETS]
    assert all(len(line["theirs"]) == len(line["ours"]) == 1 and line["ours"][0] > 0 for line in result["lines"])
    assert [aim["measured"] for aim in result["aims"]] == [line["ours"][0] / line["theirs"][0] for line in result["lines"]]


@pytest.mark.slow
def test_with_workers(capsys):
    arguments = ["--rounds", "1", "--batch", "4", "--part", "0.001", "--workers", "2", "--sets", "trivial", "IterableDataset"]
    assert bench(["usercode", *arguments]) == 0
    assert "ours / DataLoader" in capsys.readouterr().out


def test_sets_of_images(small_sets, capsys):
    sets = [name for name in IMAGE_SETS if not missing(name)]
    arguments = ["--rounds", "1", "--batch", "4", "--data", str(small_sets), "--sets", *sets]
    assert bench(["usercode", *arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [(line["data"], line["workers"]) for line in result["lines"]] == [(name, 1) for name in sets]
    assert all(line["theirs"][0] > 0 and line["ours"][0] > 0 for line in result["lines"])
