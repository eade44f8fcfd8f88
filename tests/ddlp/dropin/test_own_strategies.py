"""A user's own strategy is a class that is given to the loader. ddlp acts on what the class says of itself."""

from __future__ import annotations

import pickle
import time
from typing import Any

import pytest
import torch

from ddlp import DDLPLoader, Device, Untranslatable
from ddlp.observe import checked, read_run
from ddlp.observe.verdict import ORDER
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.simulate import Simulation, World
from ddlp.schedule.strategies import STRATEGIES, Order, Strategy, Wrr
from tests.ddlp.dropin.small_sets import RANDOM, SAMPLES, Counting, Draws, by_target, numbered, order


class TailFirst(Strategy):
    """Delivers the ready batch that is nearest to the epoch's end."""

    name = "tail first"
    line = "both sides; of what is ready the last"
    order = Order.ANY

    def next_delivery(self) -> int | None:
        ready = [side.last() for side in (self.ledger.ready_csd, self.ledger.ready_host) if side]
        return max(ready, default=None)


class Backwards(Strategy):
    """Both sides work from the last batch to the first. The order is fixed, but is none of `Order`'s."""

    name = "backwards"
    line = "both sides, from the last batch to the first"
    needs_length = True

    def turn(self) -> int | None:
        last = self.ledger.delivered.last_missing(self.ledger.length)
        return last if last >= 0 else None

    def first(self, positions: Any) -> int:
        return positions.last()

    def free_for_device(self, device: str) -> int | None:
        free, ahead = self.ledger.free, self.made_meanwhile(device)
        return free.nth(len(free) - 1 - ahead) if ahead < len(free) else None


class SaysOtherwise(Backwards):
    name = "says otherwise"
    order = Order.SAMPLER


class HostAlone(Strategy):
    name = "host alone"
    line = "the host alone, as it comes"
    uses_device = False


class Shared(HostAlone):
    """Takes the loader's ratio."""

    name = "shared"
    takes_ratio = True
    ratios: list[float | None] = []

    @classmethod
    def make(cls, ledger: Any, rates: Any, ratio: float | None = None) -> Shared:
        cls.ratios.append(ratio)
        return cls(ledger, rates)


class DeviceAlone(STRATEGIES["csd"]):
    name = "device alone"


def through(loader: Any, inner: Any = None) -> list[Any]:
    """Run an epoch in which the host waits for the device after the first batch."""
    batches = []
    for batch in loader:
        batches.append(batch)
        run = (inner or loader)._last.executor
        until = time.monotonic() + 30
        while len(batches) == 1 and not run.ledger.ready_csd and time.monotonic() < until:
            time.sleep(0.01)
    return batches


@pytest.mark.parametrize("strategy", [TailFirst, Backwards])
def test_each_sample_comes_once_from_both_sides(paths, engine, strategy):
    expected = by_target(list(DDLPLoader(numbered(paths, RANDOM), 2, seed=3)))
    loader = DDLPLoader(numbered(paths, RANDOM), 2, seed=3, num_workers=2, strategy=strategy, spool=engine)
    batches = through(loader)
    found = by_target(batches)
    assert sorted(found) == list(range(SAMPLES)) and all(torch.equal(found[k], expected[k]) for k in expected)
    report = loader.report()
    assert report.strategy == strategy.name and report.batches_csd > 0 and report.batches_cpu > 0
    assert f"strategy   {strategy.name} (given): {strategy.line}" in loader.explain().splitlines()
    if strategy is Backwards:
        assert [batch[0] for batch in order(batches)] == list(range(SAMPLES - 1, -1, -2))


@pytest.mark.parametrize(
    ("strategy", "state", "said"),
    [
        (TailFirst, "not checked", "tail first promises none"),
        (HostAlone, "not checked", "host alone promises none"),
        (SaysOtherwise, "refuted", "came where says otherwise promises batch 0"),
    ],
)
def test_the_checker_holds_it_to_what_it_promises(paths, engine, strategy, state, said):
    loader = DDLPLoader(numbered(paths), 2, seed=3, strategy=strategy, spool=engine)
    watched = checked(loader, every=1, say=None)
    through(watched, loader) if strategy.uses_device else list(watched)
    claims = watched.verdict.claims
    assert claims[ORDER].state == state and watched.verdict.strategy == strategy.name
    assert all(claim.state == "proved" for name, claim in claims.items() if name != ORDER)
    assert said in str(watched.verdict)


def test_a_promise_that_is_kept_is_proved(paths):
    class Sampler(HostAlone):
        name, order = "in order", Order.SAMPLER

    watched = checked(DDLPLoader(numbered(paths), 2, seed=3, strategy=Sampler), say=None)
    assert order(list(watched))[0] == [0, 1] and watched.verdict.claims[ORDER].state == "proved"


def test_a_recording_has_its_name(paths, tmp_path):
    list(DDLPLoader(numbered(paths), 4, strategy=HostAlone, record=tmp_path / "run"))
    (trace,) = read_run(tmp_path / "run")
    assert trace.whole and trace.began.strategy == "host alone"


def test_a_loader_with_it_pickles(paths, engine):
    loader = DDLPLoader(numbered(paths, RANDOM), 4, seed=3, strategy=TailFirst, spool=engine)
    expected = by_target(list(loader))
    copy = pickle.loads(pickle.dumps(loader))
    copy.set_epoch(0)
    found = by_target(list(copy))
    assert copy.strategy is TailFirst and all(torch.equal(found[k], expected[k]) for k in expected)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Wrr(Ledger(3, host_slots=2), None), "expected one of cpu, csd, mte, wrr, ordered, auto, a subclass of ddlp."),
        (dict, "expected one of"),
        (["wrr"], "expected one of"),
        (Strategy, "its name is ''"),
        (type("Mine", (Wrr,), {}), "strategy=Mine: its name is 'wrr'"),
    ],
)
def test_anything_else_is_an_error_that_says_what_was_expected(paths, given, words):
    with pytest.raises(ValueError, match="^strategy=") as caught:
        DDLPLoader(numbered(paths), strategy=given)
    assert words in str(caught.value)


def test_what_it_says_of_itself_is_heeded(paths):
    data = numbered(paths)
    with pytest.raises(ValueError, match="strategy='backwards' needs the whole epoch's batches"):
        DDLPLoader(data, sampler=Counting(SAMPLES), strategy=Backwards)
    with pytest.raises(ValueError, match="csd= with strategy='host alone'"):
        DDLPLoader(data, strategy=HostAlone, csd=Device("ipc:///nowhere", "keys"))
    with pytest.raises(ValueError, match=r"ratio=0\.5"):
        DDLPLoader(data, strategy=HostAlone, ratio=0.5)
    with pytest.raises(Untranslatable):
        DDLPLoader(Draws(), strategy=DeviceAlone)
    loader = DDLPLoader(data, 4, strategy=Shared, ratio=0.25)
    assert len(list(loader)) == 11 and Shared.ratios == [0.25] and loader._parts.offload is None
    assert "device     none is used" in loader.explain()


def test_it_is_played_without_a_loader():
    world = World(host_s=lambda _: 1.0, device_s={"d": lambda _: 2.0}, train_s=lambda _: 0.1)
    outcome = Simulation(Ledger(60, host_slots=3, fetch_slots=3), world, Backwards).run()
    assert outcome.order == list(range(59, -1, -1)) and outcome.from_csd > 10
