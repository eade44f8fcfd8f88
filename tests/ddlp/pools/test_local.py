"""`DDLPLoader(pool=N)`: engines in processes on this machine, with kills, late ones, and what is left behind."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from csd_engine.errors import EngineUnreachable
from ddlp import DDLPLoader, LocalPool
from ddlp.sources.engine import connections
from ddlp.sources.engine.embedded import EmbeddedEngine
from tests.ddlp.faults.scene import ENGINE, descendants, device, make_loader, train, until
from tests.engine_process import alive

BOTH = {"pool engine 1", "pool engine 2"}


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine is so slow that it leaves batches for one that comes later."""
    monkeypatch.setenv("DDLP_ENGINE_SLOWDOWN", "25")


def engine_pids() -> list[int]:
    return sorted(p.pid for p in descendants() if f"-m {ENGINE} " in p.command)


def there(loader: DDLPLoader) -> set[str]:
    """The engines that take part."""
    return {one.name for one in loader.live().devices if one.alive}


def have_published(loader: DDLPLoader) -> set[str]:
    """The engines that have made a batch."""
    return {one.name for one in loader.live().devices if one.rate}


def wait_for(names: set[str], seen: Callable[[DDLPLoader], set[str]], loader: DDLPLoader) -> None:
    until(lambda: seen(loader) == names, 30, f"{names}, not {seen(loader)},")


def test_each_sample_once_with_the_hosts_bits(leaves_nothing, slow, data, truth, told):
    loader = make_loader(data, "ordered", pool=2)
    truth.check(train(loader, at={0: lambda: wait_for(BOTH, have_published, loader)}), 0)
    assert loader.report().batches_csd and len(engine_pids()) == 2
    truth.check(train(loader), 1)
    assert not len(told)


def test_it_brings_a_strategy_and_is_explained(data):
    text = make_loader(data, None, pool=LocalPool(1)).explain()
    assert "ordered (by default)" in text and "pool       1 engine in processes on this machine" in text
    text = make_loader(data, None, pool=2, shuffle=True).explain()
    assert "auto (by default)" in text and "pool       2 engines in processes on this machine" in text
    assert not engine_pids()  # they start with the first epoch


def test_an_epoch_never_waits_for_it_nor_one_engine_for_another(leaves_nothing, data, truth, monkeypatch):
    all_three, await_ready = threading.Barrier(3, timeout=300), EmbeddedEngine._await_ready

    def late(engine: EmbeddedEngine) -> str:
        all_three.wait()
        return await_ready(engine)

    monkeypatch.setattr(EmbeddedEngine, "_await_ready", late)
    loader = make_loader(data, "ordered", pool=2)
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(5)]
    assert not there(loader)
    all_three.wait()  # both engines have begun to start
    wait_for(BOTH, there, loader)  # they join in mid-epoch
    truth.check([*batches, *iterator])


def test_a_killed_engine_is_replaced_in_the_same_epoch(leaves_nothing, slow, data, truth, told, monkeypatch):
    monkeypatch.setattr("ddlp.process.pauses.FIRST_PAUSE_S", 0.1)
    loader = make_loader(data, "wrr", pool=2)

    def kill() -> None:
        wait_for(BOTH, have_published, loader)
        before = engine_pids()
        os.kill(before[0], signal.SIGKILL)
        until(lambda: any("it was gone, and is back" in note for note in loader.report().notes), 30, "its replacement")
        assert len(engine_pids()) == 2 and before[0] not in engine_pids() and before[1] in engine_pids()

    truth.check(train(loader, at={3: kill}))
    assert len(told) == 1 and "pool engine" in told[0] and "is gone" in told[0], list(told)


def test_its_processes_live_as_long_as_the_loaders_that_share_them(spool, data, truth, monkeypatch):
    monkeypatch.setattr(connections, "LINGER_S", 0.0)

    def epochs_of_two_loaders() -> list[int]:
        loader, another = make_loader(data, "wrr", pool=2), make_loader(data, "wrr", pool=2)
        truth.check(train(loader, at={0: lambda: wait_for(BOTH, there, loader)}))
        pids = engine_pids()
        time.sleep(0.3)  # an embedded engine would have ended
        for one, epoch in ((loader, 1), (another, 0)):
            truth.check(train(one, at={0: partial(wait_for, BOTH, there, one)}), epoch)
        assert engine_pids() == pids and len(pids) == 2
        return pids

    pids = epochs_of_two_loaders()
    gc.collect()
    until(lambda: not any(map(alive, pids)), 30, "the engines' end")
    assert os.listdir(spool) == []


def test_a_killed_host_leaves_nothing(script):
    one = script(
        """
        loader = make_loader(data, "wrr", pool=2)
        iterator = iter(loader)
        next(iterator)
        while sum(device.alive for device in loader.live().devices) < 2:
            time.sleep(0.01)
        said("ready")
        time.sleep(60)
        """
    )
    assert one.line() == "ready"
    assert len(one.running()) == 5  # the host, and two engines with a worker each
    os.kill(one.pid, signal.SIGKILL)
    one.nothing_left(5)


def test_beside_a_device(slow, engines, images, data, truth):
    engine = engines("--root", str(images), "--slowdown", "25")
    loader = make_loader(data, "wrr", csd=device(engine, name="csd0"), pool=1)
    truth.check(train(loader, at={0: lambda: wait_for({"csd0", "pool engine 1"}, have_published, loader)}))


def does_not_start(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    launch = EmbeddedEngine._launch

    def fails(engine: EmbeddedEngine) -> Any:
        if engine.options.number in numbers:
            raise OSError(11, "no more processes")
        return launch(engine)

    monkeypatch.setattr(EmbeddedEngine, "_launch", fails)


def test_one_that_does_not_start_is_left_out(leaves_nothing, data, truth, told, monkeypatch):
    does_not_start(monkeypatch, 1)
    loader = make_loader(data, "csd", pool=2)
    truth.check(train(loader, at={0: lambda: until(lambda: len(loader.report().notes), 30, "the note")}))
    assert len(told) == 1 and told[0].startswith("ddlp: the pool engine 1 takes no part yet"), list(told)


def test_under_csd_it_is_an_error_if_none_starts(leaves_nothing, data, told, monkeypatch):
    does_not_start(monkeypatch, 1, 2)
    with pytest.raises(EngineUnreachable, match="no more processes"):
        train(make_loader(data, "csd", pool=2))


def test_a_pickled_loader_has_the_same_pool(data):
    loader = pickle.loads(pickle.dumps(make_loader(data, "wrr", pool=LocalPool(2, workers=3, cpus=["0"]))))
    engines = loader.pool.engines()
    assert set(engines) == BOTH and {one.workers for one in engines.values()} == {3}


def test_engines_share_cpus_and_the_spool_as_asked():
    engines = LocalPool(3, cpus=["0", "1"]).engines().values()
    assert [one.cpus for one in engines] == ["0", "1", "0"] and {one.share for one in engines} == {3}
    for cpus in ([], "0,1"):
        with pytest.raises(ValueError, match="cpus="):
            LocalPool(2, cpus=cpus)
    with pytest.raises(ValueError, match="workers=0"):
        LocalPool(2, workers=0)
