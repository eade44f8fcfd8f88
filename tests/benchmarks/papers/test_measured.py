"""Where a measurement is put in the paper's tables. The reports are written by hand in the templates' format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers import measured
from ddlp.recording.events import Fetched, Joined, LeaseCancelled, LeaseGiven, Published
from tests.ddlp.observe.by_hand import BEGAN, TWO_SIDES, written

SETUP = {
    "model": "resnet152", "paper_model": "ResNet152", "pipeline": "imagenet1", "ranks": 1, "batch_size": 256, "device": "cuda",
    "backend": "native", "complete": True, "energy": None,
}  # fmt: skip


def one(strategy: str, workers: int, s_per_batch: float, **other: Any) -> dict[str, Any]:
    """A run whose host makes 3 of 4 batches, in a fourth of the time for one; the first of its epochs does not count."""
    figures = {"s_per_batch": s_per_batch, "host_cpu_s_per_batch": s_per_batch / 2}
    epoch = {"batches": 40, "samples": 400, "batches_cpu": 30, "batches_csd": 10, "rate_cpu": 10 / (s_per_batch / 4)}
    epochs = [{**epoch, "number": 0, "rate_cpu": 1.0}, {**epoch, "number": 1}]
    return {**SETUP, "strategy": strategy, "workers": workers, "figures": figures, "epochs": epochs, **other}


def text_of(tmp_path: Path, runs: list[dict[str, Any]], many: int | None = None) -> str:
    report = {"template": "train_imagenet", "accelerator": "GPU", "runs": runs}
    (tmp_path / "a.json").write_text(json.dumps(report))
    (tmp_path / "a.energy.json").write_text("[]")  # a file of another kind is skipped
    return measured.tables(measured.Measured(measured.read(tmp_path), None, many))


def lines_of(tmp_path: Path, runs: list[dict[str, Any]], many: int | None = None) -> dict[str, list[list[str]]]:
    """Our lines of each table, by the first word or two of its title."""
    found: dict[str, list[list[str]]] = {}
    for line in text_of(tmp_path, runs, many).splitlines():
        if line.startswith("## "):
            title = line[3:].split(":")[0]
        elif line.startswith("|") and "| own" in line:
            found.setdefault(title, []).append([cell.strip() for cell in line.split("|")[1:-1]])
    return found


def test_each_column_holds_its_strategy_and_number_of_workers(tmp_path: Path) -> None:
    runs = [
        one("cpu", 0, 3.0), one("cpu", 16, 1.0), one("cpu", 16, 2.0), one("csd", 3, 10.0), one("mte", 0, 2.4),
        one("wrr", 0, 3.3),
        one("mte", 16, 1.2), one("wrr", 16, 0.75), one("wrr", 16, 0.1, complete=False), one("wrr", 16, 0.1, backend="dali"),
        one("wrr", 8, 9.0),
    ]  # fmt: skip
    own, saved, *_ = lines_of(tmp_path, runs)["Table VI"]
    assert own[2:] == ["own: resnet152, batch 256, GPU", "3", "1.5 +- 0.71", "10", "2.4", "3.3", "1.2", "0.75"]
    assert saved[3:] == ["", "", "", "20.0 %", "-10.0 %", "20.0 %", "50.0 %"]
    own, *_ = lines_of(tmp_path, runs, 8)["Table VI"]
    assert own[-1] == "9"


def test_another_model_pipeline_or_number_of_accelerators_has_a_line_of_its_own(tmp_path: Path) -> None:
    runs = [one("wrr", 0, 1.0), one("wrr", 0, 2.0, ranks=2), one("wrr", 0, 3.0, batch_size=64), one("wrr", 0, 4.0, ranks=3)]
    own = lines_of(tmp_path, runs)["Table VI"]
    assert [(line[2], line[7]) for line in own if "saved" not in line[2]] == [
        ("own: resnet152, batch 256, GPU", "1"),
        ("own: resnet152, batch 64, GPU", "3"),
        ("own: resnet152, batch 256, GPU", "2"),
    ]
    paper = [line for line in text_of(tmp_path, runs).splitlines() if "| paper" in line]
    assert len([line for line in paper if "saved" not in line]) == 17 + 2 + 5 + 5 + 6


def test_dali_energy_and_figure_8(tmp_path: Path) -> None:
    vit = {"paper_model": "ViT", "model": "vit_b_16", "batch_size": 512}
    cifar = {"paper_model": "WRN18", "model": "wrn-16-8", "pipeline": "cifar10_gpu", "batch_size": 4096}
    metered = {"unit": "batch", "joules": 40.0, "how": "measured"}
    tables = lines_of(tmp_path, [
        one("dataloader", 16, 8.0, backend="torch", **vit), one("cpu", 16, 7.0, backend="dali", **vit),
        one("mte", 16, 6.0, backend="dali", **vit), one("mte", 16, 1.0, backend="dali_gpu", **vit),
        one("cpu", 16, 3.0, backend="dali_gpu", **vit), one("wrr", 16, 5.0, backend="dali_gpu", **vit),
        one("csd", 16, 4.0), one("wrr", 16, 2.0, energy=metered),
        one("dataloader", 16, 4.0, backend="torch", **cifar), one("csd", 0, 8.0, **cifar), one("wrr", 16, 3.0, **cifar),
    ])  # fmt: skip
    dali, torchs, other, *_ = tables["Table VII"]
    assert dali[3:] == ["8", "7", "3", "6", "5"]
    assert torchs[2:] == ["own against torchvision, saved", "", "", "", "25.0 %", "37.5 %"]
    assert other[2:] == ["own against DALI, saved", "", "", "", "-100.0 %", "-66.7 %"]  # DALI_G, the faster one
    resnet = next(line for line in tables["Table VIII"] if "resnet152" in line[2])
    batches = 100 * 5005  # batches of 256 from 1,281,167 images
    assert resnet[5] == f"1 J, {1.0 * batches / 3.6e6 * 0.095:.4g} USD (modelled)"
    assert resnet[9] == f"40 J, {40.0 * batches / 3.6e6 * 0.095:.4g} USD"
    (resnet,) = (line for line in tables["Table IX"] if "resnet152" in line[2])
    assert resnet[9] == "0.375"  # 3 of 4 batches, a fourth of 2 s each
    bars = [row[1:] for row in tables["Figure 8"] if row[0].startswith("8a")]
    assert ["WRR_16", "own: wrn-16-8, batch 4096, GPU", "25.0 %", "62.5 %"] in bars


def test_nothing_measured_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert measured.main(["--report", str(tmp_path)]) == 1
    assert "no finished runs" in capsys.readouterr().err


def rows_of(tmp_path: Path, title: str, runs: list[dict[str, Any]]) -> dict[str, list[list[str]]]:
    """All lines of a table by whose they are, the paper's too."""
    (text,) = (part for part in text_of(tmp_path, runs).split("## ") if part.startswith(f"{title}:"))
    found: dict[str, list[list[str]]] = {}
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            found.setdefault(cells[2], []).append(cells[3:])
    return found


def test_table_9_has_wall_time_and_processor_seconds(tmp_path: Path) -> None:
    never = [{"number": 0, "batches": 40, "samples": 400, "batches_cpu": 0, "batches_csd": 40, "rate_cpu": None}]
    unknown = [{**never[0], "batches_cpu": 10, "batches_csd": 30}]
    runs = [
        one("dataloader", 0, 4.0, backend="torch"), one("dataloader", 8, 2.0, backend="torch"), one("wrr", 0, 3.0),
        one("csd", 0, 9.0, epochs=never), one("mte", 0, 3.5, epochs=unknown),
    ]  # fmt: skip
    lines = rows_of(tmp_path, "Table IX", runs)
    (own,) = (line for whose, (line, *_) in lines.items() if whose.startswith("own: "))
    assert own[:5] == ["0.75", "0.375", "0", "-", "0.5625"]  # an unknown rate is no time
    (processor,) = lines["own, processor s"]
    assert processor == ["2", "1", "4.5", "1.75", "1.5", "-", "-", "2", "1"]
    assert lines["whose"][0][-2:] == ["DataLoader_0, processor s", "DataLoader_8, processor s"]
    assert lines["own, saved"][0][4] == "25.0 %"


def test_figure_1_has_a_line_for_each_model_of_a_study(tmp_path: Path) -> None:
    study = {
        "template": "bottleneck_study", "accelerator": None, "runs": [],
        "options": {"strategy": ["dataloader"], "batch_size": 256, "device": "cpu"},
        "figures": {"preprocessing_s": {"0": [3.0, 5.0], "16": [1.0, 1.0]}, "training_s": {"swin_t": [2.0, 2.0]}},
    }  # fmt: skip
    (tmp_path / "b.json").write_text(json.dumps(study))
    (tmp_path / "a.json").write_text(json.dumps({"template": "t", "accelerator": None, "runs": [one("wrr", 0, 1.0)]}))
    assert measured.main(["--report", str(tmp_path)]) == 0
    text = (tmp_path / "paper_tables.md").read_text().partition("## Figure 1")[2]
    line = next(line for line in text.splitlines() if line.startswith("| swin_t"))
    assert [cell.strip() for cell in line.split("|")[2:-1]] == ["own: dataloader, batch 256, cpu", "2", "0.5"]
    assert "not measured" in measured.figure1([])


def test_table_2_has_all_rows_and_a_column_for_pytorch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The epochs by hand: the CPU prepares 12 s, the CSD 10.5 s, both at once 7.5 s; DataLoader has no CSD."""
    alone = [event for event in TWO_SIDES if not isinstance(event, (Joined, LeaseGiven, LeaseCancelled, Published, Fetched))]
    for name, events, devices in (("wrr-seed0", TWO_SIDES, ["d"]), ("dataloader-seed0", alone, [])):
        (tmp_path / name).mkdir()
        written(tmp_path / name / "0000.jsonl", events, BEGAN._replace(strategy=name.split("-")[0], devices=devices))
    runs = [one("dataloader", 1, 4.0, seed=0), one("wrr", 1, 3.0, seed=0), one("wrr", 1, 3.0, seed=1)]  # 1: not recorded
    report = {"template": "train_imagenet", "accelerator": "GPU", "options": {"record": str(tmp_path)}, "runs": runs}
    text = measured.tables(measured.Measured([report]), [report]).partition("## Table II:")[2].partition("## ")[0]
    head, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|"))
    assert head == ["whose", "", "PyTorch", "WRR"] and {line[0] for line in lines} == {"own: resnet152, batch 256, GPU"}
    cells = {line[1]: line[2:] for line in lines}
    assert len(cells) == 6
    assert cells["host beside csd"] == ["0.0 %", "62.5 %"]
    assert cells["csd beside host"] == ["-", "71.4 %"]
    assert cells["csd beside training"][0] == "-"
    (tmp_path / "a.json").write_text(json.dumps(report))
    (tmp_path / "wrr-seed0" / "0000.jsonl").write_text("nonsense\n")
    assert measured.main(["--report", str(tmp_path)]) == 1
    assert "0000.jsonl, line 1" in capsys.readouterr().err
