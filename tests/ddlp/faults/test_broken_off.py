"""An epoch that ends early, by an error, by Ctrl-C, or after its first batch, leaves nothing behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

import ddlp.sources.host.native
from ddlp.process import finalizers as ending
from ddlp.sources.engine.connections import EMBEDDED
from tests.at_once import at_once
from tests.ddlp.faults.scene import connections_of, make_loader, train, until


def ours(prefix: str = "ddlp-") -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]


def test_training_does_not_wait_any_more_after_its_timeout(leaves_nothing, data, told, monkeypatch):
    """Otherwise the engine would first work for an iterator that nobody reads."""
    monkeypatch.setenv("DDLP_ENGINE_SLOWDOWN", "300")
    loader = make_loader(data, "csd")
    iterator = iter(loader)
    (device,) = iterator.executor.devices.states.values()
    until(lambda: device.source, 30, "the engine's part in the epoch")
    job = device.source
    iterator._timeout = 0.2
    with pytest.raises(RuntimeError, match="timed out"):
        for _ in iterator:
            pass
    assert not job.is_waiting
    iterator._shutdown_workers()


def test_one_batch_of_each_of_many_iterators(leaves_nothing, data, truth, told):
    """A device that joins late is not asked to join epochs that are over. An engine refuses its 257th job."""
    loader = make_loader(data, "wrr")
    with connections_of(loader)._connecting[EMBEDDED]:
        for _ in range(15):
            next(iter(loader))
        assert len(ours("ddlp-attach")) == 15, "the threads that bring the device in"
    until(lambda: not ours("ddlp-attach"), 30, "the end of the threads that bring it in")
    truth.check(train(loader, 0.05), 15)
    assert loader.report().batches_csd
    assert next(loader._parts.offload.connections._places[EMBEDDED].link.numbers) < 5, "jobs"
    assert not len(told), list(told)


def test_a_close_that_is_interrupted_ends_the_run(leaves_nothing, data, monkeypatch):
    prepare, busy, closed = ddlp.sources.host.native.prepare_batch, threading.Event(), []

    def slow(*arguments):
        busy.set()
        time.sleep(1)
        return prepare(*arguments)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ddlp.sources.host.native, "prepare_batch", slow)
    before = signal.signal(signal.SIGUSR1, interrupted)
    try:
        iterator = iter(make_loader(data, "cpu"))
        iterator.executor._on_closed = lambda: closed.append(True)
        busy.wait()
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(KeyboardInterrupt):
            iterator._shutdown_workers()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert closed == [True]
    until(lambda: not ours(), 30, "the end of the threads")


def test_a_thread_that_cannot_be_started(leaves_nothing, data, monkeypatch):
    start = threading.Thread.start

    def third_fails(thread):
        if thread.name == "ddlp-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", third_fails)
    loader = make_loader(data, "cpu", num_workers=4)
    with pytest.raises(RuntimeError, match="new thread"):
        iter(loader)
    until(lambda: not ours(), 30, "the end of those that were started")


def test_threads_that_make_iterators_at_once():
    """`when_dropped` goes through the pending objects while other threads add some."""
    interval = sys.getswitchinterval()

    class Thing:
        pass

    def make(_):
        for _ in range(400):
            ending.when_dropped(Thing(), lambda: None)

    kept = [Thing() for _ in range(300)]
    finalizers = [ending.when_dropped(one, lambda: None) for one in kept]
    sys.setswitchinterval(1e-6)
    try:
        at_once(make, 4)
    finally:
        sys.setswitchinterval(interval)
        for finalizer in finalizers:
            finalizer.detach()
