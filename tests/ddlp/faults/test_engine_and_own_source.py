"""An engine and a user's own source in one loader: both deliver, and if one is lost, the other goes on."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from ddlp.observe import checked
from ddlp.sources.engine.source import EngineSource
from tests.ddlp.faults.scene import device, make_loader, train
from tests.ddlp.sources.contract import Contract
from tests.ddlp.sources.in_process import InProcess
from tests.engine_process import EngineProcess, until

OWN = "spare cores"


class StaysAway(InProcess):
    """A source that does not come back once it is lost."""

    class Sink:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def lost_or_over(self, name: str) -> bool:
            self.inner.lost_or_over(name)
            return False

    def attach(self, sink: Any) -> None:
        super().attach(self.Sink(sink))


class Both:
    """A loader with both sources, and a record of the calls between its epochs and each source."""

    def __init__(
        self, engine: EngineProcess, data: Any, strategy: str, monkeypatch: pytest.MonkeyPatch, kind: type = InProcess
    ) -> None:
        self.to_engine = Contract(lambda job, lease: job.holds(lease))
        self.to_own = Contract(lambda leases, lease: lease in leases.prepared)
        monkeypatch.setattr(EngineSource, "attach", self.to_engine.watching(EngineSource.attach))
        monkeypatch.setattr(kind, "attach", self.to_own.watching(kind.attach))  # type: ignore[attr-defined]
        ratio = {"ratio": 0.5} if strategy == "mte" else {}
        self.loader = make_loader(data, strategy, csd=[device(engine), kind(OWN)], **ratio)

    def at_work(self) -> None:
        """Wait for a batch of each source. Each holds at most four that are not yet used, so most of the epoch is left."""
        until(lambda: all(c.sinks and published(c) for c in (self.to_engine, self.to_own)), 30, "a batch of each")

    def last_lease(self) -> int:
        """The number of this epoch's last lease; numbers run over all sources."""
        return max(number for contract in (self.to_engine, self.to_own) for number in contract.sink.leases)

    def check(self) -> None:
        """After the epochs: check that the sources and the loader kept their contract."""
        self.to_engine.check()
        self.to_own.check()


def published(contract: Contract) -> int:
    """The number of batches that the source published in the last epoch."""
    return sum(lease.published > 0 for lease in list(contract.sink.leases.values()))


def delivered(contract: Contract, after: int = 0) -> int:
    """The number of batches that the source delivered in the last epoch, from leases after `after`: fetched and released."""
    leases = list(contract.sink.leases.values())
    return sum(lease.fetched and lease.ended == "released" and lease.number > after for lease in leases)


@pytest.fixture
def engine(engines: Any, images: Path) -> EngineProcess:
    return engines("--root", str(images), "--quota-batches", "4")


@pytest.mark.parametrize("strategy", ["csd", "mte", "wrr", "ordered"])
@pytest.mark.some(1)
def test_each_sample_once_with_the_hosts_bits(engine, data, truth, told, monkeypatch, strategy):
    both = Both(engine, data, strategy, monkeypatch)
    for epoch in range(2):
        watched = checked(both.loader, every=1, rows=None, say=None)
        truth.check(train(watched, 0.002, at={0: both.at_work}), epoch)
        assert not watched.verdict.refuted, str(watched.verdict)
        by_engine, by_own, report = delivered(both.to_engine), delivered(both.to_own), both.loader.report()
        assert by_engine and by_own and report.batches_csd <= by_engine + by_own
        assert strategy != "csd" or (by_engine + by_own, report.batches_cpu) == (len(both.loader), 0)
    both.check()
    assert not len(told), list(told)


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [("csd", InProcess), ("csd", StaysAway), ("mte", InProcess)],
)
@pytest.mark.some(2)
def test_the_own_source_is_killed_in_mid_epoch(engine, data, truth, told, monkeypatch, strategy, kind):
    """Its published batches are lost with it. The engine goes on, and so does the source if it comes back."""
    both = Both(engine, data, strategy, monkeypatch, kind)
    both.to_own.faults.publish_s = 0.02  # so that it has leases at work when it is killed
    numbers: list[int] = []

    def kill() -> None:
        both.at_work()
        killed = both.to_own.sink.sources[0].inner
        killed.close()
        killed.prepared.clear()
        numbers.append(both.last_lease())
        both.to_own.sink.lost(OWN, "it was killed")
        if kind is InProcess:
            until(lambda: len(both.to_own.sink.sources) == 2, 30, "its return")

    truth.check(train(both.loader, 0.005, at={0: kill}))
    assert [text for text in told if f"{OWN} is gone (it was killed)" in text]
    assert bool(both.to_own.sink.sources[1:]) == (kind is InProcess)
    if strategy == "csd":  # with other strategies the host may be first
        assert delivered(both.to_engine, numbers[0])
        assert bool(delivered(both.to_own, numbers[0])) == (kind is InProcess)
    both.check()


def test_the_engine_is_killed_in_mid_epoch(engine, data, truth, told, monkeypatch):
    both = Both(engine, data, "csd", monkeypatch)
    numbers: list[int] = []

    def kill() -> None:
        both.at_work()
        engine.process.send_signal(signal.SIGKILL)
        engine.process.wait()
        until(lambda: not next(one for one in both.loader.live().devices if one.name != OWN).alive, 30, "its loss")
        numbers.append(both.last_lease())

    truth.check(train(both.loader, 0.005, at={0: kill}))
    assert len(told) == 1 and f"{engine.address} is gone" in told[0], list(told)
    assert delivered(both.to_own, numbers[0])
    both.check()
