"""An embedded engine does not start, or dies while it starts: ddlp warns, and the host works alone. With ``csd`` it raises."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from csd_engine.errors import EngineError, EngineUnreachable
from ddlp.sources.engine import source as csd
from ddlp.sources.engine.embedded import EmbeddedEngine
from tests.ddlp.faults.scene import engine_pid, make_loader, train, until

STRATEGIES = ("mte", "wrr", "ordered")


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let a shell script start the engine; $PYTHON in it is the real interpreter."""

    def become(script: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\nPYTHON={os.path.realpath(sys.executable)}\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return become


@pytest.fixture(autouse=True)
def nothing_left(leaves_nothing: Path) -> Iterator[None]:
    """No process, thread, descriptor or file of the failed starts may stay."""
    yield


def train_until(loader, done):
    """Train an epoch that goes on after its sixth step once `done` is true."""
    return train(loader, 0.01, at={6: lambda: until(done, 30)})


def check(loader, truth, told, because):
    """Two complete epochs by the host alone. One warning and each report say why, and the warning says what to do."""
    for epoch in range(2):
        truth.check(train_until(loader, lambda: loader.report().notes), epoch)
        assert loader.report().batches_csd == 0
        assert len(loader.report().notes) == 1 and because in loader.report().notes[0], loader.report().notes
    (warning,) = told
    assert warning.startswith("ddlp: the embedded engine takes no part yet, the host prepares its batches: ")
    assert because in warning and "strategy='cpu' does without it" in warning


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.some(1)
def test_an_interpreter_that_ends_at_once(data, truth, told, interpreter, strategy):
    interpreter("echo no such module >&2; exit 3")
    loader = make_loader(data, strategy)
    check(loader, truth, told, "process ended with status 3")
    assert "no such module. Run `" in told[0]


@pytest.mark.parametrize(
    ("script", "because"),
    [
        ("echo '[\"ready\"]'; echo '{\"ready\": 5}'; printf '\\377\\n'; exit 0", '{"ready": 5}'),
        ("while echo nonsense; do :; done", "nonsense"),
        ("kill -9 $$", "process ended with status -9"),
        ('ulimit -v 60000; exec $PYTHON "$@"', "the embedded engine did not start"),
    ],
    ids=["garbage", "garbage without end", "killed", "no memory"],
)
@pytest.mark.some(2)
def test_an_interpreter_that_goes_wrong(data, truth, told, interpreter, script, because):
    interpreter(script)
    check(make_loader(data, "wrr"), truth, told, because)


def test_no_place_for_a_socket(data, truth, told, tmp_path, monkeypatch):
    """The spool's path is too long for a socket, and neither the temporary directory nor /tmp can be used."""
    monkeypatch.setattr("ddlp.sources.engine.meeting.MAX_SOCKET_PATH_BYTES", 20)
    check(make_loader(data, "wrr", spool=str(tmp_path)), truth, told, "a socket's path has at most 20 bytes")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.some(1)
def test_killed_when_it_is_about_to_join(data, truth, told, monkeypatch, strategy):
    """The engine is killed after it has told its address. The next one joins the same epoch."""
    await_ready = EmbeddedEngine._await_ready
    starts: list[str] = []

    def killed(engine: EmbeddedEngine) -> str:
        starts.append(await_ready(engine))
        if len(starts) == 1:
            os.kill(engine._process.pid, signal.SIGKILL)
        return starts[-1]

    monkeypatch.setattr(EmbeddedEngine, "_await_ready", killed)
    monkeypatch.setattr("ddlp.process.pauses.FIRST_PAUSE_S", 0.1)
    loader = make_loader(data, strategy)
    truth.check(train_until(loader, lambda: loader._last.executor.ledger.in_spool or loader._last.executor.ledger.ready_csd))
    assert len(told) == 1 and "process ended with status -9" in told[0], list(told)
    assert loader.report().batches_csd and not loader.report().notes and len(starts) == 2


def test_killed_while_bits_are_compared(data, truth, told, monkeypatch):
    compare, kills = csd.host_digest, []

    def digest(spec, item):
        if not kills:
            kills.append(os.kill(engine_pid(), signal.SIGKILL))
        return compare(spec, item)

    monkeypatch.setattr(csd, "host_digest", digest)
    monkeypatch.setattr("ddlp.process.pauses.FIRST_PAUSE_S", 0.1)
    loader = make_loader(data, "wrr")
    truth.check(train_until(loader, lambda: loader._last.executor.ledger.ready_csd))
    assert len(told) == 1, list(told)
    assert loader.report().batches_csd


def test_an_engine_that_starts_in_a_later_epoch(data, truth, told, monkeypatch):
    loader = make_loader(data, "wrr")
    with monkeypatch.context() as now:
        now.setattr(sys, "executable", "/nowhere/python")
        truth.check(train_until(loader, lambda: loader.report().notes))
        assert "could not be started by '/nowhere/python'" in told[0], list(told)
    truth.check(train_until(loader, lambda: loader._last.executor.ledger.ready_csd), 1)
    assert loader.report().batches_csd and not loader.report().notes and len(told) == 1


def test_under_csd_it_is_an_error_of_iter(data, truth, told, interpreter, monkeypatch):
    real = sys.executable
    interpreter("echo no such module >&2; exit 3")
    loader = make_loader(data, "csd")
    for _ in range(2):
        with pytest.raises(EngineUnreachable, match=r"status 3\) in .*: no such module. Run `"):
            iter(loader)
    monkeypatch.setenv("DDLP_ENGINE_WORKERS", "none")
    with pytest.raises(EngineError, match="DDLP_ENGINE_WORKERS is 'none'"):
        iter(loader)
    monkeypatch.delenv("DDLP_ENGINE_WORKERS")
    monkeypatch.setattr(sys, "executable", real)
    batches = train(loader)
    truth.check(batches, 3 if loader._progress.epoch == 4 else 0)
    assert loader.report().batches_csd == len(batches) and not len(told)
