"""Indexes that are kept in memory, and on a shelf: found by their sample, and bounded."""

import os

import numpy as np
import pytest

from csd_engine.cache.indexes import IndexesInMemory, IndexesOnShelf
from csd_engine.cache.shelf import Shelf
from csd_engine.cache.shelves import Shelves
from csd_engine.data.base import Places

KEY, SAMPLES = "ab" * 16, 40
ALL = np.arange(SAMPLES)


def test_the_last_one_kept_is_found():
    indexes = IndexesInMemory(10_000)
    assert indexes.find(3) is None
    indexes.keep(3, b"first")
    indexes.keep(4, b"other")
    indexes.keep(3, b"second")
    assert indexes.find(3) == b"second" and indexes.find(4) == b"other" and indexes.find(5) is None


def test_more_than_fit_are_not_kept():
    indexes = IndexesInMemory(5_000)
    assert indexes.wanted
    for source in range(10):
        indexes.keep(source, bytes(1_000))
    kept = [source for source in range(10) if indexes.find(source)]
    assert kept == [0, 1, 2, 3] and not indexes.wanted
    assert 4_000 < indexes.bytes <= 5_000


def test_one_that_takes_anothers_place_takes_only_the_difference():
    indexes = IndexesInMemory(5_000)
    for size in (100, 4_000, 200):
        indexes.keep(0, bytes(size))
        assert size < indexes.bytes < size + 500 and len(indexes.find(0)) == size
    indexes.keep(0, bytes(6_000))  # too large: the one that is there stays
    assert len(indexes.find(0)) == 200


def test_without_room_none_is_wanted():
    assert not IndexesInMemory(0).wanted


@pytest.fixture
def places(tmp_path):
    paths = [str(tmp_path / f"{number}.jpg") for number in range(SAMPLES)]
    for path in paths:
        with open(path, "w") as file:
            file.write("content")
        os.utime(path, (1e9, 1e9))
    return Places(paths)


@pytest.fixture
def opened(tmp_path):
    """Opens shelves with room for so many bytes."""
    shelves = []

    def one(quota=1 << 30):
        shelves.append(Shelf(Shelves(tmp_path / "cache", quota), KEY, {}, SAMPLES, 1, pytest.fail))
        return shelves[-1]

    yield one
    for shelf in shelves:
        shelf.close()


def index_of(source):
    return bytes([source]) * (70_000 if source == 7 else 100 + source)


def keep_all(shelf, places):
    indexes = IndexesOnShelf(shelf).of(ALL, places)
    for part in np.split(ALL, 4):
        if indexes.keep is not None:
            indexes.keep([(source, index_of(source)) for source in part.tolist()], 1.0)
    shelf.flush()


def test_a_shelf_has_them_for_others(opened, places):
    first = opened()
    assert IndexesOnShelf(first).of(ALL, places).found == [None] * SAMPLES
    keep_all(first, places)
    for shelf in (first, opened()):  # the second as in another process
        found = IndexesOnShelf(shelf).of(ALL[::-1], Places(places.paths[::-1])).found
        assert found == [index_of(k) for k in reversed(range(SAMPLES))]
        assert shelf.counts.hits == SAMPLES


def test_another_files_index_is_not_found_nor_a_changed_ones(opened, places):
    keep_all(opened(), places)
    shelf = opened()
    indexes = IndexesOnShelf(shelf)
    moved_up = indexes.of(ALL[:-1], Places(places.paths[1:]))  # one file is gone
    assert moved_up.found == [None] * (SAMPLES - 1)
    keep_all(shelf, places)
    os.utime(places.paths[3], ns=(10**18, 10**18 + 1))
    with open(places.paths[5], "a") as file:
        file.write("more")
    os.utime(places.paths[5], (1e9, 1e9))
    os.unlink(places.paths[6])
    found = indexes.of(ALL, places)
    assert [k for k in range(SAMPLES) if found.found[k] is None] == [3, 5, 6]
    found.keep([(3, b"new"), (5, b"newer"), (6, b"of a file that was there")], 1.0)
    shelf.flush()
    after = indexes.of(ALL, places).found
    assert (after[3], after[5], after[6], after[4]) == (b"new", b"newer", None, index_of(4))


@pytest.mark.parametrize("quota", [0, 4_400, 5_000, 6_000, 100_000])
def test_no_more_than_fit_are_on_the_shelf(opened, places, tmp_path, quota):
    shelf = opened(quota)
    keep_all(shelf, places)
    assert sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*.safetensors*")) <= quota
    found = IndexesOnShelf(shelf).of(ALL, places)
    assert all(index in (None, index_of(k)) for k, index in enumerate(found.found))
    assert (None in found.found) is (quota < 100_000) and any(found.found) is (quota >= 5_000)
