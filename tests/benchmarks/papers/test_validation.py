"""`benchmarks.papers.validation`: the paper's figures come out, and a model with an error in it fails."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.papers import table6, validation
from benchmarks.papers.events import paper_epoch
from benchmarks.papers.table6 import Cell, cells, clean_cells
from benchmarks.papers.validation import Prediction, main, validate

VALIDATION = validate()


def errors(part: str, strategy: str) -> list[float]:
    found = [one for one in VALIDATION.predictions if (one.part, one.strategy) == (part, strategy)]
    return [abs(one.rules_s / one.printed_s - 1) for one in found]


def test_the_aims_are_those_asked_for():
    toy = [aim.rules for aim in VALIDATION.aims[:3]]
    assert toy == ["225 s, 800 + 200", "222.25 s, 778 + 222", "285.625 s, 1000 + 285"]
    mte, wrr = errors("Table VI, one GPU", "mte"), errors("Table VI, one GPU", "wrr")
    assert len(mte) == len(wrr) == 26
    assert max(mte) <= 0.01 and sum(mte) / 26 <= 0.0015 and max(wrr) <= 0.01 and sum(wrr) / 26 <= 0.004
    two, dali = ([*errors(part, "mte"), *errors(part, "wrr")] for part in ("Table VI, two GPUs", "Table VII, DALI on the GPU"))
    assert len(two) == 8 and max(two) <= 0.015
    assert len(dali) == 4 and max(dali) <= 0.0015


def test_wrong_cells_are_missed():
    wrong = [one for one in VALIDATION.predictions if one.part == "Table VI, cells that are wrong"]
    assert {(one.cell, one.processes) for one in wrong} == {
        ("AlexNet ImageNet1", 0), ("AlexNet ImageNet2", 0), ("AlexNet ImageNet2", 16),
        ("WRN ImageNet3", 16), ("ResNet152 ImageNet3", 0),
    }  # fmt: skip
    assert len(wrong) == 10 and all(abs(one.error) > 0.02 for one in wrong)
    assert {one.cpu_s for one in wrong if one.cell == "AlexNet ImageNet1"} == {48.48}  # as printed


def test_every_cell_of_table_vi_is_judged():
    assert (len(list(cells())), len(list(clean_cells()))) == (35, 26)  # 17 rows with 0 and 16 processes, and one corrected
    assert len(VALIDATION.predictions) == 2 * (35 + 2)


def test_the_formula_is_the_rules_limit():
    n, times = 100_000, (3.0, 9.0, 1.0)
    for strategy, split in (("mte", 75_000), ("wrr", None)):
        assert paper_epoch(n, *times, split)[0] / n == pytest.approx(validation._formula(strategy, *times), rel=1e-4)


def training_counted_as_preparing(patch):
    patch.setattr(Cell, "device_s", property(lambda cell: cell.csd_s))


def mte_in_place_of_wrr(patch):
    def epoch(n, cpu_s, device_s, csd_train_s, split=None, **rest):
        return paper_epoch(n, cpu_s, device_s, csd_train_s, split or validation.split(n, cpu_s, device_s), **rest)

    patch.setattr(validation, "paper_epoch", epoch)


def fitted_to_each_cell(patch):
    patch.setattr(Prediction, "error", 0.0)
PLANTED = {
    training_counted_as_preparing: "Table VI, one GPU, MTE: error of 26 cells, largest",
    mte_in_place_of_wrr: "Table VI, one GPU, WRR: error of 26 cells, largest",
    fitted_to_each_cell: "Table VI, cells that are wrong: error of 10 figures, least",
}


@pytest.mark.parametrize("plant", PLANTED)
def test_an_error_in_the_model_fails(plant, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        plant(patch)
        missed = {aim.what for aim in validate().missed}
        assert main([]) == 1
    table6._train_s.cache_clear()
    assert PLANTED[plant] in missed
    if plant is fitted_to_each_cell:
        assert len(missed) == 1
    said = capsys.readouterr()
    assert said.out.count("MISSED") == len(missed) == len(said.err.splitlines())
    assert f"validation: {PLANTED[plant]}: must be " in said.err


def test_the_command_prints_every_cell_and_aim(capsys):
    assert not VALIDATION.missed and main([]) == 0
    said = capsys.readouterr()
    assert said.err == "" and "MISSED" not in said.out and said.out.count(" met\n") == len(VALIDATION.aims)
    assert "  AlexNet ImageNet1        0  48.480   31.240  37.319  +19.46%" in said.out
    assert main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["predictions"]) == len(VALIDATION.predictions) and all(aim["met"] for aim in found["aims"])


def test_the_documentation_shows_its_output():
    text = (Path(__file__).parents[3] / "docs/paper.md").read_text()
    block = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[-1]
    shown = [line for line in block.splitlines() if line != "  ..."]
    assert len(shown) > 15 and not set(shown) - set(validation.table(VALIDATION).splitlines())
