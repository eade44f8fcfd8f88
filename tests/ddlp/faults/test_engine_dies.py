"""The embedded engine or its worker is killed, stopped or hangs: the epoch ends complete, and the next uses an engine again."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.ddlp.faults.scene import engine_pid, make_loader, train, until, worker_pids


@pytest.mark.parametrize("strategy", ("csd", "mte", "wrr", "ordered"))
@pytest.mark.some(1)
def test_killed_engine(leaves_nothing, data, truth, told, strategy, monkeypatch):
    monkeypatch.setenv("DDLP_ENGINE_SLOWDOWN", "25")  # otherwise it may have done its part by the sixth step
    ratio = {"ratio": 0.5} if strategy == "mte" else {}
    loader = make_loader(data, strategy, shuffle=strategy != "ordered", **ratio)
    truth.check(train(loader, 0.02), 0)  # the engine has joined
    assert not len(told)
    first = engine_pid()

    def kill():
        until(lambda: any(one.alive for one in loader.live().devices), 30, "its part in this epoch")
        os.kill(first, signal.SIGKILL)

    truth.check(train(loader, 0.02, at={6: kill}), 1)
    assert len(told) == 1 and "is gone" in told[0] and "the host prepares" in told[0], list(told)
    for epoch in range(2, 42):  # a new one starts meanwhile, which takes time on a busy machine
        batches = train(loader, 0.02)
        truth.check(batches, epoch)
        if loader.report().batches_csd > 0:
            break
    assert engine_pid() != first and loader.report().batches_csd > 0
    assert len(told) == 1, list(told)
    if strategy == "ordered":
        assert [int(y) for _, labels in batches for y in labels] == list(range(len(data)))


def test_killed_worker(leaves_nothing, slow_engine, data, truth, told):
    loader = make_loader(data, "wrr")
    truth.check(train(loader, 0.02), 0)
    (worker,) = until(worker_pids, 30, "a worker")
    truth.check(train(loader, 0.02, at={6: lambda: os.kill(worker, signal.SIGKILL)}), 1)
    assert len(told) <= 1, list(told)  # none if the worker was idle when it was killed
    assert all("worker process" in text for text in told), list(told)
    for epoch in range(2, 10):  # on a busy machine a new worker takes time
        truth.check(train(loader, 0.02), epoch)
        if loader.report().batches_csd > 0:
            break
    assert worker_pids() != [worker] and loader.report().batches_csd > 0


def test_stopped_engine(leaves_nothing, data, truth, told, monkeypatch):
    monkeypatch.setenv("DDLP_ENGINE_SLOWDOWN", "25")  # otherwise a fast machine's is done by the sixth step
    loader = make_loader(data, "csd")
    train(loader, 0.02)
    engine = engine_pid()
    began = time.monotonic()
    batches = train(loader, 0.02, at={6: lambda: os.kill(engine, signal.SIGSTOP)})
    assert time.monotonic() - began < 40  # five seconds without a heartbeat, and the rest of the epoch on a busy machine
    truth.check(batches, 1)
    os.kill(engine, signal.SIGCONT)
    assert len(told) == 1 and "silent" in told[0], list(told)
    truth.check(train(loader, 0.02), 2)
    assert loader.report().batches_csd > 0  # from a new engine


def test_hanging_worker(leaves_nothing, slow_engine, data, truth, told, monkeypatch):
    """The service answers each ping, but its only worker never ends a lease."""
    monkeypatch.setattr("ddlp.schedule.strategies.base.STALLED_AT_LEAST_S", 2.0)
    loader = make_loader(data, "csd")
    train(loader, 0.02)
    (worker,) = worker_pids()
    began = time.monotonic()
    truth.check(train(loader, 0.02, at={6: lambda: os.kill(worker, signal.SIGSTOP)}), 1)
    assert time.monotonic() - began < 40
    truth.check(train(loader, 0.02), 2)  # on the host, or on another worker
    until(lambda: worker not in worker_pids(), 30, "the replacement of the worker")
    truth.check(train(loader, 0.02), 3)
    assert loader.report().batches_csd > 0
