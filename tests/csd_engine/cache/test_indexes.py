"""Indexes that are kept in memory: found by their sample, and bounded."""

from csd_engine.cache.indexes import IndexesInMemory


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
