"""Engines that see no copy of the data set: the host sends the files of each batch with its lease."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import UnidentifiedImageError
from torch.utils.data import ConcatDataset

from csd_engine.protocol import codec as say
from csd_engine.service.spool import Spool
from ddlp import Device, ImageArrays, ImageFiles
from ddlp.sources.engine import parcels as module
from tests.ddlp.faults.scene import Truth, dataset, device, make_loader, train, until
from tests.engine_process import EngineProcess


@pytest.fixture
def engine(engines, tmp_path) -> EngineProcess:
    """An engine whose only root is empty. It is so slow that it is at work for a while."""
    (tmp_path / "empty").mkdir()
    return engines("--root", str(tmp_path / "empty"), "--slowdown", "5")


def carried(engine: Any) -> Device:
    return device(engine, data="carried")


def parcels(engine: Any) -> list[str]:
    return [path.name for path in engine.spool.glob("job-*/*.parcel")]


def test_the_same_bits_from_an_engine_without_the_data(engine, data, truth, told):
    loader = make_loader(data, "csd", csd=carried(engine))
    truth.check(train(loader))
    truth.check(train(loader), 1)
    assert loader.report().batches_csd == 40 and not len(told), list(told)
    assert parcels(engine) == [] and os.listdir(engine.spool / "manifests") == []


def test_files_and_arrays_in_one_data_set(engine, paths, told):
    images = torch.randint(256, (30, 48, 48, 3), dtype=torch.uint8).numpy()
    both = ConcatDataset([dataset(paths[:20]), ImageArrays(images, range(20, 50), dataset([]).transform)])
    loader = make_loader(both, "csd", csd=carried(engine), shuffle=True, transfer="stream")
    Truth(both).check(train(loader))
    assert loader.report().batches_csd == 13 and not len(told), list(told)
    assert parcels(engine) == [] and len(os.listdir(engine.spool / "arrays")) == 1


def test_each_sample_once_if_the_engine_is_killed(engine, data, truth, told):
    def kill() -> None:
        until(lambda: parcels(engine), 30, "a parcel")
        engine.kill()

    truth.check(train(make_loader(data, "csd", csd=carried(engine)), at={3: kill}))
    assert len(told) == 1 and "is gone" in told[0], list(told)
    assert parcels(engine)
    Spool(engine.spool, 1, 1 << 20, 0).close()  # as its next start does
    assert not list(engine.spool.glob("job-*"))


def test_nothing_is_left_on_the_engine_if_the_host_is_killed(engines, tmp_path, script):
    engine = engines("--root", str(tmp_path), "--slowdown", "5", "--lease-timeout", "2")
    one = script(f"""
        loader = make_loader(data, "csd", csd=Device({engine.address!r}, {str(engine.keys)!r}, data="carried"))
        for batch in loader:
            said("ready")
            time.sleep(0.05)
    """)
    assert one.line() == "ready"
    until(lambda: parcels(engine), 30, "a parcel")
    os.kill(one.pid, signal.SIGKILL)
    until(lambda: not list(engine.spool.glob("job-*")), 30, "an empty spool")
    one.nothing_left()


def test_a_loader_that_is_dropped_in_mid_epoch(engine, data):
    iterator = iter(make_loader(data, "csd", csd=carried(engine)))
    next(iterator)
    until(lambda: parcels(engine), 30, "a parcel")
    assert "ddlp-parcels" in [thread.name for thread in threading.enumerate()]
    del iterator
    until(lambda: "ddlp-parcels" not in [thread.name for thread in threading.enumerate()], 30, "the thread's end")
    until(lambda: not list(engine.spool.glob("job-*")), 30, "an empty spool")


def test_damaged_parts_cost_their_batches_and_no_sample(engine, data, truth, told, monkeypatch):
    def encode(message, payload):
        if message.lease in (2, 3):
            payload = bytes([payload[0]]) + bytes(len(payload) - 1)
        return say.encode(message, payload)

    monkeypatch.setattr(module, "say", SimpleNamespace(**{**vars(say), "encode": encode}))
    loader = make_loader(data, "csd", csd=carried(engine))
    truth.check(train(loader, 0.01))
    assert loader.report().batches_csd and loader.report().leases_lost == 2
    assert len(told) == 1 and "came damaged" in told[0], list(told)


def test_batches_that_are_too_large_to_be_sent_are_the_hosts(engine, data, truth, told, monkeypatch):
    monkeypatch.setattr("ddlp.sources.engine.link.most_bytes", lambda quota: 12_000)
    loader = make_loader(data, "csd", csd=carried(engine))
    truth.check(train(loader, 0.01))
    report = loader.report()
    assert report.batches_csd and report.batches_cpu and parcels(engine) == []
    assert "more than 12000 bytes" in told[0], list(told)


def test_a_bad_image_is_an_error_as_ever_or_is_replaced(engine, paths, tmp_path, told):
    (tmp_path / "bad.jpg").write_bytes(b"\xff\xd8 no image")
    some = ImageFiles([*paths[:7], str(tmp_path / "bad.jpg"), *paths[8:16]], list(range(16)), dataset([]).transform)
    with pytest.raises(UnidentifiedImageError, match=r"bad\.jpg"):
        train(make_loader(some, "csd", csd=carried(engine)))
    gone = ImageFiles([*paths[:7], str(tmp_path / "gone.jpg"), *paths[8:16]], list(range(16)), dataset([]).transform)
    for data in (some, gone):
        loader = make_loader(data, "csd", csd=carried(engine), on_error="replace", max_replaced=0.5)
        batches = train(loader)
        assert sorted(int(y) for _, labels in batches for y in labels) != list(range(16))
        assert loader.report().replaced == 1 and loader.report().batches_csd == 4
        here = make_loader(data, "cpu", on_error="replace", max_replaced=0.5)
        for (images, labels), (same, too) in zip(batches, train(here), strict=True):
            assert torch.equal(images, same) and torch.equal(labels, too)


def test_what_the_host_spends_on_it_counts_as_taking_the_batch(engine, paths, monkeypatch):
    """The thread that reads and sends is not the one that fetches."""
    begin = module.Parcels._begin_parcel

    def slow(parcels, lease, indices):
        until_s = time.thread_time() + 0.05
        while time.thread_time() < until_s:
            pass
        begin(parcels, lease, indices)

    monkeypatch.setattr(module.Parcels, "_begin_parcel", slow)
    loader = make_loader(dataset(paths[:40]), "csd", csd=carried(engine))
    train(loader)
    taking = loader._parts.life.rates.taking_cpu[engine.address]
    assert taking.count == 10 and taking.seconds >= 0.05


@pytest.mark.parametrize("data", ["", "Carried", None])
def test_another_word_for_data_is_an_error(data):
    with pytest.raises(ValueError, match="'there' if the engine sees"):
        Device("tcp://127.0.0.1:1", "/keys", data=data)
