"""How many workers: the limits of the formula, and what is decided from epoch to epoch."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ddlp.auto.workers import MOST, MOST_A_PROCESSOR, PREFETCH, AutoWorkers, Figures, Workers, first_count, workers

GB = 1 << 30


def figures(**changes: float) -> Figures:
    return replace(Figures(count=1, busy_s=0.1, cpu_s=0.1, step_s=0.001), **changes)


@pytest.mark.parametrize(("processors", "count"), [(0.5, 1), (1, 1), (1.5, 1), (2, 1), (8, 7), (64, 63)])
def test_it_begins_with_a_processor_for_training(processors: float, count: int) -> None:
    assert first_count(processors) == AutoWorkers(processors).count == count


@pytest.mark.parametrize("processors", [1, 2, 7, 48])
def test_work_that_takes_a_processor_gets_as_many_workers_as_processors(processors: int) -> None:
    for busy_s in (0.1, 0.102):  # a worker is held up a little
        found = workers(figures(busy_s=busy_s), processors)
        assert 0.95 * processors <= found.count <= processors and f"{processors} processors make no more" in found.why


@pytest.mark.parametrize("processors", [1, 2, 7])
def test_work_that_waits_gets_more_workers_than_processors_up_to_a_bound(processors: int) -> None:
    counts = [workers(figures(cpu_s=0.1 * part), processors).count for part in (1, 0.5, 0.25, 0.01, 0)]
    assert counts == sorted(counts)
    for times, count in zip((1, 2, 4), counts, strict=False):
        assert 0.95 * times * processors <= count <= times * processors
    assert counts[-1] == counts[-2] == MOST_A_PROCESSOR * processors <= MOST
    assert workers(figures(cpu_s=0.0), 1000).count == MOST


@pytest.mark.parametrize("processors", [1, 2, 7])
def test_waits_for_a_processor_are_no_reason_for_more_workers_than_processors(processors: int) -> None:
    """Another program takes half of the computer: a worker takes 200 ms for what takes it 100 ms of processor time."""
    shared = figures(busy_s=0.2, queued_s=0.1)
    found = workers(shared, processors)
    assert 0.95 * processors <= found.count <= processors and "50 % of it a processor, 50 % in wait for one" in found.why
    assert workers(replace(shared, queued_s=0.0), processors).count >= 1.9 * processors, "they look like waits for a disk"
    halves = figures(busy_s=0.2, cpu_s=0.05, queued_s=0.1)  # without the other program it computes for half of its time
    assert 0.95 * 2 * processors <= workers(halves, processors).count <= 2 * processors
    assert workers(replace(shared, queued_s=9.0), processors) == replace(found, why=workers(
        replace(shared, queued_s=9.0), processors).why), "more than all of its waits can't be for a processor"  # fmt: skip


def test_a_slow_step_needs_the_fewest() -> None:
    assert workers(figures(step_s=10), 64) == Workers(
        1, 2, "a worker takes 100 ms for a batch, 100 % of it a processor; training takes one in 10 s"
    )
    assert workers(figures(step_s=0.05), 64).count == 3  # two would have nothing to spare
    assert workers(figures(step_s=0.01), 64).count == 11
    assert workers(figures(step_s=0.01, cpu_s=0.001), 1).count == 8  # the bound of one processor


def test_training_takes_its_processors_first() -> None:
    """Eight processors, of which training takes four for as long as a batch does one: 8 / 5 batches in that time."""
    assert workers(figures(step_s=0.1, step_cpu_s=0.4), 8).count == 2
    assert workers(figures(step_s=0.02, step_cpu_s=0.1), 8).count == 4


def test_memory_bounds_them() -> None:
    one = figures(cpu_s=0.0, batch_bytes=1 * GB, worker_bytes=1 * GB)  # with two batches and the one in work 4 GB
    assert [workers(one, 64, memory_bytes=gb * GB).count for gb in (0, 1, 8, 24, 40)] == [1, 1, 1, 3, 5]
    assert "no room" in workers(one, 64, 24 * GB).why
    assert workers(figures(cpu_s=0.0), 64, 1).count == MOST  # what takes no memory has room


def test_batches_that_vary_are_prefetched_further() -> None:
    found = [workers(figures(spread=spread), 4).prefetch for spread in (0.0, 0.3, 0.5, 1.0, 2.0, 50.0)]
    assert found == [2, 2, 3, 4, 7, 8] and (found[0], found[-1]) == PREFETCH


def test_a_short_epoch_does_not_pay_for_starting_many() -> None:
    one = figures(cpu_s=0.0, start_s=0.05, batches=100)  # n workers: n x 50 ms to start, and 10 s / n of work
    found = workers(one, 8)
    assert 10 <= found.count <= 14 and "to start more, each in 50 ms, saves nothing in 100 batches" in found.why
    assert workers(replace(one, batches=10**6), 8).count >= 0.97 * MOST
    assert workers(replace(one, batches=1), 8).count == 1
    assert workers(replace(one, start_s=0.0), 8).count == MOST


def test_fewer_than_it_says_let_training_wait() -> None:
    """By the model: what n workers make is bounded by their time, by the processors and by what training takes."""
    for seed in range(500):
        rng = random.Random(seed)
        busy_s, step_s = (10 ** rng.uniform(-3, 0) for _ in range(2))
        one = figures(
            busy_s=busy_s, cpu_s=busy_s * rng.uniform(0, 1), step_s=step_s, step_cpu_s=step_s * rng.uniform(0, 2)
        )
        processors = rng.choice((1, 2, 8, 32))

        def per_s(count: int, one: Figures = one, processors: int = processors) -> float:
            return min(count / one.busy_s, processors / (one.cpu_s + one.step_cpu_s), 1 / one.step_s)

        found = workers(one, processors)
        if found.count < min(MOST, MOST_A_PROCESSOR * processors):
            assert per_s(found.count) >= 0.9 * per_s(1000)
        if found.count > 1:
            assert per_s(found.count - 1) <= per_s(found.count)
            assert (found.count - 1) / one.busy_s < 1.1 / one.step_s


# -- from epoch to epoch -------------------------------------------------------------------------------------------------


class Machine:
    """Epochs of a model machine: workers wait for a processor if there are more than processors."""

    def __init__(self, processors: int, busy_s: float, cpu_s: float, step_s: float, least: int = 1) -> None:
        self.processors, self.busy_s, self.cpu_s, self.step_s = processors, busy_s, cpu_s, step_s
        self.least = least  # from so many workers on they are slower for another reason that nobody measures

    def epoch(self, count: int) -> Figures:
        per_s = min(count / self.busy_s, self.processors / self.cpu_s if self.cpu_s else 1e9, 1 / self.step_s)
        if count > self.least > 1:
            per_s /= 2
        busy_s = max(self.busy_s, count * self.cpu_s / self.processors)
        return Figures(count, busy_s, self.cpu_s, self.step_s, period_s=1 / per_s, waited=max(0.0, 1 - self.step_s * per_s))


def counts(auto: AutoWorkers, machine: Machine, epochs: int = 8) -> list[int]:
    found = [auto.count]
    for _ in range(epochs):
        auto.measured(machine.epoch(auto.count))
        found.append(auto.count)
    return found


def test_it_settles_after_one_epoch() -> None:
    assert counts(AutoWorkers(4), Machine(4, 0.1, 0.1, 0.001)) == [3] + [4] * 8  # processors limit
    assert counts(AutoWorkers(2), Machine(2, 0.1, 0.001, 0.01)) == [1] + [11] * 8  # the workers wait
    assert counts(AutoWorkers(16), Machine(16, 0.01, 0.01, 0.1)) == [15] + [1] * 8  # the step limits


def test_it_ends_at_the_processors_although_workers_hold_each_other_up() -> None:
    auto = AutoWorkers(2)
    auto.know(6, 2)
    assert counts(auto, Machine(2, 0.1, 0.1, 0.001))[-1] <= 6
    auto = AutoWorkers(2)
    assert counts(auto, Machine(2, 0.1, 0.1, 0.001), 30)[1:] == [2] * 30


@pytest.mark.parametrize("told", [True, False])
def test_a_computer_that_is_shared_with_other_programs(told: bool) -> None:
    """Others take three of four processors all the time; a worker waits for one three times as long as it has one."""

    class Shared(Machine):
        def epoch(self, count: int) -> Figures:
            one = super().epoch(count)
            return replace(one, busy_s=4 * one.busy_s, queued_s=3 * one.busy_s * told, period_s=4 * one.period_s)

    most = max(counts(AutoWorkers(4), Shared(4, 0.1, 0.1, 0.001), 3))
    assert most == 4 if told else most > 4


def test_what_was_tried_has_the_last_word() -> None:
    auto, machine = AutoWorkers(2), Machine(2, 0.1, 0.001, 0.01, least=5)  # says 11, and 11 are slow
    auto.count = 5
    assert counts(auto, machine)[:3] == [5, 11, 5] and auto.count == 5
    assert auto.why == "the fewest that are as fast as any tried: 5 and 11"


def test_it_does_not_move_for_little() -> None:
    auto = AutoWorkers(16)
    machine = Machine(16, 0.1, 0.001, 0.02)
    assert counts(auto, machine, 2)[-1] == 6
    for step_s in (0.018, 0.022, 0.019, 0.021):
        machine.step_s = step_s
        assert counts(auto, machine, 1) == [6, 6]
    machine.step_s = 0.005
    assert counts(auto, machine, 1) == [6, 22]
    machine.step_s = 0.05
    assert counts(auto, machine, 1) == [22, 3]


def test_an_earlier_run_is_believed_until_training_waits() -> None:
    auto = AutoWorkers(16)
    auto.know(5, 4)
    assert (auto.count, auto.prefetch) == (5, 4) and "earlier run" in auto.line
    assert counts(auto, Machine(16, 0.1, 0.001, 0.02), 1) == [5, 5]
    assert counts(auto, Machine(16, 0.1, 0.001, 0.005), 1) == [5, 22]


def test_its_line_says_how_many_and_why() -> None:
    auto = AutoWorkers(8)
    assert auto.line == "7 workers, 2 batches each (to begin with, on 8 processors; an epoch of 20 batches shows more)"
    auto.measured(Machine(8, 0.01, 0.01, 0.1).epoch(7))
    assert auto.line.startswith("1 worker, 2 batches each (a worker takes 10 ms for a batch, 100 % of it a processor; training")
