"""`RayPool(user_code=True)`: the user's own data set, transform and collate_fn in actors of a real Ray cluster."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ddlp import DDLPError, RayPool
from ddlp.pools.base import nodes_of
from ddlp.sources.usercode.tree import decode
from ddlp.sources.usercode.wire import NodeGone, NodeUnfit
from ddlp.sources.usercode.work import FAILED, MADE, Work, pickled
from ddlp.sources.workers.keyed_samples import KeyedBatch
from tests.ddlp.faults.scene import REPOSITORY, train, until
from tests.ddlp.pools.test_ray import START_S, ended, nothing_left
from tests.ddlp.pools.user_code import Raises, Records, check, make_loader
from tests.ray_cluster import RayCluster

pytestmark = [
    pytest.mark.slow,  # a cluster and its actors, which import torch, take a minute of processor time
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ddlp[ray]"),
]
HERE = {"env_vars": {"PYTHONPATH": str(REPOSITORY)}}


@pytest.fixture
def limited() -> None:
    """Ray on a busy machine takes longer than other tests may."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ended(RayCluster(cpus=2)) as one:
        yield one


@pytest.fixture
def pool(cluster: RayCluster, spool: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RayPool]]:
    monkeypatch.setenv("DDLP_HOME", str(spool / "home"))
    given = {"address": cluster.address, "num_cpus": 1, "max": 1, "user_code": True, "runtime_env": HERE}
    yield lambda **options: RayPool(**{**given, **options})
    nothing_left(cluster)


def named(pool: RayPool, names: set[str]) -> dict[str, Any]:
    """What starts the pool's nodes, once they are these."""
    return until(lambda: set(pool.nodes()) == names and dict(pool.nodes()), START_S, f"{names}")


def test_a_killed_actor_is_replaced_and_each_batch_comes_once_with_the_hosts_bits(cluster, pool):
    one = pool()
    loader = make_loader(Records(100, 0.01), "wrr", pool=one)
    assert "also for user code: gets the data set" in loader.explain()

    def published() -> None:
        until(lambda: any(one.rate for one in loader.live().devices), START_S, "its first batch")

    def leased() -> None:  # the rate is known from the epoch before
        until(lambda: any(one.held for one in loader.live().devices), START_S, "a lease")

    def kill() -> None:
        assert not any(one.alive for one in loader.live().devices)  # the first batch came without it
        published()
        (before,) = cluster.actors()
        assert cluster.kill(before)
        until(lambda: any("it was gone, and is back" in note for note in loader.report().notes), START_S, "its replacement")
        assert before not in cluster.actors()

    check(train(loader, at={1: kill}), Records(100, 0.0), in_order=False)
    (actor,) = cluster.actors()
    check(train(loader, at={0: leased}), Records(100, 0.0), 1, in_order=False)
    assert cluster.actors() == [actor] and loader.report().batches_csd


def test_two_loaders_share_an_actor_and_it_gives_answers_and_refusals(pool):
    one = pool(num_cpus=2)
    start = list(named(one, {"ray engine 1.1", "ray engine 1.2"}).values())[0]
    node, other = start(), start()
    node.begin(pickled(make_loader(Raises(20, 0.0), None)))
    other.begin(pickled(make_loader(Records(20, 0.0), None)))
    for some in (node, other):
        some.submit(7, KeyedBatch([1, 2], None, 3, 0))
        some.submit(8, KeyedBatch([17], None, 3, 0))
    made, failed, other_made, other_17 = node.result(), node.result(), other.result(), other.result()
    assert (made.task, made.kind, failed.task, failed.kind) == (7, MADE, 8, FAILED) and "record 17" in failed.text
    assert other_17.kind == MADE and made.batch.same_as(other_made.batch)
    batch = decode(made.batch)
    assert batch["name"] == ["record 1", "record 2"] and torch.equal(batch["index"], torch.tensor([1, 2]))
    batch["x"].zero_()  # the memory is the batch's own
    with pytest.raises(NodeUnfit, match="it can't load the data set: UnpicklingError"):
        node.begin(Work("other", b"no pickle"))
    node.close()
    other.begin(pickled(make_loader(Records(20, 0.0), None)))
    other.submit(9, KeyedBatch([3], None, 3, 0))
    assert other.result().kind == MADE  # the other loader's end is nothing to it
    one.close()
    with pytest.raises(NodeGone):
        other.submit(10, KeyedBatch([3], None, 3, 0))
        other.result()
    with pytest.raises(NodeGone, match="does not answer: it has ended"):
        start().begin(Work("third", b""))


def test_actors_without_ddlp_are_told_of_and_the_host_works_alone(cluster, pool, told, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    one = pool(runtime_env={"env_vars": {"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}})
    loader = make_loader(Records(), "wrr", pool=one)

    def tried() -> None:
        def trouble() -> str:
            try:
                return "" if one.nodes() else ""
            except DDLPError as error:
                return str(error)

        assert "does not start in a Ray actor: no torch here" in until(trouble, START_S, "the trouble")

    check(train(loader, at={0: tried}), Records(), in_order=False)
    assert not loader.report().batches_csd


def test_only_a_pool_that_is_asked_to_runs_user_code():
    assert nodes_of(RayPool()) is None and nodes_of(RayPool(user_code=True)) is not None
