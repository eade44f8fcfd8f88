"""Samples that can't be read: the host raises for each once, in its batch's place. All others are delivered."""

from __future__ import annotations

import gc
import os
import shutil
import time
import weakref

import pytest

from tests.ddlp.faults.scene import BATCH, Truth, dataset, make_loader, train


def cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


def empty(path):
    os.truncate(path, 0)


def garble(path):
    with open(path, "r+b") as stream:
        stream.write(b"\0" * 200)


def directory(path):
    os.unlink(path)
    os.mkdir(path)


BROKEN = {5: os.unlink, 47: cut, 80: empty, 81: directory, 115: garble}


@pytest.fixture(scope="module")
def broken(images, tmp_path_factory):
    """Half of the images, five of them unreadable."""
    root = tmp_path_factory.mktemp("broken")
    paths = []
    for number in range(120):
        path = shutil.copy(images / f"image {number}.jpg", root)
        paths.append(path)
    data = dataset(paths)
    truth = Truth(data)
    truth.of(0), truth.of(1)
    for number, damage in BROKEN.items():
        damage(paths[number])
    return data, truth


def collect(loader):
    """All batches and errors of an epoch, and at which step each error came."""
    batches, errors = [], []
    iterator = iter(loader)
    for step in range(1000):
        try:
            batches.append(next(iterator))
        except StopIteration:
            assert step == len(loader)
            return batches, errors
        except Exception as error:
            errors.append((step, error))
        time.sleep(0.01)
    raise AssertionError("no end")


@pytest.mark.parametrize("strategy", ("cpu", "csd", "mte", "wrr", "ordered"))
@pytest.mark.some(2)
def test_unreadable_samples(leaves_nothing, broken, told, strategy):
    data, truth = broken
    expected = {}
    for number in BROKEN:
        with pytest.raises(OSError) as caught:
            data[number]
        expected[data.paths[number]] = type(caught.value)
    loader = make_loader(data, strategy)
    for epoch in range(2):
        batches, errors = collect(loader)
        lost = {k for number in BROKEN for k in range(number // BATCH * BATCH, number // BATCH * BATCH + BATCH)}
        truth.check(batches, epoch, without=lost)
        assert len(errors) == 4, errors  # 80 and 81 are in one batch
        for step, error in errors:
            (path,) = [path for path in expected if path in str(error)]
            assert type(error) is expected[path], error
            if strategy in ("cpu", "csd", "ordered"):
                assert step == data.paths.index(path) // BATCH
    assert all("could not prepare" in text or "can be read here" in text for text in told)


def test_a_file_that_hangs(leaves_nothing, images, tmp_path, told):
    """A FIFO in place of an image: DataLoader would wait for ever."""
    paths = [shutil.copy(images / f"image {number}.jpg", tmp_path) for number in range(40)]
    data = dataset(paths)
    truth = Truth(data)
    truth.of(0)
    os.unlink(paths[30])
    os.mkfifo(paths[30])
    batches, errors = collect(make_loader(data, "csd"))
    truth.check(batches, 0, without=range(28, 32))
    assert len(errors) == 1 and "not a regular file" in str(errors[0][1])


def test_an_error_keeps_no_loader_alive(broken):
    """After the error is handled and the loader dropped, it is gone without garbage collection, with its threads and device."""
    loader = make_loader(broken[0], "cpu")
    gone = weakref.ref(loader)
    gc.collect()
    gc.disable()
    try:
        try:
            train(loader)
        except OSError:
            pass
        del loader
        assert gone() is None
    finally:
        gc.enable()
