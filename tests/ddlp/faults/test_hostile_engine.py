"""An engine with the right key sends wrong messages: every sample comes once with the host's bits, and a warning says why."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from csd_engine.protocol import codec as say
from ddlp.epoch.monitor import Monitor
from ddlp.schedule.strategies import base
from ddlp.sources.engine import part_stream
from tests.ddlp.faults.scene import make_loader, train
from tests.engine_process import EngineProcess, until
from tests.hostile_engine import Lie, LyingEngine, honest

HEX = "0" * 32
ESCAPES = "\x1b[2Jrm -rf\x07\u202e\n/"


@pytest.fixture(scope="module")
def engine(images: Path) -> Iterator[EngineProcess]:
    """The real engine behind the lying one. It sends parts through it, and none sealed, past it."""
    home = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as while_it_starts:
        while_it_starts.setenv("DDLP_STREAM_CIPHER", "curve")
        one = EngineProcess(home, "--root", str(images), "--lease-timeout", "2", listen="tcp://127.0.0.1:0")
    yield one
    one.end()
    assert "Traceback" not in one.log, one.log
    shutil.rmtree(home)


@pytest.fixture
def lying(engine: EngineProcess) -> Iterator[Callable[[Lie], LyingEngine]]:
    """Start a lying engine."""
    liars: list[LyingEngine] = []

    def begin(lie: Lie) -> LyingEngine:
        liars.append(LyingEngine(engine.address, engine.keys, lie))
        return liars[-1]

    yield begin
    for one in liars:
        one.close()


def instead_of(kind: type[say.Message], tell: Callable[[Any], list[say.Message]], after: int = 0) -> Callable[[], Lie]:
    """Send other messages in place of each message of a kind, except the first `after`."""

    def make() -> Lie:
        seen = itertools.count()

        def lie(message: say.Message, payload: Any) -> Any:
            if not isinstance(message, kind) or next(seen) < after:
                return None
            return [say.encode(one) for one in tell(message)]

        return lie

    return make


def parts(change: Callable[[say.Part, bytes], list[list[Any]]]) -> Callable[[], Lie]:
    """Send other parts of batches."""
    return lambda: lambda message, payload: change(message, payload) if isinstance(message, say.Part) else None


def raw(kind: type[say.Message], *frames: bytes) -> Callable[[], Lie]:
    """Send these bytes in place of each message of a kind."""
    return lambda: lambda message, payload: [list(frames)] if isinstance(message, kind) else None


def published(lease: int, job: str = "x") -> say.Published:
    return say.Published(job, lease, f"job-1/{HEX}.{lease}.safetensors", 0.5)


def flipped(part: say.Part, content: bytes) -> list[list[Any]]:
    return [say.encode(part, bytes([content[0] ^ 1]) + content[1:])]


def in_ages_then_never(message: say.Message, payload: Any) -> Any:
    """The longer a device says a batch takes, the longer ddlp waits for its next one."""
    if not isinstance(message, say.Published):
        return None
    return [say.encode(replace(message, busy_s=9e8))] if message.lease < 3 else []


LIES: dict[str, Callable[[], Lie]] = {
    # the greeting
    "greeting: garbage": raw(say.Welcome, b"\xff\x00"),
    "greeting: another message": instead_of(say.Welcome, lambda _: [say.JobClosed("x")]),
    "greeting: no room, no workers": instead_of(say.Welcome, lambda one: [replace(one, quota_batches=0, workers=0)]),
    "greeting: any room, any workers": instead_of(
        say.Welcome, lambda one: [replace(one, quota_batches=2**63 - 1, quota_bytes=2**63 - 1, workers=2**63 - 1)]
    ),
    "greeting: no path": instead_of(say.Welcome, lambda one: [replace(one, spool="a\0b\ud800")]),
    # opening a job
    "opening: another message": instead_of(say.JobOpen, lambda one: [say.ProbeDone(one.job, ())]),
    "opening: closed": instead_of(say.JobOpen, lambda one: [say.JobClosed(one.job)]),
    "opening: an unknown file": instead_of(say.JobOpen, lambda one: [say.NeedFile("manifest", HEX, 0)]),
    "opening: broken off": instead_of(say.JobOpen, lambda one: [say.Refused("", ESCAPES)]),
    # the probe
    "probe: no digests": instead_of(say.ProbeDone, lambda one: [replace(one, digests=())]),
    "probe: another message": instead_of(say.ProbeDone, lambda one: [say.JobOpen(one.job, "job-2")]),
    "probe: closed": instead_of(say.ProbeDone, lambda one: [say.JobClosed(one.job)]),
    "probe: errors": instead_of(say.ProbeDone, lambda one: [replace(one, digests=("error: " + ESCAPES,) * len(one.digests))]),
    # batches
    "batch: of no lease": instead_of(say.Published, lambda one: [published(k, one.job) for k in (0, 10**6, 2**62)] + [one]),
    "batch: of another job": instead_of(say.Published, lambda one: [replace(one, job="other"), one]),
    "batch: told twice": instead_of(say.Published, lambda one: [one, one]),
    "batch: published and failed": instead_of(say.Published, lambda one: [one, say.Failed(one.job, one.lease, "no", False)]),
    "batch: failed and published": instead_of(say.Published, lambda one: [say.Failed(one.job, one.lease, "no", False), one]),
    "batch: never told": instead_of(say.Published, lambda one: [], after=1),
    "batch: each fails": instead_of(
        say.Published, lambda one: [say.Failed(one.job, one.lease, f"{one.lease}{ESCAPES}", False)]
    ),
    "batch: all fail": instead_of(say.Published, lambda one: [say.Failed(one.job, one.lease, ESCAPES, True)]),
    "batch: in no time": instead_of(say.Published, lambda one: [replace(one, busy_s=0.0)]),
    "batch: in ages": instead_of(say.Published, lambda one: [replace(one, busy_s=9e8)]),
    "batch: measured": instead_of(say.Published, lambda one: [say.Measured(one.job, ((2**63 - 1, 0.0), (0, 9e8))), one]),
    "batch: the job is refused": instead_of(say.Published, lambda one: [say.Refused(one.job, ESCAPES)], after=1),
    "batch: the job is closed": instead_of(say.Published, lambda one: [say.JobClosed(one.job)], after=1),
    "batch: broken off": instead_of(say.Published, lambda one: [say.Refused("", ESCAPES)], after=1),
    "batch: outside the spool": raw(say.Published, b'{"say":"Published","file":"../../etc/passwd"}'),
    "batch: in ages, then never": lambda: in_ages_then_never,
    # batches over the socket
    "part: other bytes": parts(flipped),
    "part: other bytes at times": parts(
        lambda part, content: [say.encode(part, content[::-1] if part.number % 3 else content)]
    ),
    "part: short": parts(lambda part, content: [say.encode(part, content[:-1])]),
    "part: none": parts(lambda part, content: [say.encode(say.NoPart(part.number, part.offset, ESCAPES))]),
    "part: twice": parts(lambda part, content: [say.encode(part, content)] * 2),
    "part: of another fetch": parts(lambda part, content: [say.encode(replace(part, number=part.number + 1), content)]),
    "part: from elsewhere": parts(lambda part, content: [say.encode(replace(part, offset=part.offset + 1), content)]),
    "part: never": parts(lambda part, content: []),
    "part: not asked for": parts(lambda part, content: [say.encode(say.Part(k, 0), content) for k in range(1000)]),
    # the heartbeat
    "heartbeat: absurd": instead_of(
        say.Pong,
        lambda one: [replace(one, progress=(("x", 1, 2), *((j, n, 2**63 - 1) for j, n, _ in one.progress)), note=ESCAPES)],
    ),
}  # fmt: skip


OTHERS = itertools.cycle(["wrr", "mte", "ordered"])
SCENES = [("csd", lie) for lie in LIES]
SCENES += [(next(OTHERS), lie) for lie in [lie for lie in LIES if lie.startswith(("batch", "part"))][::3]]


@pytest.mark.parametrize(("strategy", "lie"), SCENES)
def test_a_lie_costs_speed_and_no_sample(lying, data, truth, told, monkeypatch, strategy, lie):
    monkeypatch.setattr(part_stream, "SILENT_S", 0.2)
    monkeypatch.setattr(base, "STALLED_AT_LEAST_S", 0.2)
    monkeypatch.setattr(Monitor, "LOOK_UP_S", 0.05)
    loader = make_loader(data, strategy, csd=lying(LIES[lie]()).device(), transfer="stream")
    truth.check(train(loader, 0.01))
    assert len(told) <= 16 and all(text.isprintable() for text in told), list(told)
    assert all(note.isprintable() for note in loader.report().notes)


def test_a_device_that_lies_is_one_line_an_epoch(lying, data, truth, told):
    """However often it is tried again. It may also stop lying."""
    liar = lying(LIES["probe: no digests"]())
    loader = make_loader(data, "wrr", csd=liar.device(), transfer="stream")
    truth.check(train(loader, 0.05))
    assert len(told) == 1 and "is gone (the engine at tcp://" in told[0] and "host prepares" in told[0], list(told)
    assert loader.report().batches_csd == 0 and liar.peers >= 1
    liar.lie = honest
    for epoch in itertools.count(1):
        truth.check(train(loader, 0.02), epoch)
        if loader.report().batches_csd:
            break


@pytest.mark.parametrize("kind", [say.JobOpen, say.ProbeDone])
def test_once_an_epoch_is_over_nobody_waits_for_an_engine_that_does_not_answer(lying, data, truth, told, kind):
    loader = make_loader(data, "wrr", csd=lying(instead_of(kind, lambda _: [])()).device(), transfer="stream")
    truth.check(train(loader, 0.01))
    until(lambda: not any(one.name.startswith("ddlp-attach") for one in threading.enumerate()), 30, "the thread's end")


def test_a_spool_that_is_somewhere_else(lying, data, truth, told, tmp_path):
    """This host writes below a path that the engine names only if the engine has shown that it sees the same directory."""
    there = tmp_path / "home"
    there.mkdir()
    (there / "secret").write_text("x")
    liar = lying(instead_of(say.Welcome, lambda one: [replace(one, spool=str(there))])())
    truth.check(train(make_loader(data, "csd", csd=liar.device()), 0.01))
    assert [path.name for path in there.iterdir()] == ["secret"] and not len(told), list(told)
