"""What two further ways of a device's batches would bring: the reasons in docs/plan.md for not having them."""

from __future__ import annotations

from scripts.way_candidates import saved


def test_finished_numbers_bring_nothing() -> None:
    assert all(one.float32 < 1e-9 for free in (False, True) for one in saved(1, 80, 1.0, free))


def test_a_prefix_pays_only_where_the_device_is_slower_at_its_end() -> None:
    assert all(one.prefix < 1e-9 for ratio in (0.5, 1.0) for one in saved(1, 80, ratio, free=False))
    assert max(one.prefix for one in saved(1, 80, 2.0, free=False)) > 0.1


def test_workers_on_free_processors_bring_at_least_what_a_prefix_does() -> None:
    found = saved(1, 80, 1.0, free=True)
    assert all(one.workers > one.prefix - 1e-9 for one in found) and max(one.prefix for one in found) > 0.1
