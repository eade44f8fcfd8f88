"""What auto decides while training goes on: the production controller, ledger and strategies in simulated time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from ddlp.auto.controller import HOST_LEAST, HOST_WINDOW, RETRY, TRIAL_WAIT, TRIAL_WINDOW, WARM_UP, WINDOW, Controller
from ddlp.auto.decide import Goal, Power, Prices
from ddlp.auto.measured import Measured, OffloadPath
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rate, Rates
from ddlp.schedule.simulate import Simulation, World
from ddlp.schedule.strategies import STRATEGIES

NOISE = 0.05  # of each batch's time


@dataclass
class _Host(Rate):
    """The host's rate. A batch that is there at once was made before the epoch, in the usual time."""

    usual_s: float = 0.0

    def add(self, busy_s: float, part: float = 1.0) -> None:
        super().add(busy_s or self.usual_s, part)


@dataclass
class Play:
    """A training of several epochs. ``harm``: the part by which the host is slower while a device has leases."""

    host_s: float = 0.012
    step_s: float = 0.0
    devices: tuple[float, ...] = (0.036,)
    harm: float = 0.0
    harm_since: int = 0  # batches
    slows: dict[int, float] = field(default_factory=dict)  # from so many batches on, devices take so many times as long
    joins_s: float = 0.0
    dies_s: float | None = None
    late: dict[str, float] = field(default_factory=dict)  # these devices join so many seconds after an epoch's beginning
    cpu_part: float = 1.0  # of the host's time that is processor time
    slow_start_s: float = 0.0  # of the first training step: batches get ready meanwhile
    pauses: bool = False  # an evaluation of a minute every 90 batches
    seed: int = 1
    quota: int = 32
    goal: Goal = field(default_factory=Goal)
    batches: int = 1000  # of an epoch

    def __post_init__(self) -> None:
        self.controller = Controller(Rates(host=_Host(usual_s=self.host_s)), self.goal, 2.0)
        self.rng = random.Random(self.seed)
        self.done = 0  # batches
        self.seconds: list[float] = []  # of each epoch
        self.rested: list[tuple[int, bool]] = []  # since which batch some device rests, or all work
        self.sets: list[tuple[int, frozenset[str]]] = []  # since which batch these devices rest
        self.told: list[tuple[int, str]] = []

    def epoch(self, strategy: str = "auto") -> float:
        """Play an epoch; return its seconds."""
        auto = strategy == "auto"
        ledger = Ledger(self.batches, host_slots=4, fetch_slots=3)
        simulation = Simulation(ledger, self._world(lambda: ledger), STRATEGIES[strategy].make,
                                controller=self.controller if auto else None)  # fmt: skip
        if auto:
            delivered = self.controller.delivered

            def watched(waited_s: float, step_s: float | None, part: float) -> str | None:
                self.done += 1
                news = delivered(waited_s, step_s, part)
                if news is not None:
                    self.told.append((self.done, news))
                if not self.sets or self.sets[-1][1] != self.resting:
                    self.sets.append((self.done, frozenset(self.resting)))
                resting = bool(self.resting)
                if not self.rested or self.rested[-1][1] != resting:
                    self.rested.append((self.done, resting))
                return news

            self.controller.delivered = watched  # type: ignore[method-assign]
        self.seconds.append(simulation.run().seconds)
        if auto:
            self.controller.delivered = delivered  # type: ignore[method-assign]
        return self.seconds[-1]

    def epochs(self, count: int) -> Play:
        """Play some epochs."""
        for _ in range(count):
            self.epoch()
        return self

    def _world(self, ledger) -> World:
        def about(seconds: float) -> float:
            return seconds * max(0.05, self.rng.gauss(1.0, NOISE))

        def host_s(position: int) -> float:
            shared = any(account.outstanding for account in ledger().devices.values())
            return about(self.host_s) * (1 + self.harm * (shared and self.done >= self.harm_since))

        def device_s(seconds: float):
            def one(position: int) -> float:
                begun = [times for since, times in self.slows.items() if self.done >= since]
                return about(seconds) * (begun[-1] if begun else 1.0)

            return one

        def train_s(position: int) -> float:
            first_s = self.slow_start_s if self.done == 1 else 0.0
            return about(self.step_s) + 60.0 * (self.pauses and self.done % 90 == 89) + first_s

        devices = {f"d{number}": device_s(seconds) for number, seconds in enumerate(self.devices)}
        dies = {} if self.dies_s is None else {"d0": self.dies_s}
        return World(
            host_s=host_s, train_s=train_s, device_s=devices, quota=self.quota,
            fetch_s=lambda position: 1e-4, host_cpu_s=lambda position: self.cpu_part * about(self.host_s), taking_cpu_s=1e-6,
            joins_s=self.joins_s, absent=frozenset(self.late),
            moves=tuple((when, name, True) for name, when in self.late.items()),
            device_dies_s=dies, device_returns_s={"d0": 2.0} if dies else {},
        )  # fmt: skip

    @property
    def resting(self) -> set[str]:
        return self.controller.rates.resting


# -- the decision ------------------------------------------------------------------------------------------------------


def test_a_device_that_helps_takes_part_from_the_first_windows_on():
    play = Play().epochs(2)
    assert not play.resting and play.controller.decision is not None and play.controller.decision.offloads
    began = [batch for batch, resting in play.rested if not resting]
    assert WARM_UP + HOST_LEAST <= began[0] <= WARM_UP + HOST_WINDOW + 1  # until then the host was measured alone
    assert len(began) == 1, "it never rests again"
    alone = 1000 * 0.012
    assert play.seconds[1] < 0.78 * alone  # 0.75 is the bound
    assert "With d0" in play.controller.note()


def test_it_rests_where_training_does_not_wait():
    play = Play(host_s=0.006, step_s=0.012).epochs(2)
    assert play.resting == {"d0"} and not play.controller.rates.device("d0").count, "it has not even been tried"
    assert "Training does not wait for data" in play.controller.note() and not play.told


def test_batches_that_were_ready_before_do_not_hide_that_training_waits():
    play = Play(step_s=0.0105, slow_start_s=2.0, devices=(0.012,), batches=150).epochs(1)
    assert not play.resting and play.rested[1][0] <= WARM_UP + HOST_WINDOW + 1


def test_processor_time_that_is_a_small_part_of_the_hosts_counts_as_that_part():
    play = Play(step_s=0.010, devices=(0.036,), cpu_part=0.1).epochs(1)
    assert not play.resting
    play.cpu_part = 0.03  # another program has ended, say: a batch takes 0.84 ms less
    play.epochs(2)
    assert not [batch for batch, resting in play.rested if resting and batch > 100] and not play.told


def test_it_is_tried_when_training_begins_to_wait():
    play = Play(host_s=0.010, step_s=0.012).epochs(1)
    assert play.resting
    play.host_s = 0.024
    play.epoch()
    assert not play.resting
    play.epoch()
    assert play.seconds[-1] < 1000 * 0.024 * 0.68  # 0.6 is the bound


def test_a_device_that_brings_nothing_rests_and_is_tried_less_and_less_often():
    play = Play(devices=(1.2,)).epochs(9)
    assert play.resting == {"d0"} and not play.told, "nothing was slower, so nothing is told"
    assert "the best sources win" in play.controller.note()
    tries = [batch for batch, resting in play.rested if not resting]
    gaps = [later - earlier for earlier, later in zip(tries, tries[1:], strict=False)]
    most = TRIAL_WAIT + TRIAL_WINDOW + WINDOW
    assert len(tries) == 4 and all(RETRY * 2**k <= gap <= RETRY * 2**k + most for k, gap in enumerate(gaps))
    assert play.seconds[-1] <= 1.03 * 1000 * 0.012


def test_only_the_devices_that_help_take_part():
    play = Play(devices=(0.024, 2.0)).epochs(2)
    assert play.resting == {"d1"}
    assert [path.source for path in play.controller.decision.chosen.paths] == ["d0"]  # type: ignore[union-attr]


def test_a_device_that_joins_after_the_others_were_measured_is_measured_too():
    play = Play(devices=(0.036, 0.024), late={"d1": 2.0}).epochs(2)
    assert not play.resting
    assert [path.source for path in play.controller.decision.chosen.paths] == ["d0", "d1"]  # type: ignore[union-attr]


def test_energy_and_cost_decide_otherwise():
    dear = Power(host_idle_watts=20, host_busy_watts=30, accelerator_watts=10, engine_watts={"d0": 100})
    assert Play(goal=Goal("energy", power=dear)).epochs(2).resting == {"d0"}
    assert not Play(goal=Goal("energy", power=Power(50, 150, 300, {"d0": 4}))).epochs(2).resting
    assert Play(goal=Goal("cost", prices=Prices(1.0, 0.0, {"d0": 5.0}))).epochs(2).resting == {"d0"}
    assert not Play(goal=Goal("cost", prices=Prices(1.0, 3.0, {"d0": 0.1}))).epochs(2).resting
    bound = Goal("cost", prices=Prices(1.0, 0.0, {"d0": 5.0}), max_slowdown=0.1)
    play = Play(goal=bound).epochs(2)
    assert not play.resting, "without it an epoch takes a third longer"
    assert play.seconds[1] < 1.1 * 1000 * 0.012 * 0.75 * 1.02


# -- taking it back ----------------------------------------------------------------------------------------------------


def test_offloading_that_is_slower_than_the_host_alone_ends_within_two_windows():
    play = Play(devices=(0.2,), harm=0.5).epochs(1)
    (batch, text), *more = play.told
    assert not more and play.resting == {"d0"}
    assert batch <= WARM_UP + HOST_WINDOW + TRIAL_WAIT + TRIAL_WINDOW + WINDOW + 3
    assert "with d0, and the host alone takes 0.01" in text and "a try follows after 1,000 batches" in text
    assert "so they rest" in play.controller.note()
    play.epochs(1)
    play.harm = 0.0
    play.devices = (0.012,)
    play.epochs(2)
    assert not play.resting, "it is tried again, and now it helps"
    assert "With d0" in play.controller.note()


def test_harm_that_begins_later_is_seen_as_well():
    play = Play(devices=(0.1,), harm=0.5, harm_since=1500).epochs(3)
    (first, _), (again, _) = play.told
    assert 1500 < first <= 1500 + 3 * WINDOW and again >= first + RETRY


@pytest.mark.parametrize("times", [100.0, 5000.0])
def test_a_device_that_becomes_far_slower_rests_within_two_windows(times):
    play = Play(devices=(0.012,), slows={1500: times}).epochs(2)
    rest = [batch for batch, resting in play.rested if resting and batch > 100]
    assert len(rest) == 1 and 1500 < rest[0] <= 1500 + 2 * WINDOW + 1
    play.slows = {}
    play.epochs(3)
    assert not play.resting, "it has come back"


def test_once_it_has_held_a_failed_decision_is_tried_again_as_soon_as_the_first_time():
    play = Play(slows={0: 100.0, 2500: 1.0, 6500: 100.0}).epochs(9)
    tries = [batch for batch, resting in play.rested if not resting]
    failed = next(batch for batch, resting in play.rested if resting and batch > 6500)
    assert [batch for batch in tries if batch > failed][0] <= failed + RETRY + WINDOW


def test_a_host_that_becomes_slower_for_itself_does_not_end_the_offloading():
    play = Play(devices=(0.06,)).epochs(1)
    play.host_s *= 1.5  # its processor time as well
    play.epochs(2)
    assert not play.told and not play.resting


@pytest.mark.parametrize("when", [{"joins_s": 1.0 + 0.2 * step} for step in range(6)] + [{"dies_s": 1.0}])
def test_a_device_that_joins_late_or_comes_back_is_no_reason_to_let_it_rest(when):
    play = Play(**when)
    assert not play.epochs(4).resting and not play.told
    assert len([batch for batch, resting in play.rested if resting and batch > 100]) == 0


def test_pauses_of_training_count_for_nobody():
    play = Play(pauses=True).epochs(3)
    assert not play.told and not play.resting
    assert play.controller.measured.step_s < 1.0  # type: ignore[union-attr,operator]


def test_decisions_do_not_flutter():
    """A device that wins just 2 %, alone and beside another one."""
    for devices in ((0.6,), (0.024, 0.39)):
        play = Play(devices=devices).epochs(12)
        changes = [batch for batch, _ in play.sets if batch > 250]
        for first, third in zip(changes, changes[2:], strict=False):  # a try that fails is both
            assert third - first >= RETRY, devices


# -- beside the best fixed strategy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.some(3)
def test_it_is_at_most_3_percent_slower_than_the_best_fixed_strategy(seed):
    rng = random.Random(seed)
    host_s = rng.choice([0.004, 0.012, 0.05])
    given = {
        "host_s": host_s, "step_s": host_s * rng.choice([0.0, 0.3, 0.7, 0.95, 1.5]), "seed": seed, "quota": rng.choice([4, 32]),
        "devices": tuple(host_s * rng.choice([0.3, 1.0, 3.0, 10.0, 100.0]) for _ in range(rng.choice([1, 1, 2, 4]))),
        "harm": rng.choice([0.0, 0.0, 0.1, 0.6]), "batches": 600,
    }  # fmt: skip
    fixed = {}
    for strategy in ("cpu", "wrr", "ordered", "mte"):
        play = Play(**given)  # type: ignore[arg-type]
        fixed[strategy] = min(play.epoch(strategy) for _ in range(2))
    auto = Play(**given).epochs(3)  # type: ignore[arg-type]
    assert auto.seconds[-1] <= 1.03 * min(fixed.values()), (given, fixed, auto.controller.note())


# -- with what an earlier run has measured -----------------------------------------------------------------------------


def test_a_stored_measurement_begins_with_its_decision():
    path = OffloadPath("d0", batches_per_s=1 / 0.036)
    for measured, rests in (
        (Measured(step_s=1e-9, host_batches_per_s=1 / 0.012, paths=(path,)), False),
        (Measured(step_s=0.02, host_batches_per_s=1 / 0.02, paths=(path,)), True),
    ):
        play = Play()
        play.controller.know(measured)
        play.epoch()
        assert play.rested == [(1, rests)] or (rests and play.rested[0] == (1, True))
    assert Controller(Rates()).decision is None


def test_a_stored_measurement_that_is_wrong_is_corrected():
    play = Play(devices=(1.2,))
    play.controller.know(Measured(
        step_s=1e-9, host_batches_per_s=1 / 0.012, paths=(OffloadPath("d0", batches_per_s=200.0),)
    ))  # fmt: skip
    play.epoch()
    assert play.rested[0] == (1, False) and play.resting == {"d0"}


def test_the_report_says_what_is_being_measured():
    play = Play(batches=8)
    assert "measures the host alone (0 of" in play.controller.note()
    play.epoch()
    assert f"measures the host alone ({8 - 1 - WARM_UP} of {HOST_WINDOW} batches)" in play.controller.note()
