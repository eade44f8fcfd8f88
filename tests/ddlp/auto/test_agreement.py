"""Which rank's window counts, and when: the agreement of the ranks by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from ddlp.auto.agreement import LATE, Agreed, Agreement, WindowFigures, slowest
from ddlp.auto.measured import Measured, OffloadPath


def window(batch_s: float, step_s: float, host_s: float = 0.001, shared: bool = True, **others: Any) -> WindowFigures:
    figures = WindowFigures(
        100, 0, 50, batch_s, 0.01, host_s, 0.0005, 0.0006, shared, False, False,
        ("d0", "d1"), ("d0",), ("d0",) if shared else (),
        Measured(step_s=step_s or None, host_processors=2.0, paths=(OffloadPath("d0", batches_per_s=30.0),)),
    )  # fmt: skip
    return dataclasses.replace(figures, **others)


# -- which window counts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("windows", "rank"),
    [
        ({0: window(0.010, 0.005), 1: window(0.020, 0.005)}, 1),
        ({0: window(0.020, 0.005), 1: window(0.010, 0.010)}, 0),
        ({0: window(0.010, 0.002), 1: window(0.020, 0.020)}, 1),  # a slower step, and no rank waits for another
        ({0: window(0.0202, 0.0202), 1: window(0.020, 0.005), 2: window(0.0201, 0.02)}, 1),  # in step: the others wait for it
        ({0: window(0.020, 0.020), 1: window(0.020, 0.020)}, 0),
        ({0: window(0.006, 0.006, 0.002, shared=False), 1: window(0.006, 0.005, 0.012, shared=False)}, 1),  # batches were ready
        ({0: window(0.020, 0.0), 1: window(0.020, 0.015)}, 1),  # a step that is not known
    ],
    ids=["host", "rank-0", "step", "in-step", "equal", "ready-before", "no-step"],
)
def test_the_slowest_ranks_window_counts(windows, rank):
    assert slowest(windows) == rank


def test_what_was_agreed_survives_the_way():
    for agreed in (
        Agreed(3, window(0.1 + 0.2, 1 / 3, error=math.inf), without=(1, 2)),
        Agreed(known=Measured(step_s=0.1, paths=(OffloadPath("d0", 2.0),)), sources=("d0", "d1")),
        Agreed(),
    ):
        assert Agreed.from_json(agreed.to_json()) == agreed
        assert Agreed.from_json(agreed.to_json().encode()) == agreed


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("{", "Expecting"),
        ("[]", "must be an object"),
        ('{"rank": -1, "window": null, "known": null, "sources": [], "without": []}', "rank"),
        ('{"rank": 0, "window": {"batches": 1}, "known": null, "sources": [], "without": []}', "WindowFigures has no began"),
    ],
)
def test_what_is_damaged_is_refused(data, why):
    with pytest.raises(ValueError, match=why):
        Agreed.from_json(data)


# -- one rank's part ---------------------------------------------------------------------------------------------------


def begun(rank: int, ranks: int = 3) -> Agreement:
    agreement = Agreement("n", rank, ranks)
    agreement.hear(Agreed())
    assert not agreement.begun and agreement.take() == Agreed() and agreement.begun and agreement.take() is None
    return agreement


def batches(agreement: Agreement, count: int) -> None:
    for _ in range(count):
        agreement.delivered()


def test_a_window_is_the_answer_to_what_was_judged_before():
    one, woken = begun(1), []
    one.wake = lambda: woken.append(True)
    assert one.to_send is None
    one.offer(window(0.01, 0.01))
    assert one.to_send == (1, window(0.01, 0.01)) and woken
    one.hear(Agreed(0, window(0.02, 0.01)))
    assert one.to_send is None, "it would be taken for the next one"
    taken = one.take()
    assert taken is not None and taken.window == window(0.02, 0.01) and one.offered is None
    one.offer(window(0.03, 0.01))
    assert one.to_send == (2, window(0.03, 0.01))


def test_what_came_together_is_judged_one_by_one():
    one = begun(1)
    for batch_s in (0.01, 0.02):
        one.hear(Agreed(0, window(batch_s, 0.01)))
    assert [one.take().window.batch_s for _ in range(2)] == [0.01, 0.02]  # type: ignore[union-attr]


def test_rank_0_waits_for_all_but_not_for_ever():
    one, own = begun(0), window(0.01, 0.01)
    assert one.leads
    one.offer(own)
    batches(one, LATE)
    assert one.agree({0: own, 1: own}) is None
    batches(one, 1)
    agreed = one.agree({0: own, 1: window(0.02, 0.01)})
    assert agreed == Agreed(1, window(0.02, 0.01), without=(2,))
    one.hear(agreed)
    one.take()
    one.offer(own)
    assert one.agree({0: own}) is None, "rank 1 was there"
    again = one.agree({0: own, 1: own})
    assert again is not None and again.without == (2,), "a rank that was late is not waited for again"
    back = one.agree({0: own, 1: own, 2: window(0.03, 0.01)})
    assert back is not None and back.rank == 2 and not back.without
    assert one.agree({0: own, 1: own}) is None, "it is waited for again"


def test_nobody_measures_before_all_are_ready():
    one = begun(0, ranks=2)
    one.offer(None)
    assert one.to_send == (1, None) and one.agree({0: None}) is None
    assert one.agree({0: None, 1: None}) == Agreed()


def test_windows_of_different_times_are_measured_again_but_not_for_ever():
    """Rank 1 was without its device for 15 of the batches in which rank 0 measured."""
    one = begun(0, ranks=2)
    for began, judged in ((10, True), (15, False), (15, False), (15, True), (15, False), (10, True), (15, False)):
        one.offer(window(0.02, 0.02))
        agreed = one.agree({0: window(0.02, 0.02), 1: window(0.01, 0.005, began=began)})
        assert agreed is not None and (agreed.window is not None) is judged


def test_a_rank_that_decides_by_itself_is_not_waited_for():
    one, own = begun(0), window(0.01, 0.01)
    one.offer(own)
    one.left(1)
    assert one.agree({0: own}) is None
    one.left(2)
    assert one.agree({0: own}) == Agreed(0, own, without=(1, 2))


def test_a_rank_waits_for_rank_0_longer_than_that_waits_for_others():
    one = begun(1)
    batches(one, 3 * LATE)
    assert not one.lost, "it has offered nothing"
    one.offer(window(0.01, 0.01))
    batches(one, 2 * LATE)
    assert not one.lost
    batches(one, 1)
    assert f"rank 0 has said nothing for {2 * LATE} batches" in one.lost


def test_a_rank_with_devices_of_its_own_decides_by_itself():
    one = Agreement("n", 1, 2, ("csd1",))
    one.hear(Agreed(sources=("csd0",)))
    assert one.lost == "its devices are csd1, and those of rank 0 are csd0" and one.take() is None
