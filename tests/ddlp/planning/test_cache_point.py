"""Whether keeping decoded images pays: by a table."""

from __future__ import annotations

import pytest

from ddlp.planning.cache_point import SampleCost, kept_samples, pays, predicted_s

_CHEAP_PIXELS = SampleCost(plain_s=0.9e-3, fill_s=1.6e-3, cached_s=0.3e-3)  # a random crop of a photograph
_SMALL_IMAGES = SampleCost(plain_s=0.1e-3, fill_s=0.13e-3, cached_s=0.09e-3)
_SLOW_DISK = SampleCost(plain_s=0.9e-3, fill_s=2.4e-3, cached_s=1.1e-3)  # reading the pixels takes longer than decoding


@pytest.mark.parametrize(
    "cost, kept, epochs, wanted",
    (
        (_CHEAP_PIXELS, 1000, 1, False),  # it is never read again
        (_CHEAP_PIXELS, 1000, 2, False),
        (_CHEAP_PIXELS, 1000, 3, True),
        (_CHEAP_PIXELS, 1000, 90, True),
        (_CHEAP_PIXELS, 250, 3, True),
        (_CHEAP_PIXELS, 0, 90, False),  # no room for a single one
        (_SMALL_IMAGES, 1000, 3, False),
        (_SMALL_IMAGES, 1000, 10, True),
        (_SLOW_DISK, 1000, 1000, False),
        (_CHEAP_PIXELS, 1000, 0, False),
    ),
)
def test_the_decision(cost: SampleCost, kept: int, epochs: int, wanted: bool) -> None:
    assert pays(cost, 1000, kept, epochs) is wanted


def test_the_prediction() -> None:
    without_s, with_s = predicted_s(SampleCost(2.0, 3.0, 0.5), 10, 4, 3)
    assert without_s == 60.0
    assert with_s == 4 * 3.0 + 6 * 2.0 + 2 * (4 * 0.5 + 6 * 2.0)


@pytest.mark.parametrize("quota, kept", ((0, 0), (999, 0), (1000, 1), (25_000, 25), (1 << 40, 100)))
def test_the_room(quota: int, kept: int) -> None:
    assert kept_samples(100, 1000.0, quota) == kept
