"""What the sides' rates are told, and by whom: durations by those that measured, the rest by an epoch."""

import pytest

from ddlp.schedule.rates import Rates


def test_a_full_batch_is_what_the_loader_says_else_the_largest_of_the_first():
    rates = Rates()
    rates.epoch_begins(workers=2, full_batch=0, sample_bytes=12)
    assert (rates.host.parallel, rates.full_batch, rates.sample_bytes) == (2, 0, 12)
    rates.first_batches(8)
    rates.first_batches(16)
    assert rates.full_batch == 8, "it is known"
    rates.epoch_begins(workers=3, full_batch=0, sample_bytes=48)
    assert (rates.host.parallel, rates.full_batch, rates.sample_bytes) == (3, 8, 48), "what an epoch before has told"
    rates.epoch_begins(workers=3, full_batch=32, sample_bytes=48)
    assert rates.full_batch == 32


def test_a_devices_rate_counts_its_workers_and_the_ranks_that_share_it():
    rates = Rates()
    rates.joined("d", workers=4)
    rates.device("d").add(2.0)
    assert rates.device("d").per_s == pytest.approx(2.0)
    rates.shared("d", ranks=2)
    assert rates.device("d").per_s == pytest.approx(1.0)
