"""The slopes of `tests.chaos.soak`: growth is reported, noise is not. The whole script trains for minutes."""

from __future__ import annotations

import random

import pytest

from tests.chaos.soak import Slope, main, told

BATCHES = [630.0 * (number + 1) for number in range(100)]


def series(per_batch: float, noise: float) -> list[tuple[float, float]]:
    draw = random.Random(0)
    return [(x, 50 + per_batch * x + draw.gauss(0, noise)) for x in BATCHES]


def test_a_slope_is_that_of_the_line_and_its_interval_holds_it() -> None:
    exact = Slope.of(*zip(*series(2e-4, 0), strict=True))
    assert exact.growth == pytest.approx(20) and exact.error < 1e-6
    noisy = Slope.of(*zip(*series(2e-4, 1), strict=True))
    assert abs(noisy.growth - 20) < 1.5 * noisy.error and 0.5 < noisy.error < 3


def test_what_grows_is_told_and_noise_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    steady = {("host", "MB"): series(0, 3), ("host", "descriptors"): series(0, 2)}
    assert told(steady) and "GROWS" not in capsys.readouterr().out
    assert not told({**steady, ("e0", "MB"): series(1e-4, 1), ("e1", "threads"): series(1e-5, 0.1)})
    lines = capsys.readouterr().out.splitlines()
    assert ["GROWS" in line for line in lines] == [False, False, False, True, True]


def test_too_few_batches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--batches", "100"])
    assert "a slope needs ten epochs, which have 6300" in capsys.readouterr().err
