"""A loader's live numbers: what training waited for, lost leases, sums over epochs; read from any thread."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from ddlp import DDLPError, DDLPLoader
from ddlp.observe import live
from ddlp.observe.energy import EnergyMeter
from ddlp.observe.pace import Window, overall
from ddlp.schedule.ledger import Side
from ddlp.sources.host.torch_workers import samples_in
from ddlp.stats.live import Life, counted
from ddlp.stats.report import CAUSES, Counts
from tests.ddlp.faults.scene import engine_pid
from tests.ddlp.observe.small_loader import small
from tests.engine_process import until

# -- what training waited for ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "slow", "cause"),
    [("cpu", "host_s", "host"), ("csd", "device_s", "csd"), ("csd", "fetch_s", "transfer")],
)
@pytest.mark.some(2)
def test_waiting_is_told_by_what_came_late(delays, strategy, slow, cause):
    if strategy == "csd":
        delays.warm()
    loader = delays.loader(12, strategy=strategy, **{slow: 0.02})
    delays.train(loader, 0)
    report = loader.report()
    assert set(report.waiting) == set(CAUSES) and sum(report.waiting.values()) == pytest.approx(report.waiting_s)
    assert report.waiting["start"] > 0.015  # the first batch takes that long
    rest = {one: seconds for one, seconds in report.waiting.items() if one not in ("start", cause)}
    assert report.waiting[cause] > max(rest.values()), report.waiting


def test_a_wait_is_parted_when_the_batch_is_published():
    counts = Counts()
    counts.delivered(0, Side.HOST, 2, 0.0, 1.0)
    counts.published(7)
    at = counts._published[7]
    counts.delivered(7, Side.CSD, 2, at - 3.0, at + 0.5)
    assert counts.waiting == pytest.approx({"start": 1.0, "host": 0.0, "csd": 3.0, "transfer": 0.5})
    assert not counts._published and counts.samples == 4


def test_a_wait_under_way(delays):
    loader = delays.loader(4, strategy="cpu", host_s=0.3)
    assert live(loader).waiting_now_s == 0
    thread = threading.Thread(target=list, args=(loader,))
    thread.start()
    until(lambda: live(loader).waiting_now_s > 0.1, 30, "the wait")
    thread.join()
    assert live(loader).waiting_now_s == 0


def test_an_engine_that_dies(delays):
    delays.warm()
    loader = delays.loader(40, strategy="wrr", device_s=0.05, host_s=0.02)
    batches = iter(loader)
    next(batches)
    until(lambda: live(loader).report.rate_csd is not None, 30, "the device's first batch")
    assert live(loader).devices[0].alive and live(loader).devices[0].held > 0
    os.kill(engine_pid(), signal.SIGKILL)
    with pytest.warns(UserWarning, match="is gone"):
        assert sum(1 for _ in batches) == 39
    now = live(loader)
    assert now.report.leases_lost > 0 and now.total.leases_lost == now.report.leases_lost


# -- sums ----------------------------------------------------------------------------------------------------------------


def test_sums_run_over_all_epochs():
    loader = small()
    assert live(loader).total.epochs == live(loader).delivered == 0 and live(loader).batches == 12
    samples = batches = 0
    for epoch in range(12):
        for k, _ in enumerate(loader):
            if epoch % 3 == 1 and k == 4:
                break
        report = loader.report()
        samples, batches = samples + report.samples, batches + report.batches_cpu
        total = live(loader).total
        assert (total.epochs, total.samples, total.batches_host) == (epoch + 1, samples, batches)
    assert samples == 8 * 24 + 4 * 10
    assert total.host_cpu_s > 0 and 0 < sum(total.waiting.values()) < total.seconds


def test_epochs_side_by_side_are_both_counted():
    loader = small()
    assert sum(1 for _ in zip(loader, loader)) == 12
    assert live(loader).total.samples == 48


def test_a_loader_that_is_unpickled_begins_anew():
    loader = small()
    list(loader)
    assert live(pickle.loads(pickle.dumps(loader))).total == Life().total()


def test_the_numbers_belong_together():
    """Another thread asks, and may be let in at any point."""
    loader = small(1000)
    torn, over = [], threading.Event()

    def look():
        while not over.is_set():
            now = live(loader)
            made = now.report.batches_cpu + now.report.batches_csd
            if not made == now.delivered == now.report.samples / 2 == now.total.samples / 2:
                torn.append(now)

    before = sys.getswitchinterval()
    thread = threading.Thread(target=look)
    try:
        sys.setswitchinterval(1e-6)
        thread.start()
        assert sum(1 for _ in loader) == 500
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(before)
    assert not torn


def test_an_epoch_that_begins_while_another_thread_looks():
    loader, looked = small(), []
    asks, begun = threading.Event(), threading.Event()
    total = loader._parts.life.total

    def late():
        if not asks.is_set():
            asks.set()
            assert begun.wait(60)
        return total()

    loader._parts.life.total = late
    thread = threading.Thread(target=lambda: looked.append(live(loader)))
    thread.start()
    assert asks.wait(60)
    batches = iter(loader)
    next(batches)
    begun.set()
    thread.join()
    assert looked[0].delivered == 1 and looked[0].report.samples == looked[0].total.samples == 2


# -- batches of torch's own workers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_what_torchs_own_workers_prepare(data, options):
    user_code = type(data)(data.paths[:7], data.targets[:7], lambda image: torch.zeros(1))
    loader = DDLPLoader(user_code, 2, **options)
    for epoch in range(2):
        assert len(list(loader)) == 4
        now = live(loader)
        assert (now.report.samples, now.report.batches_cpu, now.delivered, now.batches) == (7, 4, 4, 4)
        assert (now.total.samples, now.report.epoch, now.bound) == (7 * (epoch + 1), epoch, now.report.rate_cpu)
        assert 0 < now.report.waiting_s <= now.report.seconds
    seconds = now.report.seconds
    time.sleep(0.02)
    assert live(loader).report.seconds == seconds


@pytest.mark.parametrize("workers", [0, 1])
def test_the_report_of_what_torchs_own_workers_prepare(data, workers):
    user_code = type(data)(data.paths[:7], data.targets[:7], lambda image: torch.zeros(1))
    loader = DDLPLoader(user_code, 2, num_workers=workers)
    with pytest.raises(DDLPError, match="no epoch has begun"):
        loader.report()
    loader.set_epoch(5)
    with EnergyMeter() as meter:
        list(loader)
    loader.set_epoch(9)  # belongs to the next epoch: the report is of the last one
    report = loader.report()
    assert (report.epoch, report.strategy, report.samples, report.batches_cpu, report.batches_csd) == (5, "cpu", 7, 4, 0)
    assert report.rate_cpu > 0 and report.rate_csd is None and report.bound_s == 7 / report.rate_cpu and not report.travels
    assert 0 < report.waiting_s <= report.seconds and report == live(loader).report
    assert meter.result(report).host_cpu_s == report.host_cpu_s > 0
    assert ("preparing" in str(report)) == (workers == 0)
    with pytest.raises(DDLPError, match="no epoch has begun"):
        pickle.loads(pickle.dumps(DDLPLoader(Stream(), 2))).report()


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_a_resumed_epoch_of_torchs_own_workers(data, options):
    user_code = type(data)(data.paths[:7], data.targets[:7], lambda image: torch.zeros(1))
    broken_off = DDLPLoader(user_code, 2)
    iterator = iter(broken_off)
    next(iterator), next(iterator)
    loader = DDLPLoader(user_code, 2, **options)
    list(loader)
    loader.load_state_dict(broken_off.state_dict())
    iterator = iter(loader)
    assert (live(loader).delivered, loader.report().batches_cpu) == (2, 0)
    next(iterator)
    assert (live(loader).delivered, loader.report().batches_cpu) == (3, 1)
    list(iterator)
    assert (live(loader).delivered, live(loader).batches, loader.report().samples) == (4, 4, 3)
    list(loader)
    assert (live(loader).delivered, loader.report().batches_cpu) == (4, 4)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(5))


def test_a_stream_without_a_length():
    loader = DDLPLoader(Stream(), 2)
    assert len(list(loader)) == 3
    assert (live(loader).batches, loader.report().samples, loader.report().batches_cpu) == (None, 5, 3)


def test_samples_of_batches_of_any_shape():
    assert samples_in([torch.zeros(3, 2), torch.zeros(3)]) == 3
    assert samples_in({"image": np.zeros((4, 2)), "label": 1}) == 4
    assert samples_in(([torch.zeros(5)], "x")) == 5
    assert samples_in(["a", "b"]) == 2
    assert samples_in([]) == samples_in(torch.tensor(1)) == samples_in(None) == samples_in({}) == 1


class Odd:
    """An object that a user's collate_fn may return."""

    def __init__(self, shape):
        self.shape = shape


class Refuses:
    @property
    def shape(self):
        raise RuntimeError("no shape yet")


def circle():
    one: list = []
    one.append(one)
    return one


def nested():
    return torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(1, 3)])


def test_samples_of_a_batch_that_is_none_of_these():
    assert samples_in(nested()) == samples_in({"image": nested()}) == 3
    for odd in (Odd("x"), Odd(None), Odd((None, 3)), Refuses(), [Refuses()], circle()):
        assert samples_in(odd) == 1


@pytest.mark.parametrize("make", [nested, lambda: Odd("x"), Refuses, circle], ids=["nested", "text", "raises", "circle"])
def test_a_batch_is_not_lost_for_being_counted(make):
    batches = [make(), make()]
    given = iter(batches)
    loader = DDLPLoader(list(range(8)), 4, collate_fn=lambda _: next(given))
    for batch, expected in zip(loader, batches, strict=True):
        assert batch is expected
    assert loader.state_dict()["epoch"] == 1


# -- pace ----------------------------------------------------------------------------------------------------------------


def test_the_pace_is_of_the_last_seconds():
    life, counts = Life(), Counts(started_s=0.0)
    life.began(counts)

    def at(seconds: float, samples: int, waited: float):
        counts.ended_s, counts.samples, counts.waiting["host"] = seconds, samples, waited
        return counted(counts, life.total(), None)

    window = Window(10.0)
    assert window.pace(at(5.0, 50, 1.0)).samples_per_s == 10
    pace = window.pace(at(10.0, 150, 1.0))
    assert (pace.samples_per_s, pace.waited) == (15, 0.1)
    pace = window.pace(at(15.0, 250, 1.0))  # from the 5th second on
    assert (pace.seconds, pace.samples_per_s, pace.waited) == (10, 20, 0)
    assert window.pace(at(60.0, 250, 31.0)).waiting == {**dict.fromkeys(CAUSES, 0.0), "host": 30 / 45}
    assert overall(at(50.0, 250, 31.0)).samples_per_s == 5
    counts = Counts(started_s=0.0)
    life.began(counts)
    assert window.pace(at(2.0, 8, 0.0)).samples_per_s == 4


# -- whether training waits ------------------------------------------------------------------------------------------


def life_of(*batches: tuple[float, float], step_s: float = 0.0) -> Life:
    """A loader's numbers after a first batch and these: seconds of training, then of waiting; ``step_s``: an accelerator's."""
    life, now = Life(), 5.0
    counts = Counts(started_s=0.0)
    counts.delivered(0, Side.HOST, 2, 0.0, now)
    for number, (trained_s, waited_s) in enumerate(batches, 1):
        life.rates.trained(step_s or trained_s, 1.0)
        counts.delivered(number, Side.HOST, 2, now + trained_s, now + trained_s + waited_s)
        now += trained_s + waited_s
    counts.ended_s = now
    life.began(counts)
    return life


def test_training_waits_until_it_is_known_that_it_does_not():
    assert life_of().waits()
    assert life_of(*[(1.0, 0.0)] * 3).waits()
    assert not life_of(*[(1.0, 0.0)] * 4).waits()  # the first batch's five seconds do not count
    assert not life_of(*[(1.0, 0.01)] * 4).waits()
    assert life_of(*[(1.0, 0.03)] * 4).waits()


def test_training_does_not_wait_while_an_accelerator_is_at_work():
    assert life_of(*[(0.1, 0.9)] * 4).waits()
    assert not life_of(*[(0.1, 0.9)] * 4, step_s=0.99).waits()


@pytest.mark.parametrize(("host_s", "by_devices", "slow"), ((1.2, True, True), (0.9, True, False), (1.2, False, False)))
def test_devices_may_hide_that_the_host_is_slow(host_s: float, by_devices: bool, slow: bool):
    life = life_of(*[(1.0, 0.0)] * 4)
    life.rates.host.add(host_s)
    assert not life.waits()
    life.last.sides[Side.CSD] += by_devices
    assert life.host_is_slow() is slow


def test_a_judgement_holds_for_a_moment(monkeypatch):
    life = life_of(*[(1.0, 0.0)] * 4)
    assert not life.host_is_slow()
    life.last.waiting["host"] += 1.0
    life.last.ended_s += 1.0
    assert life.waits() and not life.host_is_slow()
    monkeypatch.setattr(Life, "_JUDGED_S", 0.0)
    assert life.host_is_slow()
