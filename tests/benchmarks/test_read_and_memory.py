"""`python -m benchmarks.read` and `python -m benchmarks.memory`, run small."""

import json

from benchmarks.read import CHECKSUM, RAW, VERIFIED, WAYS
from tests.benchmarks.bench import bench


def test_read(capsys, tmp_path):
    arguments = ["read", "--batch", "8", "--size", "64", "--rounds", "2", "--reads", "3", "--spool", str(tmp_path)]
    assert bench([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["rates"]) == {
        *(VERIFIED.format(way) for way in WAYS), *(RAW.format(way) for way in WAYS[1:]), CHECKSUM,
    }  # fmt: skip
    assert all(len(rates) == 2 and min(rates) > 0 for rates in result["rates"].values())
    assert abs(result["file_mb"] - (4096 + 8 * 64 * 64 * 3) / 1e6) < 1e-9 and not list(tmp_path.iterdir())
    assert bench(arguments) == 0
    assert f"verified / raw, {WAYS[0]}" in capsys.readouterr().out


def test_memory(capsys, small_sets):
    arguments = ["--data", str(small_sets), "--batch", "4", "--workers", "1", "--steps", "3", "--step-s", "0.4"]
    assert bench(["memory", *arguments, "--rounds", "1", "--json"]) == 0
    lines = {line["name"]: line for line in json.loads(capsys.readouterr().out)["lines"]}
    assert [line["processes"] for line in lines.values()] == [2, 1, 3]  # one worker; no worker; the engine and its worker
    for line in lines.values():
        assert 50 < line["median_mb"][0] <= line["peak_mb"][0] and 0 <= line["unmapped_mb"][0] < line["peak_mb"][0]
