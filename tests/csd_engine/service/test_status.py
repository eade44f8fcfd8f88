"""What the engine reports of itself: jobs, rates, memory, spool."""

from __future__ import annotations

import shutil
import signal
import threading
from queue import SimpleQueue

import pytest

from csd_engine.errors import EngineGone
from csd_engine.machine.computer import cpus, process_memory
from csd_engine.protocol import codec as say
from tests.at_once import at_once
from tests.engine_process import until, wait_for
from tests.hostile_client import list_client


def test_jobs_memory_and_spool(start, recipe):
    engine = start("--root", str(recipe.root), "--quota-batches", "3", workers=2)
    link, other = engine.link(), engine.link(list_client(engine.keys, "other"))
    assert all(at_once(lambda _: link.status(), 8)) and not link._asking
    empty = link.status()
    assert (empty.jobs, empty.images, empty.images_per_s, empty.spool_batches) == ((), 0, 0.0, 0)
    assert empty.workers == 2 and empty.quota_batches == 3 and link.cache() is None

    events = SimpleQueue()
    job, idle = recipe.open(link, events), recipe.open(other, SimpleQueue())
    for number in range(5):
        recipe.lease(job, number, number)
    for _ in range(3):
        wait_for(events, say.Published)
    until(lambda: any(one.held_back for one in link.status().jobs))
    status = other.status()
    first, second = sorted(status.jobs, key=lambda one: -one.batches_made)
    assert (first.batches_made, first.batches_waiting, first.batches_queued) == (3, 3, 2)
    assert "quota" in first.held_back and first.samples == 24 and first.batch == 8 and first.job == job.directory.name
    assert (second.batches_made, second.held_back, second.job) == (0, "", idle.directory.name)
    assert first.host != second.host and len(first.host) == len(second.host) == 8
    assert status.images == 24 and 0 < first.images_per_s <= 24 and 0 < status.images_per_s <= 24
    assert status.spool_batches == 3 and status.spool_bytes == 3 * recipe.layout.file_bytes
    resident, private = process_memory([engine.process.pid, *engine.children()])
    assert abs(status.private_bytes - private) < 4 << 20 and abs(status.resident_bytes - resident) < 4 << 20

    job.release(0)
    until(lambda: link.status().images == 32)  # there was room for a fourth batch
    job.close(5)
    left = link.status()
    assert [one.job for one in left.jobs] == [idle.directory.name] and left.images == 32
    for one in (link, other):
        one.close()


def test_one_that_is_not_told_is_an_error(start, recipe):
    engine = start("--root", str(recipe.root))
    link = engine.link(heartbeat_timeout_s=30)
    link.open()
    engine.process.send_signal(signal.SIGSTOP)
    with pytest.raises(EngineGone, match="did not answer with Status"):
        link.status(0.2)
    engine.process.send_signal(signal.SIGCONT)
    assert link.status().uptime_s > 0
    engine.process.send_signal(signal.SIGSTOP)
    waiting = []
    thread = threading.Thread(target=lambda: waiting.append(pytest.raises(EngineGone, link.status).value))
    thread.start()
    until(lambda: link._asking)
    engine.kill()
    thread.join(60)
    assert "broken off" in str(waiting[0])
    link.close()


def test_a_worker_for_each_cpu_it_may_use(start, recipe):
    for arguments, expected in ((["--cpus", "0"], 1), ([], cpus())):
        engine = start("--root", str(recipe.root), *arguments, workers=None)
        link = engine.link()
        status = link.status()
        assert (status.workers, status.cores, link.open().workers) == (expected,) * 3
        link.close()
        engine.end()
        shutil.rmtree(engine.keys)
