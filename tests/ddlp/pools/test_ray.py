"""`DDLPLoader(pool=RayPool())` on a real cluster of several raylets: kills, nodes that come and go, and what is left behind.

A busy machine takes minutes to start these clusters, so the tests of several nodes run with `scripts/test.sh --all`. The same
promises are held in the quick run by `test_local.py`, `test_cards.py` and `test_retire.py`, with engines that anything else has
started, and by one test here on a cluster of one node.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import pickle
import re
import signal
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from torchvision import transforms as T

from csd_engine.cache.shelves import Shelves
from csd_engine.kernels.build import LIBRARY
from csd_engine.protocol.keys import load_pair
from ddlp import Cache, DDLPLoader, ImageFiles, RayPool
from ddlp.pools.offload import pool_of
from ddlp.sources.engine.device_link import own_pair
from tests.ddlp.faults.scene import Truth, make_loader, processes, train, until
from tests.ddlp.pools.test_local import have_published, there
from tests.engine_process import alive
from tests.ray_cluster import RayCluster

ONE, BOTH = {"ray engine 1"}, {"ray engine 1", "ray engine 2"}
START_S = 300.0  # Ray starts processes, and they import a lot

with_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ddlp[ray]")


@pytest.fixture
def limited() -> None:
    """Ray on a busy machine takes longer than other tests may. All that these wait for has a limit of its own."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ended(RayCluster()) as one:
        one.add()
        one.add()
        yield one


@contextlib.contextmanager
def ended(one: RayCluster) -> Iterator[RayCluster]:
    """Leave no process of a cluster."""
    try:
        yield one
    finally:
        one.end()
    until(lambda: not of(one), START_S, f"the end of {of(one)}")


def of(cluster: RayCluster) -> list[str]:
    """The processes that belong to the cluster, those of engines and keepers too."""
    return [p.command for p in processes() if str(cluster.home) in p.environment or str(cluster.home) in p.command]


def directories(cluster: RayCluster) -> list[str]:
    """Those that engines have made."""
    return [path.name for path in cluster.home.glob("ddlp-*")]


def contents(cluster: RayCluster) -> dict[Path, bytes]:
    """The files in engines' directories. Engines remove batches meanwhile."""
    found = {}
    for home in cluster.home.glob("ddlp-*"):
        for directory, _, names in os.walk(home):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    found[Path(directory, name)] = Path(directory, name).read_bytes()
    return found


@pytest.fixture
def pool(
    cluster: RayCluster, spool: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Callable[..., RayPool]]:
    """Make pools. Their engines are so slow that they leave batches for those that come later. Nothing of them is left."""
    monkeypatch.setenv("DDLP_HOME", str(spool / "home"))
    monkeypatch.setenv("DDLP_ENGINE_SLOWDOWN", "25")
    pools: list[weakref.ref[RayPool]] = []
    failed_before = request.session.testsfailed

    def make(**options: Any) -> RayPool:
        pool = RayPool(**{"address": cluster.address, "num_cpus": 1, "max": 2, **options})
        pools.append(weakref.ref(pool))
        return pool

    yield make
    if request.session.testsfailed > failed_before:  # the test's traceback holds its pool
        for pool in filter(None, (reference() for reference in pools)):
            pool.close()
    nothing_left(cluster)


def nothing_left(cluster: RayCluster) -> None:
    def left() -> list[str]:
        gc.collect()
        engines = [command for command in of(cluster) if "csd_engine" in command or f"{cluster.home}/ddlp-" in command]
        keepers = [p.command for p in processes() if "ray_keeper" in p.command and p.parent in (1, os.getpid())]
        return [*engines, *keepers, *cluster.actors(), *directories(cluster)]

    until(lambda: not left(), START_S, f"the end of {left()}")


def wait_for(names: set[str], seen: Callable[[DDLPLoader], set[str]], loader: DDLPLoader) -> None:
    until(lambda: seen(loader) == names, START_S, f"{names}, not {seen(loader)},")


@with_ray
def test_an_engine_on_a_cluster_of_one_node(spool, monkeypatch, paths, told):
    """Its cache keeps pixels, which have one size before the first random step."""
    transform = T.Compose([T.Resize((40, 40)), T.RandomCrop(32), T.RandomHorizontalFlip(), T.ToTensor()])
    data = ImageFiles(paths, list(range(len(paths))), transform)
    truth = Truth(data)
    monkeypatch.setenv("DDLP_HOME", str(spool / "home"))
    monkeypatch.setenv("DDLP_ENGINE_SLOWDOWN", "25")
    with ended(RayCluster(cpus=1)) as cluster:
        cache = Cache(spool / "cache", "1G")
        pool = RayPool(max=1, address=cluster.address, num_cpus=1, roots=str(Path(paths[0]).parents[1]), cache=cache)
        loader = make_loader(data, "wrr", pool=pool)
        truth.check(train(loader, at={0: lambda: wait_for(ONE, have_published, loader)}))
        assert loader.report().batches_csd and not len(told), list(told)
        shelves = Shelves(cache.directory, 0)
        until(lambda: any(shelf.samples for shelf in shelves.summaries()), START_S, "what the engine has kept")
        pool.close()
        until(lambda: not directories(cluster), START_S, f"the end of {directories(cluster)}")


@with_ray
@pytest.mark.parametrize(
    ("directory", "options", "why"),
    (("/data/cache", {"roots": "/data"}, "lies below the root /data"), ("/data", {}, "lies below the root /"),
     ("/mnt/c", {"roots": ("/here=/mnt", "/data")}, "lies below the root /mnt"), ("c", {"roots": "/data"}, "begins with /"),
     ("/c", {"data": "carried"}, "keeps nothing of what this host sends")),
)  # fmt: skip
def test_a_cache_that_the_engines_would_refuse(directory: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        RayPool(cache=Cache(directory, "1G"), **options)


@with_ray
def test_roots_may_be_urls() -> None:
    pool = RayPool(roots=["/here=/there", "s3://bucket/a=b/"], cache=Cache("/mnt/cache", "1G"))
    assert pool._roots == ("/here=/there", "s3://bucket/a=b/")
    for roots in ("here", ["/here=there"], [], "/here=s3://bucket/"):
        with pytest.raises(ValueError, match="s3://bucket/"):
            RayPool(roots=roots)


@pytest.mark.slow
@with_ray
def test_each_sample_once_with_the_hosts_bits_and_no_secret_passes_ray(cluster, pool, data, truth, told):
    one = pool()
    loader = make_loader(data, "wrr", pool=one)
    assert "0 to 2 engines of 1 CPUs on the Ray cluster at" in loader.explain()

    def both() -> None:
        assert not there(loader)  # the first batch came without them
        wait_for(BOTH, have_published, loader)

    truth.check(train(loader, at={0: both}))
    assert loader.report().batches_csd
    truth.check(train(loader, at={0: lambda: wait_for(BOTH, there, loader)}), 1)
    assert not len(told), list(told)

    pair = own_pair().with_suffix(".key_secret")
    passed = json.dumps([asdict(one._settings(pair, user_code=False)), one._links[False].state])
    assert load_pair(pair).public.decode() in json.loads(passed)[0]["host_key"]
    files = contents(cluster)
    assert any(path.name == "host.key" for path in files) and not [path for path in files if "secret" in path.name]
    kernels = [home / "code/csd_engine/kernels/_kernel.so" for home in cluster.home.glob("ddlp-*")]
    assert [path.exists() for path in kernels] == 2 * [Path(LIBRARY).exists()]  # it was tried there, else it were removed
    for content in (passed.encode(), *files.values()):
        assert load_pair(pair).secret not in content


@pytest.mark.slow
@with_ray
def test_killed_engines_are_replaced_and_nodes_come_and_go(cluster, pool, data, truth):
    one = pool()
    loader = make_loader(data, "wrr", pool=one)

    def kill() -> None:
        wait_for(BOTH, have_published, loader)
        before, engines = cluster.actors(), dict(one.engines())
        assert cluster.kill(before[0])
        until(lambda: set(one.engines()) == BOTH and one.engines() != engines, START_S, "its replacement")
        wait_for(BOTH, there, loader)
        assert before[1] in cluster.actors() and before[0] not in cluster.actors()

    truth.check(train(loader, at={1: kill}))

    def remove() -> None:
        wait_for(BOTH, there, loader)
        cluster.remove(cluster.nodes()[0])
        until(lambda: len(there(loader)) == 1, START_S, "the loss of an engine")

    truth.check(train(loader, at={1: remove}), 1)

    def add() -> None:
        assert len(there(loader)) < 2
        cluster.add()
        wait_for(BOTH, there, loader)

    truth.check(train(loader, at={1: add}), 2)


@pytest.mark.slow
@with_ray
def test_engines_that_may_read_nothing_get_the_files_from_this_host(cluster, pool, data, truth, told):
    loader = make_loader(data, "wrr", pool=pool(max=1, data="carried"))
    truth.check(train(loader, at={0: lambda: wait_for(ONE, have_published, loader)}))
    (engine,) = [command for command in of(cluster) if "-m csd_engine " in command]
    assert loader.report().batches_csd and not len(told), list(told)
    assert re.findall(r"--root \S+", engine) == [f"--root {cluster.home / directories(cluster)[0] / 'nothing'}"]


@pytest.mark.slow
@with_ray
def test_an_actor_that_is_killed_before_its_engine_serves_leaves_nothing(cluster, pool):
    one = pool(max=1)
    assert not one.engines()
    until(lambda: directories(cluster), START_S, "an engine's directory")
    assert not one.engines()
    cluster.kill(cluster.actors()[0])
    one.close()


@pytest.mark.slow
@with_ray
def test_rays_autoscaler_starts_nodes_for_the_engines_that_are_wanted_and_ends_them(spool, monkeypatch, data, truth, told):
    monkeypatch.setenv("DDLP_HOME", str(spool / "home"))
    monkeypatch.setenv("DDLP_ENGINE_SLOWDOWN", "25")
    with ended(RayCluster(autoscaled=2)) as cluster:
        pool = RayPool(max=2, address=cluster.address, num_cpus=1)
        pool.want(0)
        loader = make_loader(data, "wrr", pool=pool)

        def come(engines: set[str]) -> None:
            before = cluster.running()
            pool.want(len(engines))
            wait_for(engines, have_published, loader)
            assert before < cluster.running() == len(engines)

        def gone(engines: int) -> None:
            until(lambda: cluster.running() == engines, START_S, f"{engines} nodes, not {cluster.running()},")

        truth.check(train(loader, at={0: lambda: come(BOTH), 1: lambda: pool.want(1)}))
        assert loader.report().batches_csd
        gone(1)
        truth.check(train(loader, at={0: lambda: pool.want(0)}), 1)
        gone(0)
        truth.check(train(loader, at={0: lambda: come(ONE)}), 2)
        assert not len(told), list(told)
        pool.close()
        gone(0)


@pytest.mark.slow
@with_ray
def test_a_killed_host_leaves_nothing(cluster, pool, script, spool):
    one = script(
        f"""
        import ddlp
        loader = make_loader(data, "wrr", pool=ddlp.RayPool(0, 1, {cluster.address!r}, 1))
        iterator = iter(loader)
        next(iterator)
        while not any(device.alive for device in loader.live().devices):
            time.sleep(0.01)
        said("ready" if "ray" not in sys.modules else "ray was imported")
        time.sleep(600)
        """,
        DDLP_HOME=str(spool / "home"),
    )
    until(lambda: "\n" in one._read("stdout") or not alive(one.pid), START_S, "an engine")
    assert one.line() == "ready"
    os.kill(one.pid, signal.SIGKILL)
    one.nothing_left(START_S)


@with_ray
def test_what_is_no_pool_is_refused(spool, monkeypatch):
    monkeypatch.setattr("ddlp.pools.on_ray._warn_of_strangers", lambda _: None)
    for wrong in (
        {"min": -1}, {"min": 3, "max": 2}, {"max": True}, {"num_cpus": 0}, {"address": ""}, {"address": "local"},
        {"data": "here"}, {"roots": "data"}, {"roots": "/data=there"}, {"roots": ()}, {"resources": {"a": object()}},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(wrong))):
            RayPool(**wrong)
    pool = RayPool(1, 3)
    for engines in (0, 4, 1.5, True):
        with pytest.raises(ValueError, match="want"):
            pool.want(engines)
    copy = pickle.loads(pickle.dumps(pool))
    copy.want(3)
    assert repr(copy) == repr(pool) and pool_of(pool) is pool
    with pytest.raises(ValueError, match="a ddlp.LocalPool or ddlp.RayPool"):
        pool_of(1.5)


@with_ray
def test_a_cluster_on_a_network_without_a_token_is_warned_of(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for address in ("auto", "127.0.0.1:6379", "localhost:6379", "ray://[::1]:10001"):
            RayPool(address=address)
        with pytest.raises(UserWarning, match="Ray at node7:6379 without a token runs the code of anybody"):
            RayPool(address="node7:6379")
        monkeypatch.setenv("RAY_ADDRESS", "192.0.2.7:6379")
        with pytest.raises(UserWarning, match="without a token"):
            RayPool()
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        RayPool()


def test_ray_is_imported_by_none_of_ours_and_its_absence_is_one_line(forks):
    script = """
import sys
import ddlp
assert ddlp.RayPool and "ray" not in sys.modules, "ray was imported"
sys.modules["ray"] = None
try:
    ddlp.RayPool()
except ddlp.DDLPError as error:
    print(error)
"""
    done = forks.run(code=script, environment=os.environ)
    assert done.stdout == "RayPool needs Ray, which is not installed here: pip install ddlp[ray]\n", done.stderr
