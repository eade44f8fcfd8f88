"""How many batches an epoch keeps in memory, and fetches at a time."""

from __future__ import annotations

from ddlp.schedule.slots import FETCH_SLOTS, FETCHERS, host_slots


def test_a_host_alone_has_dataloaders_batches_and_one_more_in_work():
    assert [host_slots(workers, 2, False) for workers in range(1, 20)] == [2 * workers + 1 for workers in range(1, 20)]
    assert [host_slots(1, factor, False) for factor in (0, 1, 5)] == [2, 2, 6], "two at least"


def test_with_devices_their_batches_are_taken_from_the_hosts():
    assert (FETCHERS, FETCH_SLOTS) == (2, 3)
    with_devices = [3, 4, 5, 6, *(2 * workers - 2 for workers in range(5, 20))]
    assert [host_slots(workers, 2, True) for workers in range(1, 20)] == with_devices
    assert [host_slots(2, factor, True) for factor in (0, 1, 5)] == [2, 3, 8], "no more than without, and each worker has one"
