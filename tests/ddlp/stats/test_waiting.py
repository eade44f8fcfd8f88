"""The verdict on waiting: what it says for given figures, and whether its upper bounds hold in that of `ddlp.auto.decide`."""

from __future__ import annotations

import random

import pytest

from ddlp.auto.decide import estimate
from ddlp.auto.measured import Measured, OffloadPath
from ddlp.stats.waiting import MIN_BATCHES, Ceiling, WaitingVerdict, judge

REPLAYED = Ceiling(0.05, 95)


def gains(verdict: WaitingVerdict) -> dict[str, float]:
    return {one.name: round(one.at_most, 3) for one in verdict.remedies}


def test_it_waits_and_the_step_was_replayed() -> None:
    verdict = judge(
        100, 7.6, 2.6, ceiling=REPLAYED, host_per_s=10.0, devices_per_s={"nas": 3.0}, workers=10, processors=14
    )
    assert str(verdict) == (
        "Training waits for data 34 % of the time: a step alone takes 50 ms (20 batches/s, replayed); batches come at 13.2 a "
        "second. At most 1.52 times as fast without waiting, 1.3 with num_workers=14, 1.23 with a second device like nas."
    )


def test_without_a_replay_no_step_alone_is_claimed() -> None:
    text = str(judge(100, 7.6, 2.6, start_s=0.9, host_per_s=13.0, workers=4))
    assert text == (
        "Training waits for data 34 % of the time: by the time between two batches a step takes 50 ms (20 batches/s); batches "
        "come at 13.2 a second. By this measure, at most 1.52 times as fast without waiting, 1.52 with num_workers=8, 1.52 "
        "with a device as fast as this host. loader.replay() measures the step itself. The wait for the first batch, 900 ms, "
        "comes on top."
    )
    assert "alone" not in text and "replayed" not in text


def test_it_does_not_wait() -> None:
    verdict = judge(1000, 50.2, 0.15, ceiling=REPLAYED, host_per_s=60.0, workers=4, processors=16)
    assert str(verdict) == (
        "Training does not wait for data (0.3 % of the time): a step alone takes 50 ms (20 batches/s, replayed); batches come "
        "at 19.9 a second. No remedy brings more than 1 %."
    )
    assert "No remedy brings more than 4 %." in str(judge(100, 5.2, 0.18))


def test_too_few_batches_are_said_to_be_too_few() -> None:
    assert str(judge(MIN_BATCHES - 1, 5.0, 2.0)) == (
        "Too few batches to say whether training waits for data: 19, and 20 are wanted."
    )
    assert str(judge(0, 0.0, 0.0)).startswith("Too few") and str(judge(50, 0.0, 0.0)).startswith("Too few")


def test_a_thread_that_waits_while_the_accelerator_works_loses_nothing() -> None:
    figures = {"host_per_s": 20.0, "workers": 2}
    assert judge(100, 5.05, 4.5, **figures).at_most > 9  # judged only by the time between batches
    verdict = judge(100, 5.05, 4.5, ceiling=REPLAYED, **figures)
    assert str(verdict).startswith("Training's thread waits for data 89 % of the time, but work goes on meanwhile: a step")
    assert verdict.at_most == pytest.approx(1.01) and str(verdict).endswith("No remedy brings more than 1 %.")


def test_steps_that_loading_slows_down_are_not_mended_by_more_workers() -> None:
    verdict = judge(100, 7.5, 0.0, ceiling=REPLAYED, host_per_s=30.0, workers=2)
    assert gains(verdict) == {"num_workers=4": 1.0, "a device as fast as this host": 1.5}
    said = "but loading slows its steps down: a step alone takes 50 ms (20 batches/s, replayed), 75 ms while data are loaded"
    assert said in str(verdict)


def test_workers_are_bounded_by_the_processors() -> None:
    def more(workers: int | None, processors: int | None) -> dict[str, float]:
        return gains(judge(100, 10.0, 9.0, host_per_s=10.0, workers=workers, processors=processors))

    device = {"a device as fast as this host": 2.0}
    assert more(4, None) == more(4, 64) == {"num_workers=8": 2.0, **device}
    assert more(4, 5) == {"num_workers=5": 1.25, **device}
    assert more(4, 4) == more(4, 2) == more(None, 64) == device  # nothing is known about more threads than processors
    assert more(0, 64) == {"num_workers=2": 2.0, **device}  # one thread prepares


def test_user_code_gets_no_device() -> None:
    assert gains(judge(100, 10.0, 9.0, workers=4)) == {"num_workers=8": 2.0}
    measured = judge(100, 10.0, 9.0, host_per_s=10.0, workers=4, travels=False)
    assert gains(measured) == {"num_workers=8": 2.0} and not measured.itself
    itself = judge(100, 10.0, 7.5, host_per_s=1 / 0.075, workers=0, travels=False)
    assert gains(itself) == {"num_workers=2": round(0.1 / 0.0375, 3)}
    assert str(itself).startswith("The training thread prepares the batches itself, 75 % of the time: by")
    # The training thread prepares: a step of 25 ms, then 75 ms for the next batch. Two workers make a batch in 37.5 ms.
    assert gains(judge(100, 10.0, 7.5, workers=0)) == {"num_workers=2": round(0.1 / 0.0375, 3)}
    assert gains(judge(100, 10.0, 2.5, workers=0)) == {"num_workers=2": round(0.1 / 0.075, 3)}


def test_a_device_alone_is_helped_by_a_device() -> None:
    verdict = judge(100, 10.0, 8.0, devices_per_s={"a": 4.0, "b": 6.0}, workers=None)
    assert gains(verdict) == {"one more device like b": 1.6}


def test_an_empty_loop_divides_by_nothing() -> None:
    assert judge(100, 1.0, 1.0, host_per_s=100.0, workers=1).at_most < float("inf")


def test_its_bounds_hold_in_the_model() -> None:
    """By FastFlow's model, neither a device nor more workers give more speed than the verdict says."""
    for seed in range(300):
        rng = random.Random(seed)
        step_s, host = (10 ** rng.uniform(-2, 0) for _ in range(2))
        before = estimate(Measured(step_s, 1 / host, host, 1000)).time_s
        assert before is not None
        verdict = judge(
            100, 100 * before, 100 * (before - step_s), ceiling=Ceiling(step_s, 50), host_per_s=1 / host, workers=4
        )
        path = OffloadPath("d", 1 / host, host_cpu_s_per_batch=rng.uniform(0, 1) * host)
        workers, with_device = (one.at_most for one in verdict.remedies)
        after = estimate(Measured(step_s, 1 / host, host, 1000), (path,)).time_s
        assert after is not None and before / after <= with_device * (1 + 1e-9)
        doubled = estimate(Measured(step_s, 2 / host, host, 1000)).time_s
        assert doubled is not None and before / doubled == pytest.approx(workers)
        assert max(workers, with_device) <= verdict.at_most
