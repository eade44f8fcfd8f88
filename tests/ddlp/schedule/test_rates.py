"""The rates of both sides: which durations they get, from whoever measured them, and what an epoch tells them."""

import math

import pytest

from ddlp.schedule.rates import Rate, Rates


def test_a_full_batch_is_what_the_loader_says_else_the_largest_of_the_first():
    rates = Rates()
    rates.epoch_begins(workers=2, full_batch=0, sample_bytes=12)
    assert (rates.host.parallel, rates.full_batch, rates.sample_bytes) == (2, 0, 12)
    rates.first_batches(8)
    rates.first_batches(16)
    assert rates.full_batch == 8, "a known size stays"
    rates.epoch_begins(workers=3, full_batch=0, sample_bytes=48)
    assert (rates.host.parallel, rates.full_batch, rates.sample_bytes) == (3, 8, 48), "what an earlier epoch has set"
    rates.epoch_begins(workers=3, full_batch=32, sample_bytes=48)
    assert rates.full_batch == 32


def test_a_devices_rate_counts_its_workers_and_the_ranks_that_share_it():
    rates = Rates()
    rates.joined("d", workers=4)
    rates.device("d").add(2.0)
    assert rates.device("d").per_s == pytest.approx(2.0)
    rates.shared("d", ranks=2)
    assert rates.device("d").per_s == pytest.approx(1.0)


def test_the_mean_follows_the_last_sixteen_batches():
    rate = Rate()
    assert rate.per_s is None and not rate.known()
    for seconds in (2.0, 4.0):
        rate.add(seconds)
    assert (rate.count, rate.seconds) == (2, 3.0), "the plain mean at first"
    for _ in range(14):
        rate.add(3.0)
    assert rate.seconds == pytest.approx(3.0)
    rate.add(19.0)
    assert rate.seconds == pytest.approx(4.0), "the seventeenth batch counts a sixteenth"
    rate.parallel = 2
    assert rate.per_s == pytest.approx(0.5)


def test_a_part_of_a_batch_counts_as_a_part():
    rate = Rate()
    rate.add(1.0, part=0.25)
    assert rate.seconds == 4.0
    for nothing in (0.0, -0.5):
        rate.add(1.0, nothing)
    assert rate.count == 1, "a batch without samples says nothing"
    rate = Rate()
    rate.add(0.0)
    assert rate.seconds == 1e-9, "a clock that stands still may not lead to a division by zero"


def test_a_rate_is_known_by_its_standard_error_or_after_ten_batches():
    steady = Rate()
    for count in range(1, 4):
        assert not steady.known()
        steady.add(2.0)
        assert steady.count == count
    assert steady.known(), "three equal durations are enough"
    values = (1.0, 2.0, 3.0, 2.0)
    spread = Rate()
    for seconds in values:
        spread.add(seconds)
    # The mean is 2.0. The variance of the four is (1 + 0 + 1 + 0) / 3.
    error = math.sqrt(2 / 3 / 4) / 2.0
    assert spread.known(within=error * 1.001) and not spread.known(within=error * 0.999)
    assert not spread.known(at_most=5) and spread.known(at_most=4)
    wild = Rate()
    for seconds in (1.0, 100.0) * 5:
        assert not wild.known()
        wild.add(seconds)
    assert wild.known(), "ten are enough, however they vary"
    near = Rate()
    for seconds in (1.0, 1.0, 1.0, 1.2):  # the mean's error is 4.8 %
        near.add(seconds)
    far = Rate()
    for seconds in (1.0, 1.0, 1.0, 1.25):  # 5.9 %
        far.add(seconds)
    assert near.known() and not far.known()


def test_a_pause_in_training_counts_as_four_steps():
    rates = Rates()
    for seconds in (1.0, 1.0, 100.0):
        rates.trained(seconds)
    assert rates.training.seconds == pytest.approx(34.0), "the first three are not limited"
    rates = Rates()
    for _ in range(3):
        rates.trained(0.25)
    rates.trained(1000.0)
    assert rates.training.seconds == pytest.approx(0.25 * 1.75), "(3 + 4) / 4"
    rates = Rates()
    for _ in range(3):
        rates.trained(1.0)
    rates.trained(1000.0, part=0.5)
    assert rates.training.seconds == pytest.approx(1.75), "for half a batch, the limit is four half steps"
    rates.trained(0.875, part=0.5)
    assert rates.training.seconds == pytest.approx(1.75) and rates.training.count == 5


def test_first_steps_that_start_the_accelerator_count_as_usual_ones():
    rates = Rates()
    for seconds in (100.0, 1.0, 2.0):
        rates.trained(seconds, part=0.5)
    assert rates.training.seconds == pytest.approx((2.0 + 2.0 + 4.0) / 3) and rates.training.count == 3
    assert rates.training.total_s == 206.0, "the sum is that of all"
    assert rates.training.error == pytest.approx(0.25, abs=0.001), "sqrt(8 / 3 / 2 / 3) of 8 / 3"
    rates = Rates()
    for seconds in (4.0, 1.0):
        rates.trained(seconds)
    assert rates.training.seconds == 2.5, "four times as long is usual"
    rates.trained(1.0, part=0.0)
    assert rates.training.seconds == 2.5, "no sample, no step"


def test_the_devices_rates_add_up_where_they_are_known():
    rates = Rates()
    assert rates.csd_per_s(["a", "b"]) is None and rates.devices == {}, "asking may not create a rate"
    rates.device("a").add(2.0)
    rates.device("b")
    assert rates.csd_per_s(["b"]) is None and rates.csd_per_s([]) is None
    rates.device("c").add(4.0)
    assert rates.csd_per_s(["a", "b", "c", "unknown"]) == 0.75 and rates.csd_per_s(["c"]) == 0.25


def test_a_rate_is_known_at_its_limit():
    rate = Rate()
    for seconds in (1.0, 2.0, 3.0):
        rate.add(seconds)
    error = math.sqrt(1 / 3)  # of the mean, 2 s
    assert rate.known(within=error / 2) and not rate.known(within=0.99 * error / 2)


def test_the_spread_and_the_means_error_are_parts_of_the_mean():
    rate = Rate()
    assert rate.spread == 0 and rate.error == math.inf
    for seconds, spread, error in ((1.0, 0, math.inf), (3.0, math.sqrt(2) / 2, 1 / 2), (2.0, 1 / 2, 1 / math.sqrt(12))):
        rate.add(seconds)
        assert (rate.spread, rate.error) == pytest.approx((spread, error))


def test_the_mean_since_some_batch_leaves_out_those_before():
    rate = Rate()
    assert rate.mean_since((0, 0.0)) == 0.0, "there is none"
    for seconds in (1.0, 2.0):
        rate.add(seconds)
    assert rate.mean_since((0, 0.0)) == 1.5
    before = rate.count, rate.total_s
    assert rate.mean_since(before) == 0.0
    rate.add(2.5, part=0.5)
    assert rate.mean_since(before) == 5.0
    rate.add(3.0)
    assert rate.mean_since(before) == 4.0


def test_devices_rest_and_work_again_by_name_or_all():
    rates = Rates()
    assert rates.resting == set()
    rates.rest(["a", "b"])
    rates.rest(["c"])
    assert rates.resting == {"a", "b", "c"}
    rates.work(["b", "unknown"])
    assert rates.resting == {"a", "c"}
    rates.work()
    assert rates.resting == set()


def test_how_fast_batches_come_from_a_device_is_known_after_three():
    rates = Rates()
    for seconds in (2.0, 4.0):
        rates.fetched("a", seconds, 0.5, fetchers=2)
        assert (rates.link_s("a"), rates.link_per_s("a")) == (0.0, math.inf)
    rates.fetched("a", 3.0, 0.5, fetchers=2)
    assert rates.link_s("a") == pytest.approx(6.0) and rates.link_per_s("a") == pytest.approx(2 / 6)
    assert (rates.link_s("b"), rates.link_per_s("b")) == (0.0, math.inf)
    rates.device("a").add(1.0)
    rates.device("b").add(4.0)
    assert rates.arriving_per_s(["a", "b"]) == pytest.approx(2 / 6 + 0.25) and rates.csd_per_s(["a", "b"]) == 1.25


def test_the_processor_time_of_taking_a_batch_is_counted_where_it_is_known():
    rates = Rates()
    rates.fetched("a", 2.0, 0.5, fetchers=1)
    assert not rates.taking_cpu and rates.host_cpu.per_s is None
    for cpu_s in (0.25, 0.75):
        rates.fetched("a", 2.0, 0.5, fetchers=1, cpu_s=cpu_s)
    assert rates.taking_cpu["a"].seconds == 1.0 and list(rates.taking_cpu) == ["a"]
