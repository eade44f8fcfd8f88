"""A loader makes indexes of JPEG files in its first epoch; later epochs and processes use them, with the same bits."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from csd_engine.cache.shelves import Shelves
from csd_engine.kernels import kernel
from ddlp import Cache, DDLPLoader, ImageFiles
from tests.ddlp.caching.test_opening import epoch, same
from tests.engine_process import until

COUNT, SIDE = 48, 32
PROGRESSIVE, PNG = range(0, COUNT, 8), range(5, COUNT, 8)
OTHERS = len(PROGRESSIVE) + len(PNG)
CROPS = v2.Compose([v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip(), v2.ToTensor()])

pytestmark = pytest.mark.skipif(kernel() is None, reason="there is no kernel")


def write(path: str, seed: int) -> None:
    """Write a photograph of noise with some structure; of each eight one is progressive, and one a PNG."""
    random, number = np.random.default_rng(seed), int(Path(path).stem)
    small = random.integers(0, 256, (60, 80, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((320 + number, 240))
    image.save(path, "PNG" if number in PNG else "JPEG", quality=90, progressive=number in PROGRESSIVE)
    os.utime(path, (1e9 + seed, 1e9 + seed))


@pytest.fixture(scope="module")
def shared_files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("photographs")
    paths = [str(root / f"{number}.jpg") for number in range(COUNT)]
    for number, path in enumerate(paths):
        write(path, number)
    return paths


@pytest.fixture
def files(tmp_path: Path, shared_files: list[str]) -> list[str]:
    """Of this test alone."""
    (tmp_path / "images").mkdir()
    paths = [str(tmp_path / "images" / Path(path).name) for path in shared_files]
    for path, shared in zip(paths, shared_files, strict=True):
        Path(path).write_bytes(Path(shared).read_bytes())
        os.utime(path, (1e9, 1e9))
    return paths


def make(files: list[str], cache: Any = False, transform: Any = CROPS, **arguments: Any) -> DDLPLoader:
    arguments = {"batch_size": 8, "shuffle": True, "num_workers": 2, "seed": 3, **arguments}
    data = ImageFiles(files, range(len(files)), transform)
    return DDLPLoader(data, generator=torch.Generator().manual_seed(1), cache=cache, **arguments)


def indexes(tmp_path: Path, size: str = "1G") -> Cache:
    return Cache(tmp_path / "cache", size, keeps="indexes")


def counted(loader: DDLPLoader) -> tuple[int, int]:
    cache = loader.report().cache
    assert cache is not None
    return cache.hits, cache.misses


@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.parametrize("decode", ("exact", "fast"))
def test_three_epochs_are_those_without(shared_files: list[str], tmp_path: Path, workers: int, decode: str) -> None:
    plain = make(shared_files, num_workers=workers, decode=decode)
    loader = make(shared_files, indexes(tmp_path), num_workers=workers, decode=decode)
    for number in range(3):
        assert same(epoch(loader), epoch(plain)), number
        assert counted(loader) == ((0, COUNT) if number == 0 else (COUNT - OTHERS, OTHERS))
        assert (loader.report().cache.written_bytes > 0) is (number == 0)  # type: ignore[union-attr]
    assert "indexes of JPEG files, in" in str(loader.report())
    size = sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*.safetensors"))
    assert size < 0.02 * sum(os.path.getsize(path) for path in shared_files) + 4096 + 56 * COUNT


def test_a_file_that_changes(files: list[str], tmp_path: Path) -> None:
    loader, plain = make(files, indexes(tmp_path)), make(files)
    for _ in range(2):
        assert same(epoch(loader), epoch(plain))
    for number in (1, 2, 3):
        write(files[number], 100 + number)
    os.utime(files[4], (1e9 + 5, 1e9 + 5))  # the same content
    assert same(epoch(loader), epoch(plain))
    assert counted(loader) == (COUNT - OTHERS - 4, OTHERS + 4)
    assert same(epoch(loader), epoch(plain))
    assert counted(loader) == (COUNT - OTHERS, OTHERS)


@pytest.mark.parametrize("at", (20, 4200, -30), ids=("header", "an index", "entries"))
def test_flipped_bits_are_not_used(shared_files: list[str], tmp_path: Path, at: int) -> None:
    epoch(make(shared_files, indexes(tmp_path)))
    (file,) = (tmp_path / "cache").rglob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[at] ^= 4
    file.write_bytes(content)
    loader, plain = make(shared_files, indexes(tmp_path)), make(shared_files)
    with pytest.warns(UserWarning, match="damaged"):
        assert same(epoch(loader), epoch(plain))
    for _ in range(2):
        assert same(epoch(loader), epoch(plain))
    assert counted(loader) == (COUNT - OTHERS, OTHERS)


SCRIPT = """
import sys
from tests.ddlp.caching.test_index_epochs import Cache, counted, digest, make
loader = make(sys.argv[2:], Cache(sys.argv[1], "1G", keeps="indexes"))
batches = []
for batch in loader:
    batches.append(batch)
    print("batch", flush=True)
print("made", *counted(loader), digest(batches), flush=True)
"""


def digest(batches: Any) -> str:
    """Of an epoch's images and labels."""
    parts = (tensor.numpy().tobytes() for images, labels in batches for tensor in (images, labels))
    return hashlib.blake2b(b"".join(parts)).hexdigest()


def started(files: list[str], tmp_path: Path) -> subprocess.Popen[str]:
    """An epoch in a process of its own."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "cache"), *files]
    return subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True)


def test_another_process_uses_them(shared_files: list[str], tmp_path: Path) -> None:
    """Also while this one has them open."""
    wanted, loader = digest(make(shared_files)), make(shared_files, indexes(tmp_path))
    assert digest(loader) == wanted
    told, _ = started(shared_files, tmp_path).communicate(timeout=120)
    assert told.splitlines()[-1].split() == ["made", str(COUNT - OTHERS), str(OTHERS), wanted]


def test_two_loaders_write_at_once(shared_files: list[str], tmp_path: Path) -> None:
    plain, one, other = make(shared_files), make(shared_files, indexes(tmp_path)), make(shared_files, indexes(tmp_path))
    for number in range(2):
        batches = list(zip(one, other, plain, strict=True))
        assert all(torch.equal(batch[0][0], batch[2][0]) and torch.equal(batch[1][0], batch[2][0]) for batch in batches)
        assert counted(one) == counted(other) == ((0, COUNT) if number == 0 else (COUNT - OTHERS, OTHERS))
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 2


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_nothing_bad(shared_files: list[str], tmp_path: Path) -> None:
    process = started(shared_files, tmp_path)
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    loader, plain = make(shared_files, indexes(tmp_path)), make(shared_files)
    for _ in range(2):
        assert same(epoch(loader), epoch(plain))
    assert counted(loader) == (COUNT - OTHERS, OTHERS)
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_verify_and_forget_know_them(shared_files: list[str], tmp_path: Path) -> None:
    epoch(make(shared_files, indexes(tmp_path)))
    shelves = Shelves(tmp_path / "cache", 0)
    (one,) = shelves.summaries()
    assert (one.samples, one.about["point"]) == (COUNT - OTHERS, "indexes of JPEG files")
    assert one.seconds > 0
    assert [why for _, _, why in shelves.verify(one.key)] == [""]
    until(lambda: not shelves.summaries()[0].in_use)  # a thread that made the next epoch's batches may hold the loader
    assert shelves.forget(one.key)


def test_little_room_is_for_indexes(shared_files: list[str], tmp_path: Path) -> None:
    """Pixels of all files take 11 MB, indexes 20 kB."""
    for size, what in (("100M", "pixels after decoding"), ("500K", "indexes of JPEG files")):
        loader = make(shared_files, Cache(tmp_path / size, size))
        epoch(loader)
        assert what in str(loader.report()), size
    loader = make(shared_files, Cache(tmp_path / "pixels", "500K", keeps="pixels"))
    epoch(loader)
    assert "pixels after decoding" in str(loader.report())


def test_files_that_can_have_none(shared_files: list[str], tmp_path: Path) -> None:
    others = [shared_files[number] for number in sorted([*PROGRESSIVE, *PNG])]
    loader, plain = make(others, indexes(tmp_path)), make(others)
    for _ in range(2):
        assert same(epoch(loader), epoch(plain))
    assert counted(loader) == (0, OTHERS)
    loader = make(others, Cache(tmp_path / "little", "500K"))
    epoch(loader)
    assert "pixels after decoding" in str(loader.report())


def test_pipelines_that_need_whole_files(shared_files: list[str], tmp_path: Path) -> None:
    whole = v2.Compose([v2.Resize(40), v2.CenterCrop(SIDE), v2.ToTensor()])
    loader = make(shared_files, indexes(tmp_path), whole)
    assert same(epoch(loader), epoch(make(shared_files, False, whole)))
    assert "nothing is kept: keeps='indexes' is for pipelines that begin with a random crop" in str(loader.report())
    assert not (tmp_path / "cache").exists()
    loader = make(shared_files, Cache(tmp_path / "cache", "1G", keeps="pixels"), decode="fast")
    epoch(loader)
    assert "nothing is kept: decode='fast'" in str(loader.report())
