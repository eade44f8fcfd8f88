"""`python -m benchmarks.transfer`, run small with a real engine: its figures must agree with each other."""

import json

from tests.benchmarks.bench import bench


def test_a_short_run(capsys):
    arguments = ["transfer", "--batch", "64", "--size", "64", "--batches", "3"]
    assert bench([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    lines = {line["name"]: line for line in result["lines"]}
    assert (result["batch"], result["size"]) == (64, 64) and result["machine"]["processor"]
    assert set(lines) == {"bare read", "mapped, from the spool", "through the spool", "over the socket"}
    file_mb = (4096 + 64 * 64 * 64 * 3) / 1e6
    for line in lines.values():
        assert 0 < line["median_s"] <= line["worst_s"]
        assert abs(line["mb_per_s"] * line["median_s"] - file_mb) < 1e-6
    assert bench(arguments) == 0
    table = capsys.readouterr().out
    assert "over the socket" in table and "engine CPU ms" in table
