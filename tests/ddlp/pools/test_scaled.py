"""`strategy="auto"` with a pool that has a range: real engines, and an operator that sleeps."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from torch.utils.data import Subset
from torchvision import transforms as T

from csd_engine.prepare.operator_file import content_hash
from csd_engine.transforms.pipeline import Pipeline
from ddlp import CardPool, DDLPLoader, ImageArrays, LocalPool, load_operators
from ddlp.pools.base import range_of
from ddlp.sources.base import EpochSink
from ddlp.sources.engine.connections import EngineConnections
from ddlp.sources.engine.embedded import EmbeddedOptions
from ddlp.sources.engine.source import EngineSource
from tests.ddlp.faults.scene import until
from tests.ddlp.pools.conftest import HOST_S
from tests.ddlp.pools.test_local import there, wait_for
from tests.sleeping_engine import OPERATOR

IMAGES = 8
MOST = 3


def loader_of(pool: Any, batches: int) -> DDLPLoader:
    images = np.arange(IMAGES * 8 * 8 * 3, dtype=np.uint8).reshape(IMAGES, 8, 8, 3)
    prepare = load_operators(OPERATOR).prepare(host_s=0.0)
    data = ImageArrays(images, range(IMAGES), T.Compose([prepare, T.PILToTensor()]))
    samples: Any = Subset(data, [number % IMAGES for number in range(batches)])
    return DDLPLoader(samples, 1, shuffle=True, strategy="auto", seed=0, pool=pool)


def test_a_pool_has_a_range_if_it_is_given_one(tmp_path):
    tmp_path.chmod(0o700)
    assert range_of(LocalPool(4, min=1)) == (1, 4) and range_of(LocalPool(2)) is range_of(LocalPool(2, min=2)) is None
    assert range_of(CardPool(tmp_path, max=3)) == (0, 3) and range_of(CardPool(tmp_path)) is None
    assert repr(LocalPool(min=0, max=8)) == "0 to 8 engines in processes on this machine"
    assert f"1 to 3 of the engines whose cards are in {tmp_path}" == repr(CardPool(tmp_path, min=1, max=3))
    pool = LocalPool(min=0, max=3)
    assert len(pool.engines()) == 3
    pool.want(1)
    assert [one.share for one in pool.engines().values()] == [3], "the spool's space is that of all that may come"
    pool.want(0)
    assert not pool.engines()
    for ranged in (pool, CardPool(tmp_path, max=3)):
        with pytest.raises(ValueError, match=r"want\(4\): a number of engines from 0 to 3"):
            ranged.want(4)
    for wrong in (lambda: LocalPool(2, min=3), lambda: LocalPool(2, min=-1), lambda: CardPool(tmp_path, min=3, max=2)):
        with pytest.raises(ValueError, match="the least and the largest number"):
            wrong()


def test_one_that_is_told_to_go_while_it_is_on_its_way_is_no_loss():
    connections, told = EngineConnections((), EmbeddedOptions(), pool=dict), []
    assert connections.names == ()

    class Sink:
        portable = SimpleNamespace(pipeline=Pipeline("pillow12", "RGB", (), 0))
        resources = SimpleNamespace(epoch=SimpleNamespace(portable=portable))

        def lost(self, *what: Any, **more: Any) -> None:
            told.append((what, more))

    EngineSource("pool engine 1", connections).join(cast(EpochSink, Sink()))
    assert told == [(("pool engine 1", "it has left the pool"), {"warned": True})]


def quick(sleeps: Path) -> None:
    """Nobody sleeps from now on: the rest of the epoch need not take long."""
    (sleeps.parent / "no sleep").write_text("0.0")
    (sleeps.parent / "no sleep").replace(sleeps)


def wishes(loader: DDLPLoader) -> list[str]:
    return [one.reason for one in loader.report().changes if one.device == "pool"]


def check(images: Any, labels: Any, seen: Counter[int]) -> None:
    assert int(images.flatten()[0]) == int(labels[0]) * 192 % 256
    seen[int(labels[0])] += 1


def test_an_engine_comes_as_training_waits_for_the_host_alone(leaves_nothing, sleeps, told):
    loader, seen = loader_of(LocalPool(min=0, max=1), 160), Counter[int]()
    for images, labels in loader:
        check(images, labels, seen)
        if wishes(loader):
            wait_for({"pool engine 1"}, there, loader)
            quick(sleeps)
    assert seen == dict.fromkeys(range(IMAGES), 160 // IMAGES)
    assert wishes(loader)[0] == "1 wanted instead of 0: training waits for the host alone, and no engine has been measured"
    assert not len(told), list(told)


def test_no_engine_is_begun_before_one_is_asked_for(leaves_nothing, sleeps, monkeypatch):
    begun, attach = [], EngineSource.attach
    monkeypatch.setattr(EngineSource, "attach", lambda self, sink: (begun.append(self.name), attach(self, sink)))
    loader = loader_of(LocalPool(min=0, max=MOST), 20)  # less than the host's window
    assert len(list(loader)) == 20 and not wishes(loader) and not begun


def come_and_go(loader: DDLPLoader, pool: Any, most: int, sleeps: Path, wait_s: float = 0.0) -> None:
    """Training takes no time at first: it asks for all that there may be; then four times that of the host: for none.

    ``wait_s``: so long training stands still for engines that were asked for.
    """
    seen, together, shrunk = Counter[int](), 0, False
    for images, labels in loader:
        check(images, labels, seen)
        if wait_s and together < most and (asked := wishes(loader)):
            until(lambda: len(there(loader)) == int(asked[-1].split()[0]), wait_s, asked[-1])
        together = max(together, len(there(loader)))
        if together == most and not shrunk:
            time.sleep(4 * HOST_S)
            if shrunk := not pool.engines() and not there(loader):
                quick(sleeps)
    assert seen == dict.fromkeys(range(IMAGES), len(loader) // IMAGES)
    assert together == most, "they have joined the epoch under way"
    asked = wishes(loader)
    assert shrunk and any(one.startswith("0 wanted instead of") for one in asked), asked
    report = loader.report()
    assert report.batches_csd and any(one.reason == "it retires: it is not in the pool any more" for one in report.changes)
    assert f"pool: {asked[-1]}" in str(report)


@contextlib.contextmanager
def carded_engine(home: Path) -> Iterator[Path]:
    """An engine of one worker whose operator sleeps; gives the directory with its card."""
    for directory in (cards := home / "cards", operators := home / "operators", home / "root"):
        directory.mkdir(0o700)
    (operators / f"{content_hash(OPERATOR.read_bytes())}.py").write_bytes(OPERATOR.read_bytes())
    command = [sys.executable, "-m", "csd_engine", "--card", str(cards), "--listen", "tcp://127.0.0.1:0", "--workers", "1"]
    command += ["--operators", str(operators), "--root", str(home / "root"), "--reserve-bytes", "0"]
    command += ["--parent", str(os.getpid()), "--spool", str(home / "spool")]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True) as engine:
        assert engine.stdout is not None and json.loads(engine.stdout.readline())["ready"]
        try:
            yield cards
        finally:
            engine.send_signal(signal.SIGINT)


def test_an_engine_with_a_card_is_used_while_training_waits_and_let_go_when_it_does_not(sleeps, tmp_path, monkeypatch, told):
    monkeypatch.setenv("DDLP_HOME", str(tmp_path / "home"))
    with carded_engine(tmp_path) as cards:
        pool = CardPool(cards, max=1)
        come_and_go(loader_of(pool, 480), pool, 1, sleeps, 60)
        assert len(CardPool(cards).engines()) == 1, "it goes on without this loader"
    assert not len(told), list(told)
