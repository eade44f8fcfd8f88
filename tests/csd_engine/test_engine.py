"""The engine as hosts meet it: real processes, sockets and files."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from queue import SimpleQueue

import numpy as np
import pytest
from engine_process import EPOCH, SEED, Recipe, alive, batch_files, until, wait_for

from csd_engine import protocol
from csd_engine.batchfile import Layout
from csd_engine.datasets import FileSet
from csd_engine.errors import EngineGone, EngineRefused, EngineUnreachable, MissingBatch
from csd_engine.keys import load_pair, load_public, make_keys
from csd_engine.samples import sample_digest
from ddlp.sources import fetching
from ddlp.sources.link import (
    EngineLink,
    EngineLost,
    EngineNote,
    LeaseCancelled,
    LeaseFailed,
    LeaseProgress,
    LeasePublished,
)


@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:*"])
def test_a_job_goes_round(listen, start, recipe):
    engine = start("--root", str(recipe.root), listen=listen)
    link = engine.link()
    assert link.open().workers == 1
    events = SimpleQueue()
    job = recipe.open(link, events)
    wanted = {number: recipe.lease(job, number, 5 * number) for number in range(4)}
    for number, items in wanted.items():
        published = wait_for(events, LeasePublished)
        assert published.lease == number
        recipe.check(published.path, number, items)
        job.release(number)
        until(lambda path=published.path: not path.exists())
    job.close()
    until(lambda: not list(engine.spool.glob("job-*")))
    link.close()
    assert batch_files(engine.spool) == []


def test_two_jobs_of_two_hosts_share_the_engine(start, recipe, tmp_path):
    engine = start("--root", str(recipe.root))
    other = Recipe(recipe.root, ["class0/image 0.jpg", "class1/image 1.jpg"], tmp_path / "m2", 4, 16)
    links = [engine.link(), engine.link()]
    queues = [SimpleQueue(), SimpleQueue()]
    jobs = [one.open(link, events) for one, link, events in zip((recipe, other), links, queues, strict=True)]
    wanted = [[one.lease(job, n, n) for n in range(3)] for one, job in zip((recipe, other), jobs, strict=True)]
    for one, events, items in zip((recipe, other), queues, wanted, strict=True):
        for number in range(3):
            one.check(wait_for(events, LeasePublished).path, number, items[number])
    for link in links:
        link.close()
    until(lambda: not list(engine.spool.glob("job-*")))


def test_a_file_that_is_gone_is_not_waited_for_when_nobody_wants_it(start, recipe, monkeypatch):
    """The host was first with the batch, and its file went: it is not late, as on a network file system."""
    engine = start("--root", str(recipe.root))
    link = engine.link()
    events = SimpleQueue()
    job = recipe.open(link, events)
    items = recipe.lease(job, 4)
    path = wait_for(events, LeasePublished).path
    job.release(4)
    until(lambda: not path.exists())
    looked, read_batch = [], fetching.read_batch
    monkeypatch.setattr(fetching, "read_batch", lambda *arguments: looked.append(0) or read_batch(*arguments))
    for wanted, times, asked in ((False, 1, 0), (True, 1 + len(fetching._PAUSES_S), 1)):
        brought = fetching.Fetching(job, True, print, wanted=lambda lease, wanted=wanted: wanted and lease == 4)
        looked.clear()
        with pytest.raises(MissingBatch):
            brought.read(path, recipe.identity(items), 4, recipe.layout, lambda: np.empty(recipe.layout.image_shape, np.uint8))
        assert (len(looked), link.stream._fetches) == (times, asked)
    link.close()


def test_a_link_that_is_closed_while_it_opens(start, recipe, monkeypatch):
    engine = start("--root", str(recipe.root))
    link = engine.link()

    class Closed(threading.Thread):
        def start(self) -> None:
            link.close()  # by another thread, just then
            super().start()

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", Closed)
        with pytest.raises(EngineUnreachable):
            link.open()
    with pytest.raises(EngineGone):
        link.open()
    link.close()


def test_a_release_goes_with_the_next_message_or_heartbeat(start, recipe):
    engine = start("--root", str(recipe.root))
    links = [engine.link(heartbeat_s=30, heartbeat_timeout_s=100), engine.link()]
    for link, slow in zip(links, (True, False), strict=True):
        events = SimpleQueue()
        job = recipe.open(link, events)
        recipe.lease(job, 1)
        path = wait_for(events, LeasePublished).path
        time.sleep(0.2)  # the link rests
        job.release(1)
        if slow:
            time.sleep(0.5)
            assert path.exists()
            recipe.lease(job, 2)
        until(lambda path=path: not path.exists(), 2)
        link.close()


def test_waiting_is_told_at_once_but_not_each_time(start, recipe, monkeypatch):
    engine = start("--root", str(recipe.root))
    link = engine.link(heartbeat_s=30, heartbeat_timeout_s=100)
    job = recipe.open(link, SimpleQueue())
    time.sleep(0.2)
    told = []
    encode = protocol.encode
    monkeypatch.setattr(protocol, "encode", lambda message: told.append((time.monotonic(), message)) or encode(message))
    began = time.monotonic()
    for k in range(101):
        job.set_waiting(k % 2 == 0)
        time.sleep(0.005)
    until(lambda: told and told[-1][1].waiting == (job.name,))
    time.sleep(0.3)
    took = time.monotonic() - began
    assert {type(message) for _, message in told} == {protocol.Ping} and told[0][0] - began < 0.1
    assert told[-1][1].waiting == (job.name,) and 2 <= len(told) <= 2 + took / 0.1
    link.close()


def test_a_probe_tells_the_digests(start, recipe, tmp_path):
    engine = start("--root", str(recipe.root))
    link = engine.link()
    job = recipe.open(link, SimpleQueue())
    items = [(3, 0), (3, 1), (7, 0)]
    expected = [sample_digest(image, None) for image in recipe.expected(items + [(0, 0)] * 5)[:3]]
    assert job.probe(SEED, EPOCH, items) == expected
    link.close()


def test_a_wrong_server_key_is_refused(start, recipe, tmp_path):
    engine = start("--root", str(recipe.root))
    pair = load_pair(engine.keys / "host.key_secret")
    wrong = load_public(make_keys(tmp_path / "others") / "server.key")
    with pytest.raises(EngineRefused, match="server key"):
        EngineLink(engine.address, wrong, pair.public, pair.secret).open()


def test_a_host_that_is_not_listed_is_refused_until_it_is(start, recipe, tmp_path):
    engine = start("--root", str(recipe.root))
    stranger = make_keys(tmp_path / "stranger")
    pair = load_pair(stranger / "host.key_secret")
    server = load_public(engine.keys / "server.key")
    with pytest.raises(EngineRefused, match="clients"):
        EngineLink(engine.address, server, pair.public, pair.secret).open()
    (engine.keys / "clients" / "stranger.key").write_bytes((stranger / "host.key").read_bytes())
    link = EngineLink(engine.address, server, pair.public, pair.secret)
    assert link.open()
    link.close()


def test_nobody_there(home):
    pair = load_pair(make_keys(home / "keys") / "host.key_secret")
    for address in (f"ipc://{home}/nothing", "nonsense"):
        with pytest.raises(EngineUnreachable):
            EngineLink(address, pair.public, pair.public, pair.secret, connect_timeout_s=0.3).open()


def test_another_protocol_version_is_told_on_both_sides(start, recipe, monkeypatch):
    engine = start("--root", str(recipe.root))
    monkeypatch.setattr(protocol, "PROTOCOL", 99)
    with pytest.raises(EngineRefused, match=r"protocol 3 .*protocol 99"):
        engine.link().open()
    assert "protocol 99" in engine.log


def test_jobs_that_cannot_be_are_refused_with_the_reason(start, recipe, tmp_path):
    engine = start("--root", str(recipe.root), "--quota-bytes", "200K")
    link = engine.link()

    def refused(match, **changes):
        parts = {"pipeline": recipe.pipeline, "dataset": recipe.dataset, "layout": recipe.layout, **changes}
        with pytest.raises(EngineRefused, match=match):
            link.open_job(*parts.values(), lambda _: recipe.manifest, print)

    class Strange:
        def to_data(self):
            return {**recipe.pipeline.to_data(), "ops": [{"op": "Eval", "code": "1"}]}

    refused("Eval", pipeline=Strange())
    refused("outside the roots", dataset=FileSet("/etc", recipe.dataset.manifest, recipe.dataset.count))
    refused("outside the roots", dataset=FileSet(f"{recipe.root}-other", recipe.dataset.manifest, 1))
    refused("layout says", layout=Layout(8, 16, 16, 3))
    refused("quota", layout=Layout(800, 32, 32, 3))
    refused("manifest received", dataset=FileSet(str(recipe.root), "0" * 32, recipe.dataset.count))
    job = recipe.open(link, SimpleQueue())  # and the link is none the worse
    job.close(2)
    link.close()


def test_a_link_out_of_the_root_is_not_followed(start, jpegs, tmp_path):
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    secret = jpegs[0] / jpegs[1][0]
    (root / "in" / "x.jpg").symlink_to(secret)
    recipe = Recipe(root, ["in/x.jpg"], tmp_path / "manifest", batch=1)
    engine = start("--root", str(root))
    link = engine.link()
    events = SimpleQueue()
    recipe.lease(recipe.open(link, events), 1)
    failed = wait_for(events, LeaseFailed)
    assert "outside the roots" in failed.reason and not failed.fatal
    link.close()


def test_a_bad_sample_fails_its_lease_alone(start, jpegs, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    good = (jpegs[0] / jpegs[1][0]).read_bytes()
    for name, content in (("good.jpg", good), ("cut.jpg", good[: len(good) // 2]), ("text.jpg", b"no image")):
        (root / name).write_bytes(content)
    recipe = Recipe(root, ["good.jpg", "cut.jpg", "text.jpg", "vanished.jpg"], tmp_path / "manifest", batch=2)
    engine = start("--root", str(root))
    link = engine.link()
    events = SimpleQueue()
    job = recipe.open(link, events)
    for bad, word in ((1, "cut.jpg"), (2, "text.jpg"), (3, "vanished.jpg")):
        items = [(0, 0), (bad, 0)]
        job.lease(bad, recipe.identity(items), SEED, EPOCH, items)
        failed = wait_for(events, (LeaseFailed, LeasePublished))
        assert failed.lease == bad and word in failed.reason and not failed.fatal
    items = [(0, 0), (0, 1)]
    job.lease(9, recipe.identity(items), SEED, EPOCH, items)
    recipe.check(wait_for(events, LeasePublished).path, 9, items)
    assert len(batch_files(engine.spool)) == 1
    assert "Warning" not in engine.log
    link.close()


def test_quota_holds_leases_back_and_says_so(start, recipe):
    engine = start("--root", str(recipe.root), "--quota-batches", "2")
    link = engine.link(heartbeat_s=0.1)
    assert link.open().quota_batches == 2
    events = SimpleQueue()
    job = recipe.open(link, events)
    items = [recipe.lease(job, number, number) for number in range(4)]
    for number in range(2):
        assert wait_for(events, LeasePublished).lease == number
    assert "quota" in wait_for(events, EngineNote).text
    assert len(batch_files(engine.spool)) == 2
    job.release(0)
    third = wait_for(events, LeasePublished)
    recipe.check(third.path, 2, items[2])
    job.release(1)
    assert wait_for(events, LeasePublished).lease == 3
    link.close()


def test_the_reserve_of_free_space_is_kept(start, recipe):
    engine = start("--root", str(recipe.root), "--reserve-bytes", "900T")
    link = engine.link(heartbeat_s=0.1)
    events = SimpleQueue()
    recipe.lease(recipe.open(link, events), 0)
    assert "reserved" in wait_for(events, EngineNote).text
    assert batch_files(engine.spool) == []
    link.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize("limit", ["size=512k", "nr_inodes=40"])  # the second is met by the worker alone
def test_a_full_disk_holds_leases_back(limit, start, recipe, home):
    (home / "spool").mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", limit, "none", str(home / "spool")], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mount is not permitted here: {mounted.stderr.decode()}")
    try:
        engine = start("--root", str(recipe.root))
        link = engine.link(heartbeat_s=0.1)
        events = SimpleQueue()
        job = recipe.open(link, events)
        fillers = engine.spool / "fillers"
        fillers.mkdir()
        with pytest.raises(OSError, match="No space"):
            for number in range(1000):
                (fillers / str(number)).write_bytes(bytes(20 << 10))
        items = recipe.lease(job, 0)
        assert "full" in wait_for(events, EngineNote).text
        assert not any(isinstance(event, LeaseFailed) for event in iter_now(events))
        shutil.rmtree(fillers)
        recipe.check(wait_for(events, LeasePublished).path, 0, items)
        link.close()
        assert engine.end() == 0
    finally:
        subprocess.run(["umount", "-l", str(home / "spool")], check=True)


def iter_now(events):
    while not events.empty():
        yield events.get()


def test_cancel_stops_between_samples_and_leaves_nothing(start, recipe):
    engine = start("--root", str(recipe.root), "--slowdown", "400")
    link = engine.link(heartbeat_s=0.1)
    events = SimpleQueue()
    job = recipe.open(link, events)
    recipe.lease(job, 0)
    recipe.lease(job, 1)
    progress = wait_for(events, LeaseProgress)
    assert 0 in progress.samples and 1 not in progress.samples
    assert len(batch_files(engine.spool)) == 1 and batch_files(engine.spool)[0].endswith(".part")
    job.cancel(1)
    assert wait_for(events, (LeaseCancelled, LeasePublished)) == LeaseCancelled(1)
    job.cancel(0)
    assert wait_for(events, (LeaseCancelled, LeasePublished)) == LeaseCancelled(0)
    assert batch_files(engine.spool) == []
    job.cancel(77)  # never heard of: gone all the same
    assert wait_for(events, LeaseCancelled) == LeaseCancelled(77)
    link.close()


def test_a_killed_worker_fails_its_lease_and_is_replaced(start, recipe):
    engine = start("--root", str(recipe.root), "--slowdown", "400")
    link = engine.link(heartbeat_s=0.1)
    events = SimpleQueue()
    job = recipe.open(link, events)
    recipe.lease(job, 0)
    wait_for(events, LeaseProgress)
    (worker,) = engine.children()
    os.kill(worker, signal.SIGKILL)
    failed = wait_for(events, (LeaseFailed, LeasePublished))
    assert failed.lease == 0 and not failed.fatal and "-9" in failed.reason
    assert batch_files(engine.spool) == []
    recipe.lease(job, 1)
    wait_for(events, LeaseProgress)
    assert engine.children() not in ([], [worker])
    link.close()


def test_a_killed_engine_is_noticed_and_its_workers_end(start, recipe):
    engine = start("--root", str(recipe.root), "--slowdown", "400")
    link = engine.link()
    events = SimpleQueue()
    recipe.lease(recipe.open(link, events), 0)
    until(lambda: batch_files(engine.spool))
    workers = engine.children()
    engine.process.kill()
    assert wait_for(events, EngineLost)
    until(lambda: not any(map(alive, workers)))
    link.close()
    again = start("--root", str(recipe.root), keys=engine.keys)  # takes over the spool and clears it
    assert batch_files(again.spool) == []


def test_a_stopped_engine_is_lost_after_the_heartbeat_timeout(start, recipe):
    engine = start("--root", str(recipe.root))
    link = engine.link(heartbeat_s=0.1, heartbeat_timeout_s=0.5)
    events = SimpleQueue()
    job = recipe.open(link, events)
    engine.process.send_signal(signal.SIGSTOP)
    try:
        assert "silent" in wait_for(events, EngineLost).reason
    finally:
        engine.process.send_signal(signal.SIGCONT)
    job.release(1)  # harmless
    with pytest.raises(EngineGone):
        recipe.open(link, events)
    link.close()


def test_a_silent_host_loses_its_jobs(start, recipe):
    engine = start("--root", str(recipe.root), "--lease-timeout", "3")
    silent, lively = engine.link(heartbeat_s=60, heartbeat_timeout_s=100), engine.link(heartbeat_s=0.1)
    events = SimpleQueue()
    job = recipe.open(silent, events)
    mine = SimpleQueue()
    kept = recipe.open(lively, mine)
    recipe.lease(job, 0)
    wait_for(events, LeasePublished)
    until(lambda: len(list(engine.spool.glob("job-*"))) == 1)
    recipe.lease(job, 1)
    assert "Hello" in wait_for(events, EngineLost).reason
    recipe.lease(kept, 0)
    assert wait_for(mine, LeasePublished)
    silent.close()
    lively.close()


def test_the_waiting_job_goes_first(start, recipe):
    engine = start("--root", str(recipe.root), "--slowdown", "20")
    link = engine.link()
    order = SimpleQueue()
    jobs = [
        link.open_job(
            recipe.pipeline, recipe.dataset, recipe.layout, lambda _: recipe.manifest, partial(tag, order, name)
        )
        for name in ("train", "eval")
    ]
    jobs[1].set_waiting(True)
    for job in jobs:
        for number in range(2):
            recipe.lease(job, number, number)
    names = [order.get(timeout=20)[0] for _ in range(4)]
    # The worker may have begun a lease of `train` before those of `eval` were there.
    assert names in (["train", "eval", "eval", "train"], ["eval", "eval", "train", "train"])
    link.close()


def tag(order, name, event):
    if isinstance(event, LeasePublished):
        order.put((name, event))


def test_leases_that_cannot_be_fail(start, recipe):
    engine = start("--root", str(recipe.root))
    link = engine.link()
    events = SimpleQueue()
    job = recipe.open(link, events)
    items = recipe.items(0)
    job.lease(1, recipe.identity(items), SEED, EPOCH, [])
    assert "no items" in wait_for(events, LeaseFailed).reason
    job.lease(2, recipe.identity(items), SEED, EPOCH, [(999, 0), *items[1:]])
    assert "beyond" in wait_for(events, LeaseFailed).reason
    link.close()


def test_a_short_and_a_long_batch(start, recipe):
    """The last batch of an epoch is shorter, a user's batch sampler may give any size."""
    link = start("--root", str(recipe.root)).link()
    events = SimpleQueue()
    job = recipe.open(link, events)
    for number, size in ((1, 3), (2, 20)):
        items = [(step, 0) for step in range(size)]
        job.lease(number, recipe.identity(items), SEED, EPOCH, items)
        recipe.check(wait_for(events, LeasePublished).path, number, items)
    link.close()


def test_one_engine_a_spool(start, recipe, home):
    engine = start("--root", str(recipe.root))
    second = subprocess.run(
        [sys.executable, "-m", "csd_engine", "--listen", f"ipc://{home}/t", "--spool", str(engine.spool)]
        + ["--keys", str(engine.keys), "--root", str(recipe.root)],
        capture_output=True,
        text=True,
    )
    assert second.returncode == 2 and "another engine uses it" in second.stderr


def test_a_spool_that_cannot_be_written(home, recipe):
    (home / "file").touch()
    make_keys(home / "keys")
    done = subprocess.run(
        [sys.executable, "-m", "csd_engine", "--listen", f"ipc://{home}/s", "--spool", str(home / "file" / "x")]
        + ["--keys", str(home / "keys"), "--root", str(recipe.root)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "cannot be used" in done.stderr and "Traceback" not in done.stderr


def test_help_teaches():
    text = subprocess.run([sys.executable, "-m", "csd_engine", "--help"], capture_output=True, text=True).stdout
    assert "--make-keys" in text and "shared file system" in text
