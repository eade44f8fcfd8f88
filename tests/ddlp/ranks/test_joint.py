"""The engine that the ranks of a run share: one of them starts it, and it ends with the last one, however each rank ends."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from csd_engine.errors import SpoolError
from csd_engine.protocol import codec as say
from csd_engine.service.jobs import Member
from ddlp.process.ranks import Ranks
from ddlp.process.system import PREFIX
from ddlp.sources.engine import embedded, meeting
from ddlp.sources.engine.embedded import EmbeddedEngine, EmbeddedOptions, acquire
from ddlp.sources.engine.link import JobHandle
from tests.engine_process import Recipe, alive, children, make_jpegs, until, wait_for

REPOSITORY = Path(__file__).resolve().parents[3]
RUN = "0123456789abcdef" * 2

RANK = """
import os, sys
from ddlp.sources.engine.embedded import EmbeddedOptions, acquire
for line in sys.stdin:
    if line.strip() == "acquire":
        engine = acquire(EmbeddedOptions(spool=sys.argv[1]))
        print(engine.pid, flush=True)
    if line.strip() == "fork":
        child = os.fork()
        if not child:
            os.close(0)
            import time
            time.sleep(60)
        print(child, flush=True)
    if line.strip() == "start":
        import time
        from ddlp.sources.engine.embedded import EmbeddedEngine
        launch = EmbeddedEngine._launch
        def forking(engine):
            child = os.fork()
            if not child:
                os.close(0)
                time.sleep(60)
            print(child, flush=True)
            sys.stdin.readline()
            return launch(engine)
        EmbeddedEngine._launch = forking
        engine = acquire(EmbeddedOptions(spool=sys.argv[1]))
        print(engine.pid, flush=True)
    if line.strip() == "release":
        engine.release()
        print(0, flush=True)
"""

TRAINS = """
    from torch.utils.data import DistributedSampler
    some = dataset(paths[:24])
    loader = DDLPLoader(some, 2, sampler=DistributedSampler(some, 2, 0), strategy={strategy!r}, spool={spool!r})
"""


def environment(rank: int) -> dict[str, str]:
    """torchrun's environment of one rank of two."""
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0",
    }  # fmt: skip


class Rank:
    """A process with torchrun's environment that does what it is told."""

    def __init__(self, spool: Path, rank: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, str(spool)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            env={**os.environ, **environment(rank)},
            text=True,
        )

    def tell(self, what: str) -> None:
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()

    def ask(self, what: str) -> int:
        self.tell(what)
        return self.answer()

    def answer(self, within_s: float = 20.0) -> int:
        assert select.select([self.process.stdout], [], [], within_s)[0], "the rank does not answer"
        return int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            stream.close()


@pytest.fixture
def spool() -> Iterator[Path]:
    """A spool. At the end it must be empty, and no engine may use it any more."""
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp") as path:
        yield Path(path)
        until(lambda: os.listdir(path) == [], 30, "an empty spool")
        until(lambda: not [pid for pid in os.listdir("/proc") if pid.isdigit() and path in command(pid)], 30, "all ends")


def unlocked(spool: Path) -> bool:
    """Whether no process holds the engine's lock, not even the fork of a killed engine that was about to become a worker."""
    [path] = spool.glob("*/e-*/spool/.lock")
    with path.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.fixture
def rank(spool: Path) -> Iterator[Callable[[int], Rank]]:
    started: list[Rank] = []

    def start(number: int) -> Rank:
        started.append(Rank(spool, number))
        return started[-1]

    yield start
    for one in started:
        one.close()


def gone(engine: int, workers: list[int]) -> None:
    until(lambda: not alive(engine) and not any(map(alive, workers)), 30, "the end of the engine")


def test_both_start_at_once_and_share_one_until_the_last_one_ends(spool, rank):
    first, second = rank(0), rank(1)
    first.tell("acquire")
    second.tell("acquire")
    engine = int(first.process.stdout.readline())
    assert int(second.process.stdout.readline()) == engine
    assert len(list(spool.iterdir())) == 1
    assert next(spool.iterdir()).stat().st_mode & 0o777 == 0o700
    workers = until(lambda: children(engine))
    first.end()
    assert alive(engine)
    second.ask("release")  # the last one waits for the engine's end
    assert os.listdir(spool) == []
    gone(engine, workers)


def test_the_starters_sudden_end_is_nobody_elses(spool, rank):
    first = rank(0)
    engine = first.ask("acquire")
    second = rank(1)
    assert second.ask("acquire") == engine
    child = first.ask("fork")  # it inherits the rank's descriptors, and is no rank
    try:
        first.kill()
        again = rank(0)  # like a restart by torchrun
        assert again.ask("acquire") == engine
        workers = until(lambda: children(engine))
        second.kill()
        assert alive(engine)
        again.kill()
        gone(engine, workers)
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_killed_engine_is_replaced_for_all(spool, rank):
    first, second = rank(0), rank(1)
    engine = first.ask("acquire")
    assert second.ask("acquire") == engine
    os.kill(engine, signal.SIGKILL)
    until(lambda: not alive(engine) and unlocked(spool))
    new = second.ask("acquire")
    assert new != engine and first.ask("acquire") == new
    first.kill()
    second.kill()
    until(lambda: not alive(new), 30)


def test_a_stopped_engine_does_not_stay(spool, rank):
    only = rank(0)
    engine = only.ask("acquire")
    os.kill(engine, signal.SIGSTOP)
    try:
        only.ask("release")
        assert not alive(engine)
    finally:
        if alive(engine):
            os.kill(engine, signal.SIGKILL)


@pytest.mark.parametrize("killed", [False, True])
def test_a_child_forked_while_the_engine_starts_holds_up_nobody(spool, rank, killed):
    """A DataLoader's worker inherits the descriptors that the rank had at that time."""
    first, second = rank(0), rank(1)
    child = first.ask("start")
    try:
        second.tell("acquire")
        if killed:
            first.kill()
            engine = second.answer()
        else:
            first.tell("go on")
            engine = first.answer()
            assert second.answer() == engine
            first.kill()
        second.kill()
        gone(engine, [])
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_rank_whose_loader_is_alive_at_its_end_says_nothing(spool, script):
    body = TRAINS.format(strategy="csd", spool=str(spool)) + "    said(len(list(loader)), loader.report().batches_csd)"
    one = script(body, **environment(0))
    assert one.line() == "6 6" and one.end() == (0, "")


def test_an_engine_that_does_not_start_costs_each_rank_a_warning(spool, script):
    body = TRAINS.format(strategy="wrr", spool=str(spool)) + """
    steps = 0
    for batch in loader:
        steps += 1
        while not loader.report().notes:
            time.sleep(0.05)
    said(steps, loader.report().batches_csd)
    """
    for rank in [script(body, **environment(rank), DDLP_ENGINE_CPUS="4000") for rank in (0, 1)]:
        assert rank.line() == "6 0"
        status, err = rank.end()
        assert (status, err.count("the embedded engine takes no part yet")) == (0, 1), err
    assert os.listdir(spool) == []


def test_without_a_run_each_process_has_its_own(spool, rank):
    engine = rank(0).ask("acquire")
    own = acquire(EmbeddedOptions(spool=str(spool)))
    assert own.pid != engine
    own.release()


def test_somebody_elses_directory_is_not_used(spool):
    ranks = Ranks(RUN, 0, 2, 0, 2)
    options = EmbeddedOptions(spool=str(spool)).resolved()
    engine = EmbeddedEngine(options, ranks)
    directory = engine.directory.parent
    assert directory.name.startswith(f"{PREFIX}{os.getuid()}-")
    engine.release()
    directory.mkdir(mode=0o755)
    with pytest.raises(SpoolError, match="somebody else"):
        EmbeddedEngine(options, ranks)
    directory.rmdir()


@pytest.mark.parametrize("after_lower", [True, False], ids=["rank-after-rank", "in-turn"])
def test_the_engine_fills_in_the_order_asked_for_and_tells_all(spool, tmp_path, after_lower):
    """Two ranks with waiting leases: in which order their batches are made, and what the other rank is told."""
    spec = Recipe(tmp_path, make_jpegs(tmp_path, np.random.default_rng(7)), tmp_path / "manifest")
    options = EmbeddedOptions(spool=str(spool), slowdown=30.0).resolved()  # so slow that the files' times differ
    engines = [EmbeddedEngine(options, Ranks(RUN, number, 2, number, 2)) for number in (0, 1)]
    assert engines[0].pid == engines[1].pid
    made: SimpleQueue[tuple[int, int]] = SimpleQueue()  # (time, rank)
    events: list[SimpleQueue[Any]] = [SimpleQueue(), SimpleQueue()]

    jobs: dict[int, JobHandle] = {}

    def open_job(number: int) -> JobHandle:
        def on_message(message: Any) -> None:
            if isinstance(message, say.Published):
                made.put((jobs[number].path(message).stat().st_mtime_ns, number))
            events[number].put(message)

        parts = (spec.pipeline, spec.dataset, spec.layout)
        member = Member(RUN, number, after_lower)
        return engines[number].link.open_job(*parts, lambda _: spec.manifest, on_message, member=member)

    try:
        jobs.update({number: open_job(number) for number in (1, 0)})
        jobs[0].probe(1, 1, [(0, 0)])  # the worker is ready
        worker = children(engines[0].pid)[0]
        os.kill(worker, signal.SIGSTOP)
        for number in (1, 0):
            for lease in range(1, 5):
                spec.lease(jobs[number], lease, lease)
        for engine in engines:
            engine.link.status()  # all leases have arrived
        os.kill(worker, signal.SIGCONT)
        order = [number for _, number in sorted(made.get(timeout=300) for _ in range(8))]
        if after_lower:
            assert order[1:] == sorted(order[1:])  # the first lease was begun before the others arrived
        else:
            # Ranks have equal parts of the worker's time. The first lease has cost more: the worker was stopped at it.
            assert max(len(list(run)) for _, run in itertools.groupby(order)) < 4, order
        for number in (0, 1):
            heard = wait_for(events[number], say.Measured)
            assert all(samples == spec.layout.batch and busy_s > 0 for samples, busy_s in heard.batches)
        jobs[0].close(5)
        events[0] = SimpleQueue()
        late = open_job(0)  # a job that joins later is told at once
        assert len(wait_for(events[0], say.Measured).batches) == 4
        late.close(5)
    finally:
        for engine in engines:
            engine.release()


def test_an_engine_of_another_machine_is_left_alone(spool, tmp_path):
    """That machine's card is where this one's would be, its lock is held, and its process id is another process here."""
    ranks = Ranks(RUN, 0, 2, 0, 2)
    options = EmbeddedOptions(spool=str(spool)).resolved()
    engine = EmbeddedEngine(options, ranks)
    run, address = engine.directory.parent, engine._card.address
    engine.release()
    theirs = tmp_path / "e-theirs"
    (theirs / "spool").mkdir(parents=True)
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        with (theirs / "spool" / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            card = {"address": address, "pid": bystander.pid, "directory": str(theirs), "socket_directory": str(theirs)}
            run.mkdir(mode=0o700)
            (run / "engine.json").write_text(json.dumps({**card, "system": "01234567 pid:[1]"}))
            engine = EmbeddedEngine(options, ranks)
            try:
                assert engine.directory.parent == run and alive(engine.pid) and engine.pid != bystander.pid
            finally:
                engine.release()
            assert bystander.poll() is None and (theirs / "spool" / ".lock").exists()
    finally:
        bystander.kill()
        bystander.wait()


def test_each_system_has_a_directory_of_its_own(spool, monkeypatch):
    """Another boot or container has other process ids, but the run's name is the same for all."""
    options, ranks = EmbeddedOptions(spool=str(spool)).resolved(), Ranks(RUN, 0, 2, 0, 2)
    engines: dict[str, EmbeddedEngine] = {}
    try:
        for system in ("01234567 pid:[1]", "89abcdef pid:[1]"):
            for module in (embedded, meeting):
                monkeypatch.setattr(module, "processes", lambda system=system: system)
            engines[system] = EmbeddedEngine(options, ranks)
        found = engines.values()
        assert len({engine.directory.parent for engine in found}) == len({engine.pid for engine in found}) == 2
    finally:
        for system, engine in engines.items():
            for module in (embedded, meeting):
                monkeypatch.setattr(module, "processes", lambda system=system: system)
            engine.release()
