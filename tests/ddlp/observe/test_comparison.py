"""`ddlp report A B C`: its figures are the means of what the analysis says of each run; which epochs count."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from ddlp.cli import main
from ddlp.errors import DDLPError
from ddlp.observe import Analysis, analyse, read_run
from ddlp.observe.energy import load
from ddlp.observe.report import read_comparison, write_comparison
from tests.ddlp.observe.by_hand import BEGAN, TWO_SIDES, WITH_GPUS, written
from tests.ddlp.observe.drawings import Drawings, drawings
from tests.ddlp.observe.html_page import Page
from tests.ddlp.observe.test_report import figure, near, part, seconds

__all__ = ["drawings"]

NAMES = ("dataloader", "wrr-seed0", "wrr-seed1")


@pytest.fixture(scope="module")
def page(three_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    out = tmp_path_factory.mktemp("page")
    assert main(["report", *(str(three_runs / name) for name in NAMES), "--out", str(out)]) == 0
    return Page(out / "comparison.html")


@pytest.fixture(scope="module")
def counted(three_runs: Path) -> dict[str, list[Analysis]]:
    """The second epoch of each run, by strategy."""
    found: dict[str, list[Analysis]] = {}
    for name in NAMES:
        first, second = map(analyse, read_run(three_runs / name))
        assert (first.epoch, second.epoch) == (0, 1)
        found.setdefault(name.split("-")[0], []).append(second)
    return found


def rows(page: Page, heading: str) -> dict[str, dict[str, str]]:
    head, *lines = page.tables[heading]
    return {line[0]: dict(zip(head[1:] if len(head) == len(line) else head, line[1:], strict=True)) for line in lines}


def test_times_and_their_spread(page: Page, counted: dict[str, list[Analysis]]) -> None:
    found = rows(page, "Time of an epoch")
    assert list(found) == ["dataloader", "wrr"]
    rates = {name: statistics.fmean(one.images_per_s for one in those) for name, those in counted.items()}
    for name, those in counted.items():
        times, line = [one.wall_s for one in those], found[name]
        assert line["runs"] == str(len(those))
        assert seconds(line["epoch"]) == near(statistics.fmean(times))
        low, high = map(seconds, line["least to most"].split(" to "))
        assert (low, high) == (near(min(times)), near(max(times)))
        assert figure(line["images/s"]) == pytest.approx(rates[name], rel=0.01)
        assert float(line["times dataloader"]) == pytest.approx(rates[name] / rates["dataloader"], abs=0.006)
    assert found["dataloader"]["deviation"] == "-"
    assert seconds(found["wrr"]["deviation"]) == near(statistics.stdev(one.wall_s for one in counted["wrr"]))


def test_who_prepared_what(page: Page, counted: dict[str, list[Analysis]]) -> None:
    found = rows(page, "Who prepared what")
    for name, those in counted.items():
        csd = statistics.fmean(one.batches["csd"] for one in those)
        assert figure(found[name]["by devices"]) == part(csd, 24)
        assert float(found[name]["device batches"]) == pytest.approx(csd, rel=0.01)
        assert seconds(found[name]["host's processor time a batch"]) >= 0
    assert "host" in found["wrr"]["rates, images/s"] and found["dataloader"]["by devices"] == "0.0 %"


def test_waiting_by_cause(page: Page, counted: dict[str, list[Analysis]]) -> None:
    found = rows(page, "Waiting")
    for name, those in counted.items():
        wall_s = statistics.fmean(one.wall_s for one in those)
        assert figure(found[name]["waiting"]) == part(statistics.fmean(one.stages["waiting"] for one in those), wall_s)
        for cause in {cause for one in those for cause in one.seconds}:
            assert figure(found[name][cause]) == part(statistics.fmean(one.seconds.get(cause, 0.0) for one in those), wall_s)


def test_table_2(page: Page, counted: dict[str, list[Analysis]]) -> None:
    """Which part of the preparing ran beside what: a row for each pair, a column for each strategy, PyTorch's too."""
    found = rows(page, "At work at once")
    assert len(found) == 6
    for title, line in found.items():
        data, _, other = re.fullmatch(r"(CPU|CSD) data, (prepared during) (.+)", title).groups()  # type: ignore[union-attr]
        stage = f"{data} preprocessing"
        for name, those in counted.items():
            alone = statistics.fmean(one.overlap[stage][stage] for one in those)
            if alone:
                both = statistics.fmean(one.overlap[stage][other] for one in those)
                assert figure(line[name]) == part(both, alone), title
            else:
                assert line[name] == "-"
    assert found["CSD data, prepared during training"]["dataloader"] == "-"
    assert figure(found["CSD data, prepared during CPU preprocessing"]["wrr"]) > 0


def test_energy_says_that_it_is_modelled(page: Page, three_runs: Path) -> None:
    found = rows(page, "Energy")
    joules = [one.j_per_batch for name in NAMES[1:] for one in load(three_runs / name / "energy.json")]
    assert figure(found["wrr"]["J a batch"]) == pytest.approx(statistics.fmean(one for one in joules if one), rel=0.01)
    assert found["wrr"]["J a batch"].endswith("(modelled)") and found["dataloader"]["times dataloader"] == "1.00"


def test_its_drawings(three_runs: Path, tmp_path: Path, drawings: Drawings) -> None:
    """The mean of a line is the part of the time at work."""
    write_comparison(read_comparison([three_runs / name for name in NAMES]), tmp_path)
    assert drawings.dots("dots host") == 3  # a mark for each run
    by_host, by_device = ([bar.get_width() for bar in drawings.artists(f"box {side}", "Who prepared")] for side in
                          ("host", "device"))  # fmt: skip
    assert by_host[0] == 100 and by_device[0] == 0 and by_host[1] + by_device[1] == pytest.approx(100)
    assert drawings.artists("curve host", "dataloader") and not drawings.artists("curve device", "dataloader")
    for side in ("host", "device"):
        heights = drawings.curve(f"curve {side}", "wrr")
        assert len(heights) == 60 and all(0 <= y <= 100 for y in heights) and any(heights), side
    assert drawings.artists("band host", "wrr") and not drawings.artists("band host", "dataloader")  # of two seeds and of one


def test_the_accelerator_has_a_line_where_torch_was_profiled(tmp_path: Path, drawings: Drawings) -> None:
    """Its operators take the first third of an epoch of 18 s, which began at 1000 s on the wall clock."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        written(tmp_path / name / "0000.jsonl", TWO_SIDES, BEGAN._replace(strategy=name))
    ran = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 1, "ts": 0, "dur": 6e6}
    (tmp_path / "a" / "torch.json").write_text(json.dumps({"baseTimeNanoseconds": int(1000e9), "traceEvents": [ran]}))
    page = Page(write_comparison(read_comparison([tmp_path / "a", tmp_path / "b"])))
    assert drawings.curve("curve training", "a, at work") == pytest.approx([100.0] * 20 + [0.0] * 40)
    assert "accelerator" in page.text and not drawings.artists("curve training", "b, at work")


def test_gpus_have_a_line_where_nvml_was_sampled(tmp_path: Path, drawings: Drawings) -> None:
    """Of two seeds and of a strategy without figures: what is missing is said once, with its name."""
    busier = [one._replace(busy_percent=100) if getattr(one, "busy_percent", 0) == 50 else one for one in WITH_GPUS]
    for name, events in {"a-0": WITH_GPUS, "a-1": busier, "b": TWO_SIDES}.items():
        (tmp_path / name).mkdir()
        written(tmp_path / name / "0000.jsonl", events, BEGAN._replace(strategy=name[0]))
    page = Page(write_comparison(read_comparison([tmp_path / "a-0", tmp_path / "a-1", tmp_path / "b"])))
    assert drawings.curve("curve gpu", "a, at work") == pytest.approx([75.0] * 30 + [100.0] * 30)
    assert drawings.artists("band gpu", "a, at work") and not drawings.artists("curve gpu", "b, at work")
    assert drawings.artists("curve host", "a, at work") and drawings.artists("curve device", "a, at work")
    found = rows(page, "a")
    assert found["accelerator, by NVML at work"]["part of the epoch, or memory"] == "87.5 %"
    assert found["memory of gpu0 H100 in use: at most 30 of 80 GB"]["part of the epoch, or memory"] == "37.5 %"
    assert page.text.count("No use of a GPU was recorded") == 1 and "Of b: No use of a GPU" in page.text


def test_runs_and_headline(page: Page, counted: dict[str, list[Analysis]], three_runs: Path) -> None:
    found = rows(page, "Runs")
    assert list(found) == [str(three_runs / name) for name in NAMES]
    assert {line["epochs"] for line in found.values()} == {"1"}
    rates = {name: statistics.fmean(one.images_per_s for one in those) for name, those in counted.items()}
    assert f"wrr was the fastest: {rates['wrr'] / rates['dataloader']:.2f} times dataloader" in page.text
    assert not re.search(r"<script|<link|https?:|\ssrc=(?!\"data:image/png;)", page.source)


def test_which_epochs_count(three_runs: Path) -> None:
    run = three_runs / "dataloader"

    def numbers(**options: Any) -> list[int]:
        (group,) = read_comparison([run], **options).groups
        return [one.analysis.epoch for one in group.runs[0].epochs]

    assert (numbers(), numbers(every=True), numbers(epoch=0)) == ([1], [0, 1], [0])
    with pytest.raises(DDLPError, match="no complete epoch 7"):
        read_comparison([run], epoch=7)
    with pytest.raises(DDLPError, match="named twice"):
        read_comparison([run, three_runs / "wrr-seed0", run / "." / ""])
    with pytest.raises(DDLPError, match="no recorded run"):
        read_comparison([run, three_runs / "none"])


def test_runs_by_hand(tmp_path: Path) -> None:
    """Names are only text; what differs is in the label; an epoch that was broken off is left out, and told."""
    for name, began in {"a": BEGAN._replace(strategy="<i>"), "b": BEGAN._replace(strategy="<i>", workers=2)}.items():
        (tmp_path / name).mkdir()
        written(tmp_path / name / "0000.jsonl", TWO_SIDES, began)
    written(tmp_path / "a" / "0001.jsonl", TWO_SIDES[:-2], BEGAN._replace(strategy="<i>", epoch=1))
    page = Page(write_comparison(read_comparison([tmp_path / "a", tmp_path / "b"])))
    assert (tmp_path / "comparison.html").exists() and "<i>" not in page.source
    assert [row[0] for row in page.tables["Time of an epoch"][1:]] == ["<i>, 1 workers", "<i>, 2 workers"]
    assert "0001.jsonl: end not recorded" in page.text
    assert [row[2] for row in page.tables["Time of an epoch"][1:]] == ["18.00 s", "18.00 s"]
    assert "<i>, 1 workers was the fastest, and nothing else paid" in page.text
    assert "Energy" not in page.text
    broken = tmp_path / "broken"
    broken.mkdir()
    written(broken / "0000.jsonl", TWO_SIDES[:-2], BEGAN)
    with pytest.raises(DDLPError, match="no complete epoch was recorded there"):
        read_comparison([tmp_path / "a", broken])
