"""The engine's memory and speed on an emulated 32-bit ARM board, compared with bare interpreters and a bare Pillow loop there.

Both run under qemu-user, whose translator counts as resident memory. The difference is the engine's own memory.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from csd_engine.batchfile.reader import Layout
from csd_engine.data.arrays import ArraySet
from csd_engine.data.concat import ConcatSet
from csd_engine.data.files import FileSet
from csd_engine.errors import EngineRefused
from csd_engine.machine.computer import process_memory
from ddlp import cli
from ddlp.devices import address_book as book
from ddlp.devices.device import Device
from ddlp.sampledata import make_imagefolder
from ddlp.sources.engine.device_link import link_to
from tests.benchmarks.bench import bench
from tests.engine_memory import (
    IMAGENET_FILES,
    LIMIT_BYTES,
    SERVICE_IMPORTS,
    WORKER_IMPORTS,
    Images,
    Peak,
    processes,
    with_children,
    work,
)
from tests.engine_process import pipeline, until

WORKERS = 2


@pytest.fixture(scope="module")
def csd(board, tmp_path_factory):
    """The board's engine, deployed as csd0, and images of ImageNet's sizes in the board's data directory."""
    patch = pytest.MonkeyPatch()
    patch.setenv("DDLP_HOME", str(tmp_path_factory.mktemp("book")))
    make_imagefolder(board.data / "imagenet", 60, 46, progress=False)
    assert cli.main([
        "deploy", f"ddlp@{board.name}", "--name", "csd0", "-F", str(board.ssh_config), "--root", board.data_there,
        "--host-root", str(board.data), "--spool", board.spool_there, "--host-spool", str(board.spool),
        "--reserve-bytes", "10M", "--workers", str(WORKERS), "--memory", "512M",
    ]) == 0  # fmt: skip
    yield book.load("csd0")
    assert cli.main(["deploy", "--name", "csd0", "--uninstall"]) == 0
    patch.undo()
    shutil.rmtree(board.data / "imagenet")


def bare_interpreters(board, csd) -> tuple[int, int]:
    """(resident, private) bytes of interpreters on the board that only made the engine's imports, all at the same time."""
    marker = f"bare-{board.name}"
    started = []
    for imports in [SERVICE_IMPORTS] + [WORKER_IMPORTS] * WORKERS:
        script = f"{imports}; print(1, flush=True); input()"
        variables = f"PYTHONPATH={csd.home}/current OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1"
        command = f"cd / && {variables} exec {csd.python} -c '{script}' {marker}"
        ssh = ["ssh", "-F", str(board.ssh_config), f"ddlp@{board.name}", command]
        started.append(subprocess.Popen(ssh, stdin=-1, stdout=-1))
    for one in started:
        assert one.stdout.readline() == b"1\n"
    pids = [pid for pid in processes(f" {marker}") if "python" in Path(f"/proc/{pid}/comm").read_text()]  # without ssh
    assert len(pids) == len(started)
    memory = process_memory(pids)
    for one in started:
        one.communicate(b"\n")
    return memory


@pytest.mark.slow
def test_it_stays_small(board, csd, tmp_path):
    bare = bare_interpreters(board, csd)
    link = link_to(Device.at("csd0"))
    link.open()
    (service,) = processes(f"{board.data}={board.data_there}")  # its --root
    for batches, files in (((256, 256), 1000), ((4096, 256, 256), IMAGENET_FILES)):
        images = Images(board.data / "imagenet", tmp_path / "manifest", files, 40_000)
        assert images.pixels(images.largest) > 12_000_000
        until(lambda: len(with_children(service)) == 1 + WORKERS)
        with Peak(lambda: with_children(service)) as peak:
            work(link, images, batches, 600)
        added = (peak.resident - bare[0], peak.private - bare[1])
        print(f"batches of {batches}, {files} files: added {added[0] / 1e6:.0f} MB resident, {added[1] / 1e6:.0f} MB private, "
              f"{peak.samples} samples; bare interpreters {bare[0] / 1e6:.0f} and {bare[1] / 1e6:.0f} MB")  # fmt: skip
        # Pillow holds the largest image in memory, the kernel only a band of it.
        assert peak.samples > 20 and (added[0] > 49_000_000) == csd.kernel.startswith("none")
        assert max(added) < LIMIT_BYTES
    link.close()


@pytest.mark.slow
def test_what_32_bits_cannot_count_or_map_is_refused(board, csd):
    layout = Layout(8, 32, 32, 3)
    array, many = ArraySet("/data/a.npy", "0" * 32, (1 << 15, 256, 256)), ArraySet("/data/a.npy", "0" * 32, (1 << 40, 1, 1))
    files = FileSet("/data", "0" * 32, 1 << 31)
    link = link_to(Device.at("csd0"))
    for dataset in (array, many, files, ConcatSet((array, files))):
        with pytest.raises(EngineRefused, match="too (large to map|many to count) on this 32-bit computer"):
            link.open_job(pipeline(), dataset, layout, lambda _: board.data, print)
    link.close()
    assert cli.main(["status", "csd0"]) == 0  # the engine goes on


@pytest.mark.slow
def test_the_bench_tells_both_rates(board, csd, capsys):
    images = ["--images", str(board.data / "imagenet" / "train"), "--files", "20"]
    assert bench(["engine", "csd0", *images, "--rounds", "2", "--seconds", "1", "--batch", "4", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["versions"]["machine"].startswith("arm") and result["workers"] == WORKERS
    assert len(result["engine"]) == len(result["bare"]) == 2 and min(result["engine"] + result["bare"]) > 0
    assert cli.main(["status", "csd0", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["status"]["images"] >= 2 * result["images"] and not told["warnings"]
