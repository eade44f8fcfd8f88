"""Batches over the socket between an engine and a link: real processes, sockets and files."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from csd_engine.batchfile.reader import BatchReceiver
from csd_engine.errors import DamagedBatch, EngineGone
from csd_engine.protocol import codec as say
from csd_engine.service.file_chunks import FileChunks
from ddlp.sources.engine.part_stream import WINDOW
from tests.at_once import at_once
from tests.engine_process import Recipe, until, wait_for

TCP = "tcp://127.0.0.1:*"


@pytest.fixture
def large(jpegs, tmp_path):
    """Batches of 256 samples of 224x224: 38.5 MB, 37 parts."""
    return Recipe(*jpegs, tmp_path / "manifest", batch=256, size=224)


def receive(recipe, job, number, items):
    """Receive the batch, and check that it is the one that was asked for."""
    receiver = BatchReceiver(recipe.identity(items), number, recipe.layout)
    with contextlib.closing(job.parts(number, recipe.layout.file_bytes)) as parts:
        for part in parts:
            receiver.take(part)
    return receiver.batch()


def received(recipe, job, number, items):
    """As `receive`; None while the engine has not published the batch. Its file is there a moment before."""
    try:
        return receive(recipe, job, number, items)
    except DamagedBatch as error:
        assert "no published batch" in str(error)
        return None


@pytest.fixture(scope="module")
def engine(module_start, jpegs):
    return module_start("--root", str(jpegs[0]), listen=TCP)


@contextlib.contextmanager
def waiting(engine, recipe, heartbeat_timeout_s, timeout_s):
    """(engine, link, job, lease's number, items, file) of a batch that waits in the spool."""
    link = engine.link(heartbeat_s=0.1, heartbeat_timeout_s=heartbeat_timeout_s)
    events = SimpleQueue()
    job = recipe.open(link, events)
    items = recipe.lease(job, 1)
    path = job.path(wait_for(events, say.Published, timeout_s))
    yield engine, link, job, 1, items, path
    link.close()


@pytest.fixture
def published(engine, recipe):
    with waiting(engine, recipe, 1.0, 15.0) as batch:
        yield batch


def test_a_batch_comes_over_the_socket(published, recipe):
    _, _, job, number, items, _ = published
    for _ in range(2):  # it stays until the host releases it
        assert np.array_equal(receive(recipe, job, number, items).images, recipe.expected(items))


def flip(path):
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (flip, "checksum"),
        (lambda path: path.write_bytes(os.urandom(path.stat().st_size)), "header"),
        (lambda path: os.truncate(path, 5000), "5000 bytes"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes instead of"),
        (Path.unlink, "No such file"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "0 bytes"),
        (lambda path: (path.rename(path.parent / "x"), path.symlink_to("x")), "symbolic"),
    ],
    ids=["flipped bit", "other content", "cut", "longer", "gone", "fifo", "link"],
)
def test_what_is_not_the_batch_is_found(published, recipe, harm, said):
    _, _, job, number, items, path = published
    harm(path)
    with pytest.raises(DamagedBatch, match=said):
        receive(recipe, job, number, items)
    items = recipe.lease(job, 2, 4)  # the link still works
    assert len(until(lambda: received(recipe, job, 2, items)).images) == 8


def test_other_identities_and_unknown_leases(published, recipe):
    _, link, job, number, items, path = published
    with pytest.raises(DamagedBatch, match="holds batch"):
        receive(recipe, job, number, recipe.items(3))
    with pytest.raises(DamagedBatch, match="no published batch"):
        receive(recipe, job, 7, items)
    job.release(number)
    until(lambda: not path.exists())
    with pytest.raises(DamagedBatch, match="no published batch"):
        receive(recipe, job, number, items)
    stranger = recipe.open(link, SimpleQueue())
    with pytest.raises(DamagedBatch, match="no published batch"):
        receive(recipe, stranger, number, items)


@pytest.fixture
def large_published(engine, large):
    """Like `published`, with batches of 38.5 MB."""
    with waiting(engine, large, 1.5, 60.0) as batch:
        yield batch


def memory_kib(pid, name="RssAnon"):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def test_a_slow_reader_costs_neither_side_memory(large_published, large, monkeypatch):
    """Nor does a reader that breaks off: the parts asked for and not yet used are limited over all batches together."""
    engine, link, job, number, items, _ = large_published
    size = large.layout.file_bytes
    receive(large, job, number, items)  # allocate all buffers first, libzmq's too
    before = memory_kib(os.getpid()), memory_kib(engine.process.pid)
    for _ in range(10):
        parts = job.parts(number, size)
        next(parts)
        parts.close()
    slow = [job.parts(number, size) for _ in range(4)]
    for parts in slow[:1]:
        next(parts)
        time.sleep(1)
        assert link.stream._under_way <= WINDOW
    after = memory_kib(os.getpid()), memory_kib(engine.process.pid)
    assert after[0] - before[0] < 2 * WINDOW << 10 and after[1] - before[1] < 2 * WINDOW << 10, (before, after)
    for parts in slow:
        parts.close()
    assert np.array_equal(receive(large, job, number, items).images[:24], large.expected(items[:24]))
    assert link.stream._under_way == 0


def test_two_batches_at_once(large_published, large):
    _, _, job, number, items, _ = large_published
    found = at_once(lambda _: receive(large, job, number, items), 2)
    assert np.array_equal(found[0].images, found[1].images)


def break_off(parts, kind, match):
    """Assert that fetching raises."""
    with pytest.raises(kind, match=match):
        for _ in parts:
            pass


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_dies_or_hangs_in_mid_fetch(start, large, number):
    engine = start("--root", str(large.root), listen=TCP)
    with waiting(engine, large, 1.5, 60.0) as (_, _, job, lease, _, _):
        parts = job.parts(lease, large.layout.file_bytes)
        next(parts)
        engine.process.send_signal(number)
        if number == signal.SIGKILL:
            engine.process.wait()
        try:
            break_off(parts, EngineGone, "broken off" if number == signal.SIGKILL else "silent")
        finally:
            engine.process.send_signal(signal.SIGCONT)
        with pytest.raises(EngineGone):
            next(job.parts(lease, large.layout.file_bytes))


def test_a_job_that_is_closed_in_mid_fetch(large_published, large):
    engine, link, job, lease, _, _ = large_published
    parts = job.parts(lease, large.layout.file_bytes)
    next(parts)
    engine.process.send_signal(signal.SIGSTOP)  # no more parts will come
    threading.Timer(0.2, job.close).start()
    try:
        break_off(parts, EngineGone, "closed")
    finally:
        engine.process.send_signal(signal.SIGCONT)


def test_a_batch_that_is_released_in_mid_fetch(large_published, large):
    _, _, job, lease, _, _ = large_published
    parts = job.parts(lease, large.layout.file_bytes)
    next(parts)
    job.release(lease)
    break_off(parts, DamagedBatch, "no published batch")


def test_a_host_that_asks_and_does_not_listen_stalls_nobody(large_published, large):
    """Its requests wait in the engine."""
    engine, link, job, lease, items, _ = large_published
    greedy = engine.link(heartbeat_s=0.1)
    events = SimpleQueue()
    other = large.open(greedy, events)
    small = large.items(0)[:1]
    other.send_lease(1, large.identity(small), 5, 3, small)
    wait_for(events, say.Published)
    for _ in range(500):
        greedy.submit(say.encode(say.Fetch(1 << 40, other.name, 1, 0, 1 << 17)))
    assert len(receive(large, job, lease, items).images) == 256
    greedy.close()


def test_more_parts_than_a_host_may_ask_for_at_once_are_refused():
    sent = []
    chunks = FileChunks(lambda peer, job, lease: None, lambda peer, message, payload: sent.append(message))
    for number in range(70):
        chunks.ask(b"host", say.Fetch(number, "job", 1, 0, 1), b"")
    assert [message.number for message in sent] == list(range(64, 70)) and "at once" in sent[0].reason
    while chunks.waiting:
        chunks.serve("")
    assert [message.number for message in sent[6:]] == list(range(64)) and "no published batch" in sent[6].reason
