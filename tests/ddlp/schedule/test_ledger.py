"""The rules that close each schedule in which a batch is lost, doubled or never comes."""

import pytest

from ddlp.schedule.ledger import Cancel, Ledger, LedgerError, Release, Side
from ddlp.schedule.rates import Rates
from ddlp.schedule.states import CSD, HOST, CsdCopy, Event, HostCopy
from ddlp.schedule.strategies import STRATEGIES


def ledger_with_device(batches: int = 4, quota: int = 8, window: int = 2) -> Ledger:
    ledger = Ledger(batches, host_slots=3)
    ledger.join("d", quota=quota, window=window)
    return ledger


def test_a_batch_from_either_side_is_delivered_once():
    ledger = ledger_with_device(2)
    assert ledger.made(ledger.claim(0))
    lease = ledger.lease("d", 1, now=0.0)
    assert ledger.published("d", lease)
    ledger.fetch(1)
    assert ledger.verified(lease)
    assert ledger.deliver(0) is Side.HOST and ledger.deliver(1) is Side.CSD
    assert ledger.done and list(ledger.effects) == [Release("d", lease)]
    with pytest.raises(LedgerError, match="batch 1"):
        ledger.deliver(1)


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
    assert list(ledger.effects) == [Cancel("d", lease)]
    ledger.effects.clear()
    assert not ledger.published("d", lease), "the late copy"
    assert list(ledger.effects) == [Release("d", lease)]
    assert ledger.deliver(3) is Side.HOST


def test_first_verified_copy_wins_device_first():
    ledger = ledger_with_device()
    lease = ledger.lease("d", 3, now=0.0)
    claim = ledger.claim(3)
    ledger.published("d", lease)
    ledger.fetch(3)
    assert ledger.wanted(claim)
    assert ledger.verified(lease)
    assert not ledger.wanted(claim), "its worker may stop"
    assert ledger.free_host_slots == 2, "but it keeps its slot until it does"
    assert ledger.deliver(3) is Side.CSD
    assert not ledger.made(claim)
    assert ledger.free_host_slots == 3


def test_host_copy_made_while_the_other_is_fetched():
    ledger = ledger_with_device()
    lease = ledger.lease("d", 3, now=0.0)
    claim = ledger.claim(3)
    ledger.published("d", lease)
    ledger.fetch(3)
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
    assert not ledger.published("d", second), "a copy from a lease taken back"
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
    assert list(ledger.effects) == [Release("d", leases[2]), Release("d", leases[1])], "the first's was given back"
    assert ledger.free_fetch_slots == 1, "two are being read still"
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
    assert Cancel("d", leases[3]) in ledger.effects and ledger.devices["d"].held == 0
    assert not ledger.can_lease("d") and not ledger.devices_there
    assert ledger.made(ledger.claim(5)) and ledger.deliver(5) is Side.HOST
    assert not ledger.verified(leases[5]), "too late"
    assert ledger.free_fetch_slots == 2 and ledger.can_lease("d")


def test_a_fetch_that_hangs_gives_its_slot_back_where_the_host_was_first():
    ledger = ledger_with_device()
    lease = ledger.lease("d", 3, now=0.0)
    claim = ledger.claim(3)
    ledger.published("d", lease)
    ledger.fetch(3, now=0.0)
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
    assert list(ledger.returned) == [2, 3] and not ledger.in_spool, "what it held before is the host's"
    assert ledger.effects[-1] == Release("d", first) and ledger.devices["d"].held == 0
    ledger.lease("d", 1, now=0.0)
    ledger.lease("d", 0, now=0.0)
    assert not ledger.published("d", second) and ledger.effects[-1] == Release("d", second), "a late word of before"


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
    for lease in (*leases[:2], leases[1]):  # the last word twice
        ledger.failed("d", lease)
    assert not account.failing
    ledger.published("d", leases[2])
    for lease in leases[3:5]:
        ledger.failed("d", lease)
    assert not account.failing, "there was one between"
    ledger.failed("d", leases[5])
    assert account.failing
    assert ledger.leave("d", now=0.0) == 4
    ledger.join("d", quota=12, window=12)
    assert account.failing, "a return proves nothing"
    ledger.published("d", ledger.lease("d", 10, 0.0))
    assert not account.failing, "a batch does"
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


def test_a_failed_lease_comes_back_to_the_host_alone():
    ledger = ledger_with_device()
    ledger.failed("d", ledger.lease("d", 0, 0.0))
    assert list(ledger.returned) == [0]
    with pytest.raises(LedgerError, match="not free"):
        ledger.lease("d", 0, 0.0)
    assert ledger.made(ledger.claim(0))


def test_resume_leaves_out_what_was_delivered():
    ledger = Ledger(10, host_slots=2, delivered=[(0, 3), (8, 10)])
    assert list(ledger.free) == [3, 4, 5, 6, 7]
    with pytest.raises(ValueError, match="do not fit"):
        Ledger(5, host_slots=2, delivered=[(3, 9)])


def test_what_was_delivered_is_written_down_where_it_is_in_the_epoch():
    """A resume begins with this; whether all are there, `done`, needs their number alone."""
    ledger = ledger_with_device(6)
    lease = ledger.lease("d", 5, now=0.0)
    ledger.published("d", lease)
    ledger.fetch(5)
    ledger.verified(lease)
    ledger.made(ledger.claim(0))
    ledger.made(ledger.claim(1))
    ledger.deliver(5)
    ledger.deliver(0)
    assert list(ledger.delivered.ranges()) == [(0, 1), (5, 6)], "batch 1 is ready, no more"
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
    assert (ledger.host_slots, ledger.free_host_slots) == (6, 1), "the one that is free is kept"
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
    ledger.close()
    assert ledger.done
    with pytest.raises(LedgerError):
        ledger.extend()


def test_the_tables_hold_every_legal_step_and_no_other():
    assert all(isinstance(s, HostCopy) and isinstance(e, Event) for s, e in HOST)
    assert (HostCopy.READY, Event.DROP) not in HOST, "a verified copy is never dropped"
    assert (CsdCopy.READY, Event.DROP) not in CSD
    assert (CsdCopy.READY, Event.LOSE) in CSD, "but by distrust"
    assert {s for (s, e) in CSD if e is Event.DELIVER} == {CsdCopy.READY}
