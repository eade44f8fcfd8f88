"""`RayNode`: user code in actors of a real Ray instance on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from ddlp.sources.host.keyed_samples import KeyedBatch
from ddlp.sources.usercode.executor import NodeGone, NodeUnfit
from ddlp.sources.usercode.ray_actor import RayNode
from ddlp.sources.usercode.tree import decode
from ddlp.sources.usercode.work import FAILED, MADE, Work, pickled
from tests.ddlp.faults.scene import REPOSITORY, train, until
from tests.ddlp.pools.user_code import Raises, Records, check, make_loader

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow  # a Ray instance and its actors take half a minute


class Actors:
    """A pool of actors. It remembers them, so that a test can kill one."""

    user_code = True

    def __init__(self) -> None:
        self.begun: list[RayNode] = []

    def want(self, engines: int) -> None: ...

    def engines(self) -> Mapping[str, Any]:
        return {}

    def nodes(self) -> Mapping[str, Any]:
        return {"actor": self.start}

    def start(self) -> RayNode:
        self.begun.append(RayNode(num_cpus=1))
        return self.begun[-1]


@pytest.fixture
def limited() -> None:
    """A Ray instance on a busy machine takes longer than other tests may."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_raylet_start_wait_time_s", "120")  # on a busy machine
        ray.init(
            num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", object_store_memory=100 << 20,
            log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": str(REPOSITORY)}},
        )  # fmt: skip
        yield
        ray.shutdown()


def test_an_actor_makes_the_hosts_batches_and_a_killed_one_is_replaced(cluster, monkeypatch):
    monkeypatch.setattr("ddlp.process.pauses.FIRST_PAUSE_S", 0.1)
    actors = Actors()
    loader = make_loader(Records(100, 0.01), "wrr", pool=actors)

    def published() -> None:
        until(lambda: any(one.rate for one in loader.live().devices), 120, "its first batch")

    def kill() -> None:
        published()
        ray.kill(actors.begun[0]._actor)
        until(lambda: any("it was gone, and is back" in note for note in loader.report().notes), 120, "its replacement")

    with pytest.warns(UserWarning, match=r"actor is gone \(Ray: "):
        check(train(loader, at={1: kill}), Records(100, 0.0), in_order=False)
    assert len(actors.begun) == 2
    check(train(loader, at={0: published}), Records(100, 0.0), 1, in_order=False)
    assert len(actors.begun) == 2 and loader.report().batches_csd


def test_its_answers_and_its_refusals(cluster):
    node = RayNode(num_cpus=1)
    try:
        node.begin(pickled(make_loader(Raises(20, 0.0), None)))
        node.submit(7, KeyedBatch([1, 2], None, 3, 0))
        node.submit(8, KeyedBatch([17], None, 3, 0))
        made, failed = node.result(), node.result()
        batch = decode(made.batch)
        assert (made.task, made.kind, failed.task, failed.kind) == (7, MADE, 8, FAILED) and "record 17" in failed.text
        assert batch["name"] == ["record 1", "record 2"] and torch.equal(batch["index"], torch.tensor([1, 2]))
        batch["x"].zero_()  # the memory is the batch's own
        with pytest.raises(NodeUnfit, match="it can't load the data set: UnpicklingError"):
            node.begin(Work("other", b"no pickle"))
    finally:
        node.close()
    with pytest.raises(NodeGone, match="Ray: "):
        node.begin(Work("third", b"no pickle"))
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
