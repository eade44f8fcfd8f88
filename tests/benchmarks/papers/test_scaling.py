"""The number of engines, decided by the production controller while the production ledger and strategy play an epoch."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest

from benchmarks.papers.scaling import RULES, WINDOWS, compare, least_engines, table
from ddlp.planning.controller import Controller, Goal
from ddlp.planning.measured import Measured, OffloadPath
from ddlp.planning.play import play_epoch
from ddlp.planning.scaling import Scaler
from ddlp.planning.simulate import Simulation, World
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.strategies import STRATEGIES
from ddlp.schedule.strategies.auto import Auto


@pytest.mark.parametrize("workloads", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_it_comes_within_one_engine_of_the_oracle_in_six_windows(workloads):
    rows = list(compare(random.Random("scaling"), workloads, batches=800, rules=["ddlp"]))
    assert {row.engines > 0 for row in rows} == {True, False}
    assert fmean(row.off <= 1 for row in rows) >= 0.98, [(row.engines, row.counts) for row in rows if row.off > 1]
    assert fmean(row.off == 0 for row in rows) >= 0.8
    assert sum(row.engine_time for row in rows) <= 1.15 * sum(row.engines * row.best_time for row in rows)


def test_the_oracle_takes_the_least_number_within_3_percent():
    path = OffloadPath("", alone_batches_per_s=0.2, host_cpu_s_per_batch=0.0, bytes_per_batch=1.0)
    truth = Measured(1.0, 0.4, 1.0, paths=tuple(replace(path, source=str(number)) for number in range(8)))
    assert least_engines(truth) == (3, 1.0)
    assert least_engines(replace(truth, loader_batches_per_s=0.39))[0] == 3  # 0.99 of what training takes
    assert least_engines(replace(truth, loader_batches_per_s=0.36))[0] == 4  # 0.96
    assert least_engines(replace(truth, loader_batches_per_s=0.98))[0] == 0


def test_every_rule_decides_and_the_table_has_a_row_for_each():
    rows = list(compare(random.Random(3), 2, batches=400))
    assert [row.rule for row in rows] == 2 * list(RULES)
    assert all(row.counts and row.time >= 0.99 for row in rows)
    assert [line.split("|")[1].strip() for line in table(rows).splitlines()[2:]] == list(RULES)
    again = list(compare(random.Random(3), 2, first=1, batches=400))
    assert again == rows[len(RULES) :]


def controlled(scaler: Scaler | None, truth: Measured, batches: int = 600) -> tuple[Controller, list[int]]:
    """Play an epoch. Returns the controller, and what it asked the pool for."""
    rng, wanted = random.Random(1), []

    class Noted(Controller):
        def __setattr__(self, name, value):
            asked = (lambda n: (wanted.append(n), value(n))) if name == "want" else value
            super().__setattr__(name, asked)

    controller = Noted(Rates(), Goal(), truth.host_processors, scaler=scaler)
    wanted.clear()
    play_epoch(
        truth, truth.paths, Auto, batches=2 * batches, about=lambda seconds: seconds * rng.gauss(1.0, 0.05), room=4,
        scales=controller, starts_s=5.0, stop_after=batches,
    )  # fmt: skip
    return controller, wanted


def truth_of(engine: float, host: float = 0.4, ratio: float = 0.1) -> Measured:
    path = OffloadPath("", alone_batches_per_s=engine, host_cpu_s_per_batch=ratio / host, bytes_per_batch=1.0)
    return Measured(1.0, host, 1 / host, 2.0, paths=tuple(replace(path, source=f"e{number:02}") for number in range(8)))


def test_the_controller_asks_the_pool_for_what_the_scaler_wants():
    truth = truth_of(0.21)
    controller, wanted = controlled(Scaler(0, 8), truth)
    assert wanted[0] == 1 and wanted[-1] == controller.engines and abs(wanted[-1] - least_engines(truth)[0]) <= 1
    assert len(wanted) < WINDOWS
    assert controller.decision is not None and controller.decision.offloads and not controller.rates.resting


def test_engines_that_cost_more_than_they_bring_rest_or_leave():
    controller, wanted = controlled(Scaler(0, 8), truth_of(0.3, ratio=1.3))
    assert wanted == [1, 0]
    controller, wanted = controlled(Scaler(2, 8), truth_of(0.3, ratio=1.3))
    assert not wanted and controller.rates.resting == {"e00", "e01"}


def test_a_pool_without_a_range_is_asked_for_nothing():
    controller, wanted = controlled(None, truth_of(0.3))
    assert not wanted and controller.engines == 0


def test_an_engine_that_comes_before_the_host_was_measured_alone_rests_until_then():
    """It was not expected: a pool's newcomer."""
    controller, rested = Controller(Rates()), []

    class Watched(Simulation):
        def _trained(self, seconds):
            if self.now > 7:
                rested.append("late" in controller.rates.resting)
            return super()._trained(seconds)

    world = World(lambda _: 1.0, device_s={"late": lambda _: 1.0}, pool=("late",), fetch_s=lambda _: 0.01)
    simulation = Watched(Ledger(200, host_slots=4), world, STRATEGIES["auto"].make, controller=controller)
    simulation._at(5.0, lambda: simulation.want(1))
    outcome = simulation.run()
    assert sorted(outcome.order) == list(range(200))
    assert rested[0] and not rested[-1], "it rests while the host is measured, and takes part then"
    assert outcome.from_csd > 50
