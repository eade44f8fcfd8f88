"""What to keep: by a table."""

from __future__ import annotations

import pytest

from ddlp.caching.cache_point import OFF, SampleCost, best_point, between_requests_s, known_cost, predicted_s

PLAIN_S, PHOTOGRAPH, PIXELS = 1.0e-3, 110_000, 560_000
ALL = 1000 * PIXELS

PIXEL_COST = {"pixels": known_cost("pixels", PLAIN_S, PIXELS)}
SLOW_DISK = {"pixels": SampleCost(2.4e-3, 1.1e-3, PIXELS)}  # reading the pixels takes longer than decoding


@pytest.mark.parametrize(
    "costs, quota, epochs, wanted",
    (
        (PIXEL_COST, ALL, 1, OFF),  # it is never used again
        (PIXEL_COST, ALL, 2, OFF),
        (PIXEL_COST, ALL, 3, "pixels"),
        (PIXEL_COST, ALL // 4, 3, "pixels"),
        (PIXEL_COST, PIXELS - 1, 90, OFF),  # no room for a single one
        (PIXEL_COST, ALL, 0, OFF),
        (PIXEL_COST, ALL, 90, "pixels"),
        (PIXEL_COST, ALL // 10, 90, "pixels"),
        (SLOW_DISK, ALL, 1000, OFF),
        ({"prefix": known_cost("prefix", PLAIN_S, 150_528), **PIXEL_COST}, ALL, 10, "prefix"),
        ({}, ALL, 10, OFF),
    ),
)
def test_the_decision(costs: dict[str, SampleCost], quota: int, epochs: int, wanted: str) -> None:
    assert best_point(PLAIN_S, costs, 1000, quota, epochs) == wanted


PREFIX_COST = {"prefix": known_cost("prefix", PLAIN_S, 150_528)}
FILE_COST = {"files": SampleCost(1.1 * PLAIN_S, PLAIN_S, PHOTOGRAPH)}


@pytest.mark.parametrize(
    "costs, quota, epochs, request_s, wanted",
    (
        (FILE_COST, ALL, 10, 0.0, OFF),  # nobody waits for requests
        (FILE_COST, ALL, 10, PLAIN_S, OFF),
        (FILE_COST, ALL, 10, 3 * PLAIN_S, "files"),
        (FILE_COST, ALL, 1, 3 * PLAIN_S, OFF),  # nothing is requested twice
        (FILE_COST, PHOTOGRAPH - 1, 10, 3 * PLAIN_S, OFF),
        ({**PIXEL_COST, **FILE_COST}, ALL, 10, 3 * PLAIN_S, "pixels"),  # all fits
        ({**PIXEL_COST, **FILE_COST}, ALL // 5, 10, 3 * PLAIN_S, "files"),  # a fifth of the pixels, or all files
        ({**PIXEL_COST, **FILE_COST}, ALL // 5, 10, 0.0, "pixels"),
        ({**PIXEL_COST, **FILE_COST}, ALL // 50, 10, 3 * PLAIN_S, "files"),  # a tenth of the files
        ({**PREFIX_COST, **FILE_COST}, 1000 * 150_528, 10, 3 * PLAIN_S, "prefix"),
        ({**PREFIX_COST, **FILE_COST}, 1000 * PHOTOGRAPH, 10, 3 * PLAIN_S, "prefix"),  # requests beside them take less time
        ({**PREFIX_COST, **FILE_COST}, 500 * PHOTOGRAPH, 10, 3 * PLAIN_S, "files"),
    ),
)
def test_the_decision_for_objects(
    costs: dict[str, SampleCost], quota: int, epochs: int, request_s: float, wanted: str
) -> None:
    assert best_point(PLAIN_S, costs, 1000, quota, epochs, request_s) == wanted


def test_requests_beside_the_work() -> None:
    cost = SampleCost(3.0, 0.5, kept_bytes=100.0)
    assert predicted_s(2.0, None, 10, 0, 3, request_s=5.0) == 3 * 10 * 5.0
    assert predicted_s(2.0, None, 10, 0, 3, request_s=1.0) == 3 * 10 * 2.0
    assert predicted_s(2.0, cost, 10, 499, 3, request_s=5.0) == 10 * 5.0 + 2 * 6 * 5.0
    assert predicted_s(2.0, cost, 10, 1000, 3, request_s=5.0) == 10 * 5.0 + 2 * 10 * 0.5


def test_the_time_between_objects() -> None:
    assert between_requests_s(0.02, 0.02 + 24 / 300, 24, 8) == pytest.approx(1 / 300)  # the storage's rate
    assert between_requests_s(0.1, 0.3, 24, 8) == 0.0  # latency alone


def test_the_prediction() -> None:
    assert predicted_s(2.0, None, 10, 1 << 40, 3) == 60.0
    cost = SampleCost(3.0, 0.5, kept_bytes=100.0)
    assert predicted_s(2.0, cost, 10, 499, 3) == 4 * 3.0 + 6 * 2.0 + 2 * (4 * 0.5 + 6 * 2.0)
