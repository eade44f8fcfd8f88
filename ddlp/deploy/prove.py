"""Checks of a running engine: it answers, makes the host's bits, sees its spool and storages; and how fast it is."""

from __future__ import annotations

import os
import queue
import secrets
import shlex
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from csd_engine.batchfile.reader import Layout, identity
from csd_engine.data.base import fingerprint, open_reader
from csd_engine.data.files import FileSet
from csd_engine.data.manifest import write_manifest
from csd_engine.errors import SampleError
from csd_engine.prepare.sample import prepare_sample, sample_digest
from csd_engine.protocol import codec as say
from csd_engine.transforms import resample
from csd_engine.transforms.pipeline import Pipeline
from ddlp.deploy.findings import Finding, bad, ok, warn
from ddlp.deploy.place import engine_module
from ddlp.deploy.shell import Shell
from ddlp.devices.address_book import DeviceRecord
from ddlp.sources.engine.link import EngineLink, JobHandle

__all__ = ["Trial", "check_port", "of_spool", "of_storage", "some_images"]

PROBES = 6
_IMAGES = 256
_BATCH = 8
_RATE_TIMEOUT_S = 120.0  # a slow device may take this long for its first batches
_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
_LOOK_AT = 20_000  # directory entries: a root may hold millions
_SEED = 1
_STORAGE_TIMEOUT_S = 120.0  # the interpreter's start on a board, the machine's role, and one request


def standard_pipeline() -> Pipeline:
    """RandomResizedCrop(224) and a flip, with the order of resampling of this host's Pillow."""
    crop = {
        "op": "RandomResizedCrop", "size": [224, 224], "scale": [0.08, 1.0], "ratio": [3 / 4, 4 / 3],
        "interpolation": "bilinear",
    }  # fmt: skip
    ops = [crop, {"op": "RandomHorizontalFlip", "p": 0.5}]
    return Pipeline.parse({"format": 1, "order": resample.native_order(), "mode": "RGB", "ops": ops})


def some_images(root: str, limit: int = _IMAGES) -> list[str]:
    """Paths, relative to `root`, of up to `limit` image files below it: some of each directory, without reading all of it."""
    by_directory: dict[str, list[str]] = {}
    looked = 0
    for directory, directories, files in os.walk(root):
        directories.sort()
        names = sorted(name for name in files if name.lower().endswith(_SUFFIXES))
        if names:
            by_directory[directory] = names[:limit]
        looked += len(files) + len(directories)
        if looked > _LOOK_AT:
            break
    rounds: Iterator[str] = (
        os.path.relpath(os.path.join(directory, names[k]), root)
        for k in range(limit)
        for directory, names in by_directory.items()
        if k < len(names)
    )
    return [path for path, _ in zip(rounds, range(limit), strict=False)]


def of_spool(shell: Shell, record: DeviceRecord) -> Finding:
    """Whether the host's spool and the device's are the same directory: what either writes there, the other reads."""
    host_spool, device_spool = record.host_spool, record.device_spool
    if host_spool is None:
        return ok(f"spool {device_spool} is not shared: batches travel over the network")
    if not os.path.isdir(host_spool):
        return warn(
            f"spool {host_spool} is not there on this host", f"it should be the device's {device_spool}",
            f"Mount it; or give its right path: ddlp deploy --name {record.name} --host-spool DIR",
        )  # fmt: skip
    name = f".ddlp-{secrets.token_hex(8)}"  # csd_engine.service.spool knows a left file of this form as ours
    words = (secrets.token_hex(16), secrets.token_hex(16))
    here, there = Path(host_spool) / name, shlex.quote(f"{device_spool}/{name}")
    what = f"spool {host_spool} here, {device_spool} there"
    stream = "Batches will travel over the network instead (transfer='stream'); or share the directory, see docs/devices.md."
    try:
        here.write_text(words[0])
    except OSError as error:
        return warn(what, f"it can't be written here ({error.strerror})", stream)
    try:
        # List the directory first, so that a network file system's client asks its server again.
        script = (
            f"ls -a {shlex.quote(device_spool)} > /dev/null; cat {there} 2> /dev/null || {{ sleep 1; cat {there}; }}; "
            f"printf %s {words[1]} > {there}.back"
        )
        if shell.run(script, timeout_s=60).out.strip() != words[0]:
            return warn(what, "a file that this host has written there is not seen by the device", stream)
        if not _appears(Path(f"{here}.back"), words[1]):
            return warn(what, "a file that the device has written there is not seen by this host", stream)
        return ok(f"{what}: both see the same")
    finally:
        here.unlink(missing_ok=True)
        shell.run(f"rm -f {there}.back", timeout_s=60)


def _appears(path: Path, text: str) -> bool:
    """Whether a file with this text appears. NFS may hide a new file for a while, so this looks for three seconds."""
    for pause_s in (0.0, 1.0, 2.0):
        time.sleep(pause_s)
        os.listdir(path.parent)
        try:
            return path.read_text() == text
        except OSError:
            continue
    return False


def check_port(address: str) -> Finding:
    """Whether TCP reaches the port of an engine that runs."""
    host, _, port = address[len("tcp://") :].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except ConnectionRefusedError:
        why = f"port {port} of {host} is closed, though the engine runs: another machine, or a firewall that refuses"
    except socket.gaierror as trouble:
        why = f"{host} can't be resolved here ({trouble.strerror})"
    except OSError as trouble:
        why = f"nothing answers at port {port} of {host} ({trouble}), though the engine runs: a firewall or NAT lies between"
    else:
        return ok(f"port {port} of {host} is open")
    way_out = f"Open TCP port {port} there, or choose another: --listen-port PORT; give the right address: --address HOST."
    return bad(f"no engine at {address}", why, way_out)


class Trial:
    """A job on the engine over some of the user's images: compares bits, and measures. Use with ``with``.

    Args:
        link: to the engine; opened here, left open.
        root: the images, as this host has them.
        paths: relative to it.

    Raises:
        EngineError: the engine refuses the job or is gone.
    """

    def __init__(self, link: EngineLink, root: str, paths: Sequence[str]) -> None:
        self._root = root
        self._temporary = tempfile.TemporaryDirectory(prefix="ddlp-deploy-")
        self._events: queue.SimpleQueue[object] = queue.SimpleQueue()
        try:
            manifest = Path(self._temporary.name) / "manifest"
            self._dataset = FileSet(os.path.abspath(root), write_manifest(manifest, paths), len(paths))
            self._pipeline = standard_pipeline()
            height, width, channels = self._pipeline.output_shape(None)
            self._layout = Layout(_BATCH, height, width, channels, self._pipeline.boxes)
            self._reader = open_reader(self._dataset, lambda path: path, lambda _: manifest)
            welcome = link.open()
            self._workers = welcome.workers
            self._job: JobHandle = link.open_job(
                self._pipeline, self._dataset, self._layout, lambda _: manifest, self._events.put
            )
        except BaseException:
            self._temporary.cleanup()
            raise

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self._job.close(wait_s=5.0)
        self._reader.close()
        self._temporary.cleanup()

    def compare(self, record: DeviceRecord, device: str) -> Finding:
        """Have both sides make a few samples, and say whether their bits are the same. ``device``: the root as it is there."""
        count = len(self._dataset)
        items = [(k * count // min(PROBES, count), 0) for k in range(min(PROBES, count))]
        different, unreadable, compared = [], [], 0
        out = np.empty(self._layout.image_shape[1:], np.uint8)
        for item, theirs in zip(items, self._job.probe(_SEED, 0, items), strict=True):
            try:
                prepare_sample(self._reader, self._pipeline, item, _SEED, 0, out)
            except SampleError:
                continue  # this host can't read it either, so it says nothing about the device
            if not theirs.digest:
                unreadable.append(theirs.error)
                continue
            compared += 1
            if theirs.digest != sample_digest(out, None):
                different.append(self._reader.where(item[0]))
        data, name = f"data {self._root}", record.name
        if unreadable:
            return bad(
                f"{data}: {len(unreadable)} of the images tried can't be read there", unreadable[0],
                f"Is {device} on the device the same directory, and may its user read it? Correct --root or --host-root.",
            )  # fmt: skip
        if different:
            versions = ", ".join(f"{package} {version}" for package, version in sorted(record.versions.items()))
            return bad(
                f"{data}: {different[0]} gives other pixels there ({len(different)} of those tried)",
                f"other files, or versions that decode otherwise ({versions})",
                f"ddlp doctor {name} compares the files (with --verify all of them), ddlp parity {name} the operators; "
                "allow_different_bits=True takes the difference.",
            )
        return ok(f"{data}: {compared} images give the same bits there")

    def images_per_s(self, waiting: Callable[[int], None], seconds: float) -> float | None:
        """Images a second of all workers together, from files that were just read; None: it failed, or was too slow to tell.

        Args:
            waiting: called with the images so far.
            seconds: to measure for, from the first finished batch on.
        """
        count = len(self._dataset)
        under_way, images, number, first = 0, 0, 0, 0.0
        began = time.monotonic()
        while time.monotonic() - began < _RATE_TIMEOUT_S:
            while under_way < 2 * self._workers:
                items = [((number * _BATCH + k) % count, number * _BATCH // count) for k in range(_BATCH)]
                name = identity(self._pipeline.digest, fingerprint(self._dataset), _SEED, 0, items)
                self._job.send_lease(number, name, _SEED, 0, items)
                number, under_way = number + 1, under_way + 1
            try:
                event = self._events.get(timeout=1.0)
            except queue.Empty:
                waiting(images)
                continue
            if isinstance(event, say.Failed):
                return None
            if not isinstance(event, say.Published):
                continue
            self._job.release(event.lease)
            under_way -= 1
            now = time.monotonic()
            if not first:
                first = now  # from here on: caches and workers are warm
                continue
            images += _BATCH
            # At first all workers finish their batches at the same time, so some rounds are needed.
            if now - first >= seconds and images >= 3 * self._workers * _BATCH:
                return images / (now - first)
        return None


def of_storage(shell: Shell, record: DeviceRecord, url: str, environment: str, versions: Mapping[str, str] | None) -> Finding:
    """Whether the engine may request objects below a URL for this host, and whether the storage answers on the device.

    Args:
        shell: to the device.
        record: of it.
        url: one of its roots.
        environment: the file there with settings and credentials of storages; empty: none.
        versions: what the engine tells to this host; None: it could not be asked.
    """
    if versions is not None and url not in versions.get("urls", "").split():
        return bad(f"data {url}: the engine does not request it for this host", "it runs with other settings",
                   f"ddlp deploy --name {record.name}")  # fmt: skip
    words = ("csd_engine", "--environment", environment or "none", "--reach", url)
    done = shell.run(engine_module(record.python, record.home, *words), timeout_s=_STORAGE_TIMEOUT_S)
    if done.status == 0:
        return ok(f"data {done.out.strip()}")
    message = (done.err.strip().splitlines() or [f"exit status {done.status}"])[-1]
    return warn(
        f"data {message.removeprefix('csd_engine: ').partition('. Check the URL')[0]}",
        "the engine can request nothing there, so this host makes these batches itself; unless its credentials may read "
        "objects and list none",
        f"Correct the URL, or endpoint, region and credentials in {environment or '--environment FILE'} on the device; then: "
        f"ddlp stop {record.name} && ddlp start {record.name}",
    )
