"""A spool's file system does not answer: reads from it never end, though the device itself works."""

from __future__ import annotations

import threading

import pytest

from ddlp.sources.engine import connections
from ddlp.sources.engine import source as csd
from ddlp.sources.engine.source import EngineJob
from tests.ddlp.faults.scene import device, make_loader, train, until


@pytest.fixture
def spool_that_hangs(monkeypatch):
    """(address of the device whose batches can't be read, a function that ends this). A fetch is given up after a second."""
    monkeypatch.setattr("ddlp.schedule.strategies.base.STALLED_S", 1.0)
    monkeypatch.setattr("ddlp.schedule.strategies.base.STALLED_BATCHES", 0)
    monkeypatch.setattr("ddlp.epoch.executor.STALLED_AT_LEAST_S", 1.0)
    read, hangs, ends = EngineJob.fetch, [], threading.Event()

    def hung(job, *arguments):
        if job._link.address in hangs:
            ends.wait()
        return read(job, *arguments)

    monkeypatch.setattr(EngineJob, "fetch", hung)
    yield hangs, ends
    ends.set()


def test_a_spool_that_does_not_answer(engines, data, truth, told, images, spool_that_hangs):
    """As if a network file system's server were gone. The other device goes on, and so does this one once its spool answers."""
    hangs, ends = spool_that_hangs
    first = engines("--root", str(images), "--quota-batches", "4")  # otherwise it would have made half of all by then
    second = engines("--root", str(images), "--slowdown", "3")
    loader = make_loader(data, "csd", csd=[device(first), device(second)])
    train(loader)
    hangs.append(first.address)
    devices = []

    def given_up():
        devices.append(loader._last.executor.ledger.devices)
        until(lambda: len(told) or devices[0][first.address].hanging, 30, "a fetch to be given up")
        assert not devices[0][first.address].at_work and devices[0][second.address].at_work

    def back():
        ends.set()
        until(lambda: devices[0][first.address].at_work, 30, "its return")

    truth.check(train(loader, 0.05, at={20: given_up, 30: back}), 1)
    assert loader.report().batches_csd > 20
    assert len(said(told)) == 1 and first.address in said(told)[0] and "does not answer" in said(told)[0], list(told)


def until_it_takes_part(loader):
    """Train until the device has made a batch. On a busy machine it comes late, and the host makes all batches before."""
    until(lambda: (train(loader), loader.report().batches_csd)[1], 300, "a batch of the device's")
    loader.set_epoch(0)


def said(told):
    """The warnings but the one that an engine is late, as a busy machine's may be."""
    return [text for text in told if "is not ready yet" not in text]


def test_the_only_spool_does_not_answer(engines, data, truth, told, images, spool_that_hangs):
    """The host makes the missing batches. Nobody waits for the threads that hang."""
    hangs, ends = spool_that_hangs
    engine = engines("--root", str(images))
    loader = make_loader(data, "csd", csd=device(engine))
    until_it_takes_part(loader)
    hangs.append(engine.address)
    truth.check(train(loader))
    assert len(said(told)) == 1 and "does not answer" in said(told)[0], list(told)
    del told[:]
    iterator = iter(loader)
    until(lambda: iterator.executor.ledger.fetching, 60, "a fetch")
    iterator._shutdown_workers()
    assert len(said(told)) == 2 and "left to themselves" in said(told)[1], list(told)
    ends.set()
    until(lambda: not iterator.executor._threads.at_work, 30, "the end of the threads")


def test_no_thread_can_be_started_for_those_that_hang(engines, data, truth, told, images, spool_that_hangs, monkeypatch):
    hangs, _ = spool_that_hangs
    engine = engines("--root", str(images))
    loader = make_loader(data, "csd", csd=device(engine))
    until_it_takes_part(loader)
    hangs.append(engine.address)
    iterator = iter(loader)

    def start(*_, **__):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(iterator.executor._threads, "start", start)
    truth.check(list(iterator))
    assert len(said(told)) == 1 and "does not answer" in said(told)[0], list(told)


def test_it_does_not_answer_while_the_device_joins(engines, data, truth, told, images, monkeypatch):
    """The engine itself works. Nobody waits for it for ever, and it joins once its spool answers."""
    monkeypatch.setattr("ddlp.schedule.strategies.base.STALLED_S", 1.0)
    share, ends = connections.share_spool, threading.Event()

    def hung(link):
        ends.wait()
        return share(link)

    monkeypatch.setattr(connections, "share_spool", hung)
    engine = engines("--root", str(images))
    loader = make_loader(data, "csd", csd=device(engine))

    def comes():
        ends.set()
        until(lambda: loader._last.executor.ledger.devices[engine.address].at_work, 30, "its coming")

    try:
        truth.check(train(loader, at={10: comes}))
    finally:
        ends.set()
    assert len(told) == 1 and f"{engine.address} is not ready yet" in told[0], list(told)
    assert loader.report().batches_csd > 0


def test_that_it_is_full_is_known_though_the_device_says_so_before_it_joins(engines, data, images, monkeypatch):
    """The device says so only once, while its bits are compared."""
    compare = csd._compare_bits

    def full(run, name, *rest):
        run.note(name, "its spool is full")
        compare(run, name, *rest)

    monkeypatch.setattr(csd, "_compare_bits", full)
    engine = engines("--root", str(images))
    loader = make_loader(data, "wrr", csd=device(engine))
    iterator = iter(loader)
    account = iterator.executor.ledger.devices[engine.address]
    until(lambda: account.at_work, 30, "its coming")
    assert account.held_back and f"{engine.address}: its spool is full" in loader.report().notes
    iterator.executor.devices.lost(engine.address, "it was switched off")
    assert not account.held_back and not [text for text in loader.report().notes if "full" in text]
