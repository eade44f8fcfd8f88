"""The report: its figures and drawings agree with the analysis of the same runs. Which epoch it shows; the files it writes."""

from __future__ import annotations

import functools
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ddlp.cli import main
from ddlp.errors import DDLPError
from ddlp.observe import analyse, read_epoch, read_run
from ddlp.observe.energy import load
from ddlp.observe.engine_time import device_times, on_workers
from ddlp.observe.report import read_report, series, write_report
from ddlp.recording.events import (
    EpochEnded,
    Exhausted,
    Fetched,
    HostBatch,
    Joined,
    LeaseCancelled,
    LeaseFailed,
    LeaseGiven,
    Lost,
    Published,
    Step,
)
from tests.ddlp.observe.by_hand import A_POOL, BEGAN, DECIDED, TWO_SIDES, WITH_GPUS, written
from tests.ddlp.observe.drawings import Drawings, drawings
from tests.ddlp.observe.html_page import Page

__all__ = ["drawings"]

RUNS = ("wrr", "mte", "alone", "taken back", "lost", "broken off")


def seconds(text: str) -> float:
    """The seconds of a text like "0.48 s" or "12 ms"."""
    if text.startswith("< 0.1 ms"):
        return 0.0
    value, unit = text.replace(",", "").split(" ")[:2]
    return float(value) / {"s": 1, "ms": 1000}[unit]


def near(value: float) -> Any:
    """Equal as far as two written digits allow."""
    return pytest.approx(value, rel=0.06, abs=0.006)


def part(value: float, whole: float) -> Any:
    return pytest.approx(100 * value / whole, abs=0.051)


def figure(text: str) -> float:
    return float(text.replace(",", "").split(" ")[0])


@pytest.fixture(scope="module")
def page_of(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Page]:
    """page_of("wrr") -> Page: that of a recorded run, drawn once."""

    @functools.cache
    def drawn(run: str) -> Page:
        return Page(write_report(recorded / run, tmp_path_factory.mktemp("page")))

    return drawn


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.some(2)
def test_its_figures_are_those_of_the_analysis(recorded: Path, page_of: Callable[[str], Page], capsys: Any, run: str) -> None:
    page = page_of(run)
    assert main(["analyse", str(recorded / run), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    wall_s, made = found["wall_s"], sum(found["batches"].values())
    assert figure(page.tiles["images/s"]) == pytest.approx(found["images_per_s"], rel=0.01)
    assert seconds(page.tiles["epoch"]) == near(wall_s)
    assert figure(page.tiles["from the device"]) == part(found["batches"]["csd"], made)
    assert figure(page.tiles["training waited"]) == part(found["stages"]["waiting"], wall_s)
    bound_s = found["bound_s"]
    if bound_s is not None:
        assert figure(page.tiles["of the bound"]) == part(min(bound_s, wall_s), wall_s)
        assert min(bound_s, wall_s) == bound_s or bound_s == pytest.approx(wall_s, rel=0.05)
    assert found["advice"] in page.text and found["limit"].lower() in page.text.lower()
    for text in (found["verdict"]["text"], *found["notes"]):
        assert text in page.text
    rows = {row[0]: row[1:] for row in page.tables["Where each second went"][1:]}
    assert set(rows) == set(found["seconds"])
    for name, (took, of_epoch, _) in rows.items():
        assert seconds(took) == near(found["seconds"][name]) and figure(of_epoch) == part(found["seconds"][name], wall_s)
    resources = page.tables["Busy, waiting, idle"][1:]
    assert [row[0].split(" x ")[0] for row in resources] == [one["name"] for one in found["resources"]]
    for row, one in zip(resources, found["resources"], strict=True):
        for text, kind in zip(row[1:5], ("busy_s", "waiting_s", "idle_s", "unaccounted_s"), strict=True):
            assert figure(text) == part(one[kind], one["wall_s"])
    overlap = page.tables["At work at once"]
    assert len(overlap) == 5
    for row in overlap[1:]:
        for stage, text in zip(overlap[0][1:], row[1:], strict=True):
            assert seconds(text) == near(found["overlap"][row[0]][stage])
    rates = {row[0].split(",")[0]: row[1] for row in page.tables["Rates against their bounds"] if len(row) > 1}
    for name, rate in {"host": found["rates"]["host"], **found["rates"]["devices"], "achieved": found["images_per_s"]}.items():
        assert rates[name] == "-" if rate is None else figure(rates[name]) == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.some(2)
def test_its_drawings_are_of_the_events(recorded: Path, tmp_path: Path, drawings: Drawings, run: str) -> None:
    write_report(recorded / run, tmp_path)
    trace = read_run(recorded / run)[-1]
    host = [e for e in trace.of(HostBatch) if e.outcome == "made"]
    published = [e for e in trace.of(Published) if e.position >= 0]
    for side, made in (("host", host), ("device", published)):
        assert drawings.dots(f"dots {side}") == len(made)

    def width_s(kind: str) -> float:
        return drawings.width(f"box {kind}")

    analysis = analyse(trace)
    assert width_s("training") == pytest.approx(analysis.stages["training"], abs=1e-6)
    assert width_s("host") == pytest.approx(sum(b.ended_at - b.began_at for b in host), abs=1e-6)
    unused_s = sum(b.ended_at - b.began_at for b in trace.of(HostBatch)) - sum(b.ended_at - b.began_at for b in host)
    unused_s += sum(f.ended_at - f.began_at for f in trace.of(Fetched) if f.trouble)
    # If a message came late, a batch's span overlaps with the next one's. The overlap is drawn once.
    device_s = sum(work.span[1] - work.span[0] for device in device_times(trace) for _, work in on_workers(device))
    assert 0.8 * analysis.stages["CSD preprocessing"] <= device_s <= 1.001 * analysis.stages["CSD preprocessing"]
    assert width_s("device") + width_s("unused") == pytest.approx(device_s + unused_s, abs=1e-6)
    assert drawings.artists("moment") or not trace.of(Joined)
    steps = trace.of(Step)
    assert drawings.artists("curve host", "Batches over time") and len(steps) == sum(analysis.batches.values())


def test_who_was_busy_over_time(tmp_path: Path, drawings: Drawings) -> None:
    """Host, devices and GPU have a line each; a GPU that did nothing does not count; old recordings have no GPU, and say so."""
    written(tmp_path / "0000.jsonl", WITH_GPUS)
    page = Page(write_report(tmp_path, tmp_path))
    assert drawings.curve("curve gpu") == pytest.approx([50.0] * 30 + [100.0] * 30)
    found = {row[0]: row[1] for row in page.tables["At work over time"]}
    assert (found["host's workers at work"], found["accelerator, by NVML at work"]) == ("66.7 %", "75.0 %")
    assert found["memory of gpu0 H100 in use: at most 30 of 80 GB"] == "37.5 %"
    assert drawings.artists("curve device", "At work") and "No use of a GPU" not in page.text
    drawings.clear()
    written(tmp_path / "0000.jsonl", TWO_SIDES)
    page = Page(write_report(tmp_path, tmp_path))
    assert drawings.artists("curve host", "At work") and not drawings.artists("curve gpu")
    assert page.text.count("No use of a GPU was recorded") == 1


def test_engines_over_time(tmp_path: Path) -> None:
    trace = read_epoch(written(tmp_path / "0000.jsonl", A_POOL))
    at_work, retiring = series.engines(trace)
    moments = (0.5, 2, 4, 6.5, 8, 9.5, 11, 17)
    assert [at_work.mean[int(at / 18 * series.BINS)] for at in moments] == pytest.approx([0, 2, 3, 2, 2, 1, 1, 2])
    assert [retiring.mean[int(at / 18 * series.BINS)] for at in moments] == pytest.approx([0, 0, 0, 1, 0, 0, 0, 0])
    page = Page(write_report(tmp_path))
    (of_2,) = [row for row in page.tables["Engines over time"] if row[0] == "pool engine 2"]
    assert of_2[1] == "node8" and of_2[3].startswith("3.0 s joined; 9.0 s <killed>")
    assert ["6.000 s", "pool engine 1 retires: it is not in the pool any more"] in page.tables["Events"]
    assert ["1.000 s", "pool engine 1 joined on node7"] in page.tables["Events"]
    analysis = analyse(trace)
    assert analysis.counts["devices retired"] == 1 and analysis.counts["devices lost"] == 2
    assert "pool engine 1 retired after 6.0 s: it is not in the pool any more" in analysis.notes
    assert series.engines(read_epoch(written(tmp_path / "one.jsonl", TWO_SIDES))) == []  # one device, which stays


def test_decisions_over_time(tmp_path: Path, drawings: Drawings) -> None:
    written(tmp_path / "0000.jsonl", DECIDED)
    page = Page(write_report(tmp_path))
    assert page.tables["What was decided when"][1:] == [
        ["cache", "0.0 s", "pixels after decoding, in /tmp"], ["devices", "0.0 s", "auto measures the host alone"],
        ["devices", "6.0 s", "auto: with <d>"], ["devices", "12.0 s", "auto: it rests"],
    ]  # fmt: skip
    assert ["6.000 s", "devices: auto: with <d>"] in page.tables["Events"]
    assert [len(lane.get_paths()) for lane in drawings.artists("box decision")] == [1, 3]
    written(tmp_path / "0000.jsonl", TWO_SIDES)
    assert "What was decided when" not in Page(write_report(tmp_path)).text


def test_events_of_every_kind(tmp_path: Path) -> None:
    events = [
        Joined("d", 1.0, 1, 4, 1), LeaseGiven("d", 1, 3, 1.0), LeaseFailed("d", 1, 2.0, "no such file"),
        HostBatch(0, 5, 1.0, 2.5, 0.1, 1.0, "failed"), Step(4, "cpu", 2, 0.0, 3.0, 3.0, 0, 0, 0, 0),
        Fetched(0, "d", 2, 4, 2.9, 3.1, 3.1, "gone"), Fetched(0, "d", 3, 6, 3.2, 3.5, 3.5, "damaged"),
        LeaseGiven("d", 4, 7, 3.6), LeaseCancelled("d", 4, 4.0), Lost("d", 5.0, "killed"), EpochEnded(6.0, 0),
    ]  # fmt: skip
    page = Page(write_report(written(tmp_path / "0000.jsonl", events, BEGAN)))
    assert page.tables["Events"][1:] == [
        ["1.000 s", "d joined"], ["2.000 s", "lease 1 failed on d: no such file"],
        ["2.500 s", "batch 5: a sample could not be prepared"],
        ["3.100 s", "batch 4 of d was not needed any more: the host's was first"],
        ["3.500 s", "batch 6 of d could not be used: damaged"], ["4.000 s", "lease 4 taken back from d"],
        ["5.000 s", "d lost: killed"],
    ]  # fmt: skip


def test_epochs_and_energy(recorded: Path, page_of: Callable[[str], Page]) -> None:
    page = page_of("wrr")
    epochs = page.tables["All 2 epochs of this run"][1:]
    assert [row[1] for row in epochs] == ["0000.jsonl", "0001.jsonl"] and [row[3] for row in epochs] == ["complete"] * 2
    for row, trace in zip(epochs, read_run(recorded / "wrr"), strict=True):
        analysis = analyse(trace)
        assert seconds(row[4]) == near(trace.wall_s) and figure(row[5]) == pytest.approx(analysis.images_per_s, rel=0.01)
        assert (int(row[6]), int(row[7])) == (analysis.batches["cpu"], analysis.batches["csd"]) and row[10] == analysis.limit
    (energy,) = load(recorded / "wrr" / "energy.json")
    head, (label, _, took, *cells) = page.tables["Energy"]
    assert label == "wrr" and seconds(took) == near(energy.seconds)
    cell = dict(zip(head[3:], cells, strict=True))
    assert figure(cell["total, J"]) == pytest.approx(energy.total_j, rel=0.01) and cell["total is"] == energy.how
    for one in energy.parts:
        assert ("(modelled)" in cell[f"{one.part}, J"]) == one.modelled
        assert figure(cell[f"{one.part}, J"]) == pytest.approx(one.joules, rel=0.01)
    assert any(one.modelled for one in energy.parts) and "modelled" in energy.how
    assert all(f"({energy.how})" in cell[name] for name in ("total, J", "J/batch", "J/image", "cost", "CO2, g"))
    assert figure(cell["J/batch"]) == pytest.approx(energy.total_j / 30, rel=0.01)
    assert "Energy" not in page_of("mte").tables


def test_epochs_that_did_not_end(recorded: Path, tmp_path: Path, page_of: Callable[[str], Page]) -> None:
    assert "the epoch was broken off after 1 of 20 batches" in page_of("broken off").text
    empty = page_of("empty")
    assert "No batch was delivered in this epoch" in empty.text and empty.tiles["images/s"] == "0"
    whole = (recorded / "wrr" / "0001.jsonl").read_text()
    (tmp_path / "cut.jsonl").write_text(whole[: len(whole) // 2])
    page = Page(write_report(tmp_path / "cut.jsonl"))
    assert "the epoch's end was not recorded" in page.text and (tmp_path / "cut.html").exists()
    assert "end not recorded" in dict(page.tables["Settings"])["epoch"]


def test_it_asks_nobody_for_anything(page_of: Callable[[str], Page]) -> None:
    source = page_of("wrr").source
    assert "default-src 'none'" in source
    assert not re.search(r"<script|<link|<iframe|@import|url\(|https?:|\ssrc=(?!\"data:image/png;)|\son\w+=", source)


def test_what_a_run_says_is_only_text(tmp_path: Path) -> None:
    events = [Joined("<b>d</b>", 1.0, 1, 2, 1), Lost("<b>d</b>", 2.0, "<script>alert(1)</script>"), *TWO_SIDES]
    written(tmp_path / "0000.jsonl", events, BEGAN._replace(strategy="<i>", devices=["<b>d</b>", "d"]))
    source = write_report(tmp_path).read_text()
    assert "<script" not in source and "<b>d</b>" not in source and "<i>" not in source
    assert "&lt;script&gt;alert(1)" in source


def long_epoch(path: Path, batches: int) -> Path:
    """An epoch with both sides: batches of 10 ms, two host workers."""
    events: list[Any] = [Joined("d", 0.0, 1, 8, 1)]
    for k in range(batches):
        at = 0.01 * k
        if k % 3:
            events.append(HostBatch(k % 2, k - k // 3, at - 0.009, at, 0.001, 0.009, "made"))
        else:
            position = batches - 1 - k // 3
            events += [LeaseGiven("d", k, position, at), Published("d", k, position, at + 0.02, 0.018)]
        events.append(Step(k, "cpu" if k % 3 else "csd", 2, at, at + 0.001, at + 0.002, 1, 1, 1, 2))
    events += [Exhausted(0.01 * batches, 0.01 * batches), EpochEnded(0.01 * batches, 0)]
    return written(path, events, BEGAN._replace(batches=batches, workers=2))


def test_a_long_epoch_does_not_make_a_long_page(tmp_path: Path) -> None:
    pages = [write_report(long_epoch(tmp_path / f"{batches}.jsonl", batches)) for batches in (2000, 5000)]
    small, large = (page.stat().st_size for page in pages)
    assert large < 1.3 * small < 400_000
    page, trace = Page(pages[1]), read_epoch(tmp_path / "5000.jsonl")
    stages = analyse(trace).stages
    rows = {(row[0], row[1]): row[2] for row in page.tables["Who was at work when"][1:]}
    host_s = sum(seconds(took) for (track, _), took in rows.items() if track.startswith("host worker"))
    assert host_s == pytest.approx(sum(b.ended_at - b.began_at for b in trace.of(HostBatch)), rel=0.02)
    assert seconds(rows["training thread", "training"]) == pytest.approx(stages["training"], rel=0.02)
    device_s = seconds(rows["device worker 0", "device makes a batch"])
    assert device_s == pytest.approx(stages["CSD preprocessing"], rel=0.02)


def test_many_workers_are_one_lane(tmp_path: Path) -> None:
    busy = [HostBatch(k, k, 1.0, 1.0 + k / 10, 0.0, 0.1, "made" if k < 15 else "dropped") for k in range(20)]
    end = [Step(0, "cpu", 2, 0.0, 4.0, 4.0, 0, 0, 0, 0), Exhausted(4.0, 4.0), EpochEnded(4.0, 0)]
    began = BEGAN._replace(workers=20, devices=[], fetchers=0)
    page = Page(write_report(written(tmp_path / "0000.jsonl", [*busy, *end], began)))
    rows = {(row[0], row[1].split(":")[0]): seconds(row[2]) for row in page.tables["Who was at work when"][1:]}
    assert rows == {
        ("host: 20 workers, mean", "host makes a batch"): near(sum(range(15)) / 10 / 20),
        ("host: 20 workers, mean", "work not used"): near(sum(range(15, 20)) / 10 / 20),
    }


def test_the_command(tmp_path: Path, capsys: Any) -> None:
    for number in range(2):
        written(tmp_path / f"{number:04d}.jsonl", TWO_SIDES, BEGAN._replace(epoch=number))
    assert main(["report", str(tmp_path), "--epoch", "0", "-o", str(tmp_path / "dir")]) == 0
    assert f"report: {tmp_path / 'dir' / 'report.html'}" in capsys.readouterr().out
    page = Page(tmp_path / "dir" / "report.html")
    assert list(page.pictures) == ["prongs", "timeline", "work", "rates", "buffers", "resources"]
    for picture in page.pictures.values():
        with Image.open(io.BytesIO(picture)) as image:
            colours = image.convert("RGB").resize((400, 160)).getcolors(64_000)
            assert image.size[0] >= 1200 and len(colours) > 10  # the image is not empty
    assert re.search("Epoch 0, of +2 recorded", page.text) and page.source.count("<h1>") == 1
    assert main(["report", str(tmp_path), "--all", "--out", str(tmp_path / "deep" / "all.html")]) == 0
    assert (tmp_path / "deep" / "all.html").read_text().count("<h1>") == 2
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["all.html"]
    capsys.readouterr()
    assert main(["report", str(tmp_path), "--epoch", "7"]) == 1
    assert "epoch 7 was not recorded, only 0, 1" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nothing")]) == 1
    assert main(["report", str(tmp_path), "--energy", str(tmp_path / "0000.jsonl")]) == 1
    with pytest.raises(DDLPError, match="can't be written"):
        write_report(tmp_path, tmp_path / "0000.jsonl" / "x.html")
    assert len(read_report(tmp_path, every=True).detailed) == 2


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path) -> None:
    written(tmp_path / "0000.jsonl", TWO_SIDES)
    hidden = "import sys; sys.modules['matplotlib'] = None; from ddlp.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", hidden, "report", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "matplotlib, which draws the pictures, is missing: pip install 'ddlp[report]' brings it" in done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.glob("*.html"))
