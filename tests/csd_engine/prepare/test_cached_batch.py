"""Batches with a cache have the bits, and the errors, of batches without one: first epoch, later ones, and any mixture."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from csd_engine.cache.shelf import Shelf
from csd_engine.cache.shelves import Shelves
from csd_engine.data.base import Places, Reader
from csd_engine.data.image_files import open_sample
from csd_engine.errors import SampleError
from csd_engine.kernels import kernel
from csd_engine.prepare import batch_maker, cached_batch, sample
from csd_engine.prepare.batch_maker import BatchMaker
from csd_engine.prepare.cached_batch import CachedBatchMaker
from csd_engine.prepare.started_batch import BatchRequest
from csd_engine.transforms.pipeline import Pipeline
from csd_engine.transforms.prefix import cache_point
from tests.csd_engine.prepare.memory import Memory
from tests.open_files import open_below

COUNT, SEED = 40, 5
_RESIZE = {"op": "Resize", "size": 40, "max_size": None, "interpolation": "bilinear"}
_SQUARE = {"op": "Resize", "size": [36, 36], "max_size": None, "interpolation": "bicubic"}
_CENTER = {"op": "CenterCrop", "size": [32, 30]}
_RANDOM = {"op": "RandomResizedCrop", "size": [32, 30], "scale": [0.1, 1.0], "ratio": [0.75, 1.33], "interpolation": "bilinear"}
_CROP = {"op": "RandomCrop", "size": [32, 30], "padding": None, "pad_if_needed": False, "fill": [0], "padding_mode": "constant"}
_FLIP = {"op": "RandomHorizontalFlip", "p": 0.5}
_TURN = {"op": "RandomRotation", "degrees": [-20, 20], "interpolation": "nearest", "expand": False, "center": None, "fill": [0]}
_ERASE = {"op": "RandomErasing", "p": 0.5, "scale": [0.02, 0.33], "ratio": [0.3, 3.3]}
_GREY = {"op": "Grayscale", "channels": 1}
PIPELINES: dict[str, list[dict[str, Any]]] = {
    "evaluation": [_RESIZE, _CENTER],
    "from decoded": [_RANDOM, _FLIP],
    "masks": [_RANDOM, _FLIP, _ERASE],
    "any size, then a crop": [_RESIZE, _CROP, _FLIP],
    "one size, then a crop": [_SQUARE, _CROP],
    "one size, then a resize": [_SQUARE, _RANDOM],
    "grey": [_RESIZE, _GREY, _CENTER, _FLIP],
    "no plan": [_RANDOM, _TURN],
    "grey, no plan": [_SQUARE, _GREY, _TURN],
}


class OfFiles(Reader):
    """With `sealed` nobody may read a file."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.sealed = folder, False

    def __len__(self) -> int:
        return COUNT

    def open(self, index: int) -> Any:
        assert not self.sealed
        return open_sample(self.where(index))

    def where(self, index: int) -> str:
        return str(self._folder / f"{index}.{'png' if index % 7 == 3 else 'jpg'}")

    def places(self, indices: list[int]) -> Places:
        return Places([self.where(index) for index in indices])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs, grey and progressive ones among them, and PNGs."""
    root, random = tmp_path_factory.mktemp("images"), np.random.default_rng(1)
    reader = OfFiles(root)
    for index in range(COUNT):
        height, width = random.integers(45, 90, 2)
        pixels = random.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).resize((int(width), int(height)))
        image = image.convert("L") if index % 5 == 2 else image
        path = reader.where(index)
        image.save(path, **({"quality": 85, "progressive": index % 4 == 1} if path.endswith("jpg") else {}))
        os.utime(path, (1e9, 1e9))
    return root


@pytest.fixture(params=("kernel", "pillow"))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the kernel, or by Pillow alone."""
    if request.param == "pillow":
        for module in (batch_maker, cached_batch, sample):
            monkeypatch.setattr(module, "kernel", lambda: None)
    elif kernel() is None:
        pytest.skip("there is no kernel")
    return str(request.param)


def pipeline(name: str, decode: str = "exact") -> Pipeline:
    return Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": PIPELINES[name], "decode": decode})


def made(maker: BatchMaker, found: Pipeline, shape: tuple[int, ...], epoch: int, table: np.ndarray | None = None) -> list[Any]:
    """A shuffled epoch, in batches, one sample twice; a sample's error in its place."""
    order = np.random.default_rng(epoch).permutation(np.append(np.arange(COUNT), 4))
    results: list[Any] = []
    for sources in np.array_split(order, 5):
        memory = Memory(len(sources), shape, found.boxes, table)
        occurrences = np.array([int(source in sources[:k]) for k, source in enumerate(sources)])
        with maker.start(BatchRequest(sources, occurrences, SEED, epoch)) as batch:
            at, errors = 0, {}
            while at < len(sources):
                try:
                    at = batch.make(at, memory)
                except SampleError as error:
                    errors[at] = str(error)
                    at += 1
                    memory.done_to = at
        boxes = [b""] * len(sources) if memory.boxes is None else [one.tobytes() for one in memory.boxes]
        results += [errors.get(k) or (memory.images[k].tobytes(), boxes[k]) for k in range(len(sources))]
    return results


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[Callable[..., CachedBatchMaker]]:
    """Makes a maker with a cache of so many bytes in the directory "cache"."""
    shelves: list[Shelf] = []

    def one(reader: Reader, found: Pipeline, shape: tuple[int, ...], quota: int = 1 << 30) -> CachedBatchMaker:
        point = cache_point(found, None)
        assert point is not None
        key = found.digest
        shelf = Shelf(Shelves(tmp_path / "cache", quota), key, {}, COUNT, point.shape[2], pytest.fail)
        shelves.append(shelf)
        return CachedBatchMaker(reader, found, shape, found.boxes, point, shelf)

    yield one
    for shelf in shelves:
        shelf.close()


def plain(reader: Reader, found: Pipeline) -> tuple[BatchMaker, tuple[int, int, int]]:
    shape = found.output_shape(None)
    return BatchMaker(reader, found, shape, found.boxes), shape


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("room", ("all", "some"))
@pytest.mark.some(12)
def test_the_bits_are_those_without_a_cache(
    folder: Path, cached: Callable[..., CachedBatchMaker], way: str, name: str, room: str
) -> None:
    reader, found = OfFiles(folder), pipeline(name)
    without, shape = plain(reader, found)
    point = cache_point(found, None)
    assert point is not None
    some = 5000 + 17 * int(np.prod(point.shape) + 56) if point.fixed else 100_000
    quota = 1 << 30 if room == "all" else some
    maker = cached(reader, found, shape, quota)
    for epoch in range(3):
        maker.shelf.begin()
        reader.sealed = epoch > 0 and room == "all"
        batches = made(maker, found, shape, epoch)
        reader.sealed = False
        assert batches == made(without, found, shape, epoch), epoch
        maker.shelf.flush()
        hits = maker.shelf.counts.hits
        assert (hits <= 1) if epoch == 0 else (hits == COUNT + 1 if room == "all" else 0 < hits < COUNT), epoch
    again = cached(reader, found, shape, quota)
    assert made(again, found, shape, 7) == made(without, found, shape, 7)
    assert again.shelf.counts.hits == hits
    assert open_below(folder) == []


def test_hits_and_misses_come_in_any_order(
    folder: Path, cached: Callable[..., CachedBatchMaker], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch broke off: the next one finds a part of each batch. More is made at once than a piece of the batch takes."""
    reader, found = OfFiles(folder), pipeline("evaluation")
    without, shape = plain(reader, found)
    monkeypatch.setattr(cached_batch, "_MADE_BYTES", int(3.5 * np.prod(shape)))
    maker, some = cached(reader, found, shape), np.arange(0, COUNT, 3)
    with maker.start(BatchRequest(some, np.zeros(len(some), np.int64), SEED, 0)) as batch:
        at = 0
        while at < len(some):
            at = batch.make(at, Memory(len(some), shape, 0))
    for epoch in range(2):
        maker.shelf.flush()
        maker.shelf.begin()
        assert made(maker, found, shape, epoch) == made(without, found, shape, epoch)
        assert maker.shelf.counts.hits >= (COUNT if epoch else len(some))


@pytest.mark.parametrize("name", ("evaluation", "from decoded", "masks"))
def test_finished_numbers_too(folder: Path, cached: Callable[..., CachedBatchMaker], need_kernel: None, name: str) -> None:
    reader, found = OfFiles(folder), pipeline(name)
    table = np.random.default_rng(2).random((3, 256), dtype=np.float32)
    without, shape = plain(reader, found)
    maker = cached(reader, found, shape, 70_000)
    for epoch in range(2):
        assert made(maker, found, shape, epoch, table) == made(without, found, shape, epoch, table)
        maker.shelf.flush()
    assert 0 < maker.shelf.counts.hits < COUNT


@pytest.mark.parametrize("name", ("evaluation", "from decoded", "no plan"))
def test_errors_are_those_without_a_cache(
    folder: Path, tmp_path: Path, cached: Callable[..., CachedBatchMaker], way: str, name: str
) -> None:
    root = tmp_path / "images"
    root.mkdir()
    for file in folder.iterdir():
        (root / file.name).write_bytes(file.read_bytes())
        os.utime(root / file.name, (1e9, 1e9))
    reader, found = OfFiles(root), pipeline(name)
    for index, content in ((5, b""), (9, b"no image"), (11, (root / "11.jpg").read_bytes()[:600])):
        (root / f"{index}.jpg").write_bytes(content)
        os.utime(root / f"{index}.jpg", (1e9, 1e9))
    os.unlink(root / "20.jpg")
    Image.new("RGB", (1, 90)).save(root / "21.jpg")  # some of its crops are empty
    os.utime(root / "21.jpg", (1e9, 1e9))
    without, shape = plain(reader, found)
    maker = cached(reader, found, shape)
    for epoch in range(2):
        expected = made(without, found, shape, epoch)
        assert sum(isinstance(one, str) for one in expected) >= 4
        assert made(maker, found, shape, epoch) == expected
        maker.shelf.flush()
    assert maker.shelf.counts.hits >= COUNT - 5


def test_an_error_behind_the_cut_names_the_file(tmp_path: Path, folder: Path, cached: Callable[..., CachedBatchMaker]) -> None:
    small = dict(_CROP, size=[60, 60])
    ops = [_RESIZE, small]  # the shorter side is 40
    found = Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": ops})
    reader = OfFiles(folder)
    without, shape = plain(reader, found)
    maker = cached(reader, found, shape)
    for epoch in range(2):
        expected = made(without, found, shape, epoch)
        assert all(isinstance(one, str) and str(folder) in one for one in expected)
        assert made(maker, found, shape, epoch) == expected
        maker.shelf.flush()


def test_a_changed_file_is_made_anew(folder: Path, tmp_path: Path, cached: Callable[..., CachedBatchMaker], way: str) -> None:
    root = tmp_path / "images"
    root.mkdir()
    for file in folder.iterdir():
        (root / file.name).write_bytes(file.read_bytes())
        os.utime(root / file.name, (1e9, 1e9))
    reader, found = OfFiles(root), pipeline("from decoded")
    without, shape = plain(reader, found)
    maker = cached(reader, found, shape)
    made(maker, found, shape, 0)
    maker.shelf.flush()
    for index in (0, 4, 16, 30):
        image = Image.new("RGB", (70, 60), (index, 250 - index, 7))
        image.save(root / f"{index}.jpg")
        os.utime(root / f"{index}.jpg", (1e9 + 5, 1e9 + 5))
    assert made(maker, found, shape, 1) == made(without, found, shape, 1)
    maker.shelf.flush()
    os.utime(root / "6.jpg", (1e9 + 9, 1e9 + 9))
    maker.shelf.begin()
    assert made(maker, found, shape, 2) == made(without, found, shape, 2)
    assert maker.shelf.counts.misses == 1


def test_what_is_never_kept() -> None:
    user = {"op": "User", "file": "0" * 32, "function": "f", "parameters": {}, "size": None}
    own = Pipeline.parse({"format": 1, "order": "pillow13", "mode": "RGB", "ops": [_RESIZE, _CENTER, user]})
    assert cache_point(own, None) is None
    assert cache_point(pipeline("from decoded", decode="fast"), None) is None
    assert cache_point(pipeline("evaluation", decode="fast"), None) is not None
