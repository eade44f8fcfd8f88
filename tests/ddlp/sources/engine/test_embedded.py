"""The embedded engine: loaders share it, it is restarted, and it ends with its process, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from csd_engine.errors import EngineGone, EngineUnreachable, SpoolError
from csd_engine.protocol import codec as say
from ddlp.process.system import PREFIX, own_prefix
from ddlp.sources.engine import embedded, meeting
from ddlp.sources.engine.embedded import EmbeddedOptions, acquire
from ddlp.transfer import mapped_batch as mapping
from tests.engine_process import Recipe, alive, children, make_jpegs, until, wait_for

REPOSITORY = Path(__file__).resolve().parents[4]


@pytest.fixture
def options(tmp_path: Path) -> Iterator[EmbeddedOptions]:
    """Options with a spool of their own, which must be empty at the end."""
    spool = tmp_path / "spool"
    yield EmbeddedOptions(spool=str(spool))
    until(lambda: not spool.exists() or os.listdir(spool) == [], 30)


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory):
    """A root, and paths of JPEG files below it."""
    root = tmp_path_factory.mktemp("jpegs")
    return root, make_jpegs(root, np.random.default_rng(7))


def test_loaders_share_it_and_the_last_one_ends_it(options, jpegs, tmp_path):
    spec = Recipe(*jpegs, tmp_path / "manifest")
    first, second = acquire(options), acquire(options)
    assert first is second
    workers = until(lambda: children(first.pid))
    assert len(workers) == 1
    assert first.directory.parent.stat().st_mode & 0o777 == 0o700
    first.release()
    events = SimpleQueue()
    job = spec.open(second.link, events)
    items = spec.lease(job, 1)
    spec.check(job.path(wait_for(events, say.Published)), 1, items)
    second.release()
    assert not alive(first.pid) and not any(map(alive, workers))


def test_a_killed_engine_is_replaced_and_leaves_nothing(options, jpegs, tmp_path):
    spec = Recipe(*jpegs, tmp_path / "manifest")
    first = acquire(options)
    events = SimpleQueue()
    spec.open(first.link, events)
    workers = until(lambda: children(first.pid))
    os.kill(first.pid, signal.SIGKILL)
    assert wait_for(events, say.Refused).reason
    with pytest.raises(EngineGone):
        spec.open(first.link, events)
    second = acquire(options)
    assert second is not first and alive(second.pid)
    first.release()
    second.release()
    until(lambda: not any(map(alive, workers)), what="the end of the killed engine's workers")


HOST = """
    import os, sys, time
    from ddlp.sources.engine.embedded import EmbeddedOptions, acquire
    engine = acquire(EmbeddedOptions(spool=sys.argv[1]))
    print(engine.pid, flush=True)
    {then}
"""


def host(spool: Path, then: str) -> tuple[subprocess.Popen, int]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOST).format(then=then), str(spool)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=REPOSITORY,
    )
    return process, int(process.stdout.readline())


@pytest.mark.parametrize(
    ("then", "number"),
    [
        ("time.sleep(60)", signal.SIGKILL),
        ("os._exit(3)", 0),
        ("sys.exit(0) if os.fork() == 0 else os.wait()", 0),
    ],
    ids=["killed", "exits-hard", "forks"],
)
@pytest.mark.some(2)
def test_it_ends_with_its_host(tmp_path, then, number):
    process, engine = host(tmp_path, then)
    workers = until(lambda: children(engine)) if number else children(engine)
    if number:
        process.send_signal(number)
    process.wait(60)
    until(lambda: not alive(engine) and not any(map(alive, workers)), 30, "the end of the engine")
    until(lambda: os.listdir(tmp_path) == [], 30, "the removal of its directory")
    process.stdout.close()
    process.stderr.close()


def test_it_ends_though_a_forked_child_holds_its_pipe(tmp_path):
    process, engine = host(tmp_path, "child = os.fork(); print(child, flush=True) if child else 0; time.sleep(60)")
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.wait(60)
        until(lambda: not alive(engine), 30, "the end of the engine")
        until(lambda: os.listdir(tmp_path) == [], 30, "the removal of its directory")
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)
    process.stdout.close()
    process.stderr.close()


def test_a_forked_child_keeps_its_hands_off(options):
    engine = acquire(options)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            engine.link.open()
        except EngineGone:
            engine.release()
            engine.link.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert engine.ended() is None and engine.link.open()
    engine.release()


def test_directories_of_dead_processes_are_swept(options):
    base = Path(options.spool)
    base.mkdir()
    left = dead(base, f"{own_prefix()}dead")
    mine = acquire(options)
    os.utime(mine.directory.parent, (0, 0))
    meeting.sweep(str(base))
    assert not left.exists() and mine.directory.exists()
    mine.release()


def dead(base: Path, name: str) -> Path:
    """A directory that a process has left which is gone, or whose lock cannot be seen here."""
    left = base / name
    left.mkdir()
    (left / "lock").touch()
    os.utime(left, (0, 0))
    return left


@pytest.mark.parametrize("kind", ["ext4", "nfs4"])
def test_what_another_machine_may_have_made_is_left_alone(tmp_path, monkeypatch, kind):
    """On a network file system, locks may be separate for each machine. On a disk they are this machine's."""
    mounts = tmp_path / "root/proc/self/mountinfo"
    mounts.parent.mkdir(parents=True)
    mounts.write_text(f"21 1 8:1 / / rw - {kind} there:/all rw\n")
    look = partial(mapping.may_map, root=tmp_path / "root")
    monkeypatch.setattr(meeting, "may_map", look)
    ours, others = dead(tmp_path, f"{own_prefix()}x"), dead(tmp_path, f"{PREFIX}{os.getuid()}-01234567-x")
    meeting.sweep(str(tmp_path))
    assert not ours.exists() and others.exists() == (kind == "nfs4")


def test_a_long_spool_path_moves_the_socket_alone(tmp_path):
    spool = tmp_path / ("x" * 100)
    engine = acquire(EmbeddedOptions(spool=str(spool)))
    assert engine.directory.parent.parent == spool
    short = engine._meeting.socket_directory
    assert short != engine.directory and short.exists()
    engine.release()
    assert not short.exists() and os.listdir(spool) == []


def test_errors_say_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(SpoolError, match="DDLP_SPOOL"):
        acquire(EmbeddedOptions(spool=str(tmp_path / "file")))
    with pytest.raises(EngineUnreachable, match="CPU"):
        acquire(EmbeddedOptions(spool=str(tmp_path / "s"), cpus="4000"))
    assert os.listdir(tmp_path / "s") == []
    monkeypatch.setenv("DDLP_ENGINE_WORKERS", "none")
    with pytest.raises(Exception, match="none"):
        acquire(EmbeddedOptions(spool=str(tmp_path / "s")))


def test_no_engine_is_started_for_a_loader_that_was_dropped_while_it_waited(monkeypatch):
    """Threads of dropped loaders would each start one, one after another, and keep the process from its end."""
    started = []
    monkeypatch.setattr(embedded, "EmbeddedEngine", lambda *_: started.append(1))

    def dropped() -> None:
        raise EngineGone("the loader was dropped")

    with pytest.raises(EngineGone):
        acquire(EmbeddedOptions(workers=3), dropped)
    assert not started
