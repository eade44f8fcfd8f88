"""Damaged files in the spool, engines with wrong pixels: ddlp reports them, and each sample comes once with the right bits."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlp.sources.engine.source import DifferentBits, EngineJob
from tests.ddlp.faults.scene import make_loader, train, until


def flip(path: Path, _: Path) -> None:
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    with open(path, "r+b") as stream:
        stream.write(content)


def truncate(path: Path, _: Path) -> None:
    os.truncate(path, 6000)


def replace(path: Path, old: Path) -> None:
    shutil.copy(old, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)


def delete(path: Path, _: Path) -> None:
    path.unlink()


def fifo(path: Path, _: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def garble_header(path: Path, _: Path) -> None:
    with open(path, "r+b") as stream:
        stream.write(os.urandom(4096))


WAYS = {
    flip: "checksum",
    truncate: "6000 bytes",
    replace: "holds batch",
    delete: "No such file",
    fifo: "not a regular file",
    garble_header: "header",
}

RATIO, STEP = 0.25, 7


class Vandal:
    """Damages files in the spool, each in one of ``ways``. It is called between two steps, when all fetch slots are full, so
    nothing races with it.

    It works with mte at `RATIO`, before `STEP`: there the host makes up to 13 of the device's 30 batches beside its own ten.
    """

    def __init__(self, spool: Path, *ways: Callable[[Path, Path], None]) -> None:
        self._spool, self._ways = spool, ways
        self.lying = 0

    def __call__(self) -> None:
        published = until(self._lying_there, 30, f"{len(self._ways) + 3} files that lie in the spool")
        self.lying = len(published)
        old = self._spool / "old"
        shutil.copy(published[0], old)
        for way, path in zip(self._ways, published[1:], strict=False):
            way(path, old)
        old.unlink()

    def _lying_there(self) -> list[Path]:
        """Files that are not being fetched. Nothing is delivered meanwhile, so once the slots are full no more are fetched."""
        found = self._published()
        time.sleep(0.5)
        return found if all(path.exists() for path in found) else []

    def _published(self) -> list[Path]:
        found = sorted(self._spool.glob("**/job-*/*.safetensors"), key=lambda p: int(p.name.split(".")[1]), reverse=True)
        return found if len(found) >= len(self._ways) + 3 else []


def are_told(told: list[str], *ways: Callable[[Path, Path], None]) -> None:
    """Assert that a warning tells of each damage, and of nothing else."""
    assert len(told) == len(ways), list(told)
    assert all("was not used" in text and "host prepares it again" in text for text in told)
    assert all(sum(WAYS[way] in text for text in told) == 1 for way in ways), list(told)


@pytest.mark.parametrize("ways", [(flip, replace, fifo), (truncate, delete, garble_header)])  # five in a row are too many
def test_damaged_files(leaves_nothing, data, truth, told, ways):
    """mte leaves the device's batches in the spool until the host's are used."""
    loader = make_loader(data, "mte", ratio=RATIO)
    vandal = Vandal(leaves_nothing, *ways)
    truth.check(train(loader, 0.02, at={STEP: vandal}))
    are_told(told, *ways)
    report = loader.report()
    assert report.batches_cpu + report.batches_csd == 40
    assert report.batches_csd >= vandal.lying - len(ways)  # all other files there, however fast this machine's sides are


def test_files_that_nobody_expects(leaves_nothing, data, truth, told):
    """A foreign file and a late copy of a lease are never used, and are removed with the job."""
    loader = make_loader(data, "mte", ratio=0.5)
    copies = []

    def strew():
        for path in until(lambda: sorted(leaves_nothing.glob("**/job-*/*.safetensors")), 30, "files in the spool"):
            identity, lease, _ = path.name.split(".")
            for name in (f"{identity}.{int(lease) + 1000}.safetensors", f"{'0' * 32}.{lease}.safetensors", "x.part"):
                if path.exists() and not (path.parent / name).exists():
                    with contextlib.suppress(FileNotFoundError):  # it was fetched and removed just now
                        shutil.copy(path, path.parent / name)
                        copies.append(path.parent / name)

    truth.check(train(loader, 0.04, at={15: strew}))
    assert copies and not len(told)
    deadline = time.monotonic() + 5
    while any(path.exists() for path in copies) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(path.exists() for path in copies)


WRONG = """
import sys
if any("csd_engine" in word for word in sys.orig_argv):
    import csd_engine.prepare.sample as samples
    from csd_engine.prepare.destination import Destination
    from csd_engine.prepare.started_batch import StartedBatch
    right, right_batch = samples.prepare_sample, StartedBatch.make
    calls = [0]
    def bend(out):
        calls[0] += 1
        if calls[0] > {after}:
            out[3, 5, 1] ^= 1
    def wrong(reader, pipeline, item, seed, epoch, out, *more):
        right(reader, pipeline, item, seed, epoch, out, *more)
        bend(out)
    class Bent(Destination):
        def __init__(self, to):
            self.to = to
        def place(self, part):
            self.memory = self.to.place(part)
            return self.memory
        def done(self, part):
            for image in self.memory[0][: part.stop - part.start]:
                bend(image)
            self.to.done(part)
    def wrong_batch(self, first, to):
        return right_batch(self, first, Bent(to))
    samples.prepare_sample, StartedBatch.make = wrong, wrong_batch
"""


BOTH_SIDES = r"pillow \S+ there, \S+ here, libjpeg \S.* there, \S.* here, numpy \S+ there, \S+ here\)"


@pytest.fixture
def wrong_engine(tmp_path, monkeypatch):
    """Engines whose operators change one bit of one pixel, after `after` samples."""

    def make(after: int) -> None:
        home = tmp_path / "wrong"
        home.mkdir()
        (home / "sitecustomize.py").write_text(textwrap.dedent(WRONG.format(after=after)))
        monkeypatch.setenv("PYTHONPATH", str(home))
        monkeypatch.setenv("PYTHONSAFEPATH", "")

    return make


def test_the_probe_finds_an_engine_with_other_pixels(leaves_nothing, data, truth, wrong_engine):
    wrong_engine(0)
    loader = make_loader(data, "wrr")
    batches = []
    with pytest.raises(DifferentBits, match=f"(?s)image .*{BOTH_SIDES}.*allow_different_bits=True"):
        for batch in loader:
            batches.append(batch)
            time.sleep(0.2)  # gives the engine time to start while batches are left
    truth_of = truth.of(0)
    for images, labels in batches:
        assert all(bool((x == truth_of[int(y)]).all()) for x, y in zip(images, labels))


ONE_WRONG = """
import sys
if any("csd_engine" in word for word in sys.orig_argv):
    import csd_engine.transforms.pipeline as pipeline
    from csd_engine.transforms import masks, primitives
    from csd_engine.data import image_files
    right, erase, decode = pipeline.apply_primitive, masks.RandomErasing.rectangle, image_files.open_image
    crop_resize = pipeline.crop_resize
    def apply(image, step, order):
        made = right(image, step, order)
        return made.point(lambda value: value ^ 1) if type(step).__name__ == "{step}" else made
    pipeline.apply_primitive = apply
    if "{step}" == "crop_resize":
        pipeline.crop_resize = lambda *a: crop_resize(*a).point(lambda value: value ^ 1)
    if "{step}" == "mask":
        masks.RandomErasing.rectangle = lambda *a: tuple(value + 1 for value in erase(*a))
    if "{step}" == "decode":
        image_files.open_image = lambda *a: decode(*a).convert("L")
"""


@pytest.mark.parametrize(
    ("step", "named"),
    [
        ("decode", "What differs is the JPEG itself, which is another one there or is read otherwise"),
        ("crop_resize", r"What differs is RandomResizedCrop\(size=\[32, 32\], scale="),
        ("Flip", r"What differs is RandomHorizontalFlip\(p=0\.5\) \("),
        ("mask", r"What differs is RandomErasing\(p=0\.5, "),
    ],
)
@pytest.mark.some(1)
def test_the_operator_that_differs_is_named(leaves_nothing, data, tmp_path, monkeypatch, step, named):
    (tmp_path / "sitecustomize.py").write_text(ONE_WRONG.format(step=step))
    monkeypatch.setenv("DDLP_KERNEL", "off")  # with a kernel the altered operator would not run
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    loader = make_loader(data, "csd")
    with pytest.raises(DifferentBits, match=f"(?s)image .*than this host\\. {named}.*{BOTH_SIDES}"):
        next(iter(loader))


def test_allowed_differences_pass_and_stand_in_the_report(leaves_nothing, data, wrong_engine, told):
    wrong_engine(0)
    loader = make_loader(data, "csd", allow_different_bits=True)
    batches = train(loader)
    assert sorted(int(y) for _, labels in batches for y in labels) == list(range(len(data)))
    assert loader.report().batches_csd == 40 and not len(told)
    (note,) = loader.report().notes
    assert re.match(f"embedded engine: it makes other pixels of .*image .*What differs is .*{BOTH_SIDES}", note), note


def test_an_audit_finds_an_engine_that_goes_wrong_later(leaves_nothing, data, truth, wrong_engine, told):
    wrong_engine(4)  # after the probe
    loader = make_loader(data, "csd", audit=1)
    truth.check(train(loader))
    assert len(told) == 1 and "audit" in told[0] and "other pixels" in told[0] and "not used any more" in told[0], list(told)
    assert loader.report().batches_csd == 0


def test_what_was_read_before_the_audit_is_not_delivered(leaves_nothing, data, truth, wrong_engine, told, monkeypatch):
    """The first part of the epoch reads two batches of the device into memory. The second one is audited."""
    wrong_engine(4)
    loader = make_loader(data, "mte", ratio=0.5, audit=2)
    check, ready = EngineJob._audited, []

    def check_late(*arguments):
        until(lambda: ready or loader._last.executor.ledger.ready_csd, 30, "one that is ready")
        ready.extend(loader._last.executor.ledger.ready_csd)
        check(*arguments)

    def audited():
        states = loader._last.executor.devices.states
        until(lambda: any(device.barred for device in states.values()), 30, "the end of the audit")

    with monkeypatch.context() as patched:
        patched.setattr(EngineJob, "_audited", check_late)
        truth.check(train(loader, at={0: audited}))
    assert ready and loader.report().batches_csd == 0
