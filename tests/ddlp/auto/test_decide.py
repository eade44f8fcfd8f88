from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlp.auto import decide as module
from ddlp.auto.decide import Goal, Power, Prices, all_sets, decide, estimate
from ddlp.auto.measured import Measured, OffloadPath

# A host that makes 4 batches a second with 2 processors; training takes 10.
HOST = Measured(step_s=0.1, host_batches_per_s=4.0, host_cpu_s_per_batch=0.5, host_processors=3)
CSD = OffloadPath("csd", 2.0, "spool", host_cpu_s_per_batch=0.05, bytes_per_batch=1e6)
POWER = Power(host_idle_watts=50, host_busy_watts=150, accelerator_watts=300, engine_watts={"csd": 10, "pool": 10})
PRICES = Prices(host_per_h=1.0, accelerator_per_h=3.0, engine_per_h={"csd": 0.1, "pool": 0.1})
WATTS = Goal(power=POWER)


def with_paths(*paths, **changes):
    return replace(HOST, paths=paths, **changes)


# -- the estimate ------------------------------------------------------------------------------------------------------


def test_the_host_alone():
    one = estimate(HOST)
    assert (one.time_s, one.limit, one.engine_s, str(one)) == (0.25, "host", 0.0, "the host alone")
    assert estimate(replace(HOST, step_s=0.5)).time_s == 0.5


def test_what_a_source_makes_costs_the_host_its_ocycle():
    one = estimate(with_paths(CSD), (CSD,))
    share = 2.0 / 4.0
    assert 1 / one.time_s == pytest.approx(4.0 * (1 - 0.05 / 0.5 * share) + 2.0)
    assert one.source_batches_per_s == (2.0,) and one.host_batches_per_s == pytest.approx(3.8)
    assert one.limit == "host" and one.engine_s == one.time_s


def test_free_processors_take_it_first_and_one_trains():
    for processors, lost in ((2, 0.2), (3, 0.2), (3.05, 0.1), (3.2, 0.0), (8, 0.0)):
        one = estimate(replace(HOST, host_processors=processors), (CSD,))
        assert one.host_batches_per_s == pytest.approx(4.0 - lost), processors


def test_where_there_is_one_processor_a_host_that_waits_for_something_else_takes_batches_beside_it():
    """It trains and prepares there, and is idle for most of the time: taking a batch costs its own path nothing."""
    waits = Measured(step_s=0.001, host_batches_per_s=30.0, host_cpu_s_per_batch=0.0005, host_processors=1)
    paths = tuple(replace(CSD, source=f"e{n}", batches_per_s=30.0, host_cpu_s_per_batch=0.0005) for n in range(3))
    assert 1 / estimate(replace(waits, paths=paths), paths).time_s == pytest.approx(120.0)
    busy = replace(waits, host_cpu_s_per_batch=1 / 30, paths=paths)
    dear = tuple(replace(path, host_cpu_s_per_batch=0.5 / 30) for path in paths)
    assert 1 / estimate(busy, dear[:1]).time_s == pytest.approx(45.0), "its processor is in use: half a batch for each"
    trains = replace(waits, step_s=0.1, paths=paths)
    assert estimate(trains, paths).host_batches_per_s == 0.0, "the time is training's"


def test_it_is_never_more_than_training_takes_and_sources_come_first():
    one = estimate(replace(HOST, step_s=0.2), (CSD,))
    assert (one.time_s, one.limit) == (0.2, "training") and one.capacity_batches_per_s == pytest.approx(5.8)
    assert (one.source_batches_per_s, one.host_batches_per_s) == ((2.0,), pytest.approx(3.0))
    fast = replace(CSD, batches_per_s=20.0)
    assert estimate(replace(HOST, step_s=0.2), (fast,)).host_batches_per_s == 0.0


@pytest.mark.parametrize("changes, rate, limit", [
    ({}, 20.0, "source"),
    ({"bandwidth_bytes_per_s": 8e6}, 8.0, "transfer"),
    ({"bandwidth_bytes_per_s": 8e9}, 20.0, "source"),
    ({"spool_bytes": 1.9e6, "bandwidth_bytes_per_s": 5e7}, 1 / (0.05 + 0.02), "spool"),  # one place: made, then transferred
    ({"spool_bytes": 1e6, "workers": 2}, 10.0, "spool"),  # one place, for one of its two workers
    ({"spool_bytes": 9e6}, 20.0, "source"),
    ({"spool_bytes": 0.9e6}, 0.0, "host"),  # no room for a batch
    ({"host_cpu_s_per_batch": 0.4}, 5.0, "host"),  # 2 processors take 5 a second, and make none
])  # fmt: skip
def test_what_bounds_a_source(changes, rate, limit):
    path = replace(CSD, batches_per_s=20.0, host_cpu_s_per_batch=0.0)
    one = estimate(replace(HOST, step_s=1e-6), (replace(path, **changes),))
    assert one.source_batches_per_s == (pytest.approx(rate),)
    assert one.limit == limit


def test_sending_files_costs_the_host_what_taking_a_batch_does_if_it_was_not_measured():
    path = replace(CSD, carried=True, host_cpu_s_per_batch=None)
    assert module.ocycle_ratio(HOST, path) == pytest.approx(0.06 + 0.38)
    assert module.ocycle_ratio(HOST, replace(path, transport="stream", carried=False)) == pytest.approx(0.38)
    assert "With csd by spool (data carried) a batch takes" in decide(with_paths(path)).why


def test_sources_share_the_hosts_link_and_the_one_that_costs_the_host_least_comes_first():
    paths = (CSD, replace(CSD, source="another", host_cpu_s_per_batch=0.06))
    one = estimate(replace(HOST, transfer_bytes_per_s=3e6), paths)
    assert one.source_batches_per_s == (2.0, 1.0)


def test_the_places_of_paths_do_not_matter():
    paths = (replace(CSD, source="pool", host_cpu_s_per_batch=0.4, batches_per_s=9.0), CSD)
    one, other = estimate(HOST, paths), estimate(HOST, paths[::-1])
    assert (one.time_s, one.source_batches_per_s) == (other.time_s, other.source_batches_per_s[::-1])


# -- the decision ------------------------------------------------------------------------------------------------------


def test_a_source_that_helps_is_taken():
    decision = decide(with_paths(CSD))
    assert decision.offloads and decision.chosen.paths == (CSD,)
    assert [one.paths for one in decision.estimates] == [(), (CSD,)]
    said = "With csd by spool a batch takes 0.1724 s instead of 0.25 s; the host limits."
    assert decision.why == said


def test_without_sources_the_host_works_alone():
    decision = decide(HOST)
    assert not decision.offloads
    assert decision.why == "No source has a measured rate, so the host works alone: 0.25 s a batch."


def test_without_a_stall_the_device_rests():
    for step_s in (0.25, 0.3):
        decision = decide(with_paths(CSD, step_s=step_s))
        assert not decision.offloads and decision.chosen.limit == "training"
        assert "Training does not wait for data" in decision.why


def test_a_source_that_costs_the_host_more_than_it_makes_rests():
    for seconds in (0.5, 0.6, 5.0):
        path = replace(CSD, host_cpu_s_per_batch=seconds)
        assert not decide(with_paths(path)).offloads, seconds
    assert estimate(HOST, (replace(CSD, host_cpu_s_per_batch=0.6),)).time_s > 0.25


def test_a_source_that_is_faster_than_the_host_is_taken():
    decision = decide(with_paths(replace(CSD, batches_per_s=50.0, host_cpu_s_per_batch=0.0)))
    assert decision.chosen.time_s == 0.1 and decision.chosen.limit == "training"


def test_less_than_the_threshold_is_not_worth_it():
    path = replace(CSD, batches_per_s=0.06, host_cpu_s_per_batch=0.0)  # wins 1.5 %
    assert not decide(with_paths(path)).offloads and "win 1.5%, not 2.0%" in decide(with_paths(path)).why
    assert decide(with_paths(path), Goal(threshold=0.01)).offloads
    assert decide(with_paths(replace(path, batches_per_s=0.1))).offloads


def test_of_several_sources_as_many_as_help():
    pool = replace(CSD, source="pool", batches_per_s=3.0)
    assert set(decide(with_paths(CSD, pool)).chosen.paths) == {CSD, pool}
    assert decide(with_paths(CSD, pool, step_s=1 / 6.5)).chosen.paths == (pool,), "it is enough"
    assert [str(one) for one in decide(with_paths(CSD, pool)).estimates].count("the host alone") == 1


def test_many_sources_are_searched_in_part_and_as_well(monkeypatch):
    pool = [
        replace(CSD, source=f"engine {k}", batches_per_s=0.4 + 0.02 * k, host_cpu_s_per_batch=0.02 + 0.002 * k)
        for k in range(24)
    ]
    decision = decide(with_paths(*pool, step_s=0.125))
    assert 24 < len(decision.estimates) < 400 and decision.chosen.time_s <= 0.125 * 1.02
    assert len(decision.chosen.paths) < 24
    few = with_paths(*pool[:6], step_s=0.01)
    every = decide(few)
    monkeypatch.setattr(module, "_ALL_SETS_OF", 0)
    some = decide(few)
    assert some.chosen.paths and some.chosen.time_s == pytest.approx(every.chosen.time_s)
    assert len({frozenset(one.paths) for one in some.estimates}) == len(some.estimates)
    assert len(some.estimates) <= len(every.estimates) == len(list(all_sets(few.paths))) == 64
    assert some.estimates[0].paths == every.estimates[0].paths == ()


# -- what is not known -------------------------------------------------------------------------------------------------


def test_nothing_known():
    decision = decide(Measured(paths=(CSD,)))
    assert not decision.offloads and decision.chosen.time_s is None and "rate is not known" in decision.why


def test_an_unknown_step_lets_the_devices_rest_but_shows_the_estimates():
    decision = decide(with_paths(CSD, step_s=None))
    assert not decision.offloads and "step takes is not known" in decision.why
    assert [one.limit for one in decision.estimates] == ["host", "host"]


def test_an_unknown_ocycle_is_assumed_and_said():
    for path, part in ((replace(CSD, host_cpu_s_per_batch=None), 0.06), (OffloadPath("csd", 2.0), 0.38)):
        one = decide(with_paths(path)).chosen
        assert one.time_s == pytest.approx(1 / (6.0 - 2.0 * part))
        assert one.assumed == (f"taking a batch of {path} costs the host {part:.0%} of making one",)
    assert decide(with_paths(CSD)).chosen.assumed == ()


maybe = st.one_of(st.none(), st.floats(1e-3, 1e3))
any_path = st.builds(
    OffloadPath, source=st.sampled_from("abcde"), transport=st.sampled_from(["spool", "stream"]), workers=st.integers(1, 4),
    batches_per_s=st.floats(1e-3, 1e3), host_cpu_s_per_batch=maybe, bytes_per_batch=maybe, bandwidth_bytes_per_s=maybe,
    spool_bytes=maybe,
)  # fmt: skip
any_measured = st.builds(
    Measured, step_s=maybe, host_batches_per_s=maybe, host_cpu_s_per_batch=maybe, host_processors=maybe,
    transfer_bytes_per_s=maybe, paths=st.lists(any_path, max_size=5, unique_by=lambda path: path.source).map(tuple),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(any_measured, st.sampled_from(["time", "energy", "cost"]), st.one_of(st.none(), st.floats(0, 1)), st.floats(0, 0.5))
def test_whatever_is_known_there_is_a_decision(measured, objective, max_slowdown, threshold):
    engines = dict.fromkeys("abcde", 1.0)
    prices, power = replace(PRICES, engine_per_h=engines), replace(POWER, engine_watts=engines)
    decision = decide(measured, Goal(objective, threshold, max_slowdown, prices, power))
    chosen, none = decision.chosen, decision.estimates[0]
    assert none.paths == () and chosen in decision.estimates and decision.why
    if none.time_s is None:
        assert not decision.offloads
        return
    assert all(0 < one.time_s < math.inf and one.energy_j > 0 and one.cost > 0 for one in decision.estimates)
    if decision.offloads:
        assert chosen.value(objective) < none.value(objective) or max_slowdown is not None
    if objective == "time":
        assert chosen.time_s <= none.time_s, "never slower than without"
    if max_slowdown is not None and measured.step_s is not None:
        assert chosen.time_s <= min(one.time_s for one in decision.estimates) * (1 + max_slowdown) * (1 + 1e-6)


@settings(max_examples=200, deadline=None)
@given(any_measured, st.integers(0, 4), st.floats(1.0, 10.0))
def test_a_faster_source_never_makes_it_slower(measured, which, factor):
    """With one size of batches, for which the order of sources on the host's link does not matter."""
    paths = tuple(replace(path, bytes_per_batch=1.0) for path in measured.paths)
    if which >= len(paths) or measured.step_s is None:
        return
    path = paths[which]
    faster = replace(path, batches_per_s=path.batches_per_s * factor)
    measured = replace(measured, paths=paths)
    before = decide(measured, Goal(threshold=0.0)).chosen
    after = decide(replace(measured, paths=(*paths[:which], faster, *paths[which + 1 :])), Goal(threshold=0.0)).chosen
    assert after.value("time") <= before.value("time") * (1 + 1e-6)


@settings(max_examples=200, deadline=None)
@given(any_measured, st.sampled_from([0.125, 8.0, 1024.0]))
def test_another_unit_of_time_changes_nothing_but_times(measured, k):
    def slowed(of, *, seconds, rates):
        known = {name: getattr(of, name) for name in (*seconds, *rates) if getattr(of, name) is not None}
        return replace(of, **{name: value * k if name in seconds else value / k for name, value in known.items()})

    paths = tuple(
        slowed(path, seconds=("host_cpu_s_per_batch",),
               rates=("batches_per_s", "bandwidth_bytes_per_s"))
        for path in measured.paths
    )  # fmt: skip
    rates = ("host_batches_per_s", "transfer_bytes_per_s")
    other = replace(slowed(measured, seconds=("step_s", "host_cpu_s_per_batch"), rates=rates), paths=paths)
    before, after = decide(measured), decide(other)
    assert [str(path) for path in before.chosen.paths] == [str(path) for path in after.chosen.paths]
    if before.chosen.time_s is not None:
        assert after.chosen.time_s == pytest.approx(before.chosen.time_s * k)
        assert after.chosen.limit == before.chosen.limit


# -- energy and cost ---------------------------------------------------------------------------------------------------


def test_energy_of_the_host_alone_and_with_a_source():
    assert estimate(HOST, goal=WATTS).energy_j == pytest.approx(0.25 * (50 + 100 * 4.0 * 0.5 / 3 + 300))
    one = estimate(HOST, (CSD,), WATTS)
    assert one.energy_j == pytest.approx(one.time_s * (50 + 100 * (3.8 * 0.5 + 2 * 0.05) / 3 + 300 + 10))
    unknown = estimate(replace(HOST, host_processors=None), goal=WATTS)
    assert unknown.energy_j == pytest.approx(0.25 * (150 + 300)), "its rate is taken for all it can"


def test_cost_of_the_host_alone_and_with_a_source():
    assert estimate(HOST, goal=Goal(prices=PRICES)).cost == pytest.approx(0.25 / 3600 * 4.0)
    stored = replace(CSD, spool_bytes=2e9)
    one = estimate(HOST, (stored,), Goal(prices=replace(PRICES, stored_per_gb_month=73.0)))
    assert one.cost == pytest.approx(one.time_s / 3600 * (4.1 + 2 * 73.0 / 730))


def test_energy_and_cost_change_the_decision():
    measured = with_paths(CSD)
    hungry, dear = replace(POWER, engine_watts={"csd": 900}), replace(PRICES, engine_per_h={"csd": 9.0})
    assert decide(measured, Goal(prices=dear, power=hungry)).offloads
    assert decide(measured, Goal("energy", power=POWER)).offloads
    assert decide(measured, Goal("cost", prices=PRICES)).offloads
    energy, cost = decide(measured, Goal("energy", power=hungry)), decide(measured, Goal("cost", prices=dear))
    assert not energy.offloads and not cost.offloads
    assert energy.why.startswith("The host alone takes 104.2 J a batch") and "price" in cost.why
    # And the other way round: without a stall a source saves joules where the host's work is dear.
    idle = replace(measured, step_s=0.3)
    busy_host = Power(host_idle_watts=0, host_busy_watts=1000, accelerator_watts=0, engine_watts={"csd": 1})
    assert not decide(idle, Goal(power=busy_host)).offloads and decide(idle, Goal("energy", power=busy_host)).offloads


def test_the_slowdown_is_bounded():
    hungry = replace(POWER, engine_watts={"csd": 900})
    for bound, offloads in ((0.0, True), (0.4, True), (0.46, False), (None, False)):  # the host alone takes 1.45 times as long
        decision = decide(with_paths(CSD), Goal("energy", power=hungry, max_slowdown=bound))
        assert decision.offloads is offloads, bound


# -- wrong arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments, says", [
    ({"objective": "cost"}, "no prices; ddlp has none built in. Give prices="),
    ({"objective": "energy"}, "no watts. Give power="),
    ({"objective": "money"}, "objective='money'; give one of time, energy, cost"),
    ({"prices": Prices(1.0, 1.0)}, "prices.engine_per_h lacks 'csd'"),
    ({"power": Power(1.0, 1.0, 1.0, {"pool": 1.0})}, "power.engine_watts lacks 'csd'"),
    ({"threshold": -0.1}, "threshold=-0.1; give a part"),
    ({"threshold": math.nan}, "threshold=nan"),
    ({"max_slowdown": math.inf}, "max_slowdown=inf"),
])  # fmt: skip
def test_wrong_arguments_are_told(arguments, says):
    with pytest.raises(ValueError) as told:
        decide(with_paths(CSD), Goal(**arguments))
    assert says in str(told.value)


@pytest.mark.parametrize("make, says", [
    (lambda: Power(1.0, -1.0, 1.0), "Power: host_busy_watts=-1.0"),
    (lambda: Prices(1.0, 1.0, {"csd": math.nan}), "Prices: engine_per_h['csd']=nan"),
])  # fmt: skip
def test_wrong_watts_and_prices_are_told(make, says):
    with pytest.raises(ValueError) as told:
        make()
    assert says in str(told.value)
