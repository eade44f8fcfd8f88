"""Spools that are full, small, unwritable or hard to reach, and several loaders on one of them."""

from __future__ import annotations

import gc
import os
import subprocess
import time
from pathlib import Path

import pytest

from csd_engine.errors import EngineError, SpoolError
from ddlp import DDLPError
from tests.ddlp.faults.scene import make_loader, train, until

FILE_BYTES = 4096 + 4 * 32 * 32 * 3 + 4 * 16 + 4  # a header, images, boxes, and which rows are left to the host

root_only = pytest.mark.skipif(os.getuid() != 0, reason="mounts, or becomes another user")


@pytest.fixture
def small_disk(spool):
    """A file system of 160 KiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(spool)], check=True)
    yield spool
    subprocess.run(["umount", "-l", str(spool)], check=True)


@root_only
@pytest.mark.parametrize("strategy", ("csd", "mte", "wrr"))
@pytest.mark.some(1)
def test_a_full_disk(data, truth, told, small_disk, strategy):
    loader = make_loader(data, strategy)
    truth.check(train(loader, 0.01))
    filler = small_disk / "filler"
    batches = train(loader, 0.01, at={5: lambda: _fill(filler)})
    truth.check(batches, 1)
    filler.unlink()
    truth.check(train(loader, 0.01), 2)
    assert len(told) <= 1, list(told)
    del loader
    gc.collect()
    until(lambda: not os.listdir(small_disk), 30)


def _fill(path: Path) -> None:
    try:
        with open(path, "wb", buffering=0) as stream:
            while True:
                stream.write(bytes(4096))
    except OSError:
        pass


def test_a_quota_smaller_than_a_batch(leaves_nothing, data):
    loader = make_loader(data, "csd", spool_bytes=FILE_BYTES - 1)
    with pytest.raises((EngineError, DDLPError), match="Give it a larger quota"):
        train(loader)


@pytest.mark.parametrize("strategy", ("csd", "mte", "wrr", "ordered"))
@pytest.mark.some(1)
def test_a_quota_of_one_batch(leaves_nothing, data, truth, told, strategy):
    loader = make_loader(data, strategy, spool_bytes=FILE_BYTES)
    truth.check(train(loader, 0.01))
    truth.check(train(loader, 0.01), 1)
    assert not len(told), list(told)
    if strategy == "csd":
        assert loader.report().batches_csd == 40


def test_a_spool_that_is_a_file(leaves_nothing, data, tmp_path):
    (tmp_path / "file").touch()
    loader = make_loader(data, "csd", spool=str(tmp_path / "file"))
    with pytest.raises(SpoolError, match="(?s)cannot be used.*spool=.*DDLP_SPOOL"):
        train(loader, 0.05)


@root_only
def test_a_spool_that_cannot_be_written(script, tmp_path):
    one = script(
        f"""
        os.environ["HOME"] = "/tmp"
        os.setuid(65534)
        loader = make_loader(data, "csd", spool={str(tmp_path)!r})
        try:
            train(loader, 0.1)
        except Exception as error:
            said(type(error).__name__, "spool=" in str(error))
        """
    )
    assert one.line() == "SpoolError True"
    assert one.end() == (0, "")
    one.nothing_left()


def test_many_loaders(leaves_nothing, data, truth, told):
    loaders = [make_loader(data, strategy) for strategy in ("wrr", "ordered", "csd", "mte", "csd")]
    iterators = [iter(loader) for loader in loaders]
    batches = [list(rows) for rows in zip(*(zip(*iterators),))]
    for k in range(len(loaders)):
        truth.check([row[k] for (row,) in batches])
    assert not len(told), list(told)


def test_a_paused_epoch_does_not_starve_another(leaves_nothing, data, truth, told):
    """Evaluation in mid-epoch: the training's batches fill the quota, and are not fetched meanwhile."""
    quota = {"spool_bytes": FILE_BYTES}
    training, evaluation = make_loader(data, "mte", ratio=0.5, **quota), make_loader(data, "csd", **quota)
    got = []
    for step, batch in enumerate(training):
        got.append(batch)
        if step == 5:
            time.sleep(0.5)
            began = time.monotonic()
            truth.check(train(evaluation))
            assert time.monotonic() - began < 25
    truth.check(got)
    assert not len(told), list(told)
