"""What `ddlp.sources.base` promises, tested on the source of user code by a record of all calls (`contract.py`).

Its nodes are threads here, so that they start at once. `tests/ddlp/pools/test_user_code.py` has real processes.
"""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from ddlp import DDLPLoader
from ddlp.sources.usercode.nodes import Nodes
from ddlp.sources.usercode.source import UserCodeSource
from ddlp.sources.usercode.tree import encode
from ddlp.sources.usercode.wire import NodeGone
from ddlp.sources.usercode.work import MADE, Answer, Work
from tests.ddlp.faults.scene import train, until
from tests.ddlp.sources.contract import Contract

STRATEGIES = ("csd", "mte", "wrr", "ordered")
BATCHES = 30


class Numbers(Dataset[Any]):
    """Its samples can be made in any thread: nothing is drawn."""

    def __len__(self) -> int:
        return 4 * BATCHES

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.0005)
        return index, torch.full((5,), index), str(index)


class Thread:
    """A node in a thread of this process. ``dies_after``: so many answers; ``lies``: it makes other batches."""

    living: list[Thread] = []

    def __init__(self, dies_after: int = 1 << 30, lies: bool = False) -> None:
        self.left, self.lies, self.dead = dies_after, lies, threading.Event()
        self.asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.at_once = self.begun = 0
        self.living.append(self)

    def begin(self, work: Work) -> None:
        assert not self.at_once, "a task is under way"
        dataset, collate, *_ = pickle.loads(work.content)
        self.make = lambda batch: collate([dataset[index] for index in batch.indices])
        self.begun += 1

    def submit(self, task: int, batch: Any) -> None:
        self.at_once += 1
        assert self.at_once <= 2
        self.asked.put((task, batch))

    def result(self) -> Answer:
        task, batch = self.asked.get()
        if self.dead.is_set() or not self.left:
            raise NodeGone("it was pulled out")
        self.left -= 1
        self.at_once -= 1
        began = time.monotonic()
        made = encode([0] if self.lies else self.make(batch))
        return Answer(task, MADE, "", made, time.monotonic() - began)

    def close(self) -> None:
        self.dead.set()
        if self in self.living:
            self.living.remove(self)


class Pool:
    user_code = True

    def __init__(self, **first: Any) -> None:
        self.first, self.there = first, True

    def want(self, engines: int) -> None: ...

    def engines(self) -> Mapping[str, Any]:
        return {}

    def nodes(self) -> Mapping[str, Any]:
        return {"node": self.start} if self.there else {}

    def start(self) -> Thread:
        node, self.first = Thread(**self.first), {}
        return node


@pytest.fixture(autouse=True)
def clean(hard_limit: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("ddlp.process.pauses.FIRST_PAUSE_S", 0.05)
    yield
    until(lambda: not Thread.living, 30, "the end of all nodes")


@pytest.fixture
def contract(monkeypatch: pytest.MonkeyPatch) -> Contract:
    made = Contract(lambda leases, lease: leases.holds(lease))
    monkeypatch.setattr(UserCodeSource, "attach", made.watching(UserCodeSource.attach))
    return made


def make_loader(strategy: str, pool: Pool | None = None) -> DDLPLoader:
    more = {"ratio": 0.5} if strategy == "mte" else {}
    return DDLPLoader(Numbers(), 4, num_workers=1, seed=1, strategy=strategy, pool=pool or Pool(), **more)


def check(batches: list[Any]) -> None:
    """Assert that each sample came once, as it is."""
    assert sorted(int(index) for indices, _, _ in batches for index in indices) == list(range(4 * BATCHES))
    for indices, tensors, texts in batches:
        assert torch.equal(tensors, indices[:, None].expand(-1, 5)) and texts == tuple(str(int(index)) for index in indices)


def at_work(contract: Contract) -> None:
    until(lambda: contract.sinks and any(lease.published for lease in contract.sink.leases.values()), 30, "its first batch")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_batch_once(contract, strategy):
    loader = make_loader(strategy)
    for _ in range(2):
        check(train(loader, 0.002, at={0: lambda: at_work(contract)}))
        assert loader.report().batches_csd > 0 and (strategy != "csd" or loader.report().batches_cpu == 0)
    assert [node.begun for node in Thread.living] == [2]  # it is kept, and has the work of each epoch
    contract.check()
    fetched = [lease for sink in contract.sinks for lease in sink.leases.values() if lease.fetched]
    assert fetched and all(lease.ended == "released" for lease in fetched)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("how", ("dies", "pulled out"))
@pytest.mark.filterwarnings("ignore:ddlp")
@pytest.mark.some(3)
def test_lost_and_back_in_mid_epoch(contract, strategy, how):
    loader = make_loader(strategy, Pool(dies_after=4) if how == "dies" else None)
    contract.faults.publish_s = 0.02

    def lose() -> None:
        at_work(contract)
        if how != "dies":
            contract.sink.lost("node", "it was pulled out")
        until(lambda: len(contract.sink.sources) == 2, 30, "its return")

    check(train(loader, 0.002, at={0: lose}))
    assert "node: it was gone, and is back" in loader.report().notes
    contract.check()


@pytest.mark.parametrize("strategy", ("csd", "wrr"))
@pytest.mark.filterwarnings("ignore:ddlp")
def test_a_lost_one_is_waited_for_while_the_pool_does_not_have_it(contract, strategy, monkeypatch):
    taken, take = [], Nodes.take
    monkeypatch.setattr(Nodes, "take", lambda nodes, name: taken.append(name) or take(nodes, name))
    pool = Pool()
    loader = make_loader(strategy, pool)

    def lose() -> None:
        at_work(contract)
        pool.there = False
        until(lambda: not loader._parts.offload._nodes.names, 30, "the pool's word")
        contract.sink.lost("node", "it was pulled out")
        threading.Timer(1.5, setattr, (pool, "there", True)).start()

    check(train(loader, 0.002, at={0: lose, 1: lambda: until(lambda: len(contract.sink.sources) == 2, 20, "its return")}))
    assert list(loader.report().notes) == ["node: it was gone, and is back"]
    assert taken == ["node", "node"]  # no try in vain, after which it would be left alone for longer
    contract.check()


@pytest.mark.parametrize("strategy", ("csd", "wrr"))
def test_late_and_slow(contract, strategy):
    contract.faults.join_s, contract.faults.publish_s = 0.3, 0.03
    check(train(make_loader(strategy), 0.002, at={3: lambda: at_work(contract)}))
    contract.check()


@pytest.mark.filterwarnings("ignore:ddlp")
def test_damaged(contract):
    contract.faults.damaged = lambda position: position % 3 == 0
    loader = make_loader("csd")
    check(train(loader, 0.002, at={0: lambda: at_work(contract)}))
    assert loader.report().batches_cpu == 10 and loader.report().batches_csd == 20
    contract.check()


def test_broken_off(contract):
    iterator = iter(make_loader("wrr"))
    next(iterator)
    at_work(contract)
    del iterator
    until(lambda: all(source.closes for source in contract.sink.sources), 30, "its end")
    contract.check(whole=False)


def test_two_epochs_at_once_and_a_pickled_loader(contract):
    loader = make_loader("wrr")
    one, other = iter(loader), iter(loader)
    first = [next(one)]
    check([*other])
    check([*first, *one])
    copy = pickle.loads(pickle.dumps(loader))
    check(train(copy))
    contract.check()


def test_a_node_that_makes_other_samples_stays_out(contract):
    loader = make_loader("wrr", Pool(lies=True))
    with pytest.warns(UserWarning, match="node takes no part.*it makes another batch of the epoch's first sample"):
        check(train(loader, at={0: lambda: until(lambda: loader.report().notes, 60, "a note")}))
    assert not contract.sink.sources and loader.report().batches_csd == 0
