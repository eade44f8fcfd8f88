"""The report: its text and pictures are those of the same runs' analysis. Which epoch it shows; the files it writes."""

from __future__ import annotations

import base64
import io
import re
import subprocess
import sys
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ddlp.cli import main
from ddlp.errors import DDLPError
from ddlp.observe import analyse, read_epoch, read_run
from ddlp.observe.energy import load
from ddlp.observe.engine_time import device_times, on_workers
from ddlp.observe.report import pictures, write_report
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

RUNS = ("wrr", "mte", "alone", "taken back", "lost", "broken off", "empty")


def artists(figure: Any, gid: str) -> list[Any]:
    """What was drawn under this name."""
    return [one for axes in figure.axes for one in axes.get_children() if one.get_gid() == gid]


def images(page: str) -> list[Any]:
    """The pictures of a page."""
    found = re.findall(r'<img alt="[^"]+" src="data:image/png;base64,([^"]+)">', page)
    return [Image.open(io.BytesIO(base64.b64decode(one, validate=True))) for one in found]


def events_of(page: str) -> list[str]:
    """The lines of the list of events."""
    return unescape(page.split("<h2>Events")[1].split("<pre")[1].split("</pre>")[0]).splitlines()


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.some(2)
def test_it_says_what_the_analysis_says(recorded: Path, tmp_path: Path, capsys: Any, run: str) -> None:
    page = write_report(recorded / run, tmp_path).read_text()
    assert main(["analyse", str(recorded / run)]) == 0
    told = str(analyse(read_run(recorded / run)[-1]))
    assert told in capsys.readouterr().out and all(escape(part) in page for part in told.split("\n\n", 1))
    assert len(images(page)) == 1


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.some(2)
def test_its_pictures_are_of_the_events(recorded: Path, run: str) -> None:
    trace = read_run(recorded / run)[-1]
    analysis = analyse(trace)
    figure = pictures.epoch(trace, analysis)
    host = [e for e in trace.of(HostBatch) if e.outcome == "made"]
    published = [e for e in trace.of(Published) if e.position >= 0]
    for side, made in (("host", host), ("device", published)):
        assert sum(len(one.get_offsets()) for one in artists(figure, f"dots {side}")) == len(made)

    def width_s(kind: str) -> float:
        return float(sum(path.get_extents().width for one in artists(figure, f"box {kind}") for path in one.get_paths()))

    assert width_s("training") == pytest.approx(analysis.stages["training"], abs=1e-6)
    assert width_s("host") == pytest.approx(sum(b.ended_at - b.began_at for b in host), abs=1e-6)
    unused_s = sum(b.ended_at - b.began_at for b in trace.of(HostBatch)) - sum(b.ended_at - b.began_at for b in host)
    unused_s += sum(f.ended_at - f.began_at for f in trace.of(Fetched) if f.trouble)
    # If a message came late, a batch's span overlaps with the next one's. The overlap is drawn once.
    device_s = sum(work.span[1] - work.span[0] for device in device_times(trace) for _, work in on_workers(device))
    assert 0.8 * analysis.stages["csd"] <= device_s <= 1.001 * analysis.stages["csd"]
    assert width_s("device") + width_s("not used") == pytest.approx(device_s + unused_s, abs=1e-6)
    assert bool(artists(figure, "moment")) == bool(trace.of(Joined))
    (ready,) = artists(figure, "ready host")
    assert list(ready.get_ydata()) == [step.ready_host for step in trace.of(Step)]


def test_work_in_vain_is_drawn_apart(tmp_path: Path) -> None:
    busy = [HostBatch(0, k, 2.0 * k, 2.0 * k + 1, 0.0, 0.1, outcome) for k, outcome in enumerate(("made", "dropped", "failed"))]
    trace = read_epoch(written(tmp_path / "0000.jsonl", [*busy, EpochEnded(6.0, 0)]))
    figure = pictures.epoch(trace, analyse(trace))
    assert [len(artists(figure, f"box {kind}")[0].get_paths()) for kind in ("host", "not used")] == [1, 2]
    (dots,) = artists(figure, "dots host")
    assert len(dots.get_offsets()) == 1


def test_gpus(tmp_path: Path) -> None:
    """A sample counts for the time since the one before it. Recordings without samples have no plot and no line of GPUs."""
    trace = read_epoch(written(tmp_path / "0000.jsonl", WITH_GPUS))
    analysis = analyse(trace)
    assert "gpu0 H100: busy 75.0 % of the time, by NVML, at most 30 of 80 GB in use" in str(analysis)
    (line,) = artists(pictures.epoch(trace, analysis), "gpu gpu0 H100")
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([9.0, 18.0], [50, 100])
    without = read_epoch(written(tmp_path / "0000.jsonl", TWO_SIDES))
    assert "NVML" not in str(analyse(without)) and len(pictures.epoch(without, analyse(without)).axes) == 4


def test_a_pool_and_decisions(tmp_path: Path) -> None:
    trace = read_epoch(written(tmp_path / "0000.jsonl", A_POOL))
    told = events_of(write_report(tmp_path).read_text())
    assert any(line.endswith("6.000 s  pool engine 1 retires: it is not in the pool any more") for line in told)
    assert any(line.endswith("1.000 s  pool engine 1 joined on node7") for line in told)
    analysis = analyse(trace)
    assert analysis.counts["devices retired"] == 1 and analysis.counts["devices lost"] == 2
    assert "pool engine 1 retired after 6.0 s: it is not in the pool any more" in analysis.notes
    trace = read_epoch(written(tmp_path / "0000.jsonl", DECIDED))
    told = events_of(write_report(tmp_path).read_text())
    assert any(line.endswith("6.000 s  devices: auto: with <d>") for line in told)
    assert {6.0, 12.0} <= {line.get_xdata()[0] for line in artists(pictures.epoch(trace, analyse(trace)), "moment")}


def test_events_of_every_kind(tmp_path: Path) -> None:
    events = [
        Joined("d", 1.0, 1, 4, 1), LeaseGiven("d", 1, 3, 1.0), LeaseFailed("d", 1, 2.0, "no such file"),
        HostBatch(0, 5, 1.0, 2.5, 0.1, 1.0, "failed"), Step(4, "cpu", 2, 0.0, 3.0, 3.0, 0, 0, 0, 0),
        Fetched(0, "d", 2, 4, 2.9, 3.1, 3.1, "gone"), Fetched(0, "d", 3, 6, 3.2, 3.5, 3.5, "damaged"),
        LeaseGiven("d", 4, 7, 3.6), LeaseCancelled("d", 4, 4.0), Lost("d", 5.0, "killed"), EpochEnded(6.0, 0),
    ]  # fmt: skip
    told = events_of(write_report(written(tmp_path / "0000.jsonl", events, BEGAN)).read_text())
    assert [" ".join(line.rpartition(">")[2].split()) for line in told] == [
        "1.000 s d joined", "2.000 s lease 1 failed on d: no such file", "2.500 s batch 5: a sample could not be prepared",
        "3.100 s batch 4 of d was not needed any more: the host's was first",
        "3.500 s batch 6 of d could not be used: damaged", "4.000 s lease 4 taken back from d", "5.000 s d lost: killed",
    ]  # fmt: skip


def test_epochs_and_energy(recorded: Path, tmp_path: Path) -> None:
    page = write_report(recorded / "wrr", tmp_path).read_text()
    assert "All 2 epochs of this run" in page
    for file, one in zip(("0000.jsonl", "0001.jsonl"), map(analyse, read_run(recorded / "wrr")), strict=True):
        (line,) = [line for line in page.split("All 2 epochs")[1].splitlines() if f" {file} " in line]
        assert line.split()[0] == str(one.epoch) and f"complete  {one.wall_s:.2f} s" in line and f"  {one.limit}" in line
        assert f"  {one.batches['cpu']}  " in line and f"  {one.batches['csd']}  " in line
    (energy,) = load(recorded / "wrr" / "energy.json")
    assert escape(str(energy)) in page and "modelled" in str(energy)
    assert "Energy" not in write_report(recorded / "mte", tmp_path).read_text()


def test_epochs_that_did_not_end(recorded: Path, tmp_path: Path) -> None:
    assert "the epoch was broken off after 1 of 20 batches" in write_report(recorded / "broken off", tmp_path).read_text()
    assert "No batch was delivered in this epoch" in write_report(recorded / "empty", tmp_path).read_text()
    whole = (recorded / "wrr" / "0001.jsonl").read_text()
    (tmp_path / "cut.jsonl").write_text(whole[: len(whole) // 2])
    page = write_report(tmp_path / "cut.jsonl")
    assert page == tmp_path / "cut.html"
    assert "the epoch&#x27;s end was not recorded" in page.read_text() and ", end not recorded\n" in page.read_text()


def test_it_asks_nobody_for_anything(recorded: Path, tmp_path: Path) -> None:
    page = write_report(recorded / "wrr", tmp_path).read_text()
    assert "default-src 'none'" in page
    assert not re.search(r"<script|<link|<iframe|@import|url\(|https?:|\ssrc=(?!\"data:image/png;)|\son\w+=", page)


def test_what_a_run_says_is_only_text(tmp_path: Path) -> None:
    events = [Joined("<b>d</b>", 1.0, 1, 2, 1), Lost("<b>d</b>", 2.0, "<script>alert(1)</script>"), *TWO_SIDES]
    written(tmp_path / "0000.jsonl", events, BEGAN._replace(strategy="<i>", devices=["<b>d</b>", "d"]))
    page = write_report(tmp_path).read_text()
    assert "<script" not in page and "<b>d</b>" not in page and "<i>" not in page
    assert "&lt;script&gt;alert(1)" in page


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
    assert write_report(long_epoch(tmp_path / "long.jsonl", 5000)).stat().st_size < 500_000


def test_many_workers_make_no_endless_picture(tmp_path: Path) -> None:
    busy = [HostBatch(k, k, 1.0, 1.0 + k / 100, 0.0, 0.1, "made") for k in range(200)]
    end = [Step(0, "cpu", 2, 0.0, 4.0, 4.0, 0, 0, 0, 0), Exhausted(4.0, 4.0), EpochEnded(4.0, 0)]
    began = BEGAN._replace(workers=200, devices=[], fetchers=0)
    (image,) = images(write_report(written(tmp_path / "0000.jsonl", [*busy, *end], began)).read_text())
    assert image.size[1] < 3000


def test_the_command(tmp_path: Path, capsys: Any) -> None:
    for number in range(2):
        written(tmp_path / f"{number:04d}.jsonl", TWO_SIDES, BEGAN._replace(epoch=number))
    assert main(["report", str(tmp_path), "--epoch", "0", "-o", str(tmp_path / "dir")]) == 0
    assert f"report: {tmp_path / 'dir' / 'report.html'}" in capsys.readouterr().out
    page = (tmp_path / "dir" / "report.html").read_text()
    (image,) = images(page)
    assert image.size[0] >= 1200 and len(image.convert("RGB").resize((400, 160)).getcolors(64_000)) > 10  # it is not empty
    assert "epoch 0, wrr: " in page and page.count("<h1>") == 1
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


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path) -> None:
    written(tmp_path / "0000.jsonl", TWO_SIDES)
    hidden = "import sys; sys.modules['matplotlib'] = None; from ddlp.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", hidden, "report", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "matplotlib, which draws the pictures, is missing: pip install 'ddlp[report]' brings it" in done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.glob("*.html"))
