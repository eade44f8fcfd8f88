"""Whole epochs with batches copied to a device: the same samples and bits with every strategy, also if files are damaged.

The CPU serves as a device without streams, on the same code path as a GPU: workers and fetchers read, verify and finish the
batches, and the training thread uses them after their events. If there is a GPU, it is tested too.
"""

from __future__ import annotations

import re
import threading

import pytest
import torch

from ddlp.epoch.gpu_prefetch import AHEAD
from ddlp.errors import DDLPError
from ddlp.transfer.choose_transfer import transfer_to, ways
from ddlp.transfer.device_stream import DeviceStream, NoRoom
from ddlp.transfer.gds.needs import place_of
from ddlp.transfer.gpu_transfer import FileTransfer, GpuTransfer
from ddlp.transfer.mapped_batch import may_map
from tests.ddlp.faults.scene import make_loader, train, until
from tests.ddlp.faults.test_damage import RATIO, STEP, Vandal, are_told, delete, flip

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=NO_GPU)])
def lands(request, monkeypatch):
    """Options of a loader that copies its batches to a device."""

    def plain(device, transfer):
        if device is None:  # the reference loader
            return None
        lane = DeviceStream(torch.device(device))
        return GpuTransfer(lane, ways(lane, plain.transfer or transfer))

    def options(transfer=None, **others):
        if request.param == "cuda":
            return {"device": "cuda", "transfer": transfer, **others}
        plain.transfer = transfer if transfer in ("pinned", "mmap") else None
        return {"device": "cpu", "transfer": None if plain.transfer else transfer, **others}

    if request.param == "cpu":
        monkeypatch.setattr("ddlp.begin.loader_parts.transfer_to", plain)
    return options


def on_cpu(batches):
    return [[images.cpu(), labels.cpu()] for images, labels in batches]


def test_the_fastest_way(leaves_nothing, data, truth, told, lands):
    if not may_map(leaves_nothing):
        pytest.skip(f"{leaves_nothing} is on no file system that is mapped, or in a chroot, where that can't be told")
    loader = make_loader(data, "csd", **lands())
    for epoch in range(2):
        truth.check(on_cpu(train(loader)), epoch)
    report = loader.report()
    assert report.batches_csd == 40 and not len(told), list(told)
    assert any(re.search(r"batches come by transfer=.*the fastest for the first one \(pinned ", note) for note in report.notes)


def test_damaged_files(leaves_nothing, data, truth, told, lands):
    loader = make_loader(data, "mte", ratio=RATIO, **lands("pinned"))
    truth.check(on_cpu(train(loader, 0.02, at={STEP: Vandal(leaves_nothing, flip, delete)})))
    are_told(told, flip, delete)


@pytest.mark.parametrize("strategy, workers", [("wrr", 0), ("ordered", 2)])  # other tests here have mte, and the host alone
def test_every_strategy(leaves_nothing, data, truth, told, lands, strategy, workers):
    loader = make_loader(data, strategy, num_workers=workers, **lands())
    took_part = False
    for epoch in range(30):  # an engine takes time to start on a busy machine
        truth.check(on_cpu(train(loader, 0.01)), epoch)
        report = loader.report()
        assert report.batches_cpu + report.batches_csd == 40 and not len(told), list(told)
        took_part = report.batches_csd > 0
        if epoch and took_part:
            break
    assert took_part


def test_an_audit_looks_at_what_landed(leaves_nothing, data, told, lands, monkeypatch):
    """The audited sample is read from the file's bytes. If the host computes other pixels, the audit says so."""
    loader = make_loader(data, "csd", audit=1, **lands("pinned"))
    assert len(train(loader)) == 40 and not len(told), list(told)
    monkeypatch.setattr("ddlp.sources.engine.source.host_digest", lambda spec, item: "other")
    monkeypatch.setattr("ddlp.sources.engine.source._compare_bits", lambda *_: None)
    train(make_loader(data, "csd", audit=1, **lands("pinned")))
    assert any("has other pixels than the host computes" in text for text in told), list(told)


def test_what_was_delivered_is_the_callers_to_change(leaves_nothing, data, truth, lands):
    """Each batch is overwritten after its step. Later batches are still right, and the overwritten one stays as it was left."""
    loader = make_loader(data, "wrr", output="uint8", memory_format=torch.channels_last, **lands())
    reference = make_loader(data, "cpu", output="uint8", memory_format=torch.channels_last)
    expected = {int(label): image for images, labels in reference for image, label in zip(images, labels)}
    kept = []
    for images, labels in loader:
        for image, label in zip(images.cpu(), labels.tolist()):
            assert torch.equal(image, expected[label])
        images.fill_(len(kept))
        kept.append(images)
    assert all(bool((images == number).all()) for number, images in enumerate(kept)) and len(kept) == 40


def test_on_a_network_file_system_nothing_is_mapped(leaves_nothing, data, truth, lands, monkeypatch, tmp_path):
    """If the engine removes a file while it is copied from a mapping, reading the mapping would kill this process there."""
    mounts = tmp_path / "proc/self/mountinfo"
    mounts.parent.mkdir(parents=True)
    mounts.write_text("21 1 0:42 / / rw - nfs4 there:/all rw\n")
    monkeypatch.setattr("ddlp.transfer.mapped_batch.place_of", lambda spool, _: place_of(spool, tmp_path))
    loader = make_loader(data, "csd", **lands())
    truth.check(on_cpu(train(loader)))
    notes = "\n".join(loader.report().notes)
    assert "batches come by transfer=" in notes and "mmap" not in notes
    with pytest.raises(DDLPError, match=r"transfer='mmap': .* may not be mapped: .* Take transfer='pinned'"):
        train(make_loader(data, "csd", **lands("mmap")))


def test_few_finished_batches_wait_on_the_device(leaves_nothing, data, truth, lands, monkeypatch):
    """The next batches are copied before training asks for them. The other ones of seventeen wait as bytes."""
    ledgers, brought, there, ready, bring = [], [], [], [], GpuTransfer.bring

    def counted(self, *batch):
        brought.append(1)
        there.extend(len(brought) - len(ledger.delivered) for ledger in ledgers)
        return bring(self, *batch)

    monkeypatch.setattr(GpuTransfer, "bring", counted)
    iterator, got = iter(make_loader(data, "cpu", num_workers=4, prefetch_factor=4, **lands())), []
    ledgers.append(iterator.executor.ledger)
    for batch in iterator:
        got.append(batch)
        until(lambda: len(brought) >= min(40, len(got) + AHEAD), 30, f"{AHEAD} batches on the device")
        if len(got) == 5:
            until(lambda: len(ledgers[0].ready_host) > 2 * AHEAD, 30, "more of them ready")
        ready.append(len(ledgers[0].ready_host))
    truth.check(on_cpu(got))
    assert max(there) <= AHEAD + 1  # and the one that training uses
    assert max(ready) > 2 * AHEAD and len(brought) == 40


def test_a_batch_for_which_there_is_no_room_is_not_lost(leaves_nothing, data, truth, told, lands, monkeypatch):
    """Training gets the error, and may ask for the batch again, any number of times."""
    full, bring = threading.Event(), GpuTransfer.bring

    def refusing(self, *batch):
        if full.is_set():
            raise NoRoom("CUDA out of memory")
        return bring(self, *batch)

    monkeypatch.setattr(GpuTransfer, "bring", refusing)
    iterator, got, refused = iter(make_loader(data, "cpu", num_workers=2, **lands())), [], 0
    while True:
        try:
            got.append(next(iterator))
        except StopIteration:
            break
        except NoRoom:
            refused += 1
            if refused % 3 == 0:
                full.clear()
        else:
            if len(got) in (3, 20):
                full.set()
    assert refused == 6 and not len(told), list(told)
    truth.check(on_cpu(got))


def test_a_devices_batch_for_which_there_is_no_room_is_the_hosts(leaves_nothing, data, truth, told, lands, monkeypatch):
    reads, read = [], FileTransfer.read

    def refusing(self, *batch, **options):
        reads.append(len(reads))
        if len(reads) == 3:
            raise NoRoom("CUDA out of memory")
        return read(self, *batch, **options)

    monkeypatch.setattr(FileTransfer, "read", refusing)
    loader = make_loader(data, "csd", **lands("pinned"))
    truth.check(on_cpu(train(loader)))
    assert len(told) == 1 and "was not used (CUDA out of memory); the host prepares it again" in told[0], list(told)
    assert loader.report().batches_cpu == 1


def test_what_else_goes_wrong_on_the_way_is_raised_once_in_its_place(leaves_nothing, data, lands, monkeypatch):
    calls, bring = [], GpuTransfer.bring

    def failing(self, *batch):
        calls.append(len(calls))
        if len(calls) == 5:
            raise ValueError("the fifth")
        return bring(self, *batch)

    monkeypatch.setattr(GpuTransfer, "bring", failing)
    iterator, got = iter(make_loader(data, "cpu", **lands())), []
    for _ in range(40):
        try:
            got.append(next(iterator))
        except ValueError as error:
            assert str(error) == "the fifth"
            got.append(None)
    assert got.count(None) == 1 and next(iterator, None) is None


def test_readers_end_with_the_loader(leaves_nothing, data, lands):
    def readers():
        return [thread for thread in threading.enumerate() if thread.name.startswith("ddlp-read")]

    loader = make_loader(data, "csd", **lands("pinned"))
    iterator = iter(loader)
    next(iterator)
    assert readers()
    del loader
    next(iterator)  # it outlives its loader, and still needs the readers
    del iterator
    until(lambda: not readers(), 30, "no reader left")


def test_ways_into_a_gpu_want_a_gpu(data):
    for way in ("gds", "pinned", "mmap"):
        with pytest.raises(ValueError, match=f"transfer='{way}' brings batches into a GPU's memory: give device='cuda'"):
            make_loader(data, "csd", transfer=way)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_said_in_one_line(leaves_nothing, data):
    with pytest.raises(DDLPError, match=r"device='cuda:1': torch .* finds no GPU here\. See what `nvidia-smi` says"):
        iter(make_loader(data, "cpu", device="cuda:1"))
    assert transfer_to("cpu", None) is None and transfer_to(None, None) is None
