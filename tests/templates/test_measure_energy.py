"""The template as a user runs it: its small form, with a recorded RAPL domain that does not change, and a user's meter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import measure_energy
from ddlp.observe.energy import load

TEMPLATE = Path(__file__).resolve().parents[2] / "templates" / "measure_energy.py"


def test_it_compares_with_dataloader_by_default(capsys):
    with pytest.raises(SystemExit):
        measure_energy.main(["--help"])
    assert "default: ['dataloader', 'cpu'," in " ".join(capsys.readouterr().out.split())


def test_its_small_form_measures_each_strategy(tmp_path):
    powercap = tmp_path / "sys/class/powercap/intel-rapl:0"
    powercap.mkdir(parents=True)
    for name, value in (("name", "package-0"), ("energy_uj", "5000000"), ("max_energy_range_uj", "262143328850")):
        (powercap / name).write_text(value)
    (tmp_path / "wall").write_text("80 W\n")
    done = subprocess.run(
        [sys.executable, str(TEMPLATE), "--small", "--model", "resnet152", "--epochs", "1", "--strategy", "dataloader", "wrr",
         "--workers", "1", "--sys", str(tmp_path / "sys"), "--external", f"machine=file:{tmp_path}/wall", "--price", "0.5"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{TEMPLATE.parents[1]}:{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (report,) = (tmp_path / "runs").glob("measure_energy-resnet152-*[0-9].json")
    runs = {run["strategy"]: run for run in json.loads(report.read_text())["runs"]}
    results = load(report.with_suffix(".energy.json"))
    assert [one.label for one in results] == ["dataloader", "wrr"]
    for one in results:
        parts = {part.part: part for part in one.parts}
        assert set(parts) == {"machine", "cpu"} and one.how == "measured"
        assert parts["cpu"].joules == 0 and parts["machine"].covered > 0.98
        assert abs(one.total_j / one.seconds - 80) < 1e-6 and one.tariff.price_per_kwh == 0.5
        assert one.batches and one.samples == 48
        energy = runs[one.label]["energy"]
        assert energy["unit"] == "batch" and abs(energy["joules"] - one.total_j / one.batches) < 1e-9
    assert results[1].host_preparing_s is not None and results[1].strategy == "wrr"
    assert "machine" in done.stdout and "measured" in done.stdout and "modelled" not in done.stdout.split("no meter")[0]
