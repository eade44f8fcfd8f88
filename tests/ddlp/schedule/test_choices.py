"""Each choice of the strategies at its limits, with numbers that can be checked by hand."""

from __future__ import annotations

import pytest

from ddlp.schedule.claim_chunks import ClaimChunker
from ddlp.schedule.ledger import Ledger, Release
from ddlp.schedule.rates import Rate, Rates
from ddlp.schedule.slots import FETCHERS
from ddlp.schedule.strategies import DATALOADER, STRATEGIES, Cpu, Mte, Strategy, Wrr, called, strategy_class
from ddlp.schedule.strategies.base import Order


def scene(name: str, batches: int | None, *, host_slots: int = 3, fetch_slots: int = 2, host_s=None, device_s=None, **options):
    """A ledger with a device "d" that has room for everything, and its strategy. Rates, if given, are seconds for one batch."""
    ledger, rates = Ledger(batches, host_slots=host_slots, fetch_slots=fetch_slots), Rates()
    ledger.join("d", quota=1000, window=1000)
    for rate, seconds in ((rates.host, host_s), (rates.device("d"), device_s)):
        if seconds is not None:
            rate.add(seconds)
    return ledger, STRATEGIES[name](ledger, rates, **options)


def publish(ledger: Ledger, *positions: int, device: str = "d") -> None:
    for position in positions:
        assert ledger.published(device, ledger.lease(device, position, 0.0))


def slow_network(strategy: Strategy) -> None:
    """Training takes 0.1 s for a batch, and two fetches at a time bring one in 1.5 s."""
    strategy.rates.trained(0.1)
    for _ in range(3):
        strategy.rates.fetched("d", 3.0, 1.0, 2)


# -- when a leased batch whose turn it is counts as late


def late_from(host_s, device_s, times, progress=None, begun=0.0):
    """For each of these times: whether the host claims batch 0, whose turn it is. Otherwise it claims the next one."""
    ledger, strategy = scene("ordered", 10, host_s=host_s, device_s=device_s)
    lease = ledger.lease("d", 0, now=0.0)
    if progress is not None:
        ledger.progressed("d", lease, progress, begun)
    claims = [strategy.next_claim(now) for now in times]
    assert set(claims) <= {0, 1}
    return [claim == 0 for claim in claims]


def test_a_lease_without_progress_is_stalled_after_half_a_minute_or_four_batches():
    assert late_from(None, None, [0.0, 30.0, 30.1]) == [False, False, True], "its speed is not known"
    assert late_from(None, 2.0, [8.0, 8.1]) == [False, True], "four batches of 2 s"
    assert late_from(None, 1.0, [5.0, 5.1]) == [False, True], "but 5 s at least"
    assert late_from(None, 2.0, [18.0, 18.1], progress=0.9, begun=10.0) == [False, True], "from the last progress on"


def test_a_lease_is_late_where_the_host_would_be_ready_first():
    assert late_from(1.0, None, [0.0]) == [True], "the device's speed is not known"
    assert late_from(1.0, 4.0, [10.0, 10.5], progress=0.5, begun=10.0) == [True, True], "2 s are left, and then 1.5"
    assert late_from(1.0, 4.0, [11.0], progress=0.5, begun=10.0) == [False], "as long as the host would take"
    assert late_from(1.0, 4.0, [10.0, 18.0, 18.1], progress=0.75, begun=10.0) == [False, False, True], "after twice its time"


def test_a_device_whose_spool_others_fill_is_not_waited_for():
    ledger, strategy = scene("ordered", 10)
    ledger.lease("d", 0, now=0.0)
    assert strategy.next_claim(0.0) == 1
    ledger.hold_back("d", True)
    assert strategy.next_claim(0.0) == 0


# -- fetches and devices that hang


def test_a_fetch_hangs_after_half_a_minute_or_four_of_the_devices_batches():
    for device_s, limit in ((None, 30.0), (7.0, 30.0), (10.0, 40.0)):
        ledger, strategy = scene("wrr", 10, device_s=device_s)
        publish(ledger, 9, 8)
        ledger.fetch(9, now=50.0)
        _, hanging = ledger.fetch(8, now=2.0)
        assert strategy.hanging_fetch(2.0 + limit) is None and strategy.hanging_fetch(2.1 + limit) == hanging
    ledger.leave("d", now=4.0)
    assert strategy.hanging_fetch(9.0) is None and strategy.hanging_fetch(9.1) == hanging, "5 s after the device was lost"


def test_a_fetch_that_begins_after_its_device_was_lost_has_five_seconds():
    ledger, strategy = scene("wrr", 10)
    publish(ledger, 9)
    ledger.leave("d", now=20.0)
    _, lease = ledger.fetch(9, now=30.0)
    assert strategy.hanging_fetch(35.0) is None and strategy.hanging_fetch(35.1) == lease


def test_half_a_mebibyte_a_second_is_the_slowest_link():
    ledger, strategy = scene("wrr", 10)
    strategy.rates.epoch_begins(workers=1, full_batch=100, sample_bytes=1 << 19)
    publish(ledger, 9)
    _, lease = ledger.fetch(9, now=0.0)
    assert strategy.hanging_fetch(100.0) is None and strategy.hanging_fetch(100.1) == lease


def test_a_device_may_take_half_a_minute_to_join():
    ledger = Ledger(10, host_slots=3)
    strategy = STRATEGIES["wrr"](ledger, Rates())
    for device, now in (("a", 5.0), ("b", 1.0)):
        ledger.expect(device, now)
    assert strategy.late_device(31.0) is None and strategy.late_device(31.1) == "b"
    ledger.join("b", quota=1, window=1)
    assert strategy.late_device(31.1) is None


def test_a_batch_that_is_read_hangs_by_no_device():
    """A batch that has been read can't hang any more: the time of the user's own steps after it is not the device's fault."""
    ledger = Ledger(10, host_slots=3)
    strategy = STRATEGIES["wrr"](ledger, Rates())
    ledger.join("csd0", quota=4, window=2)
    lease = ledger.lease("csd0", 9, now=0.0)
    ledger.published("csd0", lease)
    ledger.fetch(9, now=0.0)
    ledger.read(lease)
    ledger.leave("csd0", now=1.0)
    assert strategy.hanging_fetch(1e6) is None and ledger.verified(lease)
    ledger.read(lease)  # the fetch was given up or is over: nothing changes
    assert not ledger.fetching


# -- what a device is given


@pytest.mark.parametrize("name", ["wrr", "auto", "mte"])  # mte before it has calibrated
def test_a_device_is_given_what_it_makes_before_the_host_has_made_all_others(name):
    for free, in_work, host_s, device_s, worth in (
        (3, 0, 1.0, 3.0, True), (2, 0, 1.0, 3.0, False), (2, 1, 1.0, 3.0, False), (2, 2, 1.0, 3.0, True),
        (10, 0, 0.5, 4.9, True), (10, 0, 0.5, 5.1, False),  # the host needs 5 s for all
    ):  # fmt: skip
        ledger, strategy = scene(name, free + in_work, host_s=host_s, device_s=device_s)
        for position in range(in_work):
            ledger.claim(position)
        assert strategy.worth_leasing("d") is worth
        assert strategy.next_lease("d") == (free + in_work - 1 if worth else None)
    for host_s, device_s in ((None, 3.0), (1.0, None), (None, None)):
        assert scene("wrr", 1, host_s=host_s, device_s=device_s)[1].worth_leasing("d"), "a speed is not known"
    ledger, strategy = scene("wrr", 0)
    assert strategy.next_lease("d") is None and strategy.next_claim(0.0) is None, "nothing is free"


def test_a_devices_leases_take_their_time():
    ledger, strategy = scene("wrr", 100, host_s=1.0, device_s=4.0)
    assert strategy._ready_s("d") == 4.0
    lease = ledger.lease("d", 99, 0.0)
    ledger.lease("d", 98, 0.0)
    ledger.progressed("d", lease, 0.5, 1.0)
    assert strategy._backlog("d") == 1.5 and strategy._ready_s("d") == 10.0
    strategy.rates.joined("d", workers=2)
    assert strategy._ready_s("d") == 7.0, "two at once; the last one takes as long as one"
    assert scene("wrr", 10, device_s=0.5)[1]._ready_s("d") == 0.5


def test_a_batch_is_leased_so_far_ahead_that_it_is_ready_at_its_turn():
    for free, ahead in ((100, 16), (33, 16), (20, 10), (1, 0)):
        assert scene("ordered", free)[1].made_meanwhile("d") == ahead, "unknown rates: the host counts as 16 times as fast"
    for host_s, device_s in ((None, 3.0), (1.0, None)):
        assert scene("ordered", 100, host_s=host_s, device_s=device_s)[1].made_meanwhile("d") == 16
    ledger, strategy = scene("ordered", 100)
    ledger.lease("d", 99, 0.0)
    assert strategy.made_meanwhile("d") == 32
    ledger, strategy = scene("ordered", 100, host_s=1.0, device_s=3.0)
    assert strategy.made_meanwhile("d") == 6, "3 s for the batch, half of that for safety, rounded up, and one"
    assert strategy.next_lease("d") == 6
    ledger, strategy = scene("ordered", 6, host_s=1.0, device_s=3.0)
    assert strategy.next_lease("d") == 5, "no batch is that far ahead: the last one, if that saves time"
    ledger, strategy = scene("ordered", 2, host_s=1.0, device_s=3.0)
    assert strategy.next_lease("d") is None, "it saves no time"


def test_a_device_without_room_is_given_nothing():
    ledger, strategy = scene("wrr", 10)
    ledger.join("d", quota=1, window=1)
    assert strategy.next_lease("d") == 9
    ledger.lease("d", 9, 0.0)
    assert strategy.next_lease("d") is None


# -- what the host claims


def test_what_came_back_is_claimed_first_but_in_the_order_of_delivery_where_that_is_fixed():
    for name, claim in (("wrr", 5), ("ordered", 0), ("mte", 0)):
        ledger, strategy = scene(name, 10)
        ledger.failed("d", ledger.lease("d", 5, 0.0))
        assert strategy.next_claim(0.0) == claim
        for position in range(5):
            ledger.made(ledger.claim(position))
            ledger.deliver(position)
        assert strategy.next_claim(0.0) == 5


def test_one_slot_is_kept_for_the_batch_whose_turn_it_is():
    ledger, strategy = scene("ordered", 10, host_slots=3)
    lease = ledger.lease("d", 0, now=0.0)
    for position in (1, 2):
        assert strategy.next_claim(0.0) == position
        ledger.claim(position)
    assert ledger.free_host_slots == 1 and strategy.next_claim(0.0) is None
    ledger.published("d", lease)
    ledger.fetch(0)
    ledger.verified(lease)
    assert strategy.next_claim(0.0) is None, "also if the device's copy is ready"
    ledger.deliver(0)
    assert strategy.next_claim(0.0) == 3, "the host has the batch whose turn it is"
    ledger.claim(3)
    assert strategy.next_claim(0.0) is None


def test_the_last_slot_goes_to_the_batch_whose_turn_it_is():
    ledger, strategy = scene("ordered", 10, host_slots=2)
    ledger.claim(1)
    assert strategy.next_claim(0.0) == 0
    ledger.claim(0)
    assert strategy.next_claim(0.0) is None


def test_a_host_with_nothing_to_claim_takes_the_least_advanced_lease():
    ledger, strategy = scene("wrr", 3, host_slots=5)
    for position, progress in ((0, 0.5), (1, 0.25), (2, 0.75)):
        ledger.progressed("d", ledger.lease("d", position, 0.0), progress, 1.0)
    for position in (1, 0, 2):
        assert strategy.next_claim(0.0) == position
        ledger.claim(position)
    assert strategy.next_claim(0.0) is None


# -- what is fetched and delivered


def test_a_devices_ready_batch_comes_before_the_hosts_where_any_may_come():
    ledger, strategy = scene("wrr", 10)
    assert strategy.next_delivery() is None
    ledger.made(ledger.claim(0))
    assert strategy.next_delivery() == 0
    publish(ledger, 9)
    _, lease = ledger.fetch(9)
    assert strategy.next_delivery() == 0
    ledger.verified(lease)
    assert strategy.next_delivery() == 9


def test_in_the_samplers_order_no_batch_comes_before_its_turn():
    ledger, strategy = scene("ordered", 2)
    ledger.made(ledger.claim(1))
    assert strategy.turn() == 0 and strategy.next_delivery() is None
    ledger.made(ledger.claim(0))
    for position in (0, 1):
        assert strategy.next_delivery() == position
        ledger.deliver(position)
    assert strategy.turn() is None and strategy.next_delivery() is None
    ledger, strategy = scene("ordered", None)
    assert strategy.turn() is None
    ledger.extend()
    assert strategy.turn() == 0


def test_the_last_fetch_slot_is_for_the_batch_whose_turn_it_is():
    ledger, strategy = scene("ordered", 10, fetch_slots=3)
    assert strategy.next_fetch() is None
    publish(ledger, 7, 6, 5)
    for position in (5, 6):
        assert strategy.next_fetch() == position
        ledger.fetch(position)
    assert ledger.free_fetch_slots == 1 and strategy.next_fetch() is None, "the host has not begun with 0"
    lease = ledger.lease("d", 0, 0.0)
    assert strategy.next_fetch() is None
    ledger.published("d", lease)
    assert strategy.next_fetch() == 0
    ledger.fetch(0)
    assert strategy.next_fetch() is None, "no slot is left"
    ledger, strategy = scene("ordered", 10, fetch_slots=3)
    publish(ledger, 7, 5, 0)
    _, lease = ledger.fetch(0)
    ledger.fetch(5)
    assert strategy.next_fetch() == 7, "that batch is being fetched already"
    ledger.verified(lease)
    assert strategy.next_fetch() == 7, "or is ready"
    ledger, strategy = scene("wrr", 10)
    publish(ledger, 7, 5)
    ledger.fetch(7)
    assert strategy.next_fetch() == 5, "if any order is allowed, the last slot is for any batch"


# -- cpu and csd


def test_cpu_leases_nothing():
    ledger, strategy = scene("cpu", 10)
    assert strategy.next_lease("d") is None and strategy.next_claim(0.0) == 0


def test_csd_leaves_all_to_the_device_but_what_it_can_not_make():
    ledger, strategy = scene("csd", 10, device_s=2.0)
    assert strategy.next_claim(0.0) is None and strategy.next_lease("d") == 0
    lease = ledger.lease("d", 0, 0.0)
    assert strategy.next_lease("d") == 1
    assert strategy.next_claim(8.0) is None and strategy.next_claim(8.1) == 0, "it is stalled"
    assert strategy._take_back(0.0) is None
    ledger.failed("d", lease)
    assert strategy.next_claim(0.0) == 0
    publish(ledger, 1)
    ledger.made(ledger.claim(0))
    ledger.deliver(0)
    assert strategy.next_claim(1e9) is None, "a published batch is not claimed"
    ledger.leave("d", now=0.0)
    assert strategy.next_claim(0.0) == 2
    _, published = ledger.fetch(1)
    ledger.verified(published)
    ledger.deliver(1)
    assert strategy.next_claim(0.0) == 2, "no device is there"
    ledger, strategy = scene("csd", 0)
    assert strategy.next_lease("d") is None


# -- auto


def test_auto_gives_a_resting_device_no_lease_and_has_the_host_make_what_it_has():
    ledger, strategy = scene("auto", 10, host_slots=6)
    for device in ("d", "e"):
        ledger.join(device, quota=9, window=9)
    leases = {position: ledger.lease(device, position, 0.0) for position, device in ((9, "d"), (8, "d"), (7, "d"), (6, "e"))}
    for position, progress in ((9, 0.5), (8, 0.25), (7, 0.75)):
        ledger.progressed("d", leases[position], progress, 1.0)
    assert strategy.next_lease("d") == strategy.next_lease("e") == 5 and strategy.next_claim(1.0) == 0
    strategy.rates.rest(["d"])
    assert strategy.next_lease("d") is None and strategy.next_lease("e") == 5
    for position in (8, 9, 7, 0):
        assert strategy.next_claim(1.0) == position, "the least advanced of its leases first, then what is free"
        ledger.claim(position)
    strategy.rates.work()
    assert strategy.next_lease("d") == 5 and strategy.next_claim(1.0) == 1


# -- mte


def known(strategy: Strategy) -> None:
    for rate in (strategy.rates.host, *strategy.rates.devices.values()):
        rate.count = 10


def test_mte_takes_the_split_that_it_is_given_within_the_epoch():
    for ratio, split in ((0.0, 0), (0.3, 3), (0.26, 3), (1.0, 10), (None, None)):
        strategy = Mte.make(Ledger(10, host_slots=3), Rates(), ratio)
        assert strategy.host_batches == split
    assert Mte(Ledger(10, host_slots=3), Rates(), -1).host_batches == 0
    assert Mte(Ledger(10, host_slots=3), Rates(), 11).host_batches == 10
    assert type(Wrr.make(Ledger(10, host_slots=3), Rates(), 0.5)) is Wrr


def test_mtes_split_by_the_formula():
    def split(train_s, quota=10**6, n=1000, link_s=0.0):
        rates = Rates()
        for _ in range(3 if link_s else 0):
            rates.fetched("d", link_s, 1.0, FETCHERS)
        rates.host.add(1.0)
        rates.device("d").add(3.0)
        if train_s is not None:
            rates.trained(train_s)
        return Mte.split(n, rates, ["d"], quota)

    # T = 1000 / (1 + 1/3) = 750; 0.9 * (0.95 * 750 - 1000 t) / (1 - t)
    assert split(0.3) == round(0.9 * (712.5 - 300) / 0.7) == 530
    assert split(0.7125) == 0 and split(0.999) == 0 and split(1.0) == 750
    assert split(0.01, n=10) == round(0.9 * (7.125 - 0.1) / 0.99) == 6
    assert split(None, quota=100) == 270, "the devices fill 0.9 of their spool while the host makes three times as many"
    # A batch of three of the device's comes in 0.6 s, one after another: that takes 0.2 of T, in which the host makes no more.
    assert split(None, link_s=0.6) == round(750 * 0.9 * (0.95 - 0.2)) == 506
    assert split(None, link_s=3.0) == 0, "the link brings them no faster than the device makes them"
    assert split(None) == 750, "how long a step takes is not known"
    faster = Rates()
    faster.host.add(0.5)
    faster.device("d").add(2.0)
    faster.trained(0.2)
    assert Mte.split(1000, faster, ["d"], 10**6) == round(0.9 * (0.95 * 400 - 200) / (0.5 - 0.2)) == 540
    faster.training.seconds = 0.6
    assert Mte.split(1000, faster, ["d"], 10**6) == 800, "training is slower than the host: 1000 * 2 / 2.5"
    assert Mte.split(1000, faster, ["d"], 10) == 36, "while the device fills 0.9 of 10, the host makes four times as many"
    only_host = Rates()
    only_host.host.add(1.0)
    assert Mte.split(1000, only_host, ["d"], 100) is None


def test_mte_calibrates_with_what_is_left_and_takes_nothing_back():
    ledger, strategy = scene("mte", 100, host_slots=80, host_s=1.0, device_s=1.0)
    assert strategy.turn() == 0 and strategy.host_batches is None, "the rates are not known well enough"
    known(strategy)
    for position in range(60):
        ledger.claim(position)
    strategy.turn()
    assert strategy.host_batches == 60, "50 by the rates, but the host has begun these"
    ledger, strategy = scene("mte", 9, host_slots=9, host_s=1.0, device_s=1.0)
    known(strategy)
    for position in range(9):
        ledger.claim(position)
    assert strategy.turn() == 0 and strategy.host_batches == 9, "the host has begun all"
    ledger = Ledger(100, host_slots=3, delivered=[(0, 10)])
    rates = strategy.rates
    ledger.join("d", quota=1000, window=1000)
    strategy = Mte(ledger, rates)
    assert strategy.turn() == 10 and strategy.host_batches == 55, "half of the remaining 90"
    ledger = Ledger(100, host_slots=3)
    rates.device("e").add(1.0)
    rates.device("e").count = 10
    for name in ("d", "e"):
        ledger.join(name, quota=10, window=10)
    strategy = Mte(ledger, rates)
    assert strategy.turn() == 0 and strategy.host_batches == 9, "two devices fill two spools of 20"


def test_mte_calibrates_by_the_devices_that_are_at_work_and_counts_on_those_that_will_join():
    ledger, strategy = scene("mte", 100, host_s=1.0, device_s=1.0)
    strategy.rates.device("later").add(1.0)
    known(strategy)
    strategy.rates.device("later").count = 1
    ledger.expect("later")
    assert strategy.turn() == 0 and strategy.host_batches == 33, "a third; the later device's rate need not be sure"
    ledger = Ledger(100, host_slots=3)
    ledger.expect("d")
    strategy = Mte(ledger, strategy.rates)
    assert strategy.turn() == 0 and strategy.host_batches is None, "no device is at work yet"


def test_mte_splits_by_the_rates_that_are_known():
    rates = Rates()
    rates.host.add(1.0)
    for name in ("d", "new"):
        for _ in range(3):
            rates.fetched(name, 0.6, 1.0, FETCHERS)
    rates.device("d").add(3.0)
    # How fast the new device makes batches is not known, though some of its batches have come.
    assert Mte.split(1000, rates, ["d", "new"], 10**6) == round(750 * 0.9 * (0.95 - 0.2))


@pytest.mark.parametrize("host, device", [(True, False), (False, True), (True, True)])
def test_mte_waits_until_both_rates_are_known(host, device):
    ledger, strategy = scene("mte", 100, host_s=0.5, device_s=1.0)
    strategy.rates.host.count, strategy.rates.device("d").count = (10 if one else 1 for one in (host, device))
    assert strategy.turn() == 0
    assert strategy.host_batches == (67 if host and device else None), "100 * 2 / (2 + 1)"


def test_mtes_split_is_provisional_until_it_is_known_how_long_a_step_takes():
    ledger, strategy = scene("mte", 100, host_slots=4, host_s=1.0, device_s=1.0)
    known(strategy)
    assert strategy.turn() == 0 and strategy.host_batches == 50, "no step is over: half, by the rates"
    for position in range(3):
        ledger.claim(position)
    for steps in (1, 2):
        strategy.rates.trained(0.6)
        assert strategy.turn() == 0 and strategy.host_batches == 50, steps
    strategy.rates.trained(0.6)
    assert strategy.turn() == 0 and strategy.host_batches == 3, "training is the limit, and the host has begun these"
    for _ in range(50):
        strategy.rates.trained(0.01)
    ledger.claim(3)
    assert strategy.turn() == 0 and strategy.host_batches == 3, "once"


@pytest.mark.parametrize("ratio", [None, 0.5])
def test_mtes_split_stays_if_a_step_was_known_before_or_it_was_given(ratio):
    ledger, strategy = scene("mte", 100, host_s=1.0, device_s=1.0)
    strategy = Mte.make(ledger, strategy.rates, ratio)
    known(strategy)
    for _ in range(3):
        strategy.rates.trained(1.0)
    assert strategy.turn() == 0 and strategy.host_batches == 50, "a step takes as long as a batch of the host"
    for _ in range(50):
        strategy.rates.trained(0.6)
    assert strategy.turn() == 0 and strategy.host_batches == 50


def test_mtes_split_never_becomes_larger():
    ledger, strategy = scene("mte", 100, host_s=1.0, device_s=1.0)
    known(strategy)
    assert strategy.turn() == 0 and strategy.host_batches == 50
    strategy.rates.device("d").seconds = 3.0
    for _ in range(3):
        strategy.rates.trained(1.0)
    assert strategy.turn() == 0 and strategy.host_batches == 50, "75 by the rates of now"


def test_mte_too_short_to_calibrate_stays_ascending():
    ledger, strategy = scene("mte", 3)
    ledger.lease("d", 2, 0.0)
    claims = [ledger.claim(0)]
    ledger.failed("d", ledger.lease("d", 1, 0.0))
    strategy.turn()
    assert strategy.host_batches is None, "batch 1 came back, and no side has it"
    claims.append(ledger.claim(1))
    strategy.turn()
    assert strategy.host_batches == 3
    ledger = Ledger(3, host_slots=3)
    strategy = Mte(ledger, Rates())
    assert strategy.turn() == 0 and strategy.host_batches is None, "no device"


@pytest.mark.parametrize(("split", "order"), [(2, [0, 1, 5, 4, 3, 2]), (0, [5, 4, 3, 2, 1, 0])])
def test_mtes_turn_goes_up_to_the_split_and_then_down_from_the_end(split, order):
    ledger, strategy = scene("mte", 6, host_batches=split, host_slots=6)
    for position in range(6):
        ledger.made(ledger.claim(position))
    for turn in order:
        assert strategy.turn() == strategy.next_delivery() == turn
        ledger.deliver(turn)
    assert ledger.done and strategy.turn() is strategy.next_delivery() is None


def test_mtes_host_and_fetches_follow_the_order_of_delivery():
    ledger, strategy = scene("mte", 10, host_batches=2, host_slots=6, fetch_slots=4)
    for position in (0, 1, 9, 8):
        assert strategy.next_claim(0.0) == position
        ledger.claim(position)
    publish(ledger, 3, 5)
    assert strategy.next_fetch() == 5


def test_mte_leaves_the_hosts_part_of_the_second_part_to_it_evenly_spread():
    """The host makes two batches while the device makes one. Of 100, 67 are the host's, 50 of these before the split."""
    ledger, strategy = scene("mte", 100, host_s=0.5, device_s=1.0, host_batches=50)
    leased = []
    for _ in range(12):
        leased.append(strategy.next_lease("d"))
        ledger.lease("d", leased[-1], 0.0)
    left = sorted(set(range(leased[-1], 100)) - set(leased), reverse=True)
    assert leased == sorted(leased, reverse=True) and leased[0] == 99
    assert left == [97, 94, 91, 88, 85], "every third batch"
    assert strategy._hosts_part(100, 10) == 0.0 and strategy._hosts_part(0, 10) == 1.0, "from none to all"
    assert strategy._hosts_part(0, 0) == 1.0
    for known_s in ({}, {"host_s": 0.5}, {"device_s": 1.0}):
        assert scene("mte", 9, **known_s)[1]._hosts_part(0, 9) == 0.0, "a speed is not known"
    assert scene("mte", 9, host_s=0.5, device_s=1.0)[1]._hosts_part(0, 1) == pytest.approx(2 / 3)


def test_mte_counts_what_is_due_to_the_host_exactly():
    """Two thirds of all batches, leases too, are the host's; of these, it makes the free ones that come earlier."""
    ledger, strategy = scene("mte", 100, host_s=0.5, device_s=1.0, host_batches=50)
    due = []
    for _ in range(3):
        ledger.lease("d", strategy.next_lease("d"), 0.0)
        due.append(strategy._due)
    # Of 100 batches 50 come earlier; then of 99 and a lease; batch 97 is left to the host, so 51 come before 96.
    second = 1 / 3 + (100 * 2 / 3 - 50) / 49
    assert due == pytest.approx([1 / 3, second, second + (100 * 2 / 3 - 50) / 48 - 1 + (100 * 2 / 3 - 51) / 47])


def test_mte_leases_up_to_the_last_batch_that_is_far_enough_ahead_and_not_due_to_the_host():
    ledger, strategy = scene("mte", 5, host_s=1.0, device_s=1.0, host_batches=3)
    assert strategy.made_meanwhile("d") == 3 and strategy.next_lease("d") == 4, "three batches come before it"
    ledger, strategy = scene("mte", 10, host_s=1.0, device_s=1.0, host_batches=8)
    strategy._due = 1.0
    assert strategy.next_lease("d") == 8, "batch 9 is the host's"


def test_mte_gives_a_device_what_is_due_soon_only_while_that_saves_time():
    ledger, strategy = scene("mte", 4, host_s=1.0, device_s=3.0, host_batches=2)
    # 3 s for the batch, half of that for safety, and one: six must come before it. No batch is that far ahead.
    assert strategy.made_meanwhile("d") == 6
    assert strategy.next_lease("d") == 2, "no batch is that far ahead: the last in the order of delivery"
    for position in (3, 2):
        ledger.claim(position)
    assert strategy.next_lease("d") == 1, "none of the second part is free"
    ledger, strategy = scene("mte", 2, host_s=1.0, device_s=3.0, host_batches=1)
    assert strategy.next_lease("d") is None
    ledger, strategy = scene("mte", 4)
    assert strategy.next_lease("d") == 3, "not calibrated yet"
    ledger, strategy = scene("mte", 0, host_batches=0)
    assert strategy.next_lease("d") is None


# -- how many batches a worker claims at a time


@pytest.mark.parametrize(
    "batches, parallel, host_s, length",
    [
        (400, 1, None, 1),  # the rate is not known yet
        (400, 1, 0.003, 1), (400, 1, 0.001, 2), (400, 1, 0.0005, 4), (400, 1, 1e-6, 16),
        (9, 2, 1e-6, 2), (7, 2, 1e-6, 1), (3, 2, 1e-6, 1),  # every worker gets some
    ],
)  # fmt: skip
def test_a_run_takes_two_milliseconds_and_sixteen_batches_at_most(batches, parallel, host_s, length):
    host = Rate(parallel=parallel)
    if host_s is not None:
        host.add(host_s)
    ledger = Ledger(batches, host_slots=3)
    chunker = ClaimChunker(ledger, STRATEGIES["cpu"](ledger, Rates()), host)
    assert chunker.length == 1
    run = chunker.claim(0.0)
    assert [position for position, _ in run] == list(range(length)) and chunker.length == length
    assert all(ledger.wanted(claim) for _, claim in run)
    assert ledger.host_slots == 3 + 2 * (length - 1) * parallel


# -- how a strategy is given


class Own(Strategy):
    name = "own"


class Nameless(Strategy):
    pass


class Taken(Strategy):
    name = "wrr"


def test_a_strategy_is_given_by_its_name_or_as_a_class():
    for given, found in (("mte", Mte), (Mte, Mte), (Own, Own)):
        assert strategy_class(given) is found
    for given in ("own", None, 3, int, Own.__name__, Wrr(Ledger(1, host_slots=2), Rates())):
        with pytest.raises(ValueError, match="one of cpu, csd, mte, wrr, ordered, auto, a subclass of ddlp.*Strategy, or None"):
            strategy_class(given)
    for given, name in ((Nameless, ""), (Taken, "wrr"), (Strategy, "")):
        with pytest.raises(ValueError, match=f"strategy={given.__name__}: its name is '{name}'.*no other strategy has"):
            strategy_class(given)
    assert called("wrr") is Wrr and called("own") is Strategy and called(DATALOADER) is Cpu
    flags = ("uses_device", "needs_device", "needs_length", "takes_ratio", "rank_after_rank", "decides")
    assert [tuple(getattr(one, flag) for flag in flags) for one in STRATEGIES.values()] == [
        (False, False, False, False, False, False),  # cpu
        (True, True, False, False, False, False),  # csd
        (True, False, True, True, True, False),  # mte
        (True, False, False, False, False, False),  # wrr
        (True, False, False, False, False, False),  # ordered
        (True, False, False, False, False, True),  # auto
    ]


# -- with rates and sizes other than 1


def test_each_strategy_keeps_its_ledger_its_rates_and_its_order():
    ledger, rates = Ledger(10, host_slots=3), Rates()
    for name, order in (("cpu", Order.SAMPLER), ("csd", Order.SAMPLER), ("ordered", Order.SAMPLER), ("wrr", Order.ANY),
                        ("mte", Order.FROM_BOTH_ENDS)):  # fmt: skip
        strategy = STRATEGIES[name].make(ledger, rates, 0.25)
        assert strategy.ledger is ledger and strategy.rates is rates and strategy.order is order
    assert Strategy.order is Order.ANY


def test_where_the_order_is_fixed_the_earlier_of_what_came_back_and_what_is_free_comes_first():
    for back, expected in ((3, 1), (1, 1)):
        ledger, strategy = scene("ordered", 10, host_slots=5)
        assert ledger.failed("d", ledger.lease("d", back, 0.0)) is None
        assert strategy.next_claim(0.0) == 0
        ledger.claim(0)
        assert strategy.next_claim(0.0) == expected and 2 in ledger.free


def test_where_the_order_goes_down_the_later_of_both_comes_first():
    ledger, strategy = scene("mte", 10, host_batches=0, host_slots=7)
    ledger.failed("d", ledger.lease("d", 5, 0.0))
    for expected in (9, 8, 7, 6, 5, 4):
        assert strategy.next_claim(0.0) == expected
        ledger.claim(expected)


def test_a_device_that_is_back_has_the_usual_time_for_a_fetch():
    ledger, strategy = scene("wrr", 10)
    publish(ledger, 9)
    ledger.fetch(9, 5.0)
    ledger.leave("d", 20.0)
    ledger.devices["d"].alive = True
    assert strategy.hanging_fetch(34.9) is None and strategy.hanging_fetch(35.1) is not None


def test_a_batch_is_leased_where_it_has_come_before_the_host_has_made_the_others():
    ledger, strategy = scene("wrr", 20, host_s=1.0, device_s=1.0)
    strategy.rates.trained(3.9)
    publish(ledger, 19, 18, 17, 16)
    for count in range(3):
        assert strategy.worth_leasing("d"), f"{count} fetches are too few to tell"
        strategy.rates.fetched("d", 8.0, 1.0, 2)
    assert strategy.worth_leasing("d"), "4 batches arrive in 16 s, in which the host makes 16"
    publish(ledger, 15)
    assert not strategy.worth_leasing("d"), "5 batches arrive in 20 s"
    strategy.rates.training.seconds = 4.1
    assert strategy.worth_leasing("d"), "they arrive as fast as training uses them"
    assert strategy.rates.arriving_per_s(["d"]) == 0.25 and strategy.rates.csd_per_s(["d"]) == 1.0


@pytest.mark.parametrize("fetched_at, late", [(None, [True] * 5), (4.0, [True, False, False, False, True])])
def test_a_batch_whose_turn_it_is_comes_late_over_a_slow_network(fetched_at, late):
    ledger, strategy = scene("ordered", 10, host_s=1.0, device_s=1.0)
    strategy.rates.trained(0.1)
    publish(ledger, 0)
    if fetched_at is not None:
        ledger.fetch(0, fetched_at)
    assert strategy.next_claim(4.0) == 1, "how long a fetch takes is not known"
    for _ in range(3):
        strategy.rates.fetched("d", 3.0, 1.0, 2)
    assert [strategy.next_claim(now) == 0 for now in (5.9, 6.0, 6.1, 8.0, 8.1)] == late, "in 7.0 it is expected"
    strategy.rates.training.seconds = 1.6
    assert strategy.next_claim(5.9) == 1, "two fetches at a time bring a batch in 1.5 s"


def test_a_batch_arrives_late_only_where_the_host_makes_one_in_less_than_a_whole_fetch():
    for host_s, claim in ((2.9, 0), (3.0, 1)):
        ledger, strategy = scene("ordered", 10, host_s=host_s, device_s=1.0)
        publish(ledger, 0)
        slow_network(strategy)
        assert strategy.next_claim(4.0) == claim


def test_a_batch_that_is_read_or_ready_does_not_arrive_late():
    """After its bytes, only the user's own steps are left, which the host would have to do as well."""
    ledger, strategy = scene("ordered", 10, host_s=1.0, device_s=1.0)
    slow_network(strategy)
    publish(ledger, 0)
    _, lease = ledger.fetch(0, 4.0)
    assert strategy.next_claim(4.0) == 0
    ledger.read(lease)
    assert strategy.next_claim(4.0) == 1
    ledger.verified(lease)
    assert strategy.next_claim(4.0) == 1


def test_a_host_whose_speed_is_not_known_waits_for_what_is_published():
    ledger, strategy = scene("ordered", 10, device_s=1.0)
    publish(ledger, 0)
    ledger.fetch(0, 4.0)
    assert strategy.next_claim(99.0) == 1
    slow_network(strategy)
    assert strategy.next_claim(4.0) == 1


@pytest.mark.parametrize(
    "fetch_s, fetchers, train_s, slow",
    [
        (3.0, 2, 1.4, True), (3.0, 2, 1.5, False), (3.0, 1, 1.5, True),  # a batch arrives in 1.5 s, or in 3 s
        (0.1, 1, 0.01, False), (0.11, 1, 0.01, True),  # this host's threads may need a tenth of a second
        (3.0, 2, None, False), (None, 2, 0.01, False),
    ],
)  # fmt: skip
def test_a_network_is_slow_where_it_brings_less_than_training_takes(fetch_s, fetchers, train_s, slow):
    _, strategy = scene("wrr", 10)
    if train_s is not None:
        strategy.rates.trained(train_s)
    for _ in range(3 if fetch_s is not None else 0):
        strategy.rates.fetched("d", fetch_s, 1.0, fetchers)
    assert strategy._slow_network("d") is slow


def test_the_first_fetch_of_all_is_late_where_the_host_would_be_ready_and_a_second_is_over():
    for host_s, late_s in ((0.01, 1.0), (3.0, 3.0)):
        ledger, strategy = scene("ordered", 10, host_s=host_s, device_s=1.0)
        publish(ledger, 0)
        ledger.fetch(0, 4.0)
        assert [strategy.next_claim(4.0 + late_s + more) for more in (-0.1, 0.0, 0.05)] == [1, 1, 0]


def test_a_host_with_nothing_to_claim_takes_what_arrives_last_over_a_slow_network():
    ledger, strategy = scene("wrr", 4, host_slots=8, host_s=1.0, device_s=1.0)
    publish(ledger, 3, 2, 1, 0)
    ledger.fetch(0, 0.0)
    assert strategy.next_claim(0.9) is None, "how long a fetch takes is not known"
    for _ in range(3):
        strategy.rates.fetched("d", 3.0, 1.0, 2)
    strategy.rates.trained(0.1)
    for expected in (3, 2, 1):
        assert strategy.next_claim(0.0) == expected
        claim = ledger.claim(expected)
    assert strategy.next_claim(2.0) is None, "the last one comes in a second"
    ledger.effects.clear()
    assert ledger.made(claim) and [type(one) for one in ledger.effects] == [Release]
    assert strategy.next_claim(1.9) == 0
    assert ledger.made(ledger.claim(0)) and strategy.next_claim(1.9) is None


def test_of_those_on_their_way_a_host_with_nothing_to_claim_takes_the_one_that_comes_last():
    ledger, strategy = scene("wrr", 3, host_slots=8, host_s=1.0, device_s=1.0)
    publish(ledger, 2, 1, 0)
    strategy.rates.trained(0.1)
    for position, at in ((0, 0.0), (2, 0.5), (1, 0.7)):
        ledger.fetch(position, at)
    assert strategy.next_claim(0.9) is None, "how long a fetch takes is not known"
    for _ in range(3):
        strategy.rates.fetched("d", 3.0, 1.0, 3)
    for expected in (1, 2, 0):
        assert strategy.next_claim(1.9) == expected
        ledger.claim(expected)
    assert strategy.next_claim(1.9) is None


@pytest.mark.parametrize("host_s, takes", [(None, False), (2.9, True), (3.0, False)])
def test_a_host_takes_nothing_that_arrives_before_it_has_made_it(host_s, takes):
    ledger, strategy = scene("wrr", 2, host_s=host_s, device_s=1.0)
    assert host_s is None or strategy._take_back(0.0) is None, "nothing is published"
    slow_network(strategy)
    publish(ledger, 1, 0)
    assert strategy.next_claim(0.0) == (1 if takes else None), "both have come in 3 s"


def test_where_the_order_goes_down_the_first_batch_arrives_last():
    ledger, strategy = scene("mte", 4, host_batches=0, host_slots=8, host_s=1.0, device_s=1.0)
    slow_network(strategy)
    publish(ledger, 3, 2, 1, 0)
    ledger.fetch(3, 0.0)
    for expected in (3, 0, 1, 2):
        assert strategy.next_claim(0.0) == expected
        ledger.claim(expected)
    assert strategy.next_claim(0.0) is None


def test_what_came_back_is_claimed_though_nothing_is_free():
    ledger, strategy = scene("ordered", 3, host_slots=5)
    lease = ledger.lease("d", 2, 0.0)
    for position in (0, 1):
        ledger.claim(position)
    ledger.failed("d", lease)
    assert strategy.next_claim(0.0) == 2


def test_csds_last_slot_is_for_the_batch_whose_turn_it_is():
    ledger, strategy = scene("csd", 10, host_slots=2)
    for position in (0, 1):
        ledger.failed("d", ledger.lease("d", position, 0.0))
    ledger.claim(1)
    assert strategy.next_claim(0.0) == 0


def test_a_strategy_that_needs_the_length_says_so():
    with pytest.raises(ValueError, match="mte needs the epoch's length"):
        Mte(Ledger(None, host_slots=2), Rates())


# -- devices that retire


def fetch_all(ledger: Ledger, strategy: Strategy) -> list[int]:
    """Fetch what the strategy says, until it says nothing. Returns these batches."""
    fetched = []
    while (position := strategy.next_fetch()) is not None:
        ledger.fetch(position)
        fetched.append(position)
    return fetched


def test_a_device_that_retires_has_four_batches_fetched_beyond_the_slots():
    """It ends once all are fetched. What other devices have published has the time to wait for a slot."""
    ledger, strategy = scene("wrr", 20)
    ledger.join("e", quota=1000, window=1000)
    publish(ledger, *range(13, 20))
    publish(ledger, 11, 12, device="e")
    assert fetch_all(ledger, strategy) == [11, 12], "there are two slots"
    ledger.retire("e")
    assert strategy.next_fetch() is None, "nothing of device e waits"
    ledger.retire("d")
    assert fetch_all(ledger, strategy) == [13, 14, 15, 16]
    ledger.verified(ledger.entry(13).lease)
    assert strategy.next_fetch() is None, "it is in memory until it is delivered"
    ledger.deliver(13)
    assert strategy.next_fetch() == 17
    ledger.leave("d", now=0.0)
    assert strategy.next_fetch() is None, "it waits no longer"


def test_the_batch_whose_turn_it_is_is_fetched_though_batches_of_a_retiring_device_have_its_slot():
    ledger, strategy = scene("ordered", 20)
    ledger.join("e", quota=1000, window=1000)
    lease = ledger.lease("e", 0, 0.0)
    publish(ledger, *range(5, 11))
    assert fetch_all(ledger, strategy) == [5], "the last slot is for batch 0"
    ledger.retire("d")
    assert fetch_all(ledger, strategy) == [6, 7, 8, 9, 10]
    ledger.published("e", lease)
    assert fetch_all(ledger, strategy) == [0]


def test_with_no_device_there_csd_and_mte_leave_all_to_the_host():
    """A device that retires is not there, though it still finishes what it has."""
    for name in ("csd", "mte"):
        ledger, strategy = scene(name, 10, host_s=1.0, device_s=1.0)
        known(strategy)
        ledger.retire("d")
        assert strategy.next_claim(0.0) == 0 and strategy.next_lease("d") is None
    assert strategy.host_batches is None, "mte stays ascending"
