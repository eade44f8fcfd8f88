"""Which sample replaces a bad one: one of the same batch, which depends only on the seed, the epoch and the bad sample."""

from __future__ import annotations

from ddlp.sampling.replacements import MOST_TRIES, candidates


def test_each_other_sample_of_the_batch_at_most_once():
    batch = [*range(100, 140), 107, 107, 103]
    for bad in batch:
        found = candidates(5, 1, bad, batch)
        assert len(found) == len(set(found)) == MOST_TRIES
        assert set(found) <= set(batch) - {bad}
    assert sorted(candidates(5, 1, 3, [3, 9, 4, 3])) == [4, 9]
    assert candidates(5, 1, 3, [3, 3]) == []


def test_each_is_as_likely():
    firsts = [candidates(seed, 0, 7, range(10))[0] for seed in range(2000)]
    assert all(160 < firsts.count(one) < 290 for one in range(10) if one != 7)


def test_seed_epoch_and_sample_decide():
    batch = list(range(64))
    first = candidates(1, 2, 3, batch)
    assert first == candidates(1, 2, 3, batch) == [46, 52, 47, 42, 49, 15, 36, 10, 13, 35, 5, 9, 44, 23, 21, 34]
    assert all(first != other for other in (candidates(2, 2, 3, batch), candidates(1, 3, 3, batch), candidates(1, 2, 4, batch)))
