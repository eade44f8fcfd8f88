"""How batches travel: through a spool that both sides see, otherwise over the socket. ddlp finds out which."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T

from csd_engine.errors import EngineRefused
from ddlp import DDLPError, DDLPLoader, Device, ImageFiles
from tests.ddlp.faults.scene import Truth, arrays, make_loader, train, until, until_ready

OVER_THE_SOCKET = "batches are sent over the engine's socket"


def apart(engine, tmp_path, **options):
    """A device whose spool this host does not see."""
    return Device(engine.address, engine.keys, spool=tmp_path / "not mounted", **options)


@pytest.mark.parametrize("strategy", ("csd", "mte", "wrr", "ordered"))
@pytest.mark.some(1)
def test_without_a_shared_spool(engines, data, truth, told, images, tmp_path, strategy):
    engine = engines("--root", str(images), "--slowdown", "2")
    loader = make_loader(data, strategy, csd=apart(engine, tmp_path))
    for epoch in range(2):
        truth.check(train(loader, 0.01, at={0: lambda: until_ready(loader)}), epoch)
        until(lambda: not list(engine.spool.glob("job-*")), 30, "the job's end with its epoch")
    report = loader.report()
    assert report.batches_csd and not len(told), list(told)
    (note,) = report.notes
    assert OVER_THE_SOCKET in note and "no directory" in note
    assert os.listdir(engine.spool / "files") == []


def test_a_shared_spool_is_used(engines, data, truth, told, images):
    """From the first look at the delivered files on: no batch goes over the socket."""
    engine = engines("--root", str(images))
    loader = make_loader(data, "csd", csd=Device(engine.address, engine.keys))
    truth.check(train(loader))
    assert loader.report().notes == () and not len(told)
    (place,) = loader._parts.offload.connections._places.values()
    assert place.shared and place.link.stream._fetches == place.link.sealed._fetches == 0


def test_asked_for(engines, data, truth, images):
    engine = engines("--root", str(images))
    loader = make_loader(data, "csd", csd=Device(engine.address, engine.keys), transfer="stream")
    truth.check(train(loader))
    assert loader.report().batches_csd == 40 and "transfer='stream'" in loader.report().notes[0]
    (place,) = loader._parts.offload.connections._places.values()
    assert place.link.stream._fetches == 0 and place.link.sealed._fetches == 40


def test_nonsense_is_refused(data):
    with pytest.raises(ValueError, match="transfer='nfs': expected one of auto, shared, gds, pinned, mmap, stream, or None"):
        make_loader(data, "csd", transfer="nfs")


def test_it_is_explained(data, capsys):
    assert "else over its engine's socket" in make_loader(data, "csd").explain()
    assert "transfer   over the engine's socket" in make_loader(data, "csd", transfer="stream").explain()
    assert "transfer" not in make_loader(data, "cpu").explain()


def test_one_path_on_two_disks(engines, data, truth, images, tmp_path):
    """Here is a copy of the engine's spool under its path. Nothing is left in it."""
    engine = engines("--root", str(images))
    here = tmp_path / "spool"
    shutil.copytree(engine.spool, here)
    before = sorted(here.rglob("*"))
    loader = make_loader(data, "csd", csd=Device(engine.address, engine.keys, spool=here))
    truth.check(train(loader))
    del loader
    gc.collect()
    assert sorted(here.rglob("*")) == before
    loader = make_loader(data, "csd", csd=Device(engine.address, engine.keys, spool=here), transfer="shared")
    with pytest.raises(DDLPError, match=r"(?s)share no spool: .*Device\(spool=\.\.\.\), or leave transfer= out"):
        train(loader)


def test_damage_is_found(engines, data, truth, told, images, tmp_path):
    """Bits change in the device's spool before its batches are fetched."""
    engine = engines("--root", str(images))
    loader = make_loader(data, "mte", csd=apart(engine, tmp_path), ratio=0.5)
    turned = []

    def turn():
        paths = until(lambda: found if len(found := list(engine.spool.glob("job-*/*.safetensors"))) > 8 else None)
        time.sleep(0.3)  # all fetch slots are full now
        # The next ones are not fetched yet. The host may have begun the last ones if the device was slow: if its own copy is
        # first, that one is used, and nobody reads the file.
        there = [path for path in sorted(paths, key=lambda p: int(p.name.split(".")[1])) if path.exists()]
        for path in there[3:6]:
            with open(path, "r+b") as stream:
                stream.seek(5000)
                (byte,) = stream.read(1)
                stream.seek(5000)
                stream.write(bytes([byte ^ 1]))
            turned.append(path)

    truth.check(train(loader, 0.02, at={15: turn}))
    assert len(turned) == len(told) == 3 and all("sent by the engine" in text and "checksum" in text for text in told)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.some(1)
def test_breaking_off_does_not_wait_for_a_batch_on_its_way(engines, data, images, tmp_path, monkeypatch, sealed):
    """The engine hangs, and the user ends the loop."""
    if not sealed:
        monkeypatch.setenv("DDLP_STREAM_CIPHER", "curve")
    engine = engines("--root", str(images))
    loader = make_loader(data, "csd", csd=apart(engine, tmp_path))
    iterator = iter(loader)
    next(iterator)
    until(lambda: len(loader._last.executor.ledger.in_spool) > 5)  # the host knows of them, and has room for three more
    (place,) = loader._parts.offload.connections._places.values()
    place.link._heartbeat_timeout_s = 3600.0  # it is not lost: whoever waits for it hangs until the test's limit
    engine.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(3):  # these were fetched before; now the next ones are requested
            next(iterator)
        until(lambda: place.link.sealed._job if sealed else place.link.stream._under_way)
        iterator._shutdown_workers()
    finally:
        engine.process.send_signal(signal.SIGCONT)


def test_arrays_are_sent_once(engines, told, images, tmp_path):
    """1.9 MB, to an engine whose roots hold nothing of them. It keeps them for the next run."""
    engine = engines("--root", str(images))
    data = arrays()
    truth = Truth(data)
    for run in range(2):
        loader = make_loader(data, "csd", csd=apart(engine, tmp_path))
        for epoch in range(2):
            truth.check(train(loader), epoch)
            assert loader.report().batches_csd == 15 and not len(told), list(told)
        (path,) = (engine.spool / "arrays").iterdir()
        if run == 0:
            written = path.stat()
    assert path.suffix == ".npy" and np.array_equal(np.load(path), data.images)
    assert (path.stat().st_ino, path.stat().st_size) == (written.st_ino, written.st_size)
    data.images[7] = 0  # edited in place: another content gives another name
    Truth(data).check(train(loader), 2)
    assert loader.report().batches_csd == 15 and len(list((engine.spool / "arrays").iterdir())) == 2


def test_arrays_beyond_the_engines_limit(engines, images, tmp_path):
    engine = engines("--root", str(images), "--upload-bytes", "1M")
    loader = make_loader(arrays(), "csd", csd=apart(engine, tmp_path))
    with pytest.raises(EngineRefused, match="(?s)no room for a data set's array.*--upload-bytes"):
        train(loader)
    assert not list((engine.spool / "arrays").iterdir())
    small = arrays(16)
    loader = make_loader(small, "csd", csd=apart(engine, tmp_path))
    Truth(small).check(train(loader))


def test_what_was_sent_leads_nowhere_else(engines, told, images, tmp_path):
    """Among the sent files is a link to a file outside. It is not read."""
    engine = engines("--root", str(images))
    data = arrays(40)
    train(make_loader(data, "csd", csd=apart(engine, tmp_path)))
    (path,) = (engine.spool / "arrays").iterdir()
    shutil.move(path, tmp_path / "outside.npy")
    path.symlink_to(tmp_path / "outside.npy")
    loader = make_loader(data, "wrr", csd=apart(engine, tmp_path))
    assert len(train(loader, 0.05)) == 10 and loader.report().batches_csd == 0


def test_a_spool_that_shows_files_a_little_late(engines, data, truth, told, images, tmp_path):
    engine = engines("--root", str(images), "--slowdown", "20")
    seen = tmp_path / "mounted"
    with LaggingView(engine.spool, seen, 0.1):
        loader = make_loader(data, "wrr", csd=Device(engine.address, engine.keys, spool=seen))
        truth.check(train(loader, 0.05, at={0: lambda: until_ready(loader)}))
        assert loader.report().batches_csd and not len(told), list(told)
        (place,) = loader._parts.offload.connections._places.values()
        assert place.shared and place.link.stream._fetches == place.link.sealed._fetches == 0


@pytest.fixture
def late_view(tmp_path):
    """Mount a spool in which new files appear late because of the kernel's own caches (late_view.py)."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("mounting a FUSE file system needs root and /dev/fuse")
    mounted = []

    def mount(spool, late_s, way):
        seen = tmp_path / "mounted"
        seen.mkdir()
        command = [sys.executable, str(Path(__file__).parent / "late_view.py"), str(spool), str(seen), str(late_s), way]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if not server.stdout.readline():
            pytest.skip(f"FUSE cannot be mounted here: {server.communicate()[1]}")
        mounted.append((seen, server))
        return seen

    yield mount
    for seen, server in mounted:
        subprocess.run(["umount", "-l", str(seen)], check=True)
        server.terminate()
        server.communicate()


@pytest.mark.parametrize("way", ["absent", "short"])
@pytest.mark.some(1)
def test_a_real_file_system_that_remembers_what_is_no_longer_so(engines, data, truth, told, images, late_view, way):
    """The kernel answers from its cache for a minute, whatever the file system holds by then."""
    engine = engines("--root", str(images))
    seen = late_view(engine.spool, 0.3, way)
    loader = make_loader(data, "csd", csd=Device(engine.address, engine.keys, spool=seen))
    truth.check(train(loader))
    report = loader.report()
    assert report.batches_csd == 40 and not len(told), list(told)
    assert "shows new files late" in report.notes[0]
    del loader
    gc.collect()


class LaggingView:
    """A directory in which another one's files appear late, and shortened at first. files/ is the same in both."""

    def __init__(self, spool: Path, view: Path, late_s: float) -> None:
        self._spool, self._view, self._late_s = spool, view, late_s
        self._stop = threading.Event()
        view.mkdir()
        (view / "files").symlink_to(spool / "files")
        for sign in spool.glob("here-*"):
            shutil.copy(sign, view)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        first_seen: dict[Path, float] = {}
        while not self._stop.wait(0.01):
            for path in self._spool.glob("job-*/*.safetensors"):
                copy = self._view / path.relative_to(self._spool)
                lies_s = time.monotonic() - first_seen.setdefault(path, time.monotonic())
                try:
                    if lies_s >= self._late_s / 2 and not copy.exists():
                        copy.parent.mkdir(exist_ok=True)
                        copy.write_bytes(path.read_bytes()[:4096])
                    elif lies_s >= self._late_s and copy.stat().st_size == 4096:
                        with tempfile.NamedTemporaryFile(dir=copy.parent, delete=False) as stream:
                            stream.write(path.read_bytes())
                        os.replace(stream.name, copy)
                except FileNotFoundError:
                    continue  # it was fetched and released meanwhile


@pytest.mark.slow
@pytest.mark.skipif(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 14 << 30, reason="needs 14 GiB of memory")
@pytest.mark.parametrize("way", ("shared", "stream"))
def test_a_batch_file_of_more_than_2_gib(leaves_nothing, paths, told, way):
    """One read() or write() moves at most 2 GiB less 4 KiB. The last batch is small and of odd size."""
    side, full, rest = 1021, 688, 3
    assert side * side * 3 * full > 2**31
    data = ImageFiles([paths[k % 9] for k in range(full + rest)], list(range(full + rest)))
    data.transform = T.Compose([T.Resize((side, side), T.InterpolationMode.NEAREST), T.ToTensor()])
    loader = DDLPLoader(data, full, strategy="csd", output="uint8", transfer=way, memory_format=torch.channels_last)
    resized = [Image.open(path).resize((side, side), Image.Resampling.NEAREST) for path in paths[:9]]
    expected = [torch.from_numpy(np.array(image)) for image in resized]
    sizes = []
    for images, labels in loader:
        sizes.append(len(images))
        for image, label in zip(images, labels.tolist()):
            assert torch.equal(image.permute(1, 2, 0), expected[label % 9])
        del images, image
    assert sizes == [full, rest] and loader.report().batches_csd == 2 and not len(told), list(told)
