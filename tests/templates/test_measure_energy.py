"""The template as a user runs it: its small form, with a recorded RAPL domain that does not change, and a user's meter."""

from __future__ import annotations

import json

import pytest

import measure_energy
from ddlp.observe.energy import load
from tests.templates.test_templates import run, status


def test_it_compares_with_dataloader_by_default(capsys):
    with pytest.raises(SystemExit):
        measure_energy.main(["--help"])
    assert "default: ['dataloader', 'cpu'," in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow  # test_templates.py has it measure one before a device fails
def test_its_small_form_measures_each_strategy(forks, tmp_path):
    powercap = tmp_path / "sys/class/powercap/intel-rapl:0"
    powercap.mkdir(parents=True)
    for name, value in (("name", "package-0"), ("energy_uj", "5000000"), ("max_energy_range_uj", "262143328850")):
        (powercap / name).write_text(value)
    (tmp_path / "wall").write_text("80 W\n")
    arguments = [
        "--small", "--model", "resnet152", "--epochs", "1", "--strategy", "dataloader", "wrr", "--workers", "1",
        "--sys", str(tmp_path / "sys"), "--external", f"machine=file:{tmp_path}/wall", "--price", "0.5",
    ]  # fmt: skip
    printed = run(forks, tmp_path, [("measure_energy", arguments, 1)])
    assert status(printed, "measure_energy") == 0, printed
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
    assert "machine" in printed and "measured" in printed and "modelled" not in printed.split("no meter")[0]
