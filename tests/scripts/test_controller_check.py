"""`scripts.controller_check`: what it makes of the trainings' times."""

from __future__ import annotations

from typing import Any

from scripts.controller_check import AUTO, FIXED, compared, figures_of, summary, table


def run(*jobs: float) -> list[dict[str, Any]]:
    """A turn: the seconds of each job, of two epochs."""
    return [{"seconds": [seconds / 4, seconds * 3 / 4], "hits": [0, 7], "from_engines": [5, 3]} for seconds in jobs]


def test_auto_is_held_against_the_best_fixed_set_up() -> None:
    took = {way: [run(10.0 + number), run(12.0 + number)] for number, way in enumerate(reversed(FIXED))}
    row = compared("crops-0", 1, {**took, AUTO: [run(11.0), run(12.0)]})
    assert row["best"] == "with both" and row["seconds"]["with both"] == 11.0
    assert (row["part"], row["hits"], row["from_engines"]) == (11.5 / 11.0, 7, 3)
    assert "| crops-0 | 1 | 14.0 | 13.0 | 12.0 | 11.0 | 11.5 | 1.045 | 7 | 3 |" in table([row])


def test_of_two_jobs_the_later_one_counts() -> None:
    row = compared("crops-0", 2, {**{way: [run(10.0, 20.0)] for way in FIXED}, AUTO: [run(18.0, 3.0)]})
    assert row["part"] == 0.9
    assert summary(figures_of([row])).endswith("two jobs: 0.90 (0.90 to 0.90) in 1 set-ups")
