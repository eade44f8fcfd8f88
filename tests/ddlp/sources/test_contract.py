"""What `ddlp.sources.base` promises, tested on both lease sources: the engine, and one in process. Sources that break it."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddlp import DDLPLoader
from ddlp.observe import checked
from ddlp.sources.engine.connections import EMBEDDED
from ddlp.sources.engine.embedded import EmbeddedOptions, acquire
from ddlp.sources.engine.source import EngineSource
from tests.ddlp.faults.scene import Truth, dataset, descendants, make_loader, train
from tests.ddlp.sources.contract import Contract
from tests.ddlp.sources.in_process import InProcess
from tests.engine_process import until
from tests.small_images import make_images

STRATEGIES = ("csd", "mte", "wrr", "ordered")

pytestmark = pytest.mark.usefixtures("hard_limit")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return dataset(make_images(tmp_path_factory.mktemp("images"), 120))


@pytest.fixture(scope="module")
def truth(data: Any) -> Truth:
    return Truth(data)


@pytest.fixture(scope="module")
def spool() -> Iterator[Path]:
    """The spool of an engine that all tests of this file share."""
    path = Path(tempfile.mkdtemp(prefix="c-", dir="/tmp"))  # short: a socket's path may have at most 107 bytes
    held = acquire(EmbeddedOptions(spool=str(path)))
    yield path
    held.release()
    shutil.rmtree(path, ignore_errors=True)


class Scene:
    """A source, the contract that records it, and a way to lose it."""

    def __init__(self, source: Any, contract: Contract, data: Any, spool: Path | None) -> None:
        self.source, self.contract, self.data, self.spool = source, contract, data, spool
        self.name = EMBEDDED if source is None else source.name

    def loader(self, strategy: str) -> DDLPLoader:
        where = dict(spool=str(self.spool)) if self.source is None else dict(csd=self.source)
        return make_loader(self.data, strategy, **where, **({"ratio": 0.5} if strategy == "mte" else {}))

    def lose(self) -> None:
        """Lose the source in mid-epoch."""
        if self.source is None:
            (engine,) = (p.pid for p in descendants() if "-m csd_engine " in p.command and str(self.spool) in p.command)
            os.kill(engine, signal.SIGKILL)
        else:
            self.contract.sink.lost(self.name, "it was pulled out")

    def at_work(self) -> None:
        """Wait for its first batch. Without training, the host has few slots."""
        until(lambda: any(lease.published for lease in self.contract.sink.leases.values()), 30, "its first batch")

    def holds_nothing(self) -> None:
        """After the epochs: assert that no batch of theirs is left."""
        if self.spool is not None:
            until(lambda: not batch_files(self.spool), 30, "an empty spool")
        gc.collect()


def batch_files(spool: Path) -> list[str]:
    """List the files in the directories of jobs. Unlike `rglob`, `walk` takes one that is removed meanwhile as empty."""
    return [name for place, _, names in os.walk(spool) if Path(place).name.startswith("job-") for name in names]


def in_process_holds(leases: Any, lease: int) -> bool:
    return lease in leases.prepared


def record(monkeypatch: pytest.MonkeyPatch, kind: type, holds: Any) -> Contract:
    """Record all calls between epochs and the sources of this kind."""
    contract = Contract(holds)
    monkeypatch.setattr(kind, "attach", contract.watching(kind.attach))
    return contract


@pytest.fixture(params=["engine", "in process"])
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, data: Any) -> Scene:
    if request.param == "engine":
        contract = record(monkeypatch, EngineSource, lambda job, lease: job.holds(lease))
        return Scene(None, contract, data, request.getfixturevalue("spool"))
    return Scene(InProcess("spare cores"), record(monkeypatch, InProcess, in_process_holds), data, None)


@pytest.fixture
def scene_of_its_own(scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Scene]:
    """A scene with an engine of its own, which a test may kill."""
    monkeypatch.setattr("ddlp.process.pauses.FIRST_PAUSE_S", 0.1)
    if scene.source is None:
        scene.spool = Path(tempfile.mkdtemp(prefix="c-", dir="/tmp"))
    yield scene
    if scene.source is None:
        gc.collect()
        until(lambda: not [p for p in descendants() if str(scene.spool) in p.command], 30, "the engine's end")
        shutil.rmtree(scene.spool, ignore_errors=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.some(3)
def test_each_sample_once_with_the_hosts_bits(scene, truth, strategy):
    loader = scene.loader(strategy)
    for epoch in range(2):
        watched = checked(loader, every=1, rows=None, say=None)
        truth.check(train(watched, 0.002, at={0: scene.at_work}), epoch)
        assert not [text for claim in watched.verdict.claims.values() for text in claim.against], str(watched.verdict)
        unseen = watched.verdict.claims["complete before use"].unseen
        assert unseen == ("" if scene.source is None else "a source without files gives no checksum to compare")
        report = loader.report()
        assert report.batches_csd > 0 and (strategy != "csd" or report.batches_cpu == 0)
    del watched, loader
    scene.holds_nothing()
    scene.contract.check()
    delivered = [lease for sink in scene.contract.sinks for lease in sink.leases.values() if lease.fetched]
    assert delivered and all(lease.ended == "released" for lease in delivered)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.some(3)
def test_lost_and_back_in_mid_epoch(scene_of_its_own, truth, strategy):
    scene = scene_of_its_own
    contract, loader = scene.contract, scene.loader(strategy)
    contract.faults.publish_s = 0.05  # else it may have made the whole epoch before it is lost

    def lose() -> None:
        scene.at_work()
        scene.lose()
        until(lambda: len(contract.sink.sources) == 2, 30, "its return")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        truth.check(train(loader, 0.002, at={3: lose}), 0)
    assert [str(one.message) for one in told if "is gone" in str(one.message)]
    assert f"{scene.name}: it was gone, and is back" in loader.report().notes
    first, second = contract.sink.sources
    assert {lease.source for lease in contract.sink.leases.values()} == {first, second}
    del loader
    scene.holds_nothing()
    contract.check()


@pytest.mark.parametrize("strategy", ("csd", "wrr"))
def test_late(scene, truth, strategy):
    """With wrr the host works meanwhile; with csd the epoch waits."""
    scene.contract.faults.join_s = 0.5
    loader = scene.loader(strategy)
    truth.check(train(loader, 0.002, at={3: scene.at_work}), 0)
    report = loader.report()
    assert report.batches_csd > 0 and (strategy == "csd") == (report.batches_cpu == 0)
    del loader
    scene.holds_nothing()
    scene.contract.check()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.some(3)
def test_slow(scene, truth, strategy):
    """Meanwhile the host could make each batch many times. Some batches are made twice, none is delivered twice."""
    scene.contract.faults.publish_s = 0.05
    loader = scene.loader(strategy)
    truth.check(train(loader, at={0: scene.at_work}), 0)
    del loader
    scene.holds_nothing()
    scene.contract.check()


@pytest.mark.parametrize("strategy", ("csd", "wrr"))
def test_damaged(scene, truth, strategy):
    """Every third of its batches is damaged: the host makes those."""
    scene.contract.faults.damaged = lambda position: position % 3 == 0
    loader = scene.loader(strategy)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        truth.check(train(loader, 0.002, at={0: scene.at_work}), 0)
    report = loader.report()
    if strategy == "csd":
        assert report.batches_cpu == 10 and report.batches_csd == 20
        assert len([one for one in told if "another checksum" in str(one.message)]) == 10
    del loader
    scene.holds_nothing()
    scene.contract.check()
    damaged = [lease for lease in scene.contract.sink.leases.values() if lease.published and lease.position % 3 == 0]
    assert not any(lease.fetched for lease in damaged)


def test_broken_off(scene):
    """What an epoch asked for is dropped when the epoch ends early."""
    iterator = iter(scene.loader("wrr"))
    next(iterator)
    scene.at_work()
    del iterator
    until(lambda: all(source.closes for source in scene.contract.sink.sources), 30, "its end")
    scene.holds_nothing()
    scene.contract.check(whole=False)


def test_two_epochs_at_once_and_a_pickled_loader(scene, truth):
    loader = scene.loader("wrr")
    one, other = iter(loader), iter(loader)
    first = [next(one)]
    truth.check([*other], 1)
    truth.check([*first, *one], 0)
    copy = pickle.loads(pickle.dumps(loader))
    truth.check(train(copy), 2)
    del one, other, copy, loader
    scene.holds_nothing()
    scene.contract.check()


# -- sources that break the contract -----------------------------------------------------------------------------------


class Passes:
    """Passes every call on."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class LosesOne(InProcess):
    """It loses its first lease: it neither publishes it nor fails it, and reports that all is well."""

    class Sink(Passes):
        lose: int | None = None

        def published(self, name: str, lease: int, handle: Any, busy_s: float) -> None:
            self.lose = self.lose or lease
            if lease != self.lose:
                self.inner.published(name, lease, handle, busy_s)

    def attach(self, sink: Any) -> None:
        super().attach(self.Sink(sink))


def broken(monkeypatch: pytest.MonkeyPatch, data: Any, kind: type) -> Scene:
    return Scene(kind("broken"), record(monkeypatch, kind, in_process_holds), data, None)


def test_a_lost_lease_is_named_and_the_epoch_is_whole(monkeypatch, data, truth):
    scene = broken(monkeypatch, data, LosesOne)
    truth.check(train(scene.loader("wrr"), 0.002, at={0: scene.at_work}), 0)
    with pytest.raises(AssertionError) as caught:
        scene.contract.check()
    lost = next(lease for lease in scene.contract.sink.leases.values() if not lease.published)
    assert str(caught.value).startswith(f"{lost.name} came to nothing"), str(caught.value)


@pytest.mark.parametrize("strategy", ("csd", "ordered", "mte"))
def test_a_lost_lease_holds_up_no_strategy(monkeypatch, data, truth, strategy):
    monkeypatch.setattr("ddlp.schedule.strategies.base.STALLED_S", 0.5)
    monkeypatch.setattr("ddlp.schedule.strategies.base.STALLED_AT_LEAST_S", 0.5)
    truth.check(train(broken(monkeypatch, data, LosesOne).loader(strategy), 0.002), 0)


# -- the loader's part -------------------------------------------------------------------------------------------------


class Raises:
    name = "raises"

    def attach(self, sink: Any) -> None:
        raise KeyError("no such address")


def test_a_source_that_can_not_be_attached_ends_the_training(data):
    began = time.monotonic()
    with pytest.raises(KeyError, match="no such address"):
        list(make_loader(data, "csd", csd=Raises()))
    assert time.monotonic() - began < 30


def test_several_sources_each_with_a_name_of_its_own(data, truth):
    loader = make_loader(data, "csd", csd=[InProcess("one"), InProcess("two", 2)])
    truth.check(train(loader), 0)
    assert loader.report().batches_csd == 30
    with pytest.raises(ValueError, match="each source needs a name of its own, and these have one"):
        make_loader(data, "csd", csd=[InProcess("one"), InProcess("one")])
