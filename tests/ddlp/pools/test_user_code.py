"""`LocalPool(user_code=True)`: the user's own data set, transform and collate_fn in processes of the pool."""

from __future__ import annotations

import os
import pickle
import re
import signal
import time
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import BatchSampler, SequentialSampler, SubsetRandomSampler

from ddlp import CardPool, DDLPLoader, LocalPool
from ddlp.errors import Untranslatable
from ddlp.pools.base import nodes_of
from ddlp.sources.usercode.process import ProcessNode
from ddlp.sources.usercode.work import pickled
from tests.ddlp.faults.scene import descendants, train, until
from tests.ddlp.pools.user_code import (
    BATCH,
    Here,
    Images,
    Raises,
    Records,
    Stream,
    check,
    make_loader,
    own_type,
    ragged,
    sometimes_own_type,
)
from tests.engine_process import alive


def node_pids() -> list[int]:
    return sorted(p.pid for p in descendants() if "-m ddlp.sources.usercode.process " in p.command)


class Kept(ProcessNode):
    """A node whose process, which takes seconds to start, goes from test to test."""

    under_way = 0

    def submit(self, task: int, batch: Any) -> None:
        self.under_way += 1
        super().submit(task, batch)

    def result(self) -> Any:
        try:
            return super().result()
        finally:
            self.under_way -= 1

    def close(self) -> None:
        """Leave it alone. The thread that has given it tasks takes their answers."""


class Pool:
    """A pool of nodes that are kept; one that was killed is replaced."""

    user_code = True

    def __init__(self) -> None:
        self.number = 1
        self.kept = {"node 1": Kept()}
        self.spare = Kept()  # for the test that kills one
        for node in (self.spare, self.kept["node 1"]):
            node._start()
        for node in (self.spare, self.kept["node 1"]):
            node.begin(pickled(make_loader(Records(), None)))  # now it has imported torch, which takes seconds

    def want(self, engines: int) -> None:
        self.number = engines

    def engines(self) -> Mapping[str, Any]:
        return {}

    def nodes(self) -> Mapping[str, Any]:
        return {f"node {k}": partial(self.start, f"node {k}") for k in range(1, self.number + 1)}

    def start(self, name: str) -> Kept:
        node = self.kept.get(name)
        if node is None or (node._process is not None and node._process.poll() is not None):
            node, self.spare = self.spare, Kept()
            self.kept[name] = node
        until(lambda: not node.under_way, 30, "the end of its tasks for another loader")
        return node


@pytest.fixture(scope="module")
def pool() -> Any:
    one = Pool()
    yield one
    for node in (*one.kept.values(), one.spare):
        ProcessNode.close(node)


def nodes_joined(loader: DDLPLoader, number: int = 1) -> None:
    until(lambda: sum(one.alive for one in loader.live().devices) == number, 90, f"{number} nodes")


def nodes_published(loader: DDLPLoader, number: int = 1) -> None:
    """Wait until so many nodes have joined this epoch and made batches, in this epoch or one before: rates are remembered."""

    def joined() -> bool:
        return sum(one.alive and bool(one.rate) for one in loader.live().devices) == number

    until(joined, 40, f"batches of {number} nodes")


def out(loader: DDLPLoader) -> None:
    """Wait until the pool has said that it takes no part."""
    until(lambda: any("it takes no part" in note for note in loader.report().notes), 40, "a reason")


@pytest.mark.parametrize("strategy", ("ordered", "wrr", "csd", "mte", "auto"))
@pytest.mark.some(3)
def test_each_batch_once_with_the_hosts_bits(limited, pool, told, strategy):
    more = {"ratio": 0.5} if strategy == "mte" else {}
    loader = make_loader(Records(), strategy, pool=pool, **more)
    for epoch in range(2):
        batches = train(loader, at={} if strategy == "auto" else {0: lambda: nodes_published(loader)})  # auto lets it rest
        check(batches, Records(), epoch, in_order=strategy == "ordered")
        report = loader.report()
        assert (report.batches_csd > 0 or strategy == "auto") and (strategy != "csd" or report.batches_cpu == 0)
    assert not len(told), list(told)


@pytest.mark.parametrize(
    "options",
    [
        dict(collate_fn=ragged), dict(shuffle=True, generator=0), dict(persistent_workers=True, drop_last=True),
        dict(batch_size=None), dict(sampler=SubsetRandomSampler(range(10, 50)), generator=0),
    ],
    ids=lambda options: "-".join(options),
)  # fmt: skip
@pytest.mark.some(3)
def test_dataloaders_arguments_mean_the_same(limited, pool, options):
    def loader(**more: Any) -> DDLPLoader:
        given = dict(options, generator=torch.Generator().manual_seed(0)) if "generator" in options else dict(options)
        if "sampler" in given:
            given["sampler"] = SubsetRandomSampler(range(10, 50), generator=given["generator"])
        return DDLPLoader(Records(), **{"batch_size": BATCH, "num_workers": 2, "seed": 3, **given, **more})

    one = loader(pool=pool, strategy="ordered")
    for _ in range(2):
        host = loader()
        host.set_epoch(one._progress.epoch)
        expected = list(host) if "generator" not in options or not one._progress.epoch else None
        batches = train(one, at={0: lambda: nodes_published(one)})
        assert one.report().batches_csd
        if expected is not None:
            assert pickle.dumps(batches) and repr(batches) == repr(expected)


@pytest.mark.parametrize("action", ["ignore", "error"])
def test_pillows_limit_and_the_filters_hold_on_a_node(limited, pool, tmp_path, monkeypatch, action):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 25_000)
    with warnings.catch_warnings():
        warnings.simplefilter(action, Image.DecompressionBombWarning)
        loader = make_loader(Images(str(tmp_path)), "csd", pool=pool)
        iterator, kinds = iter(loader), list[type]()
        while True:
            try:
                next(iterator)
            except StopIteration:
                break
            except Exception as error:
                kinds.append(type(error))
    warned = [Image.DecompressionBombWarning] if action == "error" else []
    assert kinds == [*warned, Image.DecompressionBombError] and loader.report().batches_csd > 0


def test_a_state_in_mid_epoch_goes_on_with_and_without_the_pool(limited, pool):
    def loader(**more: Any) -> DDLPLoader:
        return make_loader(Records(), shuffle=True, generator=torch.Generator().manual_seed(1), **{"strategy": None, **more})

    whole, first = list(loader()), loader(pool=pool, strategy="ordered")
    iterator = iter(first)
    head = [next(iterator) for _ in range(3)]
    state = first.state_dict()
    del iterator
    for more in ({}, dict(pool=pool, strategy="ordered")):
        rest = loader(**more)
        rest.load_state_dict(pickle.loads(pickle.dumps(state)))
        assert repr([*head, *rest]) == repr(whole)


def test_a_killed_node_is_replaced_in_the_same_epoch(limited, pool, told, monkeypatch):
    monkeypatch.setattr("ddlp.process.pauses.FIRST_PAUSE_S", 0.1)
    loader = make_loader(Records(80, 0.02), "wrr", pool=pool)

    def kill() -> None:
        nodes_published(loader)
        os.kill(pool.kept["node 1"]._process.pid, signal.SIGKILL)
        until(lambda: any("it was gone, and is back" in note for note in loader.report().notes), 40, "its replacement")

    check(train(loader, at={2: kill}), Records(80, 0.0), in_order=False)
    assert len(told) == 1 and "has ended, with code -9" in told[0], list(told)


def test_a_real_pool_leaves_nothing_and_grows_and_shrinks(leaves_nothing, told):
    before = node_pids()

    def begun() -> list[int]:
        return [pid for pid in node_pids() if pid not in before]

    def trained(pool: LocalPool) -> tuple[Any, int]:
        """An iterator whose loader is gone, and the process of its node."""
        loader = make_loader(Records(120, 0.01), "wrr", pool=pool)

        def grow() -> None:
            pool.want(2)
            nodes_joined(loader, 2)
            pool.want(1)

        check(train(loader, at={1: grow}), Records(120, 0.0), in_order=False)
        until(lambda: len(begun()) == 1, 30, "the end of the second")
        (pid,) = begun()
        check(train(loader, at={0: lambda: nodes_published(loader)}), Records(120, 0.0), 1, in_order=False)
        assert begun() == [pid] and not len(told)
        return iter(loader), pid

    iterator, pid = trained(LocalPool(1, user_code=True))
    next(iterator)
    assert alive(pid)  # the iterator holds the node
    del iterator
    until(lambda: not alive(pid), 30, "its end")


def test_a_first_batch_comes_before_any_node(limited, monkeypatch):
    monkeypatch.setattr(ProcessNode, "begin", lambda *_: time.sleep(30))
    next(iter(make_loader(Records(), pool=LocalPool(1, user_code=True))))


def test_the_users_code_is_sent_anew_when_it_has_changed(limited, pool):
    data = Records()
    loader = make_loader(data, pool=pool)
    train(loader, at={0: lambda: nodes_published(loader)})
    data.transform = torch.neg
    batches = train(loader, at={0: lambda: nodes_published(loader)})
    assert loader.report().batches_csd
    check(batches, data, 1)


def test_a_bad_sample_raises_its_own_error_in_its_batchs_place(limited, pool):
    loader = make_loader(Raises(), pool=pool)
    iterator = iter(loader)
    next(iterator)
    nodes_published(loader)
    with pytest.raises(OSError, match="record 17 is damaged"):
        list(iterator)
    assert len(list(iterator)) == 10  # it goes on after it


@pytest.mark.parametrize(
    ("dataset", "collate", "said"),
    [
        (Here(), None, "it makes another batch of the epoch's first sample than the host"),
        (Records(), own_type, "can't be sent: the batch is a .*Sums"),
        (Records(), lambda batch: [one["x"].to_sparse() for one in batch], r"sent: the batch\[0\] is a tensor .*sparse"),
    ],
)
@pytest.mark.some(2)
def test_what_a_node_would_make_otherwise_stays_on_the_host_with_a_reason(limited, pool, told, dataset, collate, said):
    pool.want(1)
    loader = make_loader(dataset, "wrr", pool=pool, collate_fn=collate)
    for _ in range(2):
        assert len(train(loader, at={2: lambda: out(loader)})) == 15
        assert loader.report().batches_csd == 0
    (text,) = list(told)
    assert re.search(said, text), text
    with pytest.raises(Exception, match=said):
        list(make_loader(dataset, "csd", pool=pool, collate_fn=collate))


def test_single_batches_that_are_no_trees_are_made_by_the_host(limited, pool, told):
    loader = make_loader(Records(), "wrr", pool=pool, collate_fn=sometimes_own_type)
    batches = train(loader, at={0: lambda: nodes_published(loader)})
    assert sorted(int(index) for batch in batches for index in batch["index"]) == list(range(60))
    for batch in batches:
        assert (type(batch).__name__ == "Sums") == (int(batch["index"][0]) % 3 == 2)
    assert len(told) <= 1, list(told)


@pytest.mark.parametrize(
    ("dataset", "options", "said"),
    [
        (Stream(), {}, "an IterableDataset has no indices"),
        (Records(), dict(num_workers=0), "with num_workers=0"),
        (Records(), dict(worker_init_fn=print), "worker_init_fn"),
        (Records(), dict(record="unused"), "record="),
        (Records(), dict(sampler=["a"]), "list is your own sampler"),
        (Records(), dict(sampler=SubsetRandomSampler([-1])), "SubsetRandomSampler has indices that are no numbers from 0"),
        (Records(), dict(batch_size=None, sampler=BatchSampler(SequentialSampler("abc"), 2, False)), "that gives lists"),
    ],
)
@pytest.mark.filterwarnings("ignore:ddlp")
def test_it_says_why_the_pool_takes_no_part(dataset, options, said):
    pool = LocalPool(1, user_code=True)
    loader = DDLPLoader(dataset, **{"num_workers": 1, "strategy": "wrr", **options}, pool=pool)
    text = loader.explain()
    assert said in text and "torch's own workers prepare everything" in text
    with pytest.raises(Untranslatable):
        DDLPLoader(dataset, **{"num_workers": 1, **options}, strategy="csd", pool=pool)


def test_explain_says_what_goes_to_the_pool():
    text = make_loader(Records(), pool=LocalPool(2, user_code=True)).explain()
    assert "in torch's own workers on this host, and on the pool" in text
    assert "pool       2 engines in processes on this machine, also for user code: gets the data set" in text
    assert "as in DataLoader" in make_loader(Records(), pool=LocalPool(2)).explain()


def test_only_pools_that_are_asked_to_run_user_code(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (cards := tmp_path / "cards").mkdir(mode=0o700)
    assert nodes_of(CardPool(cards)) is None
    assert nodes_of(LocalPool(2)) is nodes_of(None) is None
    assert list(nodes_of(LocalPool(2, workers=2, user_code=True))()) == [
        "pool engine 1.1", "pool engine 1.2", "pool engine 2.1", "pool engine 2.2",
    ]  # fmt: skip


SCRIPT = """
import os, time
from torch.utils.data import Dataset
from ddlp import DDLPLoader, LocalPool

class Mine(Dataset):
    def __len__(self): return 40
    def __getitem__(self, index): time.sleep(0.01); return index, (lambda: "x")()

if __name__ == "__main__":
    loader = DDLPLoader(Mine(), 4, num_workers=1, strategy="wrr", pool=LocalPool(1, user_code=True))
    for step, batch in enumerate(loader):
        while step == 0 and not any(one.rate for one in loader.live().devices):
            time.sleep(0.05)
        if step == 3:
            os.kill(os.getpid(), 9)
"""


def test_a_scripts_own_class_goes_there_and_a_killed_script_leaves_no_process(forks, tmp_path):
    ran = forks.run(code=SCRIPT, environment={**os.environ, "DDLP_TEST_MARK": str(tmp_path)})
    assert ran.returncode == -9, ran.stderr
    until(lambda: not _marked(str(tmp_path)), 30, "the end of its processes")


def _marked(mark: str) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                found += [pid] if mark.encode() in file.read() else []
        except OSError:
            pass
    return found
