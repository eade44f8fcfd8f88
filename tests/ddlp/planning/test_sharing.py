"""A pool shared out among jobs: max-min fair, in parts and in whole engines."""

from __future__ import annotations

import random

import pytest

from ddlp.planning.sharing import shares, whole_shares


def test_no_job_gets_more_than_it_wants_and_the_rest_is_shared_evenly():
    assert shares({"a": 2, "b": 8}, 10) == {"a": 2, "b": 8}
    assert shares({"a": 2, "b": 8}, 6) == {"a": 2, "b": 4}
    assert shares({"a": 1, "b": 4, "c": 10, "d": 10}, 16) == {"a": 1, "b": 4, "c": 5.5, "d": 5.5}
    assert shares({"a": 3, "b": 3}, 0) == {"a": 0, "b": 0}
    assert shares({}, 5) == {}


@pytest.mark.parametrize("jobs", (2, 4))
def test_jobs_of_different_appetite_get_within_a_tenth_of_their_fair_share(jobs):
    """In whole engines, in the mean of as many turns as there are jobs."""
    rng = random.Random(jobs)
    for _ in range(300):
        wants = {f"job {number}": rng.randint(0, 12) for number in range(jobs)}
        engines, fair = rng.randint(0, 20), {}
        turns = [whole_shares(wants, engines, turn) for turn in range(12)]  # a multiple of 1, 2, 3 and 4 jobs that lack some
        fair = shares(wants, engines)
        for given in turns:
            assert sum(given.values()) == min(engines, sum(wants.values()))
            assert all(0 <= given[job] <= wants[job] for job in wants)
        for job in wants:
            mean = sum(given[job] for given in turns) / len(turns)
            assert mean == pytest.approx(fair[job], rel=0.1, abs=1e-9), (wants, engines, turns)


def test_max_min_fair_means_that_who_has_more_wants_no_more_than_that():
    rng = random.Random(1)
    for _ in range(300):
        wants = {str(number): rng.uniform(0, 10) for number in range(4)}
        given = shares(wants, rng.uniform(0, 30))
        for job in wants:
            if given[job] < wants[job] - 1e-9:  # it lacks some: nobody has more than it
                assert max(given.values()) <= given[job] + 1e-9
