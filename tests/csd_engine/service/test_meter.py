"""Images per second over the last seconds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from csd_engine.service.jobs import WINDOW_S, Meter


def test_a_steady_rate_is_told_from_the_first_second_on():
    meter = Meter(100.0)
    now = 100.0
    for _ in range(300):
        now += 0.1
        meter.add(3, now)
        if now > 101:
            assert abs(meter.per_s(now) - 30) < 3
    assert meter.total == 900


def test_what_is_past_is_forgotten():
    meter = Meter(0.0)
    meter.add(1000, 1.0)
    assert meter.per_s(2.0) == 500
    assert meter.per_s(1.0 + WINDOW_S + 1) == 0
    assert meter.total == 1000


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 3)), max_size=200))
def test_its_memory_is_bounded_and_no_image_counts_twice(steps):
    meter, now = Meter(0.0), 0.0
    for images, pause in steps:
        now += pause
        meter.add(images, now)
        assert meter.per_s(now) * max(1.0, min(WINDOW_S, now)) <= meter.total + 1e-6
        assert len(meter._slots) <= 2 * WINDOW_S + 1
    assert meter.total == sum(images for images, _ in steps)
