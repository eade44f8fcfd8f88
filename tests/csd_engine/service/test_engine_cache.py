"""An engine with `--cache`: the same bits, later epochs from the shelf, and never what a host could not read itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from csd_engine.cache.place import cache_at_start
from csd_engine.cache.shelves import Shelves
from csd_engine.data.base import open_reader
from csd_engine.data.manifest import Manifest
from csd_engine.data.roots import Roots
from csd_engine.errors import CacheRefused
from csd_engine.protocol import codec as say
from csd_engine.service.worker_shelves import WorkerShelves
from csd_engine.transforms.pipeline import Pipeline
from ddlp.sources.engine.link import EngineLink
from tests.engine_process import EngineProcess, Recipe, make_jpegs, refused_start, until, wait_for
from tests.hostile_client import list_client

LONG_AGO = 10**18
EVALUATION = {
    "format": 1, "order": "pillow13", "mode": "RGB",
    "ops": [
        {"op": "Resize", "size": 36, "interpolation": "bilinear", "max_size": None},
        {"op": "CenterCrop", "size": [32, 32]},
        {"op": "RandomHorizontalFlip", "p": 0.5},
    ],
}  # fmt: skip


@pytest.fixture
def pictures(tmp_path: Path) -> tuple[Path, list[str]]:
    """Files that were changed long ago."""
    root = tmp_path / "data"
    root.mkdir()
    paths = make_jpegs(root, np.random.default_rng(7))
    for path in paths:
        os.utime(root / path, ns=(LONG_AGO, LONG_AGO))
    return root, paths


@pytest.fixture
def scene(pictures: tuple[Path, list[str]], tmp_path: Path) -> Recipe:
    """Batches of 8 of 24 files, by Resize and CenterCrop."""
    recipe = Recipe(*pictures, tmp_path / "manifest")
    recipe.pipeline = Pipeline.parse(EVALUATION)
    return recipe


def epoch(recipe: Recipe, link: EngineLink) -> tuple[int, int]:
    """Have all samples made in one job, and compare their bits. Returns how many came from the cache, and how many did not."""
    before = link.cache()
    events = SimpleQueue()
    job = recipe.open(link, events)
    items = [recipe.lease(job, number, 8 * number) for number in range(3)]
    for _ in items:
        done = wait_for(events, (say.Published, say.Failed))
        assert isinstance(done, say.Published), done
        recipe.check(job.path(done), done.lease, items[done.lease])
    job.close(5)
    after = link.cache()
    return after.hits - before.hits, after.misses - before.misses


def segments(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.safetensors"))


def until_flushed(cache: Path) -> None:
    until(lambda: segments(cache) and not list(cache.rglob("*.part")), what="the end of the workers' files")


def kill_workers(engine: EngineProcess) -> None:
    """Kill them, and wait for new ones."""
    before = engine.children()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(engine.children()) == len(before) and not set(before) & set(engine.children()), what="new workers")


def test_the_second_epoch_comes_from_the_shelf(scene, start, tmp_path):
    cache = tmp_path / "cache"
    engine = start("--root", str(scene.root), "--cache", f"{cache}:1G", workers=2)
    link = engine.link()
    assert link.cache().bytes == 0 and link.cache().quota_bytes == 1 << 30
    assert epoch(scene, link) == (0, 24)
    until_flushed(cache)  # of both workers
    assert epoch(scene, link) == (24, 0)
    assert link.cache().bytes == sum(path.stat().st_size for path in segments(cache)) > 0
    kill_workers(engine)
    assert epoch(scene, link) == (24, 0)  # new processes, which compare the checksums
    link.close()


def test_nothing_is_kept_of_what_may_not_pay(scene, start, tmp_path):
    ops = [{**EVALUATION["ops"][0]}, {"op": "RandomCrop", "size": [32, 32], "padding": None, "pad_if_needed": True,
                                      "fill": [0], "padding_mode": "constant"}]  # fmt: skip
    scene.pipeline = Pipeline.parse({**EVALUATION, "ops": ops})  # pixels of any size
    link = start("--root", str(scene.root), "--cache", str(tmp_path / "cache")).link()
    assert epoch(scene, link) == (0, 0) and not segments(tmp_path / "cache")
    link.close()


def _named(recipe: Recipe) -> list[str]:
    with Manifest.open(recipe.manifest) as manifest:
        return [manifest[index] for index in range(len(manifest))]


def test_hosts_share_what_both_may_read_alone(scene, start, tmp_path):
    """The first host may read two directories, and a link in one of them leads to the other; two hosts may read one of them."""
    private, cache = tmp_path / "private", tmp_path / "cache"
    private.mkdir()
    linked = scene.root / _named(scene)[0]
    os.rename(linked, private / "secret.jpg")
    linked.symlink_to(private / "secret.jpg")
    engine = start("--root", str(scene.root), "--root", str(private), "--cache", str(cache))
    clients, links = engine.keys / "clients", {"host": engine.link()}
    mine = [[str(scene.root), str(scene.root)]]
    (clients / "host.roots").write_text(json.dumps([*mine, [str(private), str(private)]]))
    for name in ("second", "third"):
        links[name] = engine.link(list_client(engine.keys, name))
        (clients / f"{name}.roots").write_text(json.dumps(mine))
    assert [epoch(scene, links["host"]) for _ in range(2)] == [(0, 24), (24, 0)]

    def refused(name: str) -> str:
        events = SimpleQueue()
        job = scene.open(links[name], events)
        job.send_lease(1, scene.identity([(0, 0)]), 5, 3, [(0, 0)])
        reason = wait_for(events, say.Failed).reason
        job.close(5)
        return reason

    for name in ("second", "third"):
        assert "outside the roots" in refused(name)
    scene.items = lambda start: [(index, 0) for index in range(max(start, 1), start + 8)]  # all but the link
    assert epoch(scene, links["second"]) == (0, 23)  # no sample of the first host's shelf
    assert epoch(scene, links["third"]) == (23, 0)
    assert len(Shelves(cache, 0).summaries()) == 2
    for link in links.values():
        link.close()


def test_a_full_disk_fails_no_lease(scene, start, tmp_path):
    # A limit of the process takes the place of a full disk: a batch fits, a segment does not.
    engine = start("--root", str(scene.root), "--cache", str(tmp_path / "cache"), within=("prlimit", "--fsize=1000000"))
    link = engine.link()
    assert [epoch(scene, link) for _ in range(2)] == [(0, 24)] * 2
    assert "takes no more samples: File too large" in engine.log
    link.close()


@pytest.mark.parametrize("where", ["data/cache", "spool/cache", "data"])
def test_a_place_that_hosts_reach_is_refused(tmp_path, where):
    (tmp_path / "data").mkdir()
    with pytest.raises(CacheRefused, match="which hosts may read or write"):
        cache_at_start(str(tmp_path / where), [str(tmp_path / "data"), str(tmp_path / "spool")])
    assert not (tmp_path / where / "cache").exists()


def test_sizes_and_directories_that_are_none(tmp_path):
    assert cache_at_start(f"{tmp_path}/a:1.5M", []).quota_bytes == 3 << 19
    free = shutil.disk_usage(tmp_path).free
    assert 0.15 * free < cache_at_start(f"{tmp_path}/a", []).quota_bytes < 0.25 * free
    with pytest.raises(CacheRefused, match="'20Q' is no size"):
        cache_at_start(f"{tmp_path}/a:20Q", [])
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o770)
    with pytest.raises(CacheRefused, match="chmod go-w"):
        cache_at_start(f"{tmp_path}/open", [])


def test_the_engine_says_why_it_does_not_start(scene, home):
    assert "--cache" in refused_start(home, scene.root, "--cache", str(scene.root / "cache"))


@pytest.mark.slow
def test_the_directory_may_go_while_it_runs(scene, start, tmp_path):
    cache = tmp_path / "cache"
    engine = start("--root", str(scene.root), "--cache", str(cache))
    link = engine.link()
    epoch(scene, link)
    until_flushed(cache)
    shutil.rmtree(cache)
    assert [epoch(scene, link) for _ in range(2)] == [(24, 0), (24, 0)]  # the files are still open
    link.close()


def test_tables_take_a_part_of_the_memory_alone(scene, tmp_path):
    reader = open_reader(scene.dataset, str, lambda _: scene.manifest)
    shelves = WorkerShelves(str(tmp_path / "cache"), 1 << 30, 0)
    shelves._most_samples = 40  # of 24 each
    job = reader, scene.pipeline, scene.layout, scene.dataset
    first = shelves.maker(*job, Roots((), trust=True))[1]
    assert first is not None and shelves.maker(*job, Roots((("/a", "/a"),)))[1] is None  # the first one is in use
    shelves.release(first.shelf)
    second = shelves.maker(*job, Roots((("/a", "/a"),)))[1]
    assert second is not None and second.shelf.key != first.shelf.key and not first.shelf.keeps  # closed
    shelves.close()
    reader.close()
