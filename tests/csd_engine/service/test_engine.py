"""The engine as hosts see it: real processes, sockets and files."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from csd_engine.batchfile.reader import Layout, file_name
from csd_engine.data.arrays import ArraySet
from csd_engine.data.files import FileSet
from csd_engine.errors import EngineRefused, MissingBatch
from csd_engine.prepare.sample import sample_digest
from csd_engine.protocol import codec as say
from ddlp.sources.engine import fetch as fetching
from tests.engine_process import EPOCH, SEED, Recipe, alive, batch_files, refused_start, until, wait_for
from tests.hostile_client import list_client


@pytest.fixture(scope="module")
def engine(module_start, jpegs):
    """For tests that leave it as it was."""
    return module_start("--root", str(jpegs[0]))


def test_a_job_goes_round(engine, recipe):
    link = engine.link()
    assert link.open().workers == 1
    events = SimpleQueue()
    job = recipe.open(link, events)
    wanted = {number: recipe.lease(job, number, 5 * number) for number in range(4)}
    for number, items in wanted.items():
        published = wait_for(events, say.Published)
        assert published.lease == number
        path = job.path(published)
        recipe.check(path, number, items)
        job.release(number)
        until(lambda path=path: not path.exists())
    job.close()
    until(lambda: not list(engine.spool.glob("job-*")))
    link.close()
    assert batch_files(engine.spool) == []


def test_two_jobs_of_two_hosts_share_the_engine(engine, recipe, tmp_path):
    other = Recipe(recipe.root, ["class0/image 0.jpg", "class1/image 1.jpg"], tmp_path / "m2", 4, 16)
    links = [engine.link(), engine.link()]
    queues = [SimpleQueue(), SimpleQueue()]
    jobs = [one.open(link, events) for one, link, events in zip((recipe, other), links, queues, strict=True)]
    wanted = [[one.lease(job, n, n) for n in range(3)] for one, job in zip((recipe, other), jobs, strict=True)]
    for one, job, events, items in zip((recipe, other), jobs, queues, wanted, strict=True):
        for number in range(3):
            one.check(job.path(wait_for(events, say.Published)), number, items[number])
    for link in links:
        link.close()
    until(lambda: not list(engine.spool.glob("job-*")))


def test_a_file_that_is_gone_is_not_waited_for_when_nobody_wants_it(engine, recipe, monkeypatch):
    """The host prepared the batch first, so its file was removed. It does not wait for the file as on a network file system."""
    _, link, events, job = recipe.at_work(lambda *_: engine)
    items = recipe.lease(job, 4)
    path = job.path(wait_for(events, say.Published))
    job.release(4)
    until(lambda: not path.exists())
    looked, read_batch = [], fetching.read_batch
    monkeypatch.setattr(fetching, "read_batch", lambda *arguments: looked.append(0) or read_batch(*arguments))
    for wanted, times, asked in ((False, 1, 0), (True, 1 + len(fetching._PAUSES_S), 1)):
        brought = fetching.BatchFetcher(job, True, print, wanted=lambda lease, wanted=wanted: wanted and lease == 4)
        looked.clear()
        with pytest.raises(MissingBatch):
            brought.read(path, recipe.identity(items), 4, recipe.layout, lambda: np.empty(recipe.layout.image_shape, np.uint8))
        assert (len(looked), link.stream._fetches) == (times, asked)
    link.close()


def test_a_probe_tells_the_digests(engine, recipe):
    link = engine.link()
    job = recipe.open(link, SimpleQueue())
    items = [(3, 0), (3, 1), (7, 0)]
    expected = [sample_digest(image, None) for image in recipe.expected(items + [(0, 0)] * 5)[:3]]
    assert [one.digest for one in job.probe(SEED, EPOCH, items)] == expected
    link.close()


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
    arrays = engine.spool / "arrays"  # another person's directory; the user who runs the engine owns its files
    refused("no array that a host has sent", dataset=ArraySet(str(arrays / "salaries.npy"), "0" * 32, (4, 40, 40, 3)))
    refused("no array that a host has sent", dataset=FileSet(str(arrays), recipe.dataset.manifest, recipe.dataset.count))
    refused("layout says", layout=Layout(8, 16, 16, 3))
    refused("quota", layout=Layout(800, 32, 32, 3))
    refused("manifest received", dataset=FileSet(str(recipe.root), "0" * 32, recipe.dataset.count))
    job = recipe.open(link, SimpleQueue())  # the link still works
    job.close(2)
    link.close()


def test_each_host_reads_the_roots_that_it_was_deployed_with(start, recipe, tmp_path):
    """Two hosts call two directories on the device by the same path; a third host's list is invalid."""
    other = tmp_path / "other"
    shutil.copytree(recipe.root, other)
    files = sorted(other.rglob("*.jpg"))
    for path in files[1:]:
        shutil.copy(files[0], path)
    engine = start("--root", f"/data={recipe.root}", "--root", f"/data={other}", "--root", f"/mine={recipe.root}")
    clients, pairs = engine.keys / "clients", {"host": engine.keys / "host.key_secret"}
    pairs |= {name: list_client(engine.keys, name) for name in ("second", "third")}
    (clients / "host.roots").write_text(json.dumps([["/data", str(recipe.root)], ["/mine", str(recipe.root)]]))
    (clients / "second.roots").write_text(json.dumps([["/data", str(other)]]))
    links, found = {name: engine.link(secret) for name, secret in pairs.items()}, {}
    there = dataclasses.replace(recipe.dataset, root="/data")
    for name in ("host", "second"):
        job = links[name].open_job(recipe.pipeline, there, recipe.layout, lambda _: recipe.manifest, print)
        found[name] = [one.digest for one in job.probe(SEED, EPOCH, [(k, 0) for k in range(4)])]
    assert found["host"] != found["second"]
    for name, root in (("second", "/mine"), ("third", "/data"), ("third", str(recipe.root))):
        with pytest.raises(EngineRefused, match="outside the roots that the engine may read for this host"):
            links[name].open_job(
                recipe.pipeline, dataclasses.replace(recipe.dataset, root=root), recipe.layout, lambda _: recipe.manifest, print
            )
    (clients / "third.roots").write_text(json.dumps([["/etc", "/etc"], ["/data", str(other)]]))  # no root of the engine

    def opened():
        with contextlib.suppress(EngineRefused):
            return links["third"].open_job(recipe.pipeline, there, recipe.layout, lambda _: recipe.manifest, print)

    job = until(opened, what="the third host's list")
    assert [one.digest for one in job.probe(SEED, EPOCH, [(k, 0) for k in range(4)])] == found["second"]
    with pytest.raises(EngineRefused, match="outside the roots"):
        etc = dataclasses.replace(recipe.dataset, root="/etc")
        links["third"].open_job(recipe.pipeline, etc, recipe.layout, lambda _: recipe.manifest, print)
    for link in links.values():
        link.close()


def test_a_link_out_of_the_root_is_not_followed(start, jpegs, tmp_path):
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    secret = jpegs[0] / jpegs[1][0]
    (root / "in" / "x.jpg").symlink_to(secret)
    recipe = Recipe(root, ["in/x.jpg"], tmp_path / "manifest", batch=1)
    _, link, events, job = recipe.at_work(start)
    recipe.lease(job, 1)
    failed = wait_for(events, say.Failed)
    assert "outside the roots" in failed.reason and not failed.fatal
    link.close()


def test_a_bad_sample_fails_its_lease_alone(start, jpegs, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    good = (jpegs[0] / jpegs[1][0]).read_bytes()
    for name, content in (("good.jpg", good), ("cut.jpg", good[: len(good) // 2]), ("text.jpg", b"no image")):
        (root / name).write_bytes(content)
    recipe = Recipe(root, ["good.jpg", "cut.jpg", "text.jpg", "vanished.jpg"], tmp_path / "manifest", batch=2)
    engine, link, events, job = recipe.at_work(start)
    for bad, word in ((1, "cut.jpg"), (2, "text.jpg"), (3, "vanished.jpg")):
        items = [(0, 0), (bad, 0)]
        job.send_lease(bad, recipe.identity(items), SEED, EPOCH, items)
        failed = wait_for(events, (say.Failed, say.Published))
        assert failed.lease == bad and word in failed.reason and not failed.fatal
    items = [(0, 0), (0, 1)]
    job.send_lease(9, recipe.identity(items), SEED, EPOCH, items)
    recipe.check(job.path(wait_for(events, say.Published)), 9, items)
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
        assert wait_for(events, say.Published).lease == number
    wait_for_note(events, "quota")
    assert len(batch_files(engine.spool)) == 2
    job.release(0)
    third = wait_for(events, say.Published)
    recipe.check(job.path(third), 2, items[2])
    job.release(1)
    assert wait_for(events, say.Published).lease == 3
    link.close()


def test_the_reserve_of_free_space_is_kept(start, recipe):
    engine, link, events, job = recipe.at_work(start, "--reserve-bytes", "900T", heartbeat_s=0.1)
    recipe.lease(job, 0)
    wait_for_note(events, "reserved")
    assert batch_files(engine.spool) == []
    link.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize("limit", ["size=512k", "nr_inodes=40"])  # only the worker notices the second
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
        assert not any(isinstance(event, say.Failed) for event in wait_for_note(events, "full"))
        shutil.rmtree(fillers)
        recipe.check(job.path(wait_for(events, say.Published)), 0, items)
        link.close()
        assert engine.end() == 0
    finally:
        subprocess.run(["umount", "-l", str(home / "spool")], check=True)


def wait_for_note(events, text):
    """Wait until the engine's note has this text. Returns what the job was told until then."""
    seen = []
    while not (isinstance(event := events.get(timeout=30), say.Pong) and text in event.note):
        seen.append(event)
    return seen


def progress_in(events):
    """Return the samples that are done of each lease, as they are told next."""
    while not (pong := wait_for(events, say.Pong)).progress:
        pass
    return {lease: samples for _, lease, samples in pong.progress}


def test_cancel_stops_between_samples_and_leaves_nothing(start, recipe):
    engine, link, events, job = recipe.at_work(start, "--slowdown", "400", heartbeat_s=0.1)
    recipe.lease(job, 0)
    recipe.lease(job, 1)
    progress = progress_in(events)
    assert 0 in progress and 1 not in progress
    (file,) = until(lambda: batch_files(engine.spool))  # the worker has the lease, and may not have made its file yet
    assert file.endswith(".part")
    for lease in (1, 0, 77):  # waiting, at work, unknown
        job.release(lease)
    items = recipe.lease(job, 2)
    while 2 not in progress:
        told = wait_for(events, (say.Pong, say.Failed, say.Published))
        assert isinstance(told, say.Pong)
        progress = [lease for _, lease, _ in told.progress]
        assert 1 not in progress
    assert batch_files(engine.spool) == [file_name(recipe.identity(items), 2) + ".part"]
    link.close()


def test_a_killed_worker_fails_its_lease_and_is_replaced(start, recipe):
    engine, link, events, job = recipe.at_work(start, "--slowdown", "400", heartbeat_s=0.1)
    recipe.lease(job, 0)
    progress_in(events)
    (worker,) = engine.children()
    os.kill(worker, signal.SIGKILL)
    failed = wait_for(events, (say.Failed, say.Published))
    assert failed.lease == 0 and not failed.fatal and "-9" in failed.reason
    assert batch_files(engine.spool) == []
    recipe.lease(job, 1)
    progress_in(events)
    assert engine.children() not in ([], [worker])
    link.close()


def test_a_worker_that_hangs_while_it_starts_dies_with_its_engine(start):
    """SIGSTOP stops it while it imports, like a file system that does not answer."""
    engine = start("--root", "/")
    (worker,) = until(engine.children)
    until(lambda: "numpy" in Path(f"/proc/{worker}/maps").read_text())
    os.kill(worker, signal.SIGSTOP)
    try:
        engine.kill()
        until(lambda: not alive(worker), 30, "the end of its worker")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)


def _two_free(pid):
    """The limit with which a process can open two files more. Starting a worker takes six; a dead one frees two."""
    held = {int(number) for number in os.listdir(f"/proc/{pid}/fd")}
    most = max(held) + 1
    while len(set(range(most)) - held) > 2:
        most -= 1
    return most


def test_a_worker_that_cannot_be_started_is_told_and_tried_again(start, recipe):
    engine = start("--root", str(recipe.root), workers=2)
    link, events = engine.link(heartbeat_s=0.1), SimpleQueue()
    job = recipe.open(link, events)
    workers, pid = until(lambda: len(engine.children()) == 2 and engine.children()), engine.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (_two_free(pid), before[1]))
    os.kill(workers[0], signal.SIGKILL)
    wait_for_note(events, "cannot be started: Too many open files")
    items = recipe.lease(job, 0)
    recipe.check(job.path(wait_for(events, say.Published)), 0, items)
    assert engine.children() == workers[1:]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    until(lambda: len(engine.children()) == 2)
    while wait_for(events, say.Pong).note:
        pass
    link.close()


def test_the_waiting_job_goes_first(start, recipe):
    """Of two that both have batches in stock. One that has none is served as if its training waited."""
    engine = start("--root", str(recipe.root), "--slowdown", "20")
    link = engine.link()
    order = SimpleQueue()
    jobs = [
        link.open_job(
            recipe.pipeline, recipe.dataset, recipe.layout, lambda _: recipe.manifest, partial(tag, order, name)
        )
        for name in ("train", "eval")
    ]
    for job in jobs:
        for number in range(3):
            recipe.lease(job, number, number)
    for _ in range(6):
        order.get(timeout=300)
    jobs[1].waiting(True)
    for job in jobs:
        for number in (3, 4):
            recipe.lease(job, number, number)
    names = [order.get(timeout=300)[0] for _ in range(4)]
    # The worker may have begun a lease of `train` before those of `eval` were there.
    assert names in (["train", "eval", "eval", "train"], ["eval", "eval", "train", "train"])
    link.close()


def tag(order, name, event):
    if isinstance(event, say.Published):
        order.put((name, event))


def test_leases_that_cannot_be_fail(engine, recipe):
    _, link, events, job = recipe.at_work(lambda *_: engine)
    items = recipe.items(0)
    job.send_lease(1, recipe.identity(items), SEED, EPOCH, [])
    assert "no items" in wait_for(events, say.Failed).reason
    job.send_lease(2, recipe.identity(items), SEED, EPOCH, [(999, 0), *items[1:]])
    assert "beyond" in wait_for(events, say.Failed).reason
    link.close()


def test_a_short_and_a_long_batch(engine, recipe):
    """An epoch's last batch is shorter; a user's batch sampler may give any size."""
    _, link, events, job = recipe.at_work(lambda *_: engine)
    for number, size in ((1, 3), (2, 20)):
        items = [(step, 0) for step in range(size)]
        job.send_lease(number, recipe.identity(items), SEED, EPOCH, items)
        recipe.check(job.path(wait_for(events, say.Published)), number, items)
    link.close()


def test_one_engine_a_spool(engine, recipe, home):
    assert "another engine uses it" in refused_start(home, recipe.root, spool=engine.spool)


def test_a_spool_that_cannot_be_written(home, recipe):
    (home / "file").touch()
    assert "cannot be used" in refused_start(home, recipe.root, spool=home / "file" / "x")


def test_help_teaches():
    text = subprocess.run([sys.executable, "-m", "csd_engine", "--help"], capture_output=True, text=True).stdout
    assert "--make-keys" in text and "shared file system" in text
