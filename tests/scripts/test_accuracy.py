from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from scripts.accuracy import Comparison, compare, noise_limit


def test_limit_is_t_times_the_standard_error() -> None:
    first, second = (0.80, 0.90, 1.00), (0.70, 0.80, 0.90)
    # Equal variances of 0.01, three runs each: 4 degrees of freedom, t = 4.604. With so many images the lower limit is small.
    assert noise_limit(first, second, 10**6) == pytest.approx(4.604 * math.sqrt(2 * 0.01 / 3))


def test_runs_that_fall_on_one_value_leave_room_for_the_size_of_the_val_set() -> None:
    limit = noise_limit((0.9, 0.9, 0.9), (0.9, 0.9, 0.9), 100)
    assert limit == pytest.approx(4.604 * math.sqrt(2 * 0.9 * 0.1 / 100 / 3))


def test_a_loader_that_loses_accuracy_is_found() -> None:
    assert Comparison("set", (0.93, 0.94, 0.93), (0.93, 0.92, 0.94), 400).agree
    worse = Comparison("set", (0.93, 0.94, 0.93), (0.85, 0.86, 0.84), 400)
    assert not worse.agree and "DIFFERENT" in str(worse)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread, as the script itself uses: on two busy cores torch's threads mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_training_reaches_the_same_accuracy(one_thread: None, tmp_path: Path) -> None:
    comparisons = compare(tmp_path, images=200, val_images=200, seeds=3, epochs=2)
    assert [comparison.dataset for comparison in comparisons] == ["ImageFolder", "CIFAR-10 files"]
    for comparison in comparisons:
        assert min(comparison.dataloader) > 0.3, f"the plain loader did not learn: {comparison}"
        assert comparison.agree, str(comparison)
