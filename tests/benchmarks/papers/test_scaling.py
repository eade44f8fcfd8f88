"""The number of engines, decided by the production controller while the production ledger and strategy play an epoch."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest

from benchmarks.papers.scaling import RULES, Pool, compare, least_engines, table
from ddlp.auto.controller import Controller
from ddlp.auto.measured import Measured, OffloadPath
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.simulate import World
from ddlp.schedule.strategies import STRATEGIES


@pytest.mark.parametrize("workloads", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_it_comes_within_one_engine_of_the_oracle_in_six_windows(workloads):
    rows = list(compare(random.Random("scaling"), workloads, batches=800, rules=["ddlp"]))
    assert {row.engines > 0 for row in rows} == {True, False}
    assert fmean(row.off <= 1 for row in rows) >= 0.98, [(row.engines, row.counts) for row in rows if row.off > 1]
    assert fmean(row.off == 0 for row in rows) >= 0.8
    assert sum(row.engine_time for row in rows) <= 1.15 * sum(row.engines * row.best_time for row in rows)


def test_the_oracle_takes_the_least_number_within_3_percent():
    path = OffloadPath("", batches_per_s=0.2, host_cpu_s_per_batch=0.0, bytes_per_batch=1.0)
    truth = Measured(1.0, 0.4, 1.0, paths=tuple(replace(path, source=str(number)) for number in range(8)))
    assert least_engines(truth) == (3, 1.0)
    assert least_engines(replace(truth, host_batches_per_s=0.39))[0] == 3  # 0.99 of what training takes
    assert least_engines(replace(truth, host_batches_per_s=0.36))[0] == 4  # 0.96
    assert least_engines(replace(truth, host_batches_per_s=0.98))[0] == 0


def test_every_rule_decides_and_the_table_has_a_row_for_each():
    rows = list(compare(random.Random(3), 2, batches=400))
    assert [row.rule for row in rows] == 2 * list(RULES)
    assert all(row.counts and row.time >= 0.99 for row in rows)
    assert [line.split("|")[1].strip() for line in table(rows).splitlines()[2:]] == list(RULES)


def test_an_engine_that_comes_before_the_host_was_measured_alone_rests_until_then():
    """It was not expected: a pool's newcomer."""
    controller, rested = Controller(Rates()), []

    class Watched(Pool):
        def _trained(self, seconds):
            if self.now > 7:
                rested.append("late" in controller.rates.resting)
            return super()._trained(seconds)

    world = World(lambda _: 1.0, device_s={"late": lambda _: 1.0}, fetch_s=lambda _: 0.01)
    simulation = Watched(Ledger(200, host_slots=4), world, STRATEGIES["auto"].make, controller=controller)
    simulation._at(5.0, lambda: simulation.want(1))
    outcome = simulation.run()
    assert sorted(outcome.order) == list(range(200))
    assert rested[0] and not rested[-1], "it rests while the host is measured, and takes part then"
    assert outcome.from_csd > 50
