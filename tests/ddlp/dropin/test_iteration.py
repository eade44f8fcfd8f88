"""Iterating over portable batches: ends, breaks, ownership, targets, and what may change between two epochs."""

from __future__ import annotations

import gc
import os
import resource
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.transforms import v2

from ddlp import DDLPLoader, ImageArrays
from ddlp.epoch.monitor import Monitor
from ddlp.sources.engine import connections
from ddlp.sources.engine.connections import EMBEDDED
from tests.ddlp.dropin.small_sets import DETERMINISTIC, SAMPLES, by_target, numbered, order

KINDS = (DataLoader, DDLPLoader)
STRATEGIES = ("cpu", "csd", "mte", "wrr", "ordered")


def threads() -> list[str]:
    """Names of the threads that work for epochs, without those of the engine's link."""
    return [t.name for t in threading.enumerate() if t.name.removeprefix("ddlp-").isdigit()]


def test_a_closed_iterator_says_so_also_where_a_batch_was_ready(paths):
    iterator = iter(DDLPLoader(numbered(paths), 4, seed=1))
    next(iterator)
    while not iterator.executor.monitor.ready:
        time.sleep(0.01)
    iterator.executor.close()
    with pytest.raises(RuntimeError, match="was closed; call iter"):
        next(iterator)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_again_and_again(paths, engine, strategy):
    loader = DDLPLoader(numbered(paths), 4, strategy=strategy, spool=engine, seed=1)
    for _ in range(2):
        for k, _batch in enumerate(loader):
            if k == 2:
                break
        assert len(by_target(list(loader))) == SAMPLES
    iterator = iter(loader)
    assert len(list(iterator)) == len(loader) == 11
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)
    del iterator, _batch
    gc.collect()
    assert threads() == []


@pytest.mark.parametrize("strategy", ["cpu", "ordered"])
def test_two_iterators_at_once(paths, engine, strategy):
    loader = DDLPLoader(numbered(paths), 4, strategy=strategy, spool=engine)
    expected = order(list(DataLoader(numbered(paths), 4)))
    first, second = iter(loader), iter(loader)
    got = [(a[1].tolist(), b[1].tolist()) for a, b in zip(first, second, strict=True)]
    assert [a for a, _ in got] == [b for _, b in got] == expected


@pytest.mark.parametrize("strategy", ["cpu", "csd", "wrr"])
def test_batches_belong_to_the_caller(paths, engine, strategy):
    dataset = numbered(paths, DETERMINISTIC)
    expected = by_target(list(DataLoader(dataset, 4)))
    loader = DDLPLoader(dataset, 4, num_workers=2, strategy=strategy, spool=engine)
    held = []
    for images, targets in loader:
        held.append((images.clone(), targets.clone()))
        images.fill_(7)
        targets.fill_(-1)
    found = by_target(held)
    assert all(torch.equal(found[k], expected[k]) for k in expected)
    kept = list(loader)
    found = by_target(kept)
    assert all(torch.equal(found[k], expected[k]) for k in expected)
    starts = {t.untyped_storage().data_ptr() for batch in kept for t in batch}
    assert len(starts) == 2 * len(kept)


def test_what_may_grow_in_place(paths):
    """docs/drop-in.md says so: targets may, and copies of images. With workers DataLoader's images may not either."""
    dataset, numbers = numbered(paths, DETERMINISTIC), 10_000
    for workers in (0, 2):
        images, targets = next(iter(DDLPLoader(dataset, 4, num_workers=workers)))
        assert len(targets.resize_(numbers)) == len(images.clone().resize_(numbers)) == numbers
    for kind in KINDS:
        images, _ = next(iter(kind(dataset, 4, num_workers=2)))
        with pytest.raises(RuntimeError, match="not resizable"):
            images.resize_(numbers)


def test_the_data_set_is_read_again_at_each_epoch(paths, engine):
    dataset = numbered(paths, DETERMINISTIC)
    loader = DDLPLoader(dataset, 4, strategy="ordered", spool=engine)
    first = list(loader)
    dataset.transform = transforms.Compose([transforms.Resize((10, 10)), transforms.ToTensor()])
    dataset.targets[0] = 1000
    dataset.paths[1] = dataset.paths[2]
    second = list(loader)
    plain = list(DataLoader(dataset, 4))
    assert first[0][0].shape == (4, 3, 16, 16) and second[0][0].shape == (4, 3, 10, 10)
    assert second[0][1].tolist() == [1000, 1, 2, 3]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(second, plain, strict=True))
    dataset.transform = lambda image: torch.tensor(image.size)
    with pytest.warns(UserWarning, match="the host prepares all batches"):
        third = list(loader)
    assert third[0][0].shape == (4, 2)


def test_a_transform_set_after_construction(paths):
    dataset = numbered(paths, None)
    loader = DDLPLoader(dataset, 4, num_workers=2)
    dataset.transform = DETERMINISTIC
    assert loader.explain().count("travels    Resize") == 1
    assert next(iter(loader))[0].shape == (4, 3, 16, 16)


def test_arrays_changed_between_epochs(engine):
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)
    dataset = ImageArrays(images, list(range(20)), transforms.ToTensor())
    loader = DDLPLoader(dataset, 4, strategy="csd", spool=engine)
    for _ in range(2):
        found = by_target(list(loader))
        assert all(torch.equal(found[k], dataset[k][0]) for k in range(20))
        assert loader.report().batches_csd > 0
        images[:] = 255 - images


@pytest.mark.parametrize("mix", [v2.MixUp, v2.CutMix])
def test_mixup_and_cutmix_belong_on_the_batch(paths, mix):
    loader = DDLPLoader(numbered(paths), 5, batch_transform=mix(num_classes=SAMPLES))
    for images, targets in loader:
        assert images.shape[1:] == (3, 16, 16) and targets.shape[1:] == (SAMPLES,)
        torch.testing.assert_close(targets.sum(1), torch.ones(len(targets)))


def test_an_empty_epoch(paths):
    for kind in KINDS:
        assert list(kind(numbered(paths), 50, drop_last=True)) == []
        assert list(kind(numbered(paths), 4, sampler=[])) == []


def test_a_batch_that_is_published_while_the_iteration_is_closed(paths, engine):
    iterator = iter(DDLPLoader(numbered(paths), 1, strategy="csd", spool=engine))
    next(iterator)
    run = iterator.executor
    (device, account), closed = next(iter(run.ledger.devices.items())), run.devices.states[EMBEDDED]
    assert closed.source is not None
    iterator._shutdown_workers()
    assert closed.source is None
    if not account.outstanding:  # all leases have been made already
        run.ledger.join(device, quota=1000, window=1000)
        run.ledger.lease(device, run.ledger.free.first(), 0.0)
    lease = next(iter(account.outstanding))
    run.devices.published(device, lease, Path("gone"), 0.1)
    assert lease not in run.devices._published


class FailsOnce:
    """A user's batch sampler whose first iter() raises."""

    failed = False

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Any:
        if not self.failed:
            self.failed = True
            raise KeyError("not today")
        return iter([[k] for k in range(SAMPLES)])


def test_an_engine_idles_also_after_an_iter_that_raised(paths, tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "LINGER_S", 0.05)
    loader = DDLPLoader(numbered(paths), batch_sampler=FailsOnce(), strategy="csd", spool=str(tmp_path))
    with pytest.raises(KeyError, match="not today"):
        iter(loader)
    assert len(by_target(list(loader))) == SAMPLES and loader.report().epoch == 0  # the first epoch has not begun
    while loader._parts.offload.connections._places:
        time.sleep(0.01)


@pytest.mark.parametrize(("strategy", "threads"), [("cpu", ["ddlp-0"]), ("csd", ["ddlp-1", "ddlp-2"])])
def test_an_error_in_a_thread_of_ours_ends_the_epoch(paths, engine, monkeypatch, strategy, threads):
    """Otherwise training would wait for ever for the thread's batch."""
    act, failed = Monitor.act, []

    def act_once(monitor):
        if threading.current_thread().name in threads and not failed:
            failed.append(monitor)
            raise MemoryError("no room for a lease")
        act(monitor)

    monkeypatch.setattr(Monitor, "act", act_once)
    loader = DDLPLoader(numbered(paths), 4, strategy=strategy, num_workers=1, spool=engine, timeout=20)
    iterator = iter(loader)
    with pytest.raises(MemoryError, match="no room for a lease"):
        list(iterator)
    with pytest.raises(RuntimeError, match="was closed"):
        next(iterator)
    iterator.executor._threads.join(60)
    assert not iterator.executor._threads.at_work
    assert len(list(loader)) == 11


def test_descriptors_may_have_large_numbers(paths, tmp_path):
    """A training may have many files open. The engine starts then, and select() takes no descriptor above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard) if hard != resource.RLIM_INFINITY else 4096, hard))
    held = []
    try:
        held += [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
        loader = DDLPLoader(numbered(paths), 4, strategy="csd", spool=str(tmp_path))
        assert len(list(loader)) == loader.report().batches_csd == 11
        loader._parts.offload.connections.close()
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
