"""`DDLPLoader(pool=DIR)`: engines that are started by anything, and tell in a directory where they are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from csd_engine.protocol.cards import STALE_S, Card, write_card
from ddlp import CardPool, DDLPError
from tests.ddlp.faults.scene import make_loader, train, until
from tests.ddlp.pools.test_local import have_published, there, wait_for

CARD = Card("tcp://node7:7711", "k" * 40, "node7", 4711)


@pytest.fixture
def cards(spool: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of cards, and a home for this host's keys."""
    monkeypatch.setenv("DDLP_HOME", str(spool / "home"))
    (spool / "cards").mkdir(0o700)
    return spool / "cards"


@pytest.fixture
def start(cards: Path, images: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start engines that write cards. Returns once it serves."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "csd_engine", "--card", str(cards), "--listen", "tcp://127.0.0.1:0", "--workers", "1"]
        command += ["--root", str(images), "--spool", str(cards.parent / f"engine{len(started)}"), "--reserve-bytes", "0"]
        started.append(subprocess.Popen([*command, *options], stdout=subprocess.PIPE, start_new_session=True))
        assert json.loads(started[-1].stdout.readline())["ready"]
        return started[-1]

    yield run
    for one in started:
        one.send_signal(signal.SIGINT)
    for one in started:
        one.wait(60)
        one.stdout.close()


def names(cards: Path) -> set[str]:
    return {path.stem for path in cards.glob("*.card")}


def test_each_sample_once_by_engines_that_come_and_go(cards, start, data, truth, told):
    first = start("--slowdown", "25")
    loader = make_loader(data, "wrr", pool=str(cards))

    def come() -> None:
        wait_for(names(cards), have_published, loader)
        start()
        wait_for(names(cards), have_published, loader)  # it has joined the epoch under way
        assert len(names(cards)) == 2

    def go() -> None:
        (gone,) = [name for name in names(cards) if f"-{first.pid}-" in name]
        first.terminate()
        until(lambda: gone not in names(cards), 30, "its card's end")

    truth.check(train(loader, at={0: come, 2: go}))
    first.wait(60)
    assert not len(told), list(told)
    truth.check(train(loader, at={0: lambda: wait_for(names(cards), there, loader)}), 1)
    assert len(there(loader)) == 1


def test_a_killed_engine_leaves_a_card_that_costs_nothing_but_time(cards, start, data, truth, told):
    engine = start()
    os.kill(engine.pid, signal.SIGKILL)
    engine.wait()
    (name,) = names(cards)
    loader = make_loader(data, "wrr", pool=cards)
    truth.check(train(loader))
    old = time.time() - STALE_S - 1
    os.utime(cards / f"{name}.card", (old, old))
    truth.check(train(loader), 1)
    assert not names(cards) and not loader.live().devices


def test_a_host_that_left_no_key_is_refused(cards, start, data, truth, told, monkeypatch):
    monkeypatch.setattr("ddlp.sources.engine.device_link.allow_host", lambda *_: None)
    start()
    (name,) = names(cards)
    loader = make_loader(data, "wrr", pool=cards)

    def refused():
        until(lambda: loader._last.executor.devices.states[name].gone, 20, "the refusal")

    truth.check(train(loader, at={0: refused}))
    assert len(told) == 1 and "key" in told[0], list(told)


def test_the_directory_must_be_ones_own(cards, data, tmp_path):
    for mode in (0o770, 0o707, 0o1777):
        cards.chmod(mode)
        with pytest.raises(DDLPError, match="others than its owner may write to it"):
            make_loader(data, "wrr", pool=cards)
    with pytest.raises(DDLPError, match="can't be used: No such file"):
        CardPool(tmp_path / "none")
    engine = "--listen ipc:///nowhere/s --root / --spool /nowhere/spool".split()
    refused = subprocess.run(
        [sys.executable, "-m", "csd_engine", "--card", str(cards), *engine], capture_output=True, text=True
    )
    assert refused.returncode == 2 and "others than its owner may write to it" in refused.stderr


def test_the_keys_directory_must_be_ones_own_too(cards):
    (cards / "clients").mkdir()
    (cards / "clients").chmod(0o777)
    with pytest.raises(DDLPError, match="clients can't be used: others than its owner"):
        CardPool(cards).engines()


def test_trouble_with_the_directory_ends_no_training(cards, start, data, truth, told):
    loader = make_loader(data, "wrr", pool=cards)

    def open_to_all() -> None:
        cards.chmod(0o777)
        until(lambda: loader._parts.offload.connections.trouble, 30, "the trouble")
        time.sleep(0.1)  # it is told after that

    truth.check(train(loader, at={0: open_to_all}))
    truth.check(train(loader), 1)
    assert told[0].startswith("ddlp: no engine can join now: pool=: the directory of cards"), list(told)


def test_at_most_so_many(cards):
    for number in range(3):
        write_card(cards, f"node-{number}", CARD)
    pool = CardPool(cards)
    pool.want(2)
    assert list(pool.engines()) == ["node-0", "node-1"]
    with pytest.raises(ValueError, match="want"):
        pool.want(0)


def test_engines_of_cards_to_which_the_host_sends_the_files(cards, start, data, truth, told):
    start()
    with pytest.raises(ValueError, match="'there' if the engine sees"):
        CardPool(cards, data="sent")
    loader = make_loader(data, "csd", pool=CardPool(cards, data="carried"))
    truth.check(train(loader))
    assert loader.report().batches_csd == 40 and not len(told), list(told)
    assert os.listdir(cards.parent / "engine0" / "manifests") == []  # it was told no names of files
