"""An engine's processes together need less than 100 MB more than interpreters that only made the same imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from csd_engine.machine.computer import process_memory
from csd_engine.service.worker_process import child_environment
from ddlp.sampledata import make_imagefolder
from tests.engine_memory import IMAGENET_FILES, LIMIT_BYTES, SERVICE_IMPORTS, WORKER_IMPORTS, Images, Peak, with_children, work
from tests.engine_process import until

WORKERS = 2


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Images of ImageNet's sizes, one of 12 megapixels among them."""
    root = tmp_path_factory.mktemp("imagenet")
    make_imagefolder(root, 60, 46, progress=False)
    return root


@pytest.fixture(scope="module")
def bare():
    """(resident, private) bytes of interpreters that only made the engine's imports, all at the same time."""
    environment = child_environment()
    scripts = [SERVICE_IMPORTS] + [WORKER_IMPORTS] * WORKERS
    started = [
        subprocess.Popen([sys.executable, "-c", f"{one}; print(flush=True); input()"], stdin=-1, stdout=-1, env=environment)
        for one in scripts
    ]
    for one in started:
        assert one.stdout.readline()
    memory = process_memory([one.pid for one in started])
    for one in started:
        one.communicate(b"\n")
    return memory


@pytest.mark.parametrize("way", ["kernel", pytest.param("pillow", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "batches, files",
    [((256,) * 2, 1000), pytest.param((4096, 256), IMAGENET_FILES, marks=pytest.mark.slow)],
    ids=["256", "4096 of ImageNet's files"],
)
def test_it_stays_small(start, root, bare, tmp_path, monkeypatch, batches, files, way, request):
    if way == "pillow":
        monkeypatch.setenv("DDLP_KERNEL", "off")
    else:
        request.getfixturevalue("need_kernel")
    images = Images(root, tmp_path / "manifest", files, 1 << 20 if max(batches) < 1000 else 100_000)
    assert images.pixels(images.largest) > 12_000_000
    engine = start("--root", str(root), "--memory", "512M", workers=WORKERS)
    until(lambda: len(engine.children()) == WORKERS)
    link = engine.link()
    link.open()
    with Peak(lambda: with_children(engine.process.pid)) as peak:
        work(link, images, batches, 120)
    link.close()
    added = (peak.resident - bare[0], peak.private - bare[1])
    print(f"batches of {batches}, {files} files: added {added[0] / 1e6:.0f} MB resident, {added[1] / 1e6:.0f} MB private, "
          f"{peak.samples} samples; bare interpreters {bare[0] / 1e6:.0f} and {bare[1] / 1e6:.0f} MB")  # fmt: skip
    assert peak.samples > 20 and max(added) < LIMIT_BYTES
    assert (added[0] > 49_000_000) == (way == "pillow")  # the kernel holds only a band of the largest image


@pytest.mark.parametrize("when", ["it imports", "it starts"])
def test_a_worker_without_memory_says_one_line(tmp_path, when):
    """If the worker itself runs out of memory, and not a sample, it can report to nobody."""
    (tmp_path / "sitecustomize.py").write_text(
        "import csd_engine.kernels as kernels\n"
        f"imports = {when == 'it imports'}\n"
        "class NoMemory:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'csd_engine.service.worker' and imports:\n"
        "            raise MemoryError\n"
        "def kernel():\n"
        "    raise MemoryError\n"
        "kernels.kernel = kernel\n"
        "sys_meta_path = __import__('sys').meta_path\n"
        "sys_meta_path.insert(0, NoMemory())\n",
        encoding="utf-8",
    )
    environment = child_environment()
    environment["PYTHONPATH"] = f"{tmp_path}:{environment.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "csd_engine.service.worker_start"]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "csd_engine: a worker has no memory left and ends. The engine starts another\n"
