"""`ddlp report A B C`: its figures are the means of what the analysis says of each run; which epochs count."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import pytest

from ddlp.cli import main
from ddlp.errors import DDLPError
from ddlp.observe import Analysis, analyse, read_run
from ddlp.observe.energy import load
from ddlp.observe.report import Comparison, pictures, read_comparison, write_comparison
from ddlp.stats.words import percent, seconds
from tests.ddlp.observe.by_hand import BEGAN, TWO_SIDES, WITH_GPUS, written
from tests.ddlp.observe.test_report import artists

NAMES = ("dataloader", "wrr-seed0", "wrr-seed1")


@pytest.fixture(scope="module")
def compared(three_runs: Path) -> Comparison:
    return read_comparison([three_runs / name for name in NAMES])


@pytest.fixture(scope="module")
def counted(three_runs: Path) -> dict[str, list[Analysis]]:
    """The second epoch of each run, by strategy."""
    found: dict[str, list[Analysis]] = {}
    for name in NAMES:
        first, second = map(analyse, read_run(three_runs / name))
        assert (first.epoch, second.epoch) == (0, 1)
        found.setdefault(name.split("-")[0], []).append(second)
    return found


def rows(compared: Comparison, heading: str) -> dict[str, dict[str, str]]:
    """A table of the text: by the name of its rows, cells by the names of its columns."""
    lines = str(compared).splitlines()
    (first,) = [number for number, line in enumerate(lines) if line.startswith(heading)]
    head, found = re.split("  +", lines[first]), {}
    for line in lines[first + 1 :]:
        if not line:
            break
        name, *cells = re.split("  +", line)
        found[name] = dict(zip(head[1:], cells, strict=True))
    return found


def mean(of: Callable[[Analysis], float], those: list[Analysis]) -> float:
    return statistics.fmean(map(of, those))


def test_times_and_their_spread(compared: Comparison, counted: dict[str, list[Analysis]]) -> None:
    found = rows(compared, "an epoch")
    assert list(found) == ["dataloader", "wrr"]
    rates = {name: mean(lambda one: one.images_per_s, those) for name, those in counted.items()}
    for name, those in counted.items():
        times, line = [one.wall_s for one in those], found[name]
        assert line["runs"] == str(len(those)) and line["time"] == seconds(statistics.fmean(times))
        assert line["least to most"] == f"{seconds(min(times))} to {seconds(max(times))}"
        assert float(line["images/s"].replace(",", "")) == pytest.approx(rates[name], rel=0.01)
        assert float(line["times dataloader"]) == pytest.approx(rates[name] / rates["dataloader"], abs=0.006)
        assert line["by devices"] == percent(mean(lambda one: one.batches["csd"] / 24, those))
    assert found["dataloader"]["deviation"] == "-" and found["dataloader"]["by devices"] == "0.0 %"
    assert found["wrr"]["deviation"] == seconds(statistics.stdev(one.wall_s for one in counted["wrr"]))
    assert f"wrr was the fastest: {rates['wrr'] / rates['dataloader']:.2f} times dataloader" in compared.headline


def test_waiting_by_cause(compared: Comparison, counted: dict[str, list[Analysis]]) -> None:
    found = rows(compared, "where each second went")
    for name, those in counted.items():
        wall_s = mean(lambda one: one.wall_s, those)
        assert found["waiting"][name] == percent(mean(lambda one: one.stages["waiting"], those), wall_s)
        for cause in {cause for one in those for cause in one.seconds}:
            spent = mean(lambda one, cause=cause: one.seconds.get(cause, 0.0), those)  # type: ignore[misc]
            assert found[cause][name] == percent(spent, wall_s)


def test_table_2(compared: Comparison, counted: dict[str, list[Analysis]]) -> None:
    """Which part of the preparing ran beside what: a row for each pair, a column for each strategy, PyTorch's too."""
    found = rows(compared, "part of the preparing")
    assert len(found) == 6
    for title, line in found.items():
        stage, _, other = title.partition(" beside ")
        for name, those in counted.items():
            alone, both = (statistics.fmean(one.overlap[stage][beside] for one in those) for beside in (stage, other))
            assert line[name] == (f"{percent(both, alone)} of {seconds(alone)}" if alone else "-"), title
    assert found["csd beside training"]["dataloader"] == "-"


def test_energy_says_that_it_is_modelled(compared: Comparison, three_runs: Path) -> None:
    joules = [one.j_per_batch for name in NAMES[1:] for one in load(three_runs / name / "energy.json")]
    (line,) = [line for line in str(compared).splitlines() if re.match(r"wrr +2 .*modelled$", line)]
    assert f"{statistics.fmean(one for one in joules if one):.4g}*" in line


def test_the_page(three_runs: Path, tmp_path: Path, compared: Comparison) -> None:
    assert main(["report", *(str(three_runs / name) for name in NAMES), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "comparison.html").read_text()
    assert escape(str(compared)) in page and escape(compared.headline) in page
    assert not re.search(r"<script|<link|https?:|\ssrc=(?!\"data:image/png;)", page)
    figure = pictures.comparison(compared)
    assert sum(len(one.get_offsets()) for one in artists(figure, "dots run")) == 3  # a mark for each run
    waited = [bar.get_width() for bar in artists(figure, "box waiting")]
    assert waited == pytest.approx([group.mean(lambda one: one.stages["waiting"]) for group in compared.groups])


def test_gpus_that_nvml_was_asked_about(tmp_path: Path) -> None:
    """Of two seeds and of a strategy without figures. A GPU that did nothing does not count."""
    busier = [one._replace(busy_percent=100) if getattr(one, "busy_percent", 0) == 50 else one for one in WITH_GPUS]
    for name, events in {"a-0": WITH_GPUS, "a-1": busier, "b": TWO_SIDES}.items():
        (tmp_path / name).mkdir()
        written(tmp_path / name / "0000.jsonl", events, BEGAN._replace(strategy=name[0]))
    found = rows(read_comparison([tmp_path / "a-0", tmp_path / "a-1", tmp_path / "b"]), "an epoch")
    assert (found["a"]["GPU busy"], found["b"]["GPU busy"]) == ("87.5 %", "-")


def test_runs(compared: Comparison, three_runs: Path) -> None:
    found = rows(compared, "run ")
    assert list(found) == [str(three_runs / name) for name in NAMES]
    assert {line["epochs"] for line in found.values()} == {"1"}


def test_which_epochs_count(three_runs: Path) -> None:
    run = three_runs / "dataloader"

    def numbers(**options: Any) -> list[int]:
        (group,) = read_comparison([run], **options).groups
        return [one.epoch for one in group.runs[run]]

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
    found = read_comparison([tmp_path / "a", tmp_path / "b"])
    page = write_comparison(found)
    assert page == tmp_path / "comparison.html" and "<i>" not in page.read_text()
    assert {name: line["time"] for name, line in rows(found, "an epoch").items()} == {
        "<i>, 1 workers": "18.00 s", "<i>, 2 workers": "18.00 s",
    }  # fmt: skip
    assert "0001.jsonl: end not recorded" in str(found) and "energy" not in str(found)
    assert found.headline == "<i>, 1 workers was the fastest, and nothing else paid"
    broken = tmp_path / "broken"
    broken.mkdir()
    written(broken / "0000.jsonl", TWO_SIDES[:-2], BEGAN)
    with pytest.raises(DDLPError, match="no complete epoch was recorded there"):
        read_comparison([tmp_path / "a", broken])
