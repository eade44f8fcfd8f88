from __future__ import annotations

import pytest

from ddlp.auto.decide import estimate
from ddlp.auto.measured import Measured, OffloadPath
from ddlp.epoch import begin, fetchers
from ddlp.observe import play
from ddlp.observe.play import play_epoch
from ddlp.schedule import simulate
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.simulate import Simulation, World
from ddlp.schedule.slots import FETCH_SLOTS, FETCHERS, host_slots
from ddlp.schedule.strategies import STRATEGIES, Cpu, Csd, Mte, Ordered, Wrr
from ddlp.sources import base

HOST = Measured(step_s=0.1, host_batches_per_s=4.0, host_cpu_s_per_batch=0.25)
CSD = OffloadPath("csd", batches_per_s=4.0, host_cpu_s_per_batch=0.0)


def test_it_has_the_loaders_slots():
    assert FETCH_SLOTS == begin.FETCH_SLOTS == play.FETCH_SLOTS == 3
    assert FETCHERS == base.FETCHERS == fetchers.FETCHERS == simulate.FETCHERS == 2
    assert play.host_slots is begin.host_slots is host_slots


def test_the_host_alone_makes_one_batch_after_the_other():
    played = play_epoch(HOST, (), Cpu, batches=1000)
    assert played.seconds == pytest.approx(250.1)  # the last step comes after the last batch
    assert played.waiting_s == pytest.approx(250.1 - 1000 * 0.1)
    assert play_epoch(HOST, (), Cpu, batches=1000, workers=5).seconds == pytest.approx(250.1 + 4 * 0.1)  # five at once


@pytest.mark.parametrize("name", [name for name, one in STRATEGIES.items() if one.uses_device])
@pytest.mark.some(3)
def test_no_strategy_is_faster_than_the_bound_and_none_far_from_it(name):
    for rate in (0.5, 2.0, 4.0, 7.0):
        path = OffloadPath("csd", batches_per_s=rate, host_cpu_s_per_batch=0.05, workers=2)
        bound_s = 1000 / min(rate, 10.0) if name == "csd" else 1000 * estimate(HOST, (path,)).time_s
        seconds = play_epoch(HOST, (path,), STRATEGIES[name], batches=1000).seconds
        assert bound_s * 0.999 < seconds < bound_s * 1.08, rate


@pytest.mark.parametrize("bandwidth", [3.0, 4.0, 8.0])
def test_mte_is_as_fast_where_all_batches_of_its_second_part_come_late_over_a_link(bandwidth):
    path = OffloadPath("csd", batches_per_s=2.0, bytes_per_batch=1.0, bandwidth_bytes_per_s=bandwidth,
                       host_cpu_s_per_batch=0.0)  # fmt: skip
    assert play_epoch(HOST, (path,), Mte, batches=1000).seconds == pytest.approx(1000 / 6, rel=0.02)


def test_each_source_has_its_own_workers_and_room():
    paths = (CSD, OffloadPath("slow", batches_per_s=1.0, workers=4, host_cpu_s_per_batch=0.0))
    played = play_epoch(HOST, paths, Wrr, batches=900)
    assert played.seconds == pytest.approx(100.0, rel=0.03)
    assert played.taken["csd"] == pytest.approx(400, rel=0.03) and played.taken["slow"] == pytest.approx(100, rel=0.06)
    one_place = OffloadPath("slow", batches_per_s=1.0, workers=4, bytes_per_batch=1.0, spool_bytes=1.0,
                            host_cpu_s_per_batch=0.0)  # fmt: skip
    assert play_epoch(HOST, (one_place,), Csd, batches=100).seconds == pytest.approx(400.0, rel=0.01)  # one worker's rate


def test_batches_that_are_taken_cost_the_host_its_own():
    """Taking one costs half of making one: with 2 a second from the device, the host makes 3 instead of 4."""
    path = OffloadPath("csd", batches_per_s=2.0, host_cpu_s_per_batch=0.125)
    assert 1000 / play_epoch(HOST, (path,), Wrr, batches=1000).seconds == pytest.approx(5.0, rel=0.01)
    enough = Measured(0.1, 4.0, 0.25, host_processors=3)
    assert 1000 / play_epoch(enough, (path,), Wrr, batches=1000).seconds == pytest.approx(6.0, rel=0.01)


def test_workers_that_rest_take_batches():
    """The devices alone suffice: the host's slots are full, and what it takes costs it nothing, not even at the end."""
    paths = tuple(OffloadPath(name, batches_per_s=2.5, workers=4, host_cpu_s_per_batch=0.015) for name in "abcd")
    assert play_epoch(HOST, paths, Wrr, batches=1000, workers=8).seconds < 105.0


def test_all_links_share_the_hosts():
    paths = tuple(OffloadPath(name, batches_per_s=4.0, bytes_per_batch=1e6, host_cpu_s_per_batch=0.0) for name in "ab")
    narrow = Measured(0.1, 4.0, 0.25, transfer_bytes_per_s=2e6)
    assert play_epoch(narrow, paths, Csd, batches=200).seconds == pytest.approx(100.0, rel=0.02)


def test_as_many_are_fetched_at_a_time_as_a_loader_has_fetchers():
    world = World(host_s=lambda _: 1e6, device_s={"d": lambda _: 0.001}, fetch_s=lambda _: 1.0)
    epoch = Simulation(Ledger(20, host_slots=3, fetch_slots=FETCH_SLOTS), world, Csd).run()
    assert epoch.seconds == pytest.approx(20 / FETCHERS, rel=0.1)


@pytest.mark.parametrize("name, at_most_s", [("wrr", 8.0), ("ordered", 7.6), ("mte", 7.6)])
def test_a_slow_network_is_known_from_the_epoch_before(name, at_most_s):
    """The device makes as many batches as the host, 2 a second arrive. The host alone takes 7.5 s."""
    host = Measured(step_s=0.0004, host_batches_per_s=80.0, host_cpu_s_per_batch=0.0006, host_processors=2)
    path = OffloadPath("far", batches_per_s=78.0, host_cpu_s_per_batch=0.0002, bytes_per_batch=2e5,
                       bandwidth_bytes_per_s=4.1e5)  # fmt: skip
    assert play_epoch(host, (path,), STRATEGIES[name], batches=600).seconds < at_most_s


@pytest.mark.parametrize("strategy", [Wrr, Ordered])
@pytest.mark.parametrize("absent, moves, seconds", [
    ((), ((50.0, "csd", False),), 200.0),  # 8 a second for 50 s, 4 for the other 600
    (("csd",), ((50.0, "csd", True),), 150.0),  # 4 a second for 50 s, 8 for the other 800
    (("csd",), ((50.0, "csd", True), (100.0, "csd", False)), 200.0),
    ((), ((25.0, "csd", False), (75.0, "csd", True), (100.0, "csd", False)), 200.0),
])  # fmt: skip
def test_devices_join_and_leave(strategy, absent, moves, seconds):
    """Host and device make 4 batches a second each."""
    assert elastic(strategy, 1000, frozenset(absent), moves).seconds == pytest.approx(seconds, rel=0.03)


def test_the_host_makes_all_where_no_device_comes():
    assert elastic(Csd, 100, frozenset({"csd"})).seconds == pytest.approx(25.1)


def elastic(strategy, batches, absent, moves=()):
    world = World(
        host_s=lambda _: 0.25, train_s=lambda _: 0.1, device_s={"csd": lambda _: 0.25}, absent=absent, moves=moves
    )  # fmt: skip
    return Simulation(Ledger(batches, host_slots=host_slots(1, 2, True), fetch_slots=FETCH_SLOTS), world, strategy.make).run()
