"""The ledger's rules. Without each of them, some schedule loses a batch, delivers it twice, or never delivers it."""

import pytest

from ddlp.schedule.ledger import Ledger, LedgerError, Release, Side
from ddlp.schedule.rates import Rates
from ddlp.schedule.states import CSD, HOST, CsdCopy, Event, HostCopy
from ddlp.schedule.strategies import STRATEGIES


def ledger_with_device(batches: int = 4, quota: int = 8, window: int = 2) -> Ledger:
    ledger = Ledger(batches, host_slots=3)
    ledger.join("d", quota=quota, window=window)
    return ledger


def fetched_while_the_host_makes_it() -> tuple[Ledger, int, int]:
    """A ledger with the device's lease of batch 3, which is being fetched, and the host's claim of it."""
    ledger = ledger_with_device()
    lease, claim = ledger.lease("d", 3, now=0.0), ledger.claim(3)
    ledger.published("d", lease)
    ledger.fetch(3, now=0.0)
    return ledger, lease, claim


def test_a_batch_from_either_side_is_delivered_once():
    ledger = ledger_with_device(2)
    assert ledger.made(ledger.claim(0))
    lease = ledger.lease("d", 1, now=0.0)
    assert ledger.published("d", lease)
    ledger.fetch(1)
    assert ledger.verified(lease)
    assert {ledger.deliver(0): 0, ledger.deliver(1): 1} == {Side.HOST: 0, Side.CSD: 1}
    assert ledger.done and list(ledger.effects) == [Release("d", lease)]
    with pytest.raises(LedgerError, match="batch 1"):
        ledger.deliver(1)


@pytest.mark.parametrize("failed", [False, True])
def test_a_batch_that_no_device_can_make_is_left_to_the_host(failed):
    """It is known before, or a device fails at it."""
    ledger = ledger_with_device(2)
    if failed:
        ledger.failed("d", ledger.lease("d", 1, 0.0))
    else:
        ledger.withhold(1)
    assert list(ledger.free) == [0] and list(ledger.returned) == [1]
    for again in (ledger.withhold, lambda position: ledger.lease("d", position, now=0.0)):
        with pytest.raises(LedgerError, match="batch 1 is not free"):
            again(1)
    assert ledger.made(ledger.claim(1))
    assert ledger.deliver(1) is Side.HOST


def test_published_is_not_delivered_until_verified():
    ledger = ledger_with_device()
    lease = ledger.lease("d", 3, now=0.0)
    ledger.published("d", lease)
    assert not ledger.is_ready(3)
    with pytest.raises(LedgerError):
        ledger.deliver(3)
    ledger.fetch(3)
    ledger.damaged(lease)
    assert 3 in ledger.returned, "damaged: back to the head"
    assert list(ledger.effects) == [Release("d", lease)] and ledger.devices["d"].held == 0


def test_first_verified_copy_wins_host_first():
    ledger = ledger_with_device()
    lease = ledger.lease("d", 3, now=0.0)
    claim = ledger.claim(3)
    assert ledger.made(claim)
    assert list(ledger.effects) == [Release("d", lease, unpublished=True)]
    ledger.effects.clear()
    assert not ledger.published("d", lease), "the device's late copy is not used"
    assert list(ledger.effects) == [Release("d", lease)]
    assert ledger.deliver(3) is Side.HOST


def test_first_verified_copy_wins_device_first():
    ledger, lease, claim = fetched_while_the_host_makes_it()
    assert ledger.wanted(claim)
    assert ledger.verified(lease)
    assert not ledger.wanted(claim), "the worker may stop"
    assert ledger.free_host_slots == 2, "the worker keeps its slot until it stops"
    assert ledger.deliver(3) is Side.CSD
    assert not ledger.made(claim)
    assert ledger.free_host_slots == 3


def test_host_copy_made_while_the_other_is_fetched():
    ledger, lease, claim = fetched_while_the_host_makes_it()
    assert ledger.made(claim)
    assert not ledger.verified(lease)
    assert ledger.free_fetch_slots == 2
    assert ledger.deliver(3) is Side.HOST


def test_a_device_that_leaves_gives_back_what_it_has_not_published():
    ledger = ledger_with_device(window=3)
    first, second = ledger.lease("d", 3, 0.0), ledger.lease("d", 2, 0.0)
    ledger.published("d", first)
    assert ledger.leave("d", now=0.0) == 1
    assert list(ledger.returned) == [2] and list(ledger.in_spool) == [3]
    assert not ledger.published("d", second), "a copy from a lease that was taken back is not used"
    assert Release("d", second) in ledger.effects
    ledger.fetch(3)
    assert ledger.verified(first) and ledger.deliver(3) is Side.CSD


def test_a_device_that_computes_wrong_pixels_is_not_used_any_more():
    ledger = ledger_with_device(window=4)
    leases = {p: ledger.lease("d", p, 0.0) for p in (3, 2, 1)}
    ledger.published("d", leases[3])
    ledger.published("d", leases[2])
    ledger.fetch(3)
    ledger.distrust("d", now=0.0)
    assert list(ledger.returned) == [1, 2, 3] and not ledger.in_spool and not ledger.can_lease("d")
    assert not ledger.damaged(leases[3]) and ledger.devices["d"].held == 0


def test_a_window_holds_that_many_unpublished_leases():
    ledger = ledger_with_device(window=2)
    leases = [ledger.lease("d", position, 0.0) for position in (3, 2)]
    assert not ledger.can_lease("d")
    ledger.published("d", leases[0])
    assert ledger.can_lease("d")


def test_once_a_batch_is_delivered_its_lease_is_forgotten():
    ledger = ledger_with_device()
    lease = ledger.lease("d", 3, 0.0)
    ledger.published("d", lease)
    ledger.fetch(3)
    assert ledger.verified(lease) and ledger.deliver(3) is Side.CSD
    assert not ledger.verified(lease) and not ledger.damaged(lease)


def test_a_loss_is_timed_however_a_device_goes():
    ledger = ledger_with_device()
    ledger.leave("d", now=2.0)
    assert ledger.devices["d"].left_s == 2.0
    ledger.join("d", quota=8, window=2)
    ledger.distrust("d", now=5.0)
    assert ledger.devices["d"].left_s == 5.0


def test_nothing_of_a_device_that_computes_wrong_pixels_is_delivered_though_it_is_in_memory():
    ledger = Ledger(4, host_slots=3, fetch_slots=3)
    ledger.join("d", quota=8, window=4)
    leases = {p: ledger.lease("d", p, 0.0) for p in (3, 2, 1)}
    for position, lease in leases.items():
        ledger.published("d", lease)
        ledger.fetch(position)
    assert ledger.verified(leases[3]) and ledger.is_ready(3)
    ledger.effects.clear()
    ledger.distrust("d", now=0.0)
    assert list(ledger.returned) == [1, 2, 3] and not ledger.ready_csd and ledger.devices["d"].held == 0
    assert list(ledger.effects) == [Release("d", leases[2]), Release("d", leases[1])], "the first was released before"
    assert ledger.free_fetch_slots == 1, "two files are still being read"
    assert not ledger.verified(leases[2]) and not ledger.damaged(leases[1]) and ledger.free_fetch_slots == 3
    assert ledger.made(ledger.claim(3)) and ledger.deliver(3) is Side.HOST


def test_a_fetch_that_hangs_is_given_up_and_its_device_left_alone_until_it_has_ended():
    ledger = ledger_with_device(6, window=5)
    leases = {p: ledger.lease("d", p, 0.0) for p in (5, 4, 3)}
    ledger.published("d", leases[5])
    ledger.published("d", leases[4])
    ledger.fetch(5, now=0.0)
    assert ledger.give_up(leases[5]) == "d"
    assert list(ledger.returned) == [3, 4, 5] and not ledger.in_spool and ledger.free_fetch_slots == 2
    assert sorted(ledger.effects, key=lambda one: one.lease) == [
        Release("d", leases[5]), Release("d", leases[4]), Release("d", leases[3], unpublished=True),
    ]  # fmt: skip
    assert ledger.came_back == 3 and not ledger.fetching and ledger.devices["d"].held == 0
    assert not ledger.can_lease("d") and not ledger.devices_there
    assert ledger.made(ledger.claim(5)) and ledger.deliver(5) is Side.HOST
    assert not ledger.verified(leases[5]), "a fetch that was given up is not used"
    assert ledger.free_fetch_slots == 2 and ledger.can_lease("d")


def test_a_fetch_that_hangs_gives_its_slot_back_where_the_host_was_first():
    ledger, lease, claim = fetched_while_the_host_makes_it()
    assert ledger.made(claim)
    ledger.give_up(lease)
    assert ledger.free_fetch_slots == 2 and ledger.is_ready(3) and not ledger.can_lease("d")
    assert not ledger.damaged(lease) and ledger.can_lease("d")


def test_a_device_that_comes_back_starts_with_an_empty_spool():
    ledger = ledger_with_device(4, quota=2)
    first, second = ledger.lease("d", 3, now=0.0), ledger.lease("d", 2, now=0.0)
    ledger.published("d", first)
    assert ledger.leave("d", now=0.0) == 1 and not ledger.can_lease("d")
    ledger.join("d", quota=2, window=2)
    assert list(ledger.returned) == [2, 3] and not ledger.in_spool, "the batches that it held before go to the host"
    assert ledger.effects[-1] == Release("d", first) and ledger.devices["d"].held == 0
    ledger.lease("d", 1, now=0.0)
    ledger.lease("d", 0, now=0.0)
    assert not ledger.published("d", second) and ledger.effects[-1] == Release("d", second), "sent before the loss"


def test_that_a_device_has_no_room_is_known_until_it_is_lost():
    ledger = Ledger(4, host_slots=3)
    ledger.expect("d")
    ledger.hold_back("d", True)
    ledger.join("d", quota=2, window=2)
    assert ledger.devices["d"].shut_out
    ledger.leave("d", now=0.0)
    assert not ledger.devices["d"].held_back


def test_a_device_that_is_late_counts_as_away_until_it_joins():
    ledger = Ledger(4, host_slots=3)
    ledger.expect("d", now=10.0)
    strategy = STRATEGIES["csd"](ledger, Rates())
    assert strategy.late_device(39.0) is None and strategy.next_claim(39.0) is None
    assert strategy.late_device(41.0) == "d"
    ledger.no_longer_expect("d")
    assert strategy.late_device(99.0) is None and strategy.next_claim(99.0) == 0
    ledger.join("d", quota=2, window=2)
    assert strategy.next_claim(99.0) is None and ledger.can_lease("d")


def test_a_device_that_fails_its_leases_in_a_row_can_prepare_none_as_it_seems():
    ledger = ledger_with_device(12, quota=12, window=12)
    leases = [ledger.lease("d", p, 0.0) for p in range(10)]
    account = ledger.devices["d"]
    for lease in (*leases[:2], leases[1]):  # the last message comes twice
        ledger.failed("d", lease)
    assert not account.failing
    ledger.published("d", leases[2])
    for lease in leases[3:5]:
        ledger.failed("d", lease)
    assert not account.failing, "a batch in between ends the series"
    ledger.failed("d", leases[5])
    assert account.failing
    assert ledger.leave("d", now=0.0) == 4
    ledger.join("d", quota=12, window=12)
    assert account.failing, "coming back does not end the series"
    ledger.published("d", ledger.lease("d", 10, 0.0))
    assert not account.failing, "a batch ends it"
    ledger.failed("d", ledger.lease("d", 11, 0.0), fatal=True)
    assert account.failing


def test_leases_that_a_lost_device_had_are_no_failures():
    ledger = ledger_with_device(6, window=6)
    for position in range(6):
        ledger.lease("d", position, 0.0)
    assert ledger.leave("d", now=0.0) == 6 and not ledger.devices["d"].failing


def test_a_doubled_message_changes_nothing():
    ledger = ledger_with_device()
    lease = ledger.lease("d", 3, 0.0)
    assert ledger.published("d", lease) and not ledger.published("d", lease)
    assert not ledger.effects, "the file is still needed"


def test_space_is_reserved_with_the_lease_and_given_back_once():
    ledger = ledger_with_device(quota=2, window=5)
    leases = [ledger.lease("d", p, 0.0) for p in (3, 2)]
    assert not ledger.can_lease("d")
    with pytest.raises(LedgerError, match="no room"):
        ledger.lease("d", 1, 0.0)
    for lease in leases:
        ledger.published("d", lease)
    assert ledger.devices["d"].held == 2
    ledger.fetch(3)
    ledger.verified(leases[0])
    assert ledger.devices["d"].held == 1
    ledger.deliver(3)
    assert ledger.devices["d"].held == 1


def test_resume_leaves_out_what_was_delivered():
    ledger = Ledger(10, host_slots=2, delivered=[(0, 3), (8, 10)])
    assert list(ledger.free) == [3, 4, 5, 6, 7]
    with pytest.raises(ValueError, match="do not fit"):
        Ledger(5, host_slots=2, delivered=[(3, 9)])


def test_what_was_delivered_is_written_down_where_it_is_in_the_epoch():
    """A resume begins with this list. `done` needs only the number of delivered batches."""
    ledger = ledger_with_device(6)
    lease = ledger.lease("d", 5, now=0.0)
    ledger.published("d", lease)
    ledger.fetch(5)
    ledger.verified(lease)
    ledger.made(ledger.claim(0))
    ledger.made(ledger.claim(1))
    ledger.deliver(5)
    ledger.deliver(0)
    assert list(ledger.delivered.ranges()) == [(0, 1), (5, 6)], "batch 1 is only ready"
    with pytest.raises(LedgerError, match="batch 5 was delivered"):
        ledger.claim(5)
    again = Ledger(6, host_slots=3, delivered=ledger.delivered.ranges())
    assert list(again.free) == [1, 2, 3, 4]


def test_the_hosts_slots_come_at_once_and_go_as_they_come_free_but_for_one():
    ledger = Ledger(20, host_slots=3)
    ledger.resize_host_slots(6)
    assert ledger.free_host_slots == 6
    claims = [ledger.claim(position) for position in range(5)]
    ledger.resize_host_slots(3)
    assert (ledger.host_slots, ledger.free_host_slots) == (6, 1), "one free slot is kept"
    ledger.made(claims[0])
    ledger.deliver(0)
    ledger.resize_host_slots(3)
    assert (ledger.host_slots, ledger.free_host_slots) == (5, 1)
    for claim in claims[1:]:
        ledger.made(claim)
    for position in range(1, 5):
        ledger.deliver(position)
    ledger.resize_host_slots(3)
    assert (ledger.host_slots, ledger.free_host_slots) == (3, 3)


def test_an_epoch_of_unknown_length():
    ledger = Ledger(None, host_slots=2)
    assert not ledger.done
    ledger.extend(2)
    ledger.made(ledger.claim(0))
    ledger.deliver(0)
    ledger.made(ledger.claim(1))
    ledger.deliver(1)
    assert not ledger.done
    ledger.extend()
    assert ledger.length == 3 and list(ledger.free) == [2]
    ledger.close()
    assert not ledger.done
    ledger.made(ledger.claim(2))
    ledger.deliver(2)
    assert ledger.done
    with pytest.raises(LedgerError, match="the epoch is closed"):
        ledger.extend()


def test_the_tables_hold_every_legal_step_and_no_other():
    assert all(isinstance(s, HostCopy) and isinstance(e, Event) for s, e in HOST)
    assert (HostCopy.READY, Event.DROP) not in HOST, "a verified copy is never dropped"
    assert (CsdCopy.READY, Event.DROP) not in CSD
    assert (CsdCopy.READY, Event.LOSE) in CSD, "only if the device is not trusted"
    assert {s for (s, e) in CSD if e is Event.DELIVER} == {CsdCopy.READY}


def test_two_slots_of_each_kind_are_the_fewest():
    for host_slots, fetch_slots in ((1, 2), (2, 1)):
        with pytest.raises(ValueError, match=f"got {host_slots} and {fetch_slots}"):
            Ledger(4, host_slots=host_slots, fetch_slots=fetch_slots)
    ledger = Ledger(4, host_slots=2, fetch_slots=2)
    assert (ledger.free_host_slots, ledger.free_fetch_slots, ledger.host_in_work) == (2, 2, 0)


def test_without_a_free_slot_nothing_is_claimed():
    ledger = Ledger(4, host_slots=2)
    claims = [ledger.claim(0), ledger.claim(1)]
    assert ledger.free_host_slots == 0 and ledger.host_in_work == 2
    with pytest.raises(LedgerError, match="no host slot for batch 2"):
        ledger.claim(2)
    with pytest.raises(LedgerError, match="batch 0: DELIVER of the device's copy, NONE"):
        ledger.deliver(0)
    assert ledger.made(claims[0]) and (ledger.free_host_slots, ledger.host_in_work) == (0, 1), "a ready batch has a slot too"
    ledger.deliver(0)
    with pytest.raises(LedgerError, match="batch 1: CLAIM of the host's copy, CLAIMED"):
        ledger.claim(1)
    with pytest.raises(LedgerError, match="batch 9 was delivered or is not in the epoch"):
        ledger.claim(9)


def test_a_claim_is_wanted_until_it_is_made_or_dropped():
    ledger = ledger_with_device()
    claim = ledger.claim(1)
    assert ledger.wanted(claim) and not ledger.wanted(claim + 1)
    ledger.made(claim)
    assert not ledger.wanted(claim)


def test_a_claim_that_was_dropped_is_not_the_claim_that_came_after_it():
    """The device's copy won and had wrong pixels. The host began anew while its first worker still made the batch."""
    ledger, lease, first = fetched_while_the_host_makes_it()
    assert ledger.verified(lease)
    ledger.distrust("d", now=0.0)
    second = ledger.claim(3)
    assert not ledger.wanted(first) and ledger.wanted(second)
    assert not ledger.made(first) and ledger.free_host_slots == 2 and ledger.host_in_work == 1
    assert ledger.made(second) and ledger.deliver(3) is Side.HOST and ledger.free_host_slots == 3


def test_what_one_device_does_leaves_the_others_batches():
    ledger = Ledger(6, host_slots=3, fetch_slots=4)
    leases = {}
    for device, positions in (("a", (5, 4)), ("b", (3, 2))):
        ledger.join(device, quota=4, window=4)
        for position in positions:
            leases[position] = ledger.lease(device, position, 0.0)
            ledger.published(device, leases[position])
    ledger.fetch(5)
    ledger.fetch(3)
    ledger.join("a", quota=4, window=4)
    assert list(ledger.in_spool) == [2] and list(ledger.returned) == [4], "device a's file is gone, device b's is there"
    assert ledger.give_up(leases[3]) == "b"
    assert list(ledger.returned) == [2, 3, 4] and ledger.devices_there == ["a"]
    ledger.distrust("a", now=1.0)
    assert list(ledger.returned) == [2, 3, 4, 5] and ledger.devices_there == []
    assert not ledger.verified(leases[5]) and ledger.devices_there == [], "a is not trusted"
    assert not ledger.damaged(leases[3]) and ledger.devices_there == ["b"], "its fetch has ended"
    assert (ledger.came_back, ledger.taken_back, ledger.free_fetch_slots) == (4, 0, 4)
    assert {name: account.held for name, account in ledger.devices.items()} == {"a": 0, "b": 0}


def test_wrong_pixels_of_one_device_cost_no_other_its_batches():
    ledger = Ledger(4, host_slots=2)
    for device, position in (("a", 3), ("b", 2)):
        ledger.join(device, quota=2, window=2)
        ledger.published(device, ledger.lease(device, position, 0.0))
    ledger.distrust("a", now=0.0)
    assert list(ledger.returned) == [3] and list(ledger.in_spool) == [2]


def test_leases_taken_back_and_batches_that_came_back_are_counted():
    ledger = ledger_with_device(6, window=6)
    leases = [ledger.lease("d", position, 0.0) for position in range(5)]
    assert [(one.position, one.lease) for one in ledger.leased()] == list(enumerate(leases))
    ledger.made(ledger.claim(0))
    assert (ledger.taken_back, ledger.came_back) == (1, 0)
    ledger.published("d", leases[1])
    ledger.made(ledger.claim(1))
    assert (ledger.taken_back, ledger.came_back) == (1, 0), "the batch had been made already"
    assert list(ledger.effects) == [Release("d", leases[0], unpublished=True), Release("d", leases[1])] and not ledger.in_spool
    ledger.published("d", leases[4])
    ledger.fetch(4)
    assert ledger.damaged(leases[4]), "the damaged batch was still needed"
    ledger.failed("d", leases[2])
    assert ledger.leave("d", now=0.0) == 1 and (ledger.taken_back, ledger.came_back) == (1, 3)
    assert ledger.devices["d"].held == 0


def test_a_device_is_shut_out_only_while_it_holds_no_published_batch():
    ledger = ledger_with_device()
    account = ledger.devices["d"]
    assert not account.shut_out
    ledger.hold_back("d", True)
    lease = ledger.lease("d", 3, 0.0)
    assert account.shut_out
    ledger.published("d", lease)
    assert not account.shut_out, "delivering that batch will free space"
    ledger.fetch(3)
    ledger.verified(lease)
    assert account.shut_out
    ledger.hold_back("d", False)
    assert not account.shut_out


def test_progress_counts_when_it_moves():
    ledger = ledger_with_device()
    lease = ledger.lease("d", 3, now=1.0)
    entry = ledger.entry(3)
    assert (entry.progress, entry.progress_s) == (0.0, 1.0)
    ledger.progressed("d", lease, 0.0, now=2.0)
    assert entry.progress_s == 1.0, "no progress was made"
    ledger.progressed("d", lease, 0.5, now=3.0)
    ledger.progressed("d", lease, 0.5, now=4.0)
    ledger.progressed("d", lease, 0.25, now=5.0)
    ledger.progressed("unknown", lease, 0.75, now=6.0)
    ledger.progressed("d", lease + 1, 0.75, now=7.0)
    assert (entry.progress, entry.progress_s) == (0.5, 3.0)


def test_what_nobody_leased_is_released_and_fails_nothing():
    ledger = ledger_with_device()
    assert not ledger.published("unknown", 7) and list(ledger.effects) == [Release("unknown", 7)]
    ledger.failed("d", 7, fatal=True)
    assert not ledger.devices["d"].failing


def test_a_device_that_may_take_any_time_is_never_late_nor_is_a_fetch_that_cannot_hang():
    ledger = Ledger(4, host_slots=3)
    strategy = STRATEGIES["wrr"](ledger, Rates())
    ledger.expect("d")
    assert strategy.late_device(1e9) is None and ledger.devices_there == ["d"]
    ledger.join("d", quota=2, window=2)
    ledger.published("d", ledger.lease("d", 3, 0.0))
    ledger.fetch(3)
    assert strategy.hanging_fetch(1e9) is None


def test_a_ready_batch_of_either_side_is_ready():
    ledger = ledger_with_device()
    assert not ledger.is_ready(0) and ledger.entry(0) is None
    claim = ledger.claim(0)
    assert not ledger.is_ready(0)
    ledger.made(claim)
    assert ledger.is_ready(0) and list(ledger.ready_host) == [0]
    lease = ledger.lease("d", 3, 0.0)
    ledger.published("d", lease)
    assert ledger.fetch(3, now=2.0) == ("d", lease) and ledger.fetching == {lease: ("d", 2.0)}
    assert not ledger.is_ready(3)
    ledger.verified(lease)
    assert ledger.is_ready(3) and list(ledger.ready_csd) == [3] and ledger.free_fetch_slots == 1
    ledger.deliver(3)
    assert not ledger.is_ready(3) and not ledger.ready_csd and ledger.free_fetch_slots == 2


def test_no_step_but_those_of_the_tables():
    ledger = ledger_with_device()
    lease = ledger.lease("d", 3, 0.0)
    with pytest.raises(LedgerError, match="batch 3: FETCH of the device's copy, LEASED"):
        ledger.fetch(3)
    ledger.published("d", lease)
    with pytest.raises(LedgerError, match="batch 3 is not free"):
        ledger.lease("d", 3, 0.0)


def test_a_batch_that_the_host_is_making_stays_with_it_when_the_device_fails():
    ledger = ledger_with_device()
    lease, claim = ledger.lease("d", 3, 0.0), ledger.claim(3)
    ledger.failed("d", lease)
    assert not ledger.returned and ledger.entry(3).lease is None and ledger.wanted(claim)
    assert ledger.made(claim) and not ledger.effects and ledger.deliver(3) is Side.HOST


def test_a_device_that_retires_finishes_what_it_has_and_gets_no_more():
    ledger = ledger_with_device(6, window=6)
    published, begun = ledger.lease("d", 5, 0.0), ledger.lease("d", 4, 0.0)
    ledger.published("d", published)
    account = ledger.devices["d"]
    assert not ledger.retired and ledger.devices_there == ["d"]
    ledger.retire("d")
    assert ledger.retired and ledger.devices_there == [] and not ledger.can_lease("d")
    assert not ledger.effects and not ledger.returned and ledger.published("d", begun)
    for position, lease in ((5, published), (4, begun)):
        assert not account.has_retired, "this process still has to fetch a batch"
        ledger.fetch(position)
        assert ledger.verified(lease)
    assert account.has_retired
    ledger.leave("d", now=0.0)
    assert not account.has_retired, "it is gone"
    ledger.join("d", quota=8, window=2)
    assert ledger.can_lease("d") and ledger.devices_there == ["d"] and not account.has_retired, "it may come back"


def test_leases_that_a_retiring_device_will_not_begin_come_back():
    ledger = ledger_with_device(6, window=6)
    leases = [ledger.lease("d", position, 0.0) for position in (5, 4, 3)]
    claim = ledger.claim(3)
    ledger.retire("d", begun=[leases[0]])
    assert list(ledger.devices["d"].outstanding) == [leases[0]] and ledger.devices["d"].held == 1
    assert list(ledger.effects) == [Release("d", leases[1], unpublished=True), Release("d", leases[2], unpublished=True)]
    assert list(ledger.returned) == [4] and ledger.wanted(claim), "the host makes batch 3 already"
    assert (ledger.taken_back, ledger.came_back) == (2, 0) and ledger.devices["d"].failures == 0, "no failure"
    ledger.retire("d", begun=())
    assert list(ledger.returned) == [4, 5] and ledger.devices["d"].has_retired


def test_a_device_that_retires_before_it_has_joined_is_not_waited_for():
    ledger = Ledger(4, host_slots=3)
    ledger.expect("d")
    assert ledger.devices_there == ["d"] and not ledger.devices["d"].retiring
    ledger.retire("d")
    assert ledger.devices_there == [] and not ledger.devices["d"].has_retired, "it was never there"


def test_a_device_tells_its_computer_when_it_joins():
    ledger = Ledger(4, host_slots=3)
    ledger.expect("d")
    assert ledger.devices["d"].node == ""
    ledger.join("d", quota=2, window=2, node="node7")
    assert ledger.devices["d"].node == "node7"
    ledger.join("d", quota=2, window=2)
    assert ledger.devices["d"].node == ""
