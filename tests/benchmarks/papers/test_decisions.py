from __future__ import annotations

import random
import statistics
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.papers.decisions import RULES, compare, measure, oracle, play, random_workload
from ddlp.auto.decide import decide, estimate

WORKLOADS = 1000


@pytest.fixture(scope="module")
def compared():
    """Each rule's choices for the same workloads, measured over 100 batches with 5 % noise each."""
    rows = list(compare(random.Random("decide"), WORKLOADS))
    return {rule: [row for row in rows if row.rule == rule] for rule in RULES}


def test_the_workloads_have_every_limit_and_all_numbers_of_sources(compared):
    limits = Counter(row.limit for row in compared["ddlp"])
    assert set(limits) == {"no stall", "host", "training", "source", "transfer", "spool"}
    assert min(limits.values()) >= 5
    assert {row.sources for row in compared["ddlp"]} == {0, 1, 2, 3, 4}


def test_every_decision_is_within_3_percent_of_the_oracles_time(compared):
    """By the exact bound: `play` is too slow for all candidates of all workloads."""
    worst = max(compared["ddlp"], key=lambda row: row.slower)
    assert worst.slower <= 0.03, worst
    assert statistics.mean(row.slower for row in compared["ddlp"]) < 0.003


def test_no_other_rule_is_as_fast_in_the_mean_or_at_worst(compared):
    ours = compared["ddlp"]
    for rule in set(RULES) - {"ddlp"}:
        theirs = compared[rule]
        assert statistics.mean(row.slower for row in ours) < statistics.mean(row.slower for row in theirs), rule
        assert max(row.slower for row in ours) < max(row.slower for row in theirs), rule
        # A rule takes fewer engine seconds than ours only where it is slower, or within our 3 %.
        cheaper = [their for our, their in zip(ours, theirs) if their.engine_s < our.engine_s * 0.999]
        assert all(their.slower > -1e-9 for their in cheaper)
        no_stall = [(our.engine_s, their.engine_s) for our, their in zip(ours, theirs) if our.limit == "no stall"]
        if rule.startswith("Cachew"):
            assert all(our <= their * 1.001 for our, their in no_stall)


def test_measurements_scatter_by_their_error():
    rng = random.Random(1)
    truth = random_workload(rng)
    steps = [measure(truth, rng).step_s / truth.step_s for _ in range(400)]
    assert statistics.mean(steps) == pytest.approx(1.0, abs=0.002)
    assert statistics.stdev(steps) == pytest.approx(0.005, rel=0.15)
    exact = measure(truth, rng, noise=0.0)
    assert decide(exact).chosen.value("time") <= oracle(exact).value("time") * 1.02


def test_a_loader_that_need_not_wait_shows_the_steps_rate():
    rng = random.Random(2)
    truth = replace(random_workload(rng), step_s=1.0, host_batches_per_s=3.0)
    measured = measure(truth, rng)
    assert measured.host_batches_per_s == pytest.approx(1 / measured.step_s)
    assert not decide(measured).offloads


def test_the_estimate_is_what_the_simulator_plays():
    """Over whole epochs of 400 batches, with 5 % noise. `play` says why the host must make a part of them.

    An estimate tells nothing of an epoch's end: so each source makes at least 20 batches.
    """
    rng = random.Random(3)
    off = []
    while len(off) < 30:
        truth = random_workload(rng)
        for one in (estimate(truth, truth.paths[:1]), oracle(truth)):
            parts = [rate * one.time_s for rate in (one.host_batches_per_s, *one.source_batches_per_s)]
            if min(parts) > 0.05:
                off.append(play(truth, one.paths, rng) / one.time_s - 1)
    assert statistics.median(map(abs, off)) < 0.02
    assert statistics.quantiles(map(abs, off), n=10)[-1] < 0.10, sorted(off)
