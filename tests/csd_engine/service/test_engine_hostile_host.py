"""An honest host beside a hostile one, both with keys that the engine knows, over real connections and worker processes.

Fairness is measured in samples over a fixed number of them: a slow computer makes both hosts slow.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import resource
import struct
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
from PIL import Image

from csd_engine.data.arrays import ArraySet, array_path
from csd_engine.data.concat import ConcatSet
from csd_engine.data.files import FileSet
from csd_engine.errors import EngineRefused
from csd_engine.protocol import codec as say
from csd_engine.protocol.fields import MAX_ITEMS
from tests.engine_memory import Peak
from tests.engine_process import EPOCH, SEED, Recipe, until, wait_for
from tests.hostile_client import list_client

FAIR = 1 / 2
LEAST = 0.8 * FAIR
NAMES = [f"{number}.jpg" for number in range(4)]


class Contest:
    """An engine with one worker, a job of an honest host, and a hostile host's connection."""

    def __init__(self, start: Callable, recipe: Recipe, *arguments: str) -> None:
        self.recipe = recipe
        self.engine = start("--root", str(recipe.root), *arguments, listen="tcp://127.0.0.1:*")
        other = list_client(self.engine.keys, "other")
        self.honest, self.hostile = (self.engine.link(secret, heartbeat_s=0.05) for secret in (None, other))
        self.events: SimpleQueue = SimpleQueue()
        self.job = recipe.open(self.honest, self.events)
        self.workers = until(self.engine.children)
        self.numbers = itertools.count()
        self.honest_samples = self.hostile_samples = 0
        self.stop = False

    def ask(self) -> None:
        number = next(self.numbers)
        self.recipe.lease(self.job, number, number)

    def share(self, attack: Callable[[Contest], None], samples: int) -> float:
        """Return the honest host's part of all samples. The attack counts `hostile_samples`, and ends when `stop` is set."""
        attacking = threading.Thread(target=attack, args=(self,))
        attacking.start()
        try:
            until(lambda: self.hostile_samples, 30, "the attack")
            first = self.hostile_samples
            for _ in range(4):
                self.ask()
            while self.honest_samples + self.hostile_samples - first < samples:
                published = wait_for(self.events, (say.Published, say.Failed), 40)
                assert isinstance(published, say.Published), published
                self.honest_samples += self.recipe.layout.batch
                self.job.release(published.lease)
                self.ask()
            return self.honest_samples / (self.honest_samples + self.hostile_samples - first)
        finally:
            self.stop = True
            attacking.join()
            assert self.engine.children() == self.workers, "a worker has died"
            for link in (self.honest, self.hostile):
                link.close()


@pytest.fixture
def slow_recipe(tmp_path, monkeypatch) -> Recipe:
    """Samples that take about 5 ms each: much longer than messages."""
    monkeypatch.setenv("DDLP_KERNEL", "off")
    root = tmp_path / "large"
    root.mkdir()
    coarse = np.random.default_rng(3).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    for name in NAMES:
        Image.fromarray(coarse).resize((900, 900)).save(root / name)
    return Recipe(root, NAMES, tmp_path / "manifest", batch=4)


def cancel_at_work(contest: Contest) -> None:
    """Lease single samples, and cancel each while a worker makes it."""
    recipe, items = contest.recipe, [(0, 0)]
    job = recipe.open(contest.hostile, SimpleQueue())
    numbers = itertools.count()
    for number in itertools.islice(numbers, 8):
        job.send_lease(number, recipe.identity(items), SEED, EPOCH, items)
    cancelled = set()
    while not contest.stop:
        for number in {int(path.name.split(".")[1]) for path in job.directory.iterdir()} - cancelled:
            job.release(number)
            cancelled.add(number)
            contest.hostile_samples += 1
            job.send_lease(next(numbers), recipe.identity(items), SEED, EPOCH, items)
        time.sleep(0.001)


def reopen(contest: Contest) -> None:
    """Open jobs whose pipelines are slow to check and to draw, lease a sample of each, and close them at once."""
    recipe, inner = contest.recipe, []
    for level in range(7):
        groups = [[*inner, {"op": "CenterCrop", "size": [32, 32]}]] * 2 if level < 3 else [inner]
        inner = [{"op": "RandomOrder", "groups": groups}]
    data = recipe.pipeline.to_data()
    pipeline = type(recipe.pipeline).parse({**data, "ops": [*inner, *data["ops"]]})
    while not contest.stop:
        events: SimpleQueue = SimpleQueue()
        job = contest.hostile.open_job(pipeline, recipe.dataset, recipe.layout, lambda _: recipe.manifest, events.put)
        for number in range(4):
            job.send_lease(number, "0" * 32, SEED, EPOCH, [(0, 0)])
        for _ in range(4):
            wait_for(events, (say.Published, say.Failed), 40)
            contest.hostile_samples += 1
        job.close(30)


@pytest.mark.parametrize("attack", [cancel_at_work, reopen])
def test_work_that_comes_to_nothing_is_paid_for(attack, start, slow_recipe):
    """test_jobs.py has failures and probes."""
    share = Contest(start, slow_recipe).share(attack, 120)
    assert share >= LEAST, share


def large_png(path: Path, megapixels: int) -> None:
    """Write a small file of a large image row by row: the test itself must not hold the image in memory."""
    width, height = 10_000, megapixels * 100
    row = zlib.compressobj(1)
    data = b"".join(row.compress(bytes(1 + 4 * width)) for _ in range(height)) + row.flush()
    chunks = ((b"IHDR", struct.pack(">2I5B", width, height, 8, 6, 0, 0, 0)), (b"IDAT", data), (b"IEND", b""))
    content = b"".join(struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)


def test_no_image_and_no_pipeline_takes_a_small_boards_memory(start, slow_recipe, tmp_path):
    root = slow_recipe.root
    large_png(root / "large.png", 60)  # 480 MB for Pillow
    engine = start("--root", str(root), "--memory", "512M")
    link, events = engine.link(), SimpleQueue()
    workers = until(engine.children)
    bomb = Recipe(root, ["large.png"], tmp_path / "bomb", batch=1)
    swollen = Recipe(root, NAMES, tmp_path / "swollen", batch=1)
    data = swollen.pipeline.to_data()
    data["ops"] = [{"op": "Resize", "size": [16384, 16384], "max_size": None, "interpolation": "nearest"}, *data["ops"]]
    swollen.pipeline = type(swollen.pipeline).parse(data)
    with Peak(lambda: [engine.process.pid, *engine.children()]) as peak:
        for number, recipe, why in ((0, bomb, "engine allows 192 MiB an image"), (1, swollen, "MemoryError")):
            job = recipe.open(link, events)
            assert why in job.probe(SEED, EPOCH, [(0, 0)])[0].error
            recipe.lease(job, number)
            failed = wait_for(events, (say.Failed, say.Published))
            assert isinstance(failed, say.Failed) and why in failed.reason
    assert peak.private < 300 << 20, peak.private
    job = slow_recipe.open(link, events)
    items = slow_recipe.lease(job, 2)
    slow_recipe.check(job.path(wait_for(events, say.Published)), 2, items)
    assert engine.children() == workers
    link.close()


def test_one_host_takes_no_others_jobs_or_memory(start, recipe):
    """The engine counts a host's jobs, descriptions, leases and waiting samples over all its jobs."""
    contest = Contest(start, recipe, "--memory", "512M")
    link, events = contest.hostile, SimpleQueue()
    large = dataclasses.replace(recipe.layout, batch=MAX_ITEMS)
    job = link.open_job(recipe.pipeline, recipe.dataset, large, lambda _: recipe.manifest, events.put)
    items = [(0, 0)] * MAX_ITEMS
    for number in range(3):
        job.send_lease(number, "0" * 32, SEED, EPOCH, items)
    failed = wait_for(events, say.Failed)
    assert failed.lease == 2 and "262144 samples are the most" in failed.reason
    path = f"{recipe.root}{'/.' * ((3800 - len(str(recipe.root))) // 2)}"  # 3,800 characters, however long tmp_path is
    long = ConcatSet((FileSet(path, recipe.dataset.manifest, recipe.dataset.count),) * 1000)
    for _ in range(4):  # 3.9 MB each
        link.open_job(recipe.pipeline, long, recipe.layout, lambda _: recipe.manifest, events.put)
    with pytest.raises(EngineRefused, match="descriptions of this host's 6 jobs take more than 16 MiB"):
        link.open_job(recipe.pipeline, long, recipe.layout, lambda _: recipe.manifest, events.put)
    more = [recipe.open(link, SimpleQueue()) for _ in range(123)]
    for number in range(4096):
        more[number % 7].send_lease(number, "0" * 32, SEED, EPOCH, [(0, 0)])
    more[8].send_lease(0, "0" * 32, SEED, EPOCH, [(0, 0)])
    with pytest.raises(EngineRefused, match="128 jobs open, as many as one host may"):
        recipe.open(link, SimpleQueue())
    for _ in range(3):
        recipe.open(contest.honest, SimpleQueue())
    contest.ask()
    link.close()
    assert isinstance(wait_for(contest.events, (say.Published, say.Failed), 30), say.Published)
    contest.honest.close()


def test_an_upload_ends_with_the_jobs_that_wait_for_it(start, recipe):
    """A host that begins uploads and closes their jobs holds no descriptor and no disk space."""
    contest = Contest(start, recipe)
    link, pid = contest.hostile, contest.engine.process.pid
    link.open()
    before = len(os.listdir(f"/proc/{pid}/fd"))
    arrays = contest.engine.spool / "arrays"
    for number in range(30):
        name = f"{number:032x}"
        dataset = ArraySet(array_path(arrays, name), name, (4, 40, 40, 3)).to_data()
        link.submit(say.encode(say.OpenJob("x", recipe.pipeline.to_data(), dataset, recipe.layout.to_data())))
        link.submit(say.encode(say.FilePart("array", name, 0, 2 * say.MAX_PART_BYTES), bytes(say.MAX_PART_BYTES)))
        if number == 29:
            until(lambda: any(arrays.glob("*.part")), what="an upload")
            assert len(list(arrays.glob("*.part"))) == 1
        link.submit(say.encode(say.CloseJob("x")))
    until(lambda: not any(arrays.glob("*.part")), what="the end of the uploads")
    assert len(os.listdir(f"/proc/{pid}/fd")) <= before + 2
    for one in (link, contest.honest):
        one.close()


def test_a_data_set_of_many_files_takes_no_others_descriptors(start, recipe):
    contest = Contest(start, recipe)
    (worker,) = contest.workers
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (256, 256))
    many = ConcatSet((recipe.dataset,) * 120)  # each part keeps its manifest open
    jobs = [
        contest.hostile.open_job(recipe.pipeline, many, recipe.layout, lambda _: recipe.manifest, print) for _ in range(3)
    ]
    too_many = ConcatSet((recipe.dataset,) * 300)
    for job in jobs * 2:
        assert job.probe(SEED, EPOCH, [(0, 0)])[0].digest
    last = contest.hostile.open_job(recipe.pipeline, too_many, recipe.layout, lambda _: recipe.manifest, print)
    assert "Too many open files" in last.probe(SEED, EPOCH, [(0, 0)])[0].error
    contest.ask()
    assert isinstance(wait_for(contest.events, (say.Published, say.Failed)), say.Published)
    assert contest.engine.children() == [worker]
    for link in (contest.hostile, contest.honest):
        link.close()
