"""From readings to joules: counters that wrap or restart, gaps."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from csd_engine.machine.sensors import Reading
from ddlp.observe.energy.tally import MOST_W, Tally, interval_s

RANGE_J = 262143.32885


def counter(joules: float, range_j: float = RANGE_J) -> Reading:
    return Reading("rapl/package-0", "cpu", joules, None, range_j)


def gauge(watts: float) -> Reading:
    return Reading("ina219/power1", "csd", None, watts)


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(st.lists(st.tuples(st.floats(0.001, 30), st.floats(0, 2000)), min_size=1, max_size=60), st.floats(0, RANGE_J))
def test_a_counter_that_wraps_loses_nothing(steps, start):
    tally, now, true = Tally(5), 0.0, 0.0
    tally.add(counter(start), now)
    for seconds, watts in steps:
        now += seconds
        true += seconds * watts
        tally.add(counter((start + true) % RANGE_J), now)
    tally.finish(0, now)
    assert tally.joules == pytest.approx(true, abs=1e-3)
    assert tally.covered_s == pytest.approx(now) and not tally.notes


@given(st.floats(1e3, 1e12))
def test_a_counter_is_read_before_it_can_wrap_twice(range_j):
    assert interval_s(range_j) * MOST_W <= range_j / 2 + 1e-6
    assert 0 < interval_s(range_j) <= 60 == interval_s(0)


def test_a_counter_that_began_anew_is_no_wrap():
    tally = Tally(5)
    for joules, now in ((200000, 0), (200100, 1), (5, 2), (105, 3)):  # 62 kJ in a second: the driver was reloaded
        tally.add(counter(joules), now)
    assert tally.joules == 200 and tally.covered_s == 2
    (note,) = tally.notes
    assert "began anew" in note and "package-0" in note
    without_range = Tally(5)
    for joules, now in ((500, 0), (3, 1), (10, 2)):
        without_range.add(counter(joules, 0.0), now)
    assert without_range.joules == 7


def test_one_that_was_not_read_for_long_is_said():
    tally = Tally(5)
    tally.add(counter(0), 0)
    tally.add(counter(100), 3600)
    assert tally.joules == 100 and "wrapped twice" in tally.notes[0]


@given(st.lists(st.tuples(st.floats(0.01, 4.9), st.floats(0, 300)), min_size=1, max_size=40))
def test_a_gauge_is_summed_as_a_line_between_its_readings(steps):
    tally, now, true, before = Tally(5), 0.0, 0.0, 100.0
    tally.add(gauge(before), now)
    for seconds, watts in steps:
        now += seconds
        true += seconds * (before + watts) / 2
        before = watts
        tally.add(gauge(watts), now)
    assert tally.joules == pytest.approx(true)
    assert tally.covered_s == pytest.approx(now)


def test_a_gap_in_a_gauge_is_not_made_up():
    tally = Tally(5)
    for watts, now in ((10, 0), (10, 1), (500, 21), (500, 22)):
        tally.add(gauge(watts), now)
    tally.finish(0, 22)
    assert (tally.joules, tally.covered_s) == (510, 2)
    assert "20.0 s" in tally.notes[0]


def test_the_ends_count_as_the_readings_next_to_them():
    tally = Tally(5)
    for watts, now in ((10, 1), (30, 2)):
        tally.add(gauge(watts), now)
    tally.finish(0, 4)
    assert tally.joules == 20 + 20 + 60 and tally.covered_s == 4
    single = Tally(5)
    single.add(gauge(7), 1)
    single.finish(0, 2)
    assert single.joules == 14
    late = Tally(5)
    late.add(gauge(7), 100)
    late.finish(0, 101)
    assert late.joules == 7  # the 100 s before are not filled in


@pytest.mark.parametrize("watts", [-3.0, float("nan"), 1e9])
def test_nonsense_is_not_counted_and_is_said(watts):
    tally = Tally(5)
    tally.add(gauge(5), 0)
    tally.add(gauge(watts), 1)
    tally.add(gauge(5), 2)
    assert tally.joules == 10 and "not counted" in tally.notes[0]
