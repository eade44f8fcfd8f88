"""Engines that retire in mid-epoch: nothing that they have begun is made again."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from ddlp import ImageFiles, LocalPool
from ddlp.deploy.status import ask_all, table
from ddlp.observe.metrics import prometheus_text
from ddlp.observe.run import EpochTrace, read_epoch
from ddlp.recording.events import HostBatch, LeaseCancelled, LeaseGiven, Lost, Published, Retires, Step
from tests.ddlp.faults.scene import Truth, dataset, descendants, make_loader, train, until
from tests.ddlp.pools.test_cards import cards, names, start  # noqa: F401
from tests.ddlp.pools.test_local import BOTH, engine_pids, have_published, slow, there, wait_for  # noqa: F401

SLOW = ("--slowdown", "25")
MANY = 4  # times the images


def nothing_was_made_in_vain(trace: EpochTrace, device: str) -> None:
    """What the device had begun when it retired, it has delivered, and the host has made none of it."""
    (retired,) = trace.of(Retires)
    assert retired.device == device
    given = {event.lease: event.position for event in trace.of(LeaseGiven) if event.device == device}
    cancelled = {event.lease for event in trace.of(LeaseCancelled) if event.device == device}
    published = {event.lease for event in trace.of(Published) if event.device == device}
    assert published == given.keys() - cancelled and published, "each begun one is finished, and no other"
    assert not [event for event in trace.of(LeaseGiven) if event.device == device and event.at > retired.at]
    late = [event for event in trace.of(Published) if event.device == device and event.at > retired.at]
    assert len(late) == 1, "the one that its worker was at"
    sides = {step.position: step.side for step in trace.of(Step)}
    made = [batch.position for batch in trace.of(HostBatch) if batch.outcome == "made"]
    assert len(made) == len(set(made))
    for lease in published:
        assert sides[given[lease]] == "csd" and given[lease] not in made, "made twice"


@pytest.fixture
def many(paths: list[str]) -> ImageFiles:
    """So many batches that, while training stands still, the engine never has the last one."""
    return dataset(list(paths) * MANY)


def test_an_engine_that_is_told_to_end_delivers_what_it_has_begun(cards, start, many, told, spool):  # noqa: F811
    engine = start(*SLOW)
    (name,) = names(cards)
    loader = make_loader(many, "wrr", pool=str(cards), record=spool / "run")

    def at_work() -> bool:  # one lease is in work, and one it has not begun
        return have_published(loader) == {name} and len(loader._last.executor.ledger.devices[name].outstanding) == 2

    def end() -> None:
        until(at_work, 30, "leases")
        (worker,) = descendants(engine.pid)
        os.kill(worker.pid, signal.SIGSTOP)  # it stays at its batch until the engine has retired
        try:
            until(at_work, 30, "leases")
            ask_all([str(cards)])  # by its answer the engine has these
            engine.terminate()
            until(lambda: not names(cards), 30, "its card's end")
            assert ask_all([str(cards)]) == []
            until(lambda: loader._last.executor.ledger.devices[name].retiring, 30, "that the host knows it")
        finally:
            os.kill(worker.pid, signal.SIGCONT)

    Truth(many).check(train(loader, 0.05, at={0: end}))
    assert engine.wait(20) == 0 and not len(told), list(told)
    report = loader.report()
    assert report.leases_lost == 0
    assert f"{name}: it retired: its engine was told to end" in report.notes
    trace = read_epoch(spool / "run" / "0000.jsonl")
    nothing_was_made_in_vain(trace, name)
    assert trace.of(Lost)[0].reason == "it has retired"


def test_a_smaller_pool_lets_an_engine_go_in_mid_epoch_and_a_larger_one_has_it_back(
    leaves_nothing, slow, data, truth, told, tmp_path  # noqa: F811
):
    pool = LocalPool(2)
    loader = make_loader(data, "wrr", pool=pool, record=tmp_path / "run")

    def shrink() -> None:
        wait_for(BOTH, have_published, loader)
        pool.want(1)
        until(lambda: "pool engine 2: it retired: it is not in the pool any more" in loader.report().notes, 30, "retiring")
        states = {one.name: one.state for one in loader.report().engines}
        assert states["pool engine 1"] == "at work" and states["pool engine 2"] in ("retiring", "gone")
        told = prometheus_text(loader)
        assert 'ddlp_engines{state="at work"} 1.0' in told and f'ddlp_engines{{state="{states["pool engine 2"]}"}} 1.0' in told
        assert f'ddlp_device_samples_per_second{{device="pool engine 2",node="{socket.gethostname()}"}}' in told

    def grow() -> None:
        if len(engine_pids()) == 1:  # it has ended while training went on
            pool.want(2)
            wait_for(BOTH, there, loader)

    truth.check(train(loader, 0.05, at={0: shrink, **dict.fromkeys(range(1, 39), grow)}))
    assert not len(told), list(told)
    report = loader.report()
    assert report.leases_lost == 0 and "pool engine 2: it retired, and is back" in report.notes
    changes = [(one.engines, one.device, one.reason) for one in report.changes]
    assert changes == [
        (1, "pool engine 2", "it retires: it is not in the pool any more"), (2, "pool engine 2", "it is back"),
    ]
    assert "2 at work" in str(report) and f"pool engine 1 on {socket.gethostname()}: at work, " in str(report)
    (gone,) = read_epoch(tmp_path / "run" / "0000.jsonl").of(Lost)
    assert gone.device == "pool engine 2" and gone.reason == "it has retired"


def test_one_that_is_killed_while_it_retires_costs_time_and_no_sample(cards, start, many, told):  # noqa: F811
    engine = start("--slowdown", "200")
    (name,) = names(cards)
    loader = make_loader(many, "wrr", pool=str(cards))

    def end() -> None:
        (answer,) = ask_all([str(cards)])
        assert answer.name == name and answer.node == "127.0.0.1" and len(answer.status.jobs) == 1
        assert "127.0.0.1  up" in table([answer])
        account = loader._last.executor.ledger.devices[name]
        until(lambda: account.outstanding, 30, "a lease")
        engine.terminate()
        until(lambda: account.retiring or not account.alive, 30, "its retiring")
        os.kill(engine.pid, signal.SIGKILL)
        engine.wait()

    Truth(many).check(train(loader, at={0: lambda: (wait_for({name}, have_published, loader), end())}))


def test_a_dropped_loaders_engines_end_at_once(spool: Path, slow, data):  # noqa: F811
    loader = make_loader(data, "wrr", pool=2)
    iterator = iter(loader)
    next(iterator)
    wait_for(BOTH, have_published, loader)
    pids = engine_pids()
    del loader, iterator
    until(lambda: not engine_pids(), 30, f"the end of {pids}")
