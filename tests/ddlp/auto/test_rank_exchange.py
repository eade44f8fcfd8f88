"""What ranks say to each other by torch's store: controllers that train in step, and the threads with a real TCPStore."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist

from ddlp.auto import rank_exchange
from ddlp.auto.agreement import LATE, Agreed, Agreement
from ddlp.auto.controller import RETRY, WINDOW, Controller
from ddlp.auto.measured import Measured, OffloadPath
from ddlp.auto.rank_exchange import KEPT, RankExchange, agreement_of
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from tests.ddlp.auto.test_agreement import window
from tests.engine_process import until


class Rank:
    """A rank that trains: its controller, and the seconds that its host, its step and the device take for a batch."""

    def __init__(self, agreement: Agreement | None, host_s: float, step_s: float, device_s: float = 0.012) -> None:
        self.host_s, self.step_s, self.device_s = host_s, step_s, device_s
        self.cpu_s: float | None = None  # of the host; None: all of its time
        self.controller = Controller(Rates(), processors=2.0, agreement=agreement)
        self.exchange = None if agreement is None else RankExchange(agreement)
        self.ledger = Ledger(10**6, host_slots=4)
        self.ledger.expect("d", 0.0)
        self.join()
        self.controller.begin(self.ledger)
        self.history: list[str] = []  # each decision once, in turn
        self.measured: list[Measured] = []  # what each was made from
        self.told: list[str] = []

    def join(self) -> None:
        self.ledger.join("d", quota=8, window=2)

    def leave(self) -> None:
        self.ledger.leave("d", 0.0)

    @property
    def works(self) -> bool:
        return self.ledger.devices["d"].at_work and "d" not in self.controller.rates.resting

    @property
    def data_s(self) -> float:
        """Seconds a batch of all that makes batches for this rank."""
        return 1 / (1 / self.host_s + (1 / self.device_s if self.works else 0.0))

    @property
    def own_s(self) -> float:
        """Seconds a batch without other ranks."""
        return max(self.step_s, self.data_s)

    def train(self, took_s: float) -> None:
        """A batch, ``took_s`` after the one before. A rank that waits for others has the next one ready meanwhile."""
        controller, rates = self.controller, self.controller.rates
        waited_s = max(0.0, took_s - self.step_s) if self.data_s >= took_s else 0.0
        rates.host.add(self.host_s)
        rates.host_cpu.add(self.host_s if self.cpu_s is None else self.cpu_s)
        rates.trained(took_s - waited_s)
        if self.works:
            rates.device("d").add(self.device_s)
        if (news := controller.delivered(waited_s, took_s - waited_s, 1.0)) is not None:
            self.told.append(news)
        if controller.decision is not None and controller.decision.why not in self.history[-1:]:
            assert controller.measured is not None
            self.history.append(controller.decision.why)
            self.measured.append(controller.measured)


class Team:
    """Ranks that train in step, and look into the store now and then."""

    def __init__(self, *ranks: tuple[float, float], look: float = 1.0, known: Measured | None = None) -> None:
        self.store, self.look, self.rng = dist.HashStore(), look, random.Random(1)
        self.ranks = [
            Rank(Agreement("n", number, len(ranks), ("d",)), host_s, step_s) for number, (host_s, step_s) in enumerate(ranks)
        ]
        lead = self.ranks[0].controller
        if known is not None:
            lead.know(known)
            assert lead.agreement is not None
            lead.agreement.known = known
            lead.begin(self.ranks[0].ledger)

    def train(self, batches: int, silent: tuple[int, ...] = ()) -> Team:
        """``silent``: ranks that do not look into the store."""
        for _ in range(batches):
            took_s = max(one.own_s for one in self.ranks)
            for number, one in enumerate(self.ranks):
                one.train(took_s)
                if number not in silent and one.exchange is not None and self.rng.random() < self.look:
                    one.exchange.look(self.store)
        return self

    def agreed(self) -> list[Agreed]:
        """All that was agreed, if it is no more than the store keeps."""
        return [Agreed.from_json(self.store.get(f"agreed/{number}")) for number in range(self.store.add("agreed", 0))]

    @property
    def histories(self) -> list[list[str]]:
        return [one.history for one in self.ranks]


def agree(histories: list[list[str]], lag: int = 0) -> list[str]:
    """The longest history, if each is its beginning and lacks at most the last ``lag``."""
    longest = max(histories, key=len)
    assert all(one == longest[: len(one)] and len(longest) - len(one) <= lag for one in histories), histories
    return longest


def alone(host_s: float, step_s: float, took_s: float, batches: int = 400) -> Rank:
    one = Rank(None, host_s, step_s)
    for _ in range(batches):
        one.train(max(took_s, one.own_s))
    return one


# -- in step -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slow", "look"), [(0, 1.0), (1, 0.05), (3, 0.05)])
def test_all_ranks_go_by_the_one_whose_host_is_slowest(slow, look):
    given = [(0.002, 0.006)] * 4
    given[slow] = (0.018, 0.006)
    team = Team(*given, look=look).train(600)
    history = agree(team.histories, lag=1)
    assert "With d by stream" in history[0] and all(one.works and not one.told for one in team.ranks)
    measured = team.ranks[slow].measured[0]
    assert all(one.measured[0] == measured for one in team.ranks)
    assert measured.step_s == pytest.approx(0.006) and measured.host_batches_per_s == pytest.approx(1 / 0.018)
    assert f"All 4 ranks go by the figures of the slowest, rank {slow}." in team.ranks[2].controller.note()
    by_itself = alone(0.002, 0.006, took_s=0.018)
    assert "Training does not wait" in by_itself.history[0] and not by_itself.works, "it sees no reason"


def test_they_follow_each_change_together():
    team = Team((0.002, 0.006), (0.018, 0.006), look=0.2).train(400)
    team.ranks[1].host_s = 0.002
    team.train(3 * RETRY)
    history = agree(team.histories, lag=1)
    assert "With d" in history[0] and "Training does not wait" in history[-1]
    assert not any(one.works for one in team.ranks)
    team.ranks[0].host_s = 0.018
    team.train(3 * RETRY)
    assert "With d" in agree(team.histories, lag=1)[-1] and all(one.works for one in team.ranks)
    states = [vars(one.controller) for one in team.ranks]
    same = ("decision", "measured", "stopped", "_alone", "_not_before", "_retries", "_slow", "_changed_at", "_changed_rates")
    for name in same:
        assert states[0][name] == states[1][name], name


def test_offloading_that_harms_ends_on_all_ranks_and_is_told_once():
    team = Team((0.012, 0.001), (0.012, 0.001), (0.012, 0.001)).train(400)
    assert all(one.works for one in team.ranks)
    for one in team.ranks:  # the host waits for the disk that the device reads from
        one.host_s, one.device_s, one.cpu_s = 0.030, 0.036, 0.012
    team.train(4 * WINDOW)
    agree(team.histories)
    assert not any(one.works for one in team.ranks)
    (text,) = team.ranks[0].told
    assert "with d, and the host alone takes 0.012 s: it rests, and a try follows after 1,000 batches" in text
    assert not team.ranks[1].told and not team.ranks[2].told
    assert all("so they rest." in one.controller.note() for one in team.ranks)


# -- beginning and end -------------------------------------------------------------------------------------------------


def test_all_ranks_begin_with_what_rank_0_remembers():
    known = Measured(step_s=0.001, host_batches_per_s=1 / 0.012, paths=(OffloadPath("d", batches_per_s=80.0),))
    team = Team((0.012, 0.001), (0.012, 0.001), known=known)
    team.train(3)
    assert all(one.works and len(one.history) == 1 and one.measured == [known] for one in team.ranks)
    team.train(300)
    agree(team.histories)
    assert all(one.works for one in team.ranks)


def test_without_rank_0_each_rank_goes_on_from_where_it_was():
    team = Team((0.018, 0.006), (0.018, 0.006), (0.002, 0.006)).train(400)
    before = agree(team.histories)
    team.train(WINDOW + 2 * LATE + 50, silent=(0,))
    by_itself = "decides by itself from now on which devices take part: "
    for number, (one, who) in enumerate(zip(team.ranks, ("the store", "rank 0", "rank 0"), strict=True)):
        assert one.controller.agreement is None
        assert one.told == [f"rank {number} {by_itself}{who} has said nothing for {2 * LATE} batches."]
    team.train(RETRY)
    assert [one.works for one in team.ranks] == [True, True, False], "the third one never waits for data"
    assert all(one.history[: len(before)] == before for one in team.ranks)


def test_the_store_does_not_grow():
    team = Team((0.012, 0.001), (0.012, 0.001)).train((KEPT + 5) * 110)
    most = team.store.num_keys()
    team.train(10 * 110)
    assert team.store.num_keys() == most


# -- the threads -------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[tuple[Any, dict[str, str]]]:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}


def ours() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "ddlp-ranks"]


def test_threads_bring_ranks_together_over_several_epochs(server):
    _, environment = server
    ranks = [Rank(Agreement("n", number, 2, ("d",)), 0.002 + 0.016 * number, 0.006) for number in range(2)]
    for _ in range(4):
        exchanges = []
        for one in ranks:
            assert one.controller.agreement is not None
            exchanges.append(RankExchange(one.controller.agreement, environment))
            exchanges[-1].start()
        for batch in range(60):
            took_s = max(one.own_s for one in ranks)
            for one in ranks:
                one.train(took_s)
            agreements = [one.controller.agreement for one in ranks]
            until(lambda: all(one.heard for one in agreements))  # noqa: B023
            if batch < 59 and all(one.offered for one in agreements):  # at the end the next epoch's threads go on with it
                until(lambda: all(one._inbox for one in agreements))  # noqa: B023
        for one in exchanges:
            one.close()
        assert not ours()
    assert "With d" in agree([one.history for one in ranks])[0] and not ranks[0].told and not ranks[1].told


def test_a_store_that_ends_leaves_each_rank_to_itself():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    agreement = Agreement("n", 0, 2)
    exchange = RankExchange(agreement, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)})
    exchange.start()
    until(lambda: agreement.heard)
    del store
    agreement.take()
    agreement.offer(window(0.01, 0.01))
    until(lambda: agreement.lost)
    assert "the ranks' store does not answer" in agreement.lost
    exchange.close()
    assert not ours()


def test_a_store_that_is_not_there_leaves_a_rank_to_itself():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        agreement = Agreement("n", 0, 2)
        exchange = RankExchange(agreement, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused.getsockname()[1])})
        exchange.start()
        until(lambda: agreement.lost)
    assert "the ranks' store does not answer" in agreement.lost and "refused" in agreement.lost
    exchange.close()
    assert not ours()


def test_a_store_that_hangs_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(rank_exchange, "ANSWER_S", 0.5)
    monkeypatch.setattr(rank_exchange, "END_S", 0.2)
    agreement = Agreement("n", 1, 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        exchange = RankExchange(agreement, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(silent.getsockname()[1])})
        exchange.start()
        until(lambda: exchange._thread.is_alive())
        exchange.close()
        assert agreement.lost == "the ranks' store does not answer"
    until(lambda: not ours())


def test_a_rank_with_other_devices_leaves_and_is_not_waited_for(server):
    _, environment = server
    agreements = [Agreement("n", number, 2, (f"csd{number}",)) for number in range(2)]
    exchanges = [RankExchange(one, environment) for one in agreements]
    for one in exchanges:
        one.start()
    until(lambda: agreements[1].lost)
    until(lambda: agreements[0].heard)
    assert agreements[0].take() is not None
    agreements[0].offer(window(0.01, 0.01))
    until(lambda: agreements[0].heard == 2)
    assert agreements[0].absent == {1} and not agreements[0].lost
    for one in exchanges:
        one.close()
    assert not ours()


def test_without_a_process_group_a_loader_decides_alone():
    assert not dist.is_initialized() and agreement_of("kind", ("d",)) is None


@pytest.mark.parametrize("known", [False, True])
def test_ranks_that_do_not_know_where_they_meet_say_so(monkeypatch, known):
    for name in ("MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    if known:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", "29500")
    for name, value in {"is_initialized": True, "get_rank": 1, "get_world_size": 2}.items():
        monkeypatch.setattr(rank_exchange.torch.distributed, name, lambda value=value: value)
    first, second = agreement_of("kind", ("d",)), agreement_of("kind", ("d",))
    assert first is not None and second is not None
    assert bool(first.lost) is not known
    assert not known or first.name != second.name
