"""How many engines a pool should have: `Scaler`, window by window, beside a world of known rates."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field, replace

import pytest

from ddlp.auto.agreement import Agreement, WindowFigures, slowest
from ddlp.auto.decide import estimate
from ddlp.auto.measured import Measured, OffloadPath
from ddlp.auto.scaling import FULL, Scaler


@dataclass
class World:
    """Seconds of a training step, batches a second of host and engine, and what limits all engines together."""

    step_s: float = 1.0
    host: float = 0.4
    engine: float = 0.2
    ratio: float = 0.1  # Ocycle / Pcycle
    together: float | None = None
    held_up: float = 0.0  # engines are slower by this part for each further one
    counts: list[int] = field(default_factory=list)

    def measured(self, engines: int) -> Measured:
        rate = self.engine / (1 + self.held_up * max(0, engines - 1))
        paths = tuple(
            OffloadPath(f"e{n}", batches_per_s=rate, host_cpu_s_per_batch=self.ratio, bytes_per_batch=1.0)
            for n in range(engines)
        )
        return Measured(self.step_s, self.host, 1.0, paths=paths)

    def batch_s(self, engines: int) -> float:
        measured = self.measured(engines)
        return estimate(Measured(**{**measured.__dict__, "transfer_bytes_per_s": self.together}), measured.paths).value("time")

    def windows(self, scaler: Scaler, count: int) -> World:
        for _ in range(count):
            now = scaler.engines
            self.counts.append(scaler.window(now, self.batch_s(now), self.measured(now)))
        return self


def least(world: World, most: int) -> int:
    times = [world.batch_s(count) for count in range(most + 1)]
    return next(count for count, seconds in enumerate(times) if seconds <= 1.03 * min(times))


@pytest.mark.parametrize(
    "world, engines",
    [
        (World(host=1.2), 0),  # training does not wait
        (World(host=0.9), 1),
        (World(), 4),
        (World(host=0.2, engine=0.1), 9),
        (World(host=0.7, ratio=0.5), 3),  # the dearer, the more engines for as many batches
        (World(ratio=1.2), 0),  # taking a batch costs the host more than making it
        (World(host=0.1, engine=0.5, ratio=0.5), 1),  # the host can't take more
        (World(together=0.5), 3),  # nobody knows that all together have a limit
        (World(engine=0.05, together=0.12), 3),
        (World(engine=0.02, host=0.5), 16),  # each brings little, all together much
    ],
)
def test_the_least_number_that_is_as_good_as_the_best_within_six_windows(world, engines):
    scaler = Scaler(0, 16)
    assert least(world, 16) == pytest.approx(engines, abs=1)
    world.windows(scaler, 6)
    assert abs(scaler.engines - least(world, 16)) <= (0 if world.together is None else 1), (world.counts, scaler.why)
    world.windows(scaler, 10)
    assert set(world.counts[6:]) == {world.counts[5]}, "it has come to rest"


def test_it_stays_within_its_range():
    assert World().windows(Scaler(0, 2), 6).counts[-1] == 2
    assert World(host=2.0).windows(Scaler(3, 5), 8).counts[-1] == 3
    with pytest.raises(ValueError, match="least=3, most=2"):
        Scaler(3, 2)


def test_no_engine_is_started_where_training_does_not_wait():
    assert set(World(host=1.0).windows(Scaler(0, 16), 8).counts) == {0}


def test_engines_that_all_together_bring_too_little_are_given_back_at_once():
    world, scaler = World(host=0.2, engine=0.3, ratio=0.01, together=0.3), Scaler(0, 16)
    world.windows(scaler, 6)
    assert world.counts[:3] == [1, 3, 1] and scaler.engines == 1 and "bring less than 3%" in scaler.why


def test_fewer_only_after_three_full_windows_and_never_with_waits():
    world, scaler = World(), Scaler(0, 16, engines=8)
    world.windows(scaler, FULL)
    assert world.counts == [8] * (FULL - 1) + [4] and "waits less than 2%" in scaler.why
    world.windows(scaler, 5)
    assert scaler.engines == 4

    waiting, scaler = World(), Scaler(0, 16, engines=8)
    for number in range(9):  # the queue runs empty in every third window
        scaler.window(8, 1.04 if number % 3 == 2 else 1.0, waiting.measured(8))
        assert scaler.engines == 8


def test_one_that_was_given_back_and_is_missed_comes_back_and_stays():
    world, scaler = World(), Scaler(0, 16, engines=8)
    world.windows(scaler, FULL)
    assert scaler.engines == 4
    for _ in range(2 * FULL):  # what the model can't know: with fewer than 8 it takes longer
        scaler.window(scaler.engines, 1.0 if scaler.engines == 8 else 1.2, world.measured(scaler.engines))
    assert scaler.engines == 8 and "longer" in scaler.why


def test_a_training_step_that_has_changed_counts_anew():
    world, scaler = World(), Scaler(0, 16)
    world.windows(scaler, 6)
    assert scaler.engines == 4
    world.step_s = 0.5
    world.windows(scaler, 3)
    assert scaler.engines == least(world, 16) == 9
    world.step_s = 2.0
    world.windows(scaler, FULL + 2)
    assert scaler.engines == 1


def test_a_step_that_is_a_small_part_of_a_batch_may_scatter():
    """What was learned stays: that more engines have brought nothing."""
    world, scaler = World(host=0.2, engine=0.3, ratio=0.01, together=0.3), Scaler(0, 16)
    for number in range(24):
        world.step_s = 0.01 if number % 2 else 0.02
        world.windows(scaler, 1)
    assert max(world.counts) > 1 and world.counts[-12:] == [1] * 12, world.counts


def test_noise_does_not_move_it_to_and_fro():
    for seed in range(4):
        rng, world, scaler = random.Random(seed), World(host=0.37, engine=0.07), Scaler(0, 16)
        moves, before = 0, None
        for _ in range(25):
            now = scaler.engines
            scaler.window(now, world.batch_s(now) * rng.gauss(1.0, 0.005), world.measured(now))
            moves += scaler.engines != now and before is not None
            before = now
        assert moves <= 4 and abs(scaler.engines - least(world, 16)) <= 1


def test_at_most_three_times_as_many_at_once():
    assert World(host=0.2, engine=0.06).windows(Scaler(0, 16), 6).counts == [1, 3, 9, 15, 15, 15]


def test_engines_that_bring_four_fifths_of_what_they_promise_share_a_limit():
    """Slower engines would be a reason for more of them."""
    world, scaler = World(host=0.1, engine=0.1, ratio=0.01, together=0.25), Scaler(0, 16)
    world.windows(scaler, 8)
    assert max(world.counts) == 3, world.counts


def test_nothing_changes_while_engines_are_on_their_way():
    world, scaler = World(), Scaler(0, 16)
    world.windows(scaler, 3)
    assert scaler.engines == 4
    for _ in range(5):
        assert scaler.window(1, world.batch_s(1), world.measured(1)) == 4
    assert scaler.window(4, world.batch_s(4), world.measured(4)) == 4


def test_after_it_was_told_to_give_all_back_it_has_the_least():
    world, scaler = World(), Scaler(1, 16)
    world.windows(scaler, 4)
    assert scaler.engines == 4
    assert scaler.give_back() and scaler.engines == 1
    assert not scaler.give_back()


def figures(world: World, engines: int, batches: int, batch_s: float) -> WindowFigures:
    """Ranks train in step: who does not wait for data waits for the others within its step."""
    own_s = world.batch_s(engines)
    measured = replace(world.measured(engines), step_s=world.step_s + batch_s - own_s)
    names = tuple(path.source for path in measured.paths)
    return WindowFigures(
        batches=batches, began=0, length=100, batch_s=batch_s, error=0.005, host_s=1 / world.host, host_cpu_s=1.0,
        host_cpu_now_s=1.0, shared=engines > 0, trial=False, failed=False, sources=names, alive=names, taking_part=names,
        measured=measured,
    )  # fmt: skip


def test_the_ranks_of_a_job_scale_together_by_the_slowest():
    """What reaches each rank's scaler has been agreed on, and travels as JSON."""
    worlds = {0: World(), 1: World(host=0.25), 2: World(host=0.5)}
    ranks = {rank: Agreement("a loader", rank, len(worlds)) for rank in worlds}
    scalers = {rank: Scaler(0, 16) for rank in worlds}
    for window in range(1, 8):
        engines = scalers[0].engines
        batch_s = max(world.batch_s(engines) for world in worlds.values())
        offered = {rank: figures(world, engines, 100 * window, batch_s) for rank, world in worlds.items()}
        agreed = ranks[0].agree(offered)
        assert agreed is not None and agreed.window is not None and agreed.rank == slowest(offered)
        assert agreed.rank == 1 or window > 2, "until none of them waits"
        for scaler in scalers.values():
            heard = type(agreed).from_json(agreed.to_json()).window
            assert heard is not None and asdict(heard) == asdict(agreed.window)
            measured = Measured(**{**heard.measured.__dict__, "host_batches_per_s": worlds[1].host})
            scaler.window(len(heard.taking_part), heard.taken_s, measured)
        assert len({scaler.engines for scaler in scalers.values()}) == 1
    assert scalers[0].engines == least(worlds[1], 16) > least(worlds[0], 16)
