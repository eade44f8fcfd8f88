"""Early batches of a loader with `cache=`: the same bits, each sample counted once, and threads that only read."""

from __future__ import annotations

import gc
import io
import os
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import SubsetRandomSampler
from torchvision import transforms

from csd_engine.cache import shelf as shelf_file
from csd_engine.cache.segments import SegmentWriter
from csd_engine.cache.shelf import Shelf
from csd_engine.cache.shelves import Shelves
from ddlp import Cache, CachePoint, DDLPLoader, TarImages
from ddlp.cli import main
from tests.ddlp.dropin.small_sets import DETERMINISTIC, RANDOM, SAMPLES, numbered, write_images
from tests.ddlp.epoch.test_turns import BATCH, ROOM, WORKERS, alone, at_work, compare, epochs, flat, ready, same, settle  # noqa: F401
from tests.engine_process import until
from tests.open_files import open_files

RESIZED = transforms.Compose([transforms.Resize((24, 24)), transforms.RandomCrop(16), transforms.ToTensor()])
MARKED = transforms.Compose([CachePoint(), *RANDOM.transforms])

POINTS: dict[str, tuple[Any, str]] = {
    "one size": (DETERMINISTIC, "auto"),
    "one size, then random": (RESIZED, "auto"),
    "any size": (RANDOM, "pixels"),
    "a CachePoint": (MARKED, "auto"),
}


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Files that were changed so long ago that they are kept."""
    paths = sorted(write_images(tmp_path / "images"))
    for path in paths:
        os.utime(path, (1e9, 1e9))
    return paths


@pytest.fixture(autouse=True)
def leaves_nothing(alone: None, tmp_path: Path) -> Iterator[None]:  # noqa: F811
    gc.collect()
    before = len(open_files())
    yield
    gc.collect()
    until(lambda: not at_work() and not maps(tmp_path))
    assert not list(tmp_path.rglob("*.part"))
    assert len(open_files()) <= before


def maps(below: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(below))


def make(paths: list[str], tmp_path: Path, transform: Any = DETERMINISTIC, keeps: str = "auto", **options: Any) -> DDLPLoader:
    options = {"num_workers": WORKERS, "cache": Cache(tmp_path / "cache", "1G", keeps=keeps), **options}
    return DDLPLoader(numbered(paths, transform), BATCH, **options)


def epoch(loader: DDLPLoader) -> list[Any]:
    """An epoch's batches, once nobody works early any more."""
    batches = [flat(batch) for batch in loader]
    settle()
    return batches


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Callable[[DDLPLoader, int], list[Any]]:
    """Makes so many epochs of a loader, in turn with nothing."""

    def made(loader: DDLPLoader, count: int) -> list[Any]:
        with monkeypatch.context() as patch:
            patch.setenv("DDLP_EARLY_BATCHES", "off")
            return [epoch(loader) for _ in range(count)]

    return made


def counted(loader: DDLPLoader) -> tuple[int, int]:
    cache = loader.report().cache
    assert cache is not None
    return cache.hits, cache.misses


@pytest.mark.parametrize("shuffle", (True, False))
@pytest.mark.parametrize("name", POINTS)
@pytest.mark.some(3)
def test_the_same_bits_and_draws(paths, tmp_path, monkeypatch, name, shuffle):
    (transform, keeps), homes = POINTS[name], iter(("without", "with", "with"))
    found: list[tuple[int, int]] = []

    def begin() -> DDLPLoader:
        return make(paths, tmp_path / next(homes), transform, keeps, shuffle=shuffle)

    def uncached() -> DDLPLoader:
        return make(paths, tmp_path, transform, shuffle=shuffle, cache=False)

    def between(loader: DDLPLoader, number: int) -> None:
        if number:
            found.append(counted(loader))

    assert compare(monkeypatch, begin, between) == [(0, 0), (ROOM, 0), (ROOM, 0), (ROOM, 0)]
    assert found == 2 * [(0, SAMPLES), (SAMPLES, 0), (SAMPLES, 0)]
    kept = [[batches for batches, _ in epochs(one(), count=2)] for one in (begin, uncached)]
    assert same(*kept)


def test_samples_in_tar_shards(paths, tmp_path, plain):
    shard = tmp_path / "train-0.tar"
    with tarfile.open(shard, "w") as tar:
        for number, path in enumerate(paths):
            tar.add(path, f"{number:04}.jpg")
            member = tarfile.TarInfo(f"{number:04}.cls")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"1"))
    os.utime(shard, (1e9, 1e9))

    def of(cache: Any) -> DDLPLoader:
        return DDLPLoader(TarImages([str(shard)], DETERMINISTIC), BATCH, num_workers=WORKERS, cache=cache)

    expected, loader = plain(of(False), 1)[0], of(Cache(tmp_path / "cache", "1G"))
    for number in range(3):
        assert same(expected, epoch(loader))
        assert loader.report().early == (ROOM if number else 0)
        assert counted(loader) == ((SAMPLES, 0) if number else (0, SAMPLES))
    os.utime(shard, (1e9 + 1, 1e9 + 1))
    epoch(loader)
    assert (loader.report().early, counted(loader)) == (0, (0, SAMPLES))


def test_a_shelf_with_room_for_a_part(paths, tmp_path, plain):
    """Batches of samples that were made and not kept come early once an epoch has kept nothing."""
    room = 4096 + SAMPLES // 3 * 16 * 16 * 3
    expected, used = plain(make(paths, tmp_path, cache=False), 1)[0], []
    loader = make(paths, tmp_path, cache=Cache(tmp_path / "cache", room))
    for number in range(4):
        assert same(expected, epoch(loader))
        hits, misses = counted(loader)
        assert hits + misses == SAMPLES and (number == 0 or 0 < hits < SAMPLES // 2)
        used.append(loader.report().early)
    assert used[0] == 0 < used[1] < ROOM and used[2:] == [ROOM, ROOM]


def test_a_sample_that_is_missing_is_kept_by_its_epoch(paths, tmp_path, monkeypatch):
    """Here it lies in the first batch of each epoch, which comes early."""
    os.utime(paths[1], (4e9, 4e9))  # in the year 2096: too new to be kept
    loader = make(paths, tmp_path)
    epoch(loader)
    epoch(loader)
    assert (loader.report().early, counted(loader)) == (ROOM - 1, (SAMPLES - 1, 1))
    monkeypatch.setattr(shelf_file, "_SETTLED_S", -3e9)
    for kept in (False, True):
        epoch(loader)
        assert (loader.report().early, counted(loader)) == ((ROOM, (SAMPLES, 0)) if kept else (ROOM - 1, (SAMPLES - 1, 1)))


def test_an_epoch_that_begins_while_a_sample_of_it_is_looked_for_keeps_it(paths, tmp_path, monkeypatch):
    """The sample is missing, and the epoch has kept nothing so far, but that it will is not for the early thread to know."""
    os.utime(paths[1], (4e9, 4e9))  # in the year 2096: too new to be kept
    find, begin, begun = Shelf.find, Shelf.begin, []

    def once_it_has_begun(self: Shelf, *given: Any) -> Any:
        if self._reading is not None:
            until(lambda: len(begun) > 1)
        return find(self, *given)

    def noted(self: Shelf) -> None:
        begin(self)
        begun.append(True)

    loader = make(paths, tmp_path)
    monkeypatch.setattr(Shelf, "begin", noted)
    monkeypatch.setattr(Shelf, "find", once_it_has_begun)
    list(loader)
    monkeypatch.setattr(shelf_file, "_SETTLED_S", -3e9)
    epoch(loader)
    assert counted(loader) == (SAMPLES - 1, 1)
    epoch(loader)
    assert counted(loader) == (SAMPLES, 0)


def test_a_file_that_changes(paths, tmp_path, plain):
    """Between the early batch and its epoch, and while its sample lies on the shelf."""
    loader = make(paths, tmp_path, seed=3)
    uncached = make(paths, tmp_path, seed=3, cache=False)
    assert same(plain(uncached, 1)[0], epoch(loader))
    assert ready(loader) == ROOM
    shutil.copy(paths[7], paths[2])
    os.utime(paths[2], (1e9 + 5, 1e9 + 5))
    first, second = plain(uncached, 2)
    assert same(first, epoch(loader))
    assert (loader.report().early, counted(loader)) == (ROOM - 1, (SAMPLES - 1, 1))
    assert same(second, epoch(loader))
    assert (loader.report().early, counted(loader)) == (ROOM, (SAMPLES, 0))


def test_a_file_that_changes_before_it_is_made_early(paths, tmp_path, plain):
    """Its batch is left to the epoch, which forgets what was kept, and keeps the new sample."""
    loader = make(paths, tmp_path)
    epoch(loader)
    iterator = iter(loader)
    for _ in range(ROOM):
        next(iterator)
    shutil.copy(paths[7], paths[2])
    os.utime(paths[2], (1e9 + 5, 1e9 + 5))
    list(iterator)
    assert ready(loader) == ROOM - 1
    expected = plain(make(paths, tmp_path, cache=False), 1)[0]
    for used, missed in ((ROOM - 1, 1), (ROOM, 0)):
        assert same(expected, epoch(loader))
        assert (loader.report().early, counted(loader)) == (used, (SAMPLES - missed, missed))


def test_damage_is_told_and_repaired_by_the_epoch(paths, tmp_path):
    """Its sample is used for the first time by a thread that works early."""
    first = make(paths, tmp_path)
    epoch(first)
    offset = 4096 + int(first._cache._open.shelf._entries["offset"][5])
    del first
    (file,) = (tmp_path / "cache").rglob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[offset + 8] ^= 1
    file.write_bytes(content)

    loader = make(paths, tmp_path, sampler=SubsetRandomSampler(range(20, SAMPLES)))
    iterator = iter(loader)
    loader.sampler.indices = range(20)
    list(iterator)
    settle()
    assert file.exists() and ready(loader) == 20 // BATCH - 1
    with pytest.warns(UserWarning, match="damaged"):
        assert len(epoch(loader)) == 20 // BATCH
    assert not file.exists()
    for _ in range(2):
        epoch(loader)
    assert counted(loader) == (20, 0)


def test_damage_that_is_found_after_the_early_batches(paths, tmp_path, plain):
    """What was made of the file that is gone is made and kept again, though the batches are there."""
    expected, loader = plain(make(paths, tmp_path, cache=False), 1)[0], make(paths, tmp_path)
    epoch(loader)
    assert ready(loader) == ROOM
    (file,) = (tmp_path / "cache").rglob("*.safetensors")
    shelf = loader._cache._open.shelf
    shelf._drop(1)
    shelf._remove_damaged(file.name, "for a test")
    with pytest.warns(UserWarning, match="damaged"):
        assert same(expected, epoch(loader))
    assert (loader.report().early, counted(loader)) == (0, (0, SAMPLES))
    assert same(expected, epoch(loader))
    assert counted(loader) == (SAMPLES, 0)


def test_another_cache_or_none_between_epochs(paths, tmp_path, plain):
    expected, loader = plain(make(paths, tmp_path, cache=False), 1)[0], make(paths, tmp_path)
    assert same(expected, epoch(loader))
    for cache in (False, Cache(tmp_path / "two", "1G")):
        assert ready(loader) == ROOM
        loader.cache = cache
        assert same(expected, epoch(loader))
        assert (loader.report().early, loader.report().early_dropped) == (0, ROOM)
        assert loader.report().cache is None if cache is False else counted(loader) == (0, SAMPLES)
        assert same(expected, epoch(loader))  # lets a chance pass
        assert same(expected, epoch(loader))


def test_what_is_dropped_is_not_counted(paths, tmp_path):
    loader = make(paths, tmp_path, shuffle=True, seed=3)
    epoch(loader)
    for _ in range(2):
        torch.manual_seed(6)  # another order than that of the early batches
        epoch(loader)
        assert (loader.report().early, counted(loader)) == (0, (SAMPLES, 0))


def test_evaluation_in_turn_with_training(paths, tmp_path):
    train = make(paths, tmp_path, RANDOM, "pixels", shuffle=True)
    test = make(paths, tmp_path)
    for number in range(4):
        epoch(train)
        epoch(test)
        for loader in (train, test):
            assert counted(loader) == ((SAMPLES, 0) if number else (0, SAMPLES))
    assert (train.report().early, test.report().early) == (ROOM, ROOM)


def test_the_cache_is_forgotten_meanwhile(paths, tmp_path, plain, capsys):
    """By `ddlp cache forget`, which leaves a shelf in use, and by somebody who removes all of it."""
    expected, loader = plain(make(paths, tmp_path, cache=False), 1)[0], make(paths, tmp_path)
    epoch(loader)
    assert ready(loader) == ROOM
    assert main(["cache", "forget", "--all", "--dir", str(tmp_path / "cache")]) == 1
    assert "in use" in capsys.readouterr().err
    for _ in range(3):
        assert same(expected, epoch(loader))
        assert (loader.report().early, counted(loader)) == (ROOM, (SAMPLES, 0))
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)


# -- the end -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ("dropped", "another cache", "another transform"))
def test_the_shelf_is_closed_while_threads_read_it(paths, tmp_path, monkeypatch, how):
    find, begun, closed = Shelf.find, [], []

    def slowly(self: Shelf, *given: Any) -> Any:
        if self._reading is None:
            return find(self, *given)
        begun.append(True)
        until(lambda: bool(closed))
        return find(self, *given)

    monkeypatch.setattr(Shelf, "find", slowly)
    loader = make(paths, tmp_path)
    list(loader)
    until(lambda: bool(begun))
    shelves = Shelves(tmp_path / "cache", 0)
    if how == "dropped":
        del loader
        gc.collect()
        until(lambda: not any(one.in_use for one in shelves.summaries()))
        closed.append(True)
        settle()
    else:
        if how == "another cache":
            loader.cache = False
        else:
            loader.dataset.transform = RESIZED
        iterator = iter(loader)
        closed.append(True)
        assert len(list(iterator)) == len(loader)
        assert loader.report().early == 0


@pytest.mark.parametrize("how", ("dropped", "closed", "kept"))
def test_a_file_of_the_cache_is_ended_early_and_once(paths, tmp_path, monkeypatch, how):
    """The thread that makes the prediction ends the epoch's file. Whoever closes the shelf waits for it."""
    publish, names = SegmentWriter.publish, []

    def slowly(self: SegmentWriter) -> int:
        names.append(self.name)
        time.sleep(0.2)
        return publish(self)

    monkeypatch.setattr(SegmentWriter, "publish", slowly)
    loader = make(paths, tmp_path)
    iterator: Any = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    until(lambda: bool(names))
    if how == "closed":
        iterator._shutdown_workers()
    if how == "kept":
        list(iterator)
    else:
        del loader, iterator
        gc.collect()
        until(lambda: not any(one.in_use for one in Shelves(tmp_path / "cache", 0).summaries()))
    assert len(names) == 1
    assert [one.samples for one in Shelves(tmp_path / "cache", 0).summaries()] == [SAMPLES]
    settle()


AT_EXIT = """
from pathlib import Path
from ddlp import Cache, DDLPLoader
from tests.ddlp.dropin.small_sets import numbered

home = Path({home!r})
files = numbered(sorted(map(str, home.glob("images/*/*.jpg"))))
loader = DDLPLoader(files, 4, num_workers=2, cache=Cache(home / "cache", "1G"))
for batch in loader:
    pass
"""


def test_a_process_that_ends_then_leaves_a_whole_cache(forks, paths, tmp_path):
    ended = forks.run(code=AT_EXIT.format(home=str(tmp_path)), environment=os.environ)
    assert (ended.returncode, ended.stderr) == (0, "")
    loader = make(paths, tmp_path)
    epoch(loader)
    assert counted(loader) == (SAMPLES, 0)
