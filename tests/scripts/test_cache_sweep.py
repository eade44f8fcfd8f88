"""`scripts.cache_sweep`: what it makes of its measurements, who reads the storage when, and the command itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from ddlp.sampledata import make_thumbnails
from scripts import cache_sweep
from scripts.cache_sweep import CACHEW, WAYS, Images, Parts, Point, crossing, loader_of, shape_agrees, table, verdict
from scripts.results import Kept
from tests.object_server import BUCKET, ObjectServer, files_below

PARTS = Parts(storage_one=50, storage=100, disk_one=500, disk=1000, kept=300)


def rates(compute: float, source: float, full: float) -> dict[str, float]:
    """Images/s by way."""
    return dict(zip(WAYS, (compute, source, full), strict=True))


def point(measured: Mapping[str, float], predicted: Mapping[str, float] | None = None, filling: float = 1.0) -> Point:
    """A point; by default it was predicted exactly."""
    return Point(measured, measured if predicted is None else predicted, filling, 100.0)


def test_the_slowest_part_is_the_rate() -> None:
    assert PARTS.predicted(0.0, 4) == rates(100, 1000, 300)  # four workers wait for the storage, and for the disk
    assert PARTS.predicted(0.008, 4) == pytest.approx(rates(100, 400, 300))  # 2 + 8 ms in each of four workers
    assert PARTS.predicted(0.078, 4) == pytest.approx(rates(4 / 0.098, 50, 300))


def test_an_order_agrees_unless_two_ways_change_places_clearly() -> None:
    assert point(rates(100, 200, 300), rates(10, 20, 30)).agrees
    assert point(rates(100, 105, 300), rates(105, 100, 300)).agrees  # alike in both
    assert not point(rates(100, 130, 300), rates(105, 100, 300)).agrees
    assert not point(rates(100, 105, 300), rates(130, 100, 300)).agrees
    assert not point(rates(100, 400, 300), rates(100, 300, 400)).agrees


def test_crossings() -> None:
    sweep = [rates(100, 1000 / step, 300) for step in (1, 2, 4, 8)]
    assert crossing(sweep, "source") == 2 and crossing(sweep, "compute") == 0
    assert crossing([rates(100, 1000, 300)] * 3, "source") == 3
    later = [*sweep[:2], rates(100, 350, 300), rates(100, 320, 300)]

    def agrees(predicted: list[dict[str, float]]) -> bool:
        return shape_agrees([point(one, other) for one, other in zip(sweep, predicted, strict=True)])

    assert agrees([*sweep[1:], sweep[3]]) and not agrees(later)


def test_the_choice_by_times() -> None:
    assert point(rates(100, 1000, 300)).by_times == "full" and point(rates(400, 1000, 300)).by_times == "compute"
    costly = point(rates(100, 1000, 105), filling=3.0)  # nine epochs don't bring back what the first one costs
    assert costly.by_times == "compute" and costly.right("compute") and costly.right("full")
    assert not point(rates(400, 1000, 300)).right("full") and point(rates(100, 1000, 300)).by_auto == "full"


def test_the_table_and_the_verdict() -> None:
    figures = {
        "slow, 0 ms": point(rates(100, 1000, 300)).figures,
        "slow, 50 ms": point(rates(50, 60, 300), rates(50, 300, 60)).figures,
        "fast, 0 ms": point(rates(900, 1000, 300), filling=1.234).figures,
    }
    head, _, *lines = table(figures).splitlines()
    cells = [line[2:].split(" | ") for line in lines]
    found = {row[0]: dict(zip(head[2:].split(" | "), row, strict=True)) for row in cells}
    assert found["slow, 0 ms"]["source, images/s"] == "1000" and found["slow, 0 ms"]["fastest"] == "source"
    assert found["slow, 50 ms"]["agree"] == "**no**" and found["slow, 50 ms"]["predicted"] == "50, 300, 60"
    assert found["fast, 0 ms"]["auto keeps"] == "100 %, wrong" and found["fast, 0 ms"]["by times |"] == "compute, right |"
    assert found["fast, 0 ms"]["filling epoch"] == "1.23"
    line, good = verdict(figures)
    assert "slow: the predicted order at 1 of 2 points, crossings within one step; fast: the predicted order at 1 of 1" in line
    assert not good and verdict({"slow, 0 ms": figures["slow, 0 ms"]})[1]


def test_cachews_own_curve_has_this_shape() -> None:
    points = [rates(*(1 / one for one in times)) for times in CACHEW.values()]
    assert list(CACHEW)[crossing(points, "source")] == list(CACHEW)[crossing(points, "compute")] == 450
    assert min(points[0], key=points[0].__getitem__) == "full" and max(points[0], key=points[0].__getitem__) == "source"


def test_who_reads_the_storage(tmp_path: Path) -> None:
    root = make_thumbnails(tmp_path, 8, 1, side=cache_sweep.SIDE) / "train"
    paths = sorted(root.glob("*/*.jpg"))
    for path in paths:
        os.utime(path, (0, 0))
    batches: dict[tuple[str, int], list[torch.Tensor]] = {}
    with ObjectServer(files_below(root)) as server:
        url = f"{server.url}/{BUCKET}/"
        requests: dict[str, list[int]] = {}
        for way in WAYS:
            loader = loader_of(root, paths, url, way, 0.0, 0, tmp_path / "cache")
            requests[way] = []
            for epoch in range(3):
                torch.manual_seed(epoch)  # the order follows from it
                before = len(server.requests)
                batches[way, epoch] = [images.clone() for images, _ in loader]
                requests[way].append(len(server.requests) - before)
        # One more in the first epoch, to compare the data set with its description.
        assert requests == {"compute": [8, 8, 8], "source": [0, 0, 0], "full": [9, 0, 0]}
        server.objects.clear()
        with pytest.raises(OSError, match="the server answered 404"):
            Images(root, paths, 0.0, url)[0]
    for (way, epoch), found in batches.items():  # the ways give the same batches
        assert all((one == other).all() for one, other in zip(found, batches["compute", epoch], strict=True)), (way, epoch)


def test_a_short_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cache_sweep, "TURN_S", 0.01)
    monkeypatch.setattr(cache_sweep, "KEPT", tmp_path / "kept.json")
    before = set(Path("/tmp").glob("ddlp-sweep-*"))
    arguments = ["--operator-ms", "0", "30", "--storage", "slow", "--images", "16", "--workers", "2", "--rounds", "1"]
    assert cache_sweep.main([*arguments, "--json", "--write"]) in (0, 1)  # whether it agrees is a matter of time
    printed, said = capsys.readouterr()
    result = json.loads(printed)
    kept = Kept(**json.loads((tmp_path / "kept.json").read_text()))
    assert kept.command.endswith("--workers 2 --rounds 1") and kept.figures == result["figures"]
    assert list(kept.figures) == ["slow, 0 ms", "slow, 30 ms"] and "2/2  slow, 30 ms" in said
    for figures in kept.figures.values():
        assert figures["auto_keeps_percent"] == 100 and min(figures.values()) > 0
    assert set(Path("/tmp").glob("ddlp-sweep-*")) == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    (
        (["--operator-ms", "5", "2"], "each more than the one before"),
        (["--images", "8"], "--images 8"),
        (["--rate", "0"], "--rate 0"),
    ),
)
def test_wrong_options_are_named(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cache_sweep.main(arguments)
    assert told in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.cache_sweep", "--operator-ms", "0", "200", "--images", "64", "--storage", "slow"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as child:
        assert child.stderr is not None
        while "1/2" not in child.stderr.readline():
            pass
        os.killpg(child.pid, signal.SIGINT)  # as the terminal does: its workers get it too
        printed, said = child.communicate()
    assert child.returncode == 130 and "stopped after 1 of 2 points" in said and "| slow, 0 ms |" in printed
    assert not list(tmp_path.iterdir()) and "Traceback" not in said, said
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)
