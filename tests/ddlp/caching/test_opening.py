"""`cache=` of a loader: the same batches, from the second epoch on without the work."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from ddlp import Cache, DDLPError, DDLPLoader, ImageArrays, ImageFiles, TarImages
from ddlp.caching import opening
from ddlp.observe import read_run
from ddlp.recording.events import Decided
from ddlp.stats.live import Life
from tests.engine_process import until

COUNT, SIDE = 60, 24
EVALUATION = v2.Compose([v2.Resize(28), v2.CenterCrop(SIDE), v2.ToTensor(), v2.Normalize((0.5,) * 3, (0.2,) * 3)])
BYTES = v2.Compose([v2.Resize(28), v2.CenterCrop(SIDE), v2.PILToTensor()])
CROPS = v2.Compose([v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip(), v2.ToTensor(), v2.RandomErasing(0.5)])


class Own(torch.nn.Module):
    """A step that ddlp does not know."""

    def forward(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(np.asarray(image).astype(np.float32).sum(2))


OWN_STEP = v2.Compose([v2.Resize(28), v2.CenterCrop(SIDE), Own()])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root, random = tmp_path_factory.mktemp("images"), np.random.default_rng(4)
    paths = []
    for index in range(COUNT):
        height, width = random.integers(30, 60, 2)
        small = random.integers(0, 256, (height // 3, width // 3, 3), dtype=np.uint8)
        paths.append(str(root / f"{index}.jpg"))
        Image.fromarray(small).resize((int(width), int(height))).save(paths[-1], quality=90)
        os.utime(paths[-1], (1e9, 1e9))
    return paths


def make(files: list[str], transform: Any = EVALUATION, **arguments: Any) -> DDLPLoader:
    arguments = {"batch_size": 8, "shuffle": True, "num_workers": 2, "seed": 3, **arguments}
    return DDLPLoader(ImageFiles(files, range(len(files)), transform), generator=torch.Generator().manual_seed(1), **arguments)


def epoch(loader: DDLPLoader) -> dict[int, torch.Tensor]:
    """The images of an epoch by their labels, which are their indices."""
    return {int(label): image for images, labels in loader for image, label in zip(images, labels, strict=True)}


def same(one: dict[int, torch.Tensor], other: dict[int, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[label], other[label]) for label in one)


@pytest.fixture
def training_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if training had waited for its data: these epochs are over before that can be told."""
    monkeypatch.setattr(Life, "host_is_slow", lambda _: True)


def counted(loader: DDLPLoader) -> tuple[int, int]:
    cache = loader.report().cache
    assert cache is not None
    return cache.hits, cache.misses


@pytest.mark.parametrize("transform", (EVALUATION, BYTES, CROPS, OWN_STEP), ids=("evaluation", "bytes", "crops", "own step"))
@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.some(3)
def test_epochs_are_those_without_it(files: list[str], tmp_path: Path, transform: Any, workers: int) -> None:
    plain = make(files, transform, num_workers=workers, own_steps="threads")
    cache = Cache(tmp_path / "cache", "1G")
    loader = make(files, transform, num_workers=workers, own_steps="threads", cache=cache)
    for number in range(3):
        assert same(epoch(loader), epoch(plain)), number
        assert counted(loader) == ((0, COUNT) if number == 0 else (COUNT, 0))
        assert (loader.report().cache.written_bytes > 0) is (number == 0)  # type: ignore[union-attr]
    again = make(files, transform, num_workers=workers, own_steps="threads", cache=cache)  # as in the next run
    first = make(files, transform, num_workers=workers, own_steps="threads")
    assert same(epoch(again), epoch(first))
    assert counted(again) == (COUNT, 0)
    assert f"cache     {COUNT} samples used it, 0 did not; 0 B written" in str(again.report())
    assert plain.report().cache is None


@pytest.mark.parametrize("strategy", ("wrr", "mte", "ordered"))
def test_beside_a_device(files: list[str], tmp_path: Path, strategy: str) -> None:
    arguments: dict[str, Any] = {"strategy": strategy, "transfer": "stream", **({"ratio": 0.5} if strategy == "mte" else {})}
    loader = make(files, CROPS, cache=Cache(tmp_path / "cache", "1G"), **arguments)
    plain = make(files, CROPS)
    for _ in range(2):
        assert same(epoch(loader), epoch(plain))
    hits, misses = counted(loader)
    assert 0 <= hits + misses <= COUNT + 16  # the host may make a batch that the device has begun


def test_a_quarter_of_the_room_gives_a_quarter_of_the_hits(files: list[str], tmp_path: Path) -> None:
    large = v2.Compose([v2.Resize(100), v2.CenterCrop(96), v2.PILToTensor()])
    quota = 4096 + 8 + len(files) // 4 * (96 * 96 * 3 + 56)
    loader = make(files, large, cache=Cache(tmp_path / "cache", quota))
    for number in range(3):
        epoch(loader)
        assert counted(loader) == ((0, COUNT) if number == 0 else (COUNT // 4, COUNT - COUNT // 4))
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.safetensors")) <= quota


def test_another_pipeline_has_another_shelf(files: list[str], tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", "1G")
    epoch(make(files, cache=cache))
    other = v2.Compose([v2.Resize(27), v2.CenterCrop(SIDE), v2.PILToTensor()])
    loader = make(files, other, cache=cache)
    assert same(epoch(loader), epoch(make(files, other)))
    assert counted(loader) == (0, COUNT)
    loader = make(files, BYTES, cache=cache)  # the same up to the cut
    assert same(epoch(loader), epoch(make(files, BYTES)))
    assert counted(loader) == (COUNT, 0)
    assert len(list((tmp_path / "cache").glob("shelf-*"))) == 2


def test_samples_in_tar_shards(files: list[str], tmp_path: Path) -> None:
    shard = tmp_path / "train-0.tar"
    with tarfile.open(shard, "w") as tar:
        for index, file in enumerate(files):
            tar.add(file, f"{index:04}.jpg")
            label = tarfile.TarInfo(f"{index:04}.cls")
            label.size = len(str(index))
            tar.addfile(label, io.BytesIO(str(index).encode()))
    os.utime(shard, (1e9, 1e9))

    def of_tar(cache: Any) -> DDLPLoader:
        return DDLPLoader(TarImages([str(shard)], EVALUATION), 8, num_workers=1, seed=3, cache=cache)

    loader, plain = of_tar(Cache(tmp_path / "cache", "1G")), of_tar(False)
    for number in range(2):
        assert same(epoch(loader), epoch(plain))
        assert counted(loader) == ((0, COUNT) if number == 0 else (COUNT, 0))
    os.utime(shard, (1e9 + 1, 1e9 + 1))
    assert same(epoch(loader), epoch(plain))
    assert counted(loader) == (0, COUNT)


def test_two_views(files: list[str], tmp_path: Path) -> None:
    class Twice:
        def __init__(self) -> None:
            self.transforms = [CROPS, v2.Compose([v2.RandomResizedCrop(SIDE), v2.RandomGrayscale(0.5), v2.ToTensor()])]

        def __call__(self, image: Any) -> list[Any]:
            return [transform(image) for transform in self.transforms]

    loader, plain = (make(files, Twice(), cache=cache) for cache in (Cache(tmp_path / "cache", "1G"), False))
    for _ in range(2):
        for (images, labels), (others, others_labels) in zip(loader, plain, strict=True):
            assert torch.equal(labels, others_labels)
            assert all(map(torch.equal, images, others))
    assert counted(loader) == (2 * COUNT, 0)


def test_epochs_that_are_broken_off(files: list[str], tmp_path: Path) -> None:
    loader, plain = make(files, CROPS, cache=Cache(tmp_path / "cache", "1G")), make(files, CROPS)
    for _ in zip(range(3), loader, strict=False):
        pass
    next(iter(plain))
    assert same(epoch(loader), epoch(plain))
    hits, misses = counted(loader)
    assert hits >= 24
    assert hits + misses == COUNT


def test_a_loader_that_is_dropped_frees_its_shelf(files: list[str], tmp_path: Path) -> None:
    from csd_engine.cache.shelves import Shelves

    loader = make(files, cache=Cache(tmp_path / "cache", "1G"))
    epoch(loader)
    shelves = Shelves(tmp_path / "cache", 0)
    assert [one.in_use for one in shelves.summaries()] == [True]
    copy = pickle.loads(pickle.dumps(loader))
    del loader
    until(lambda: [one.in_use for one in shelves.summaries()] == [False])  # a thread of the epoch may hold it until it ends
    epoch(copy)
    assert counted(copy) == (COUNT, 0)


def open_below(directory: Path) -> list[str]:
    """The files below a directory that this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it was closed meanwhile
            found.append(os.readlink(link))
    return [one for one in found if one.startswith(str(directory)) and ".safetensors" in one]


def test_a_loader_that_is_dropped_closes_its_files(files: list[str], tmp_path: Path) -> None:
    """At once: no cycle of references keeps them until the collector comes."""
    gc.collect()
    gc.disable()
    try:
        loader = make(files, cache=Cache(tmp_path / "cache", "1G"))
        for _ in range(2):
            epoch(loader)
        assert open_below(tmp_path / "cache")
        del loader
        until(lambda: not open_below(tmp_path / "cache"))
    finally:
        gc.enable()


def test_another_cache_between_epochs(files: list[str], tmp_path: Path) -> None:
    loader = make(files, cache=Cache(tmp_path / "one", "1G"))
    epoch(loader)
    loader.cache = Cache(tmp_path / "two", "1G")
    epoch(loader)
    assert counted(loader) == (0, COUNT)
    loader.cache = False
    epoch(loader)
    assert loader.report().cache is None


@pytest.mark.parametrize("cache", (True, None, "yes", "/data", 5))
def test_what_is_no_cache(files: list[str], cache: Any) -> None:
    with pytest.raises(ValueError, match="cache="):
        make(files, cache=cache)


def test_a_directory_that_others_may_write_ends_it_at_the_beginning(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(DDLPError, match="chmod go-w"):
        iter(make(files, cache=Cache(tmp_path / "cache", "1G")))


def test_flipped_bits_give_one_warning(files: list[str], tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", "1G")
    epoch(make(files, cache=cache))
    (file,) = (tmp_path / "cache").rglob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[6000] ^= 1
    file.write_bytes(content)
    loader, plain = make(files, cache=cache), make(files)
    with pytest.warns(UserWarning, match="damaged") as told:
        assert same(epoch(loader), epoch(plain))
    assert sum("damaged" in str(one.message) for one in told) == 1
    for _ in range(2):  # what was taken from the file before the damage was found is kept anew in the first of these
        assert same(epoch(loader), epoch(plain))
    assert counted(loader) == (COUNT, 0)


def test_user_code_is_not_kept(files: list[str], tmp_path: Path) -> None:
    loader = make(files, Own(), num_workers=0, batch_size=1, cache=Cache(tmp_path / "cache", "1G"))
    with pytest.warns(UserWarning) as told:
        next(iter(loader))
        next(iter(loader))
    assert sum("keeps nothing" in str(one.message) for one in told) == 1
    assert not (tmp_path / "cache").exists()


def test_arrays_are_not_kept(tmp_path: Path) -> None:
    images = np.zeros((10, 30, 30, 3), np.uint8)
    loader = DDLPLoader(ImageArrays(images, range(10), EVALUATION), cache=Cache(tmp_path / "cache", "1G"))
    assert len(list(loader)) == 10
    assert "nothing is kept: the samples are no files" in str(loader.report())


@pytest.mark.usefixtures("training_waits")
def test_auto_keeps_results_of_one_size(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loader, plain = make(files, cache="auto"), make(files)
    assert same(epoch(loader), epoch(plain))
    assert same(epoch(loader), epoch(plain))
    assert sum("20 % of the free space at most" in text for text in caplog.messages) == 1
    assert counted(loader) == (COUNT, 0)
    assert len(list((tmp_path / "ddlp" / "samples").glob("shelf-*"))) == 1


@pytest.mark.usefixtures("training_waits")
@pytest.mark.parametrize("answer", ("pixels", "off"))
def test_auto_asks_what_pays(files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    answers = [(answer, "it does not pay" if answer == "off" else "")]
    monkeypatch.setattr(opening, "choose", lambda *_: answers.pop())  # asked once
    loader = make(files, CROPS, cache="auto")
    epoch(loader)
    epoch(loader)
    if answer != "off":
        assert counted(loader) == (COUNT, 0)
        assert "pixels after decoding" in str(loader.report())
    else:
        assert loader.report().cache is None
        assert "nothing is kept: it does not pay" in str(loader.report())


@pytest.mark.usefixtures("training_waits")
@pytest.mark.parametrize("epochs", (1, 1000))
def test_the_number_of_epochs_decides(tmp_path: Path, epochs: int) -> None:
    """In one epoch nothing is used again. In a thousand the pixels of large images, which take long to decode, save time."""
    noise, paths = np.random.default_rng(5).integers(0, 256, (600, 800, 3), dtype=np.uint8), []
    for number in range(8):
        paths.append(str(tmp_path / f"{number}.jpg"))
        Image.fromarray(noise).save(paths[-1], quality=95)
        os.utime(paths[-1], (1e9, 1e9))
    loader = make(paths, CROPS, cache=Cache(tmp_path / "cache", "1G", epochs=epochs))
    assert f"if measuring before the first epoch shows that it saves time in {epochs} epochs" in loader.explain()
    assert same(epoch(loader), epoch(make(paths, CROPS)))
    assert (loader.report().cache is not None) is (epochs > 1)
    epoch(loader)
    if epochs > 1:
        assert counted(loader) == (len(paths), 0)
    else:
        assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_explain_tells_what_is_kept(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = make(files, cache=Cache(tmp_path, "1G")).explain()
    assert f"cache      pixels after Resize -> CenterCrop, uint8 (24, 24, 3), in {tmp_path}, 1 GiB at most" in text
    text = make(files, CROPS, cache=Cache(tmp_path, "1G")).explain()
    assert "pixels after decoding, uint8, each image of its own size, in" in text
    assert "cache      nothing is kept: decode='fast'" in make(files, CROPS, decode="fast", cache="auto").explain()
    turned = v2.Compose([v2.RandomResizedCrop(SIDE), v2.RandomRotation(9), v2.ToTensor()])
    assert "cache      nothing is kept: decode='fast'" in make(files, turned, decode="fast", cache="auto").explain()
    assert "cache" not in make(files).explain()


def test_auto_keeps_nothing_while_training_does_not_wait(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    slow = False
    monkeypatch.setattr(Life, "host_is_slow", lambda _: slow)
    loader, plain = make(files, cache="auto"), make(files)
    assert same(epoch(loader), epoch(plain))
    assert same(epoch(loader), epoch(plain))
    assert counted(loader) == (0, COUNT) and not list(tmp_path.rglob("*.safetensors"))
    assert "no more is kept, since training does not wait" in str(loader.report())
    slow = True
    epoch(loader)
    slow = False  # what is kept is used all the same
    epoch(loader)
    assert counted(loader) == (COUNT, 0)


def test_a_recording_has_what_was_decided(files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    epoch(make(files, cache="auto", record=tmp_path / "run", num_workers="auto"))
    (trace,) = read_run(tmp_path / "run")
    (workers,) = [one for one in trace.of(Decided) if one.about == "workers"]
    assert workers.text.startswith("num_workers='auto': ")
    (cache,) = [one for one in trace.of(Decided) if one.about == "cache"]
    assert cache.text.startswith(f"pixels after Resize -> CenterCrop, in {tmp_path}/ddlp/samples")


@pytest.mark.parametrize("size_alone", (True, False))
def test_what_the_user_wants_kept_is_kept(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_alone: bool
) -> None:
    monkeypatch.setattr(Life, "host_is_slow", lambda _: False)
    loader = make(files, cache=Cache(tmp_path / "cache", "1G", epochs=None if size_alone else 9))
    if size_alone:
        epoch(loader)
    else:
        assert loader.fill_cache(progress=False).kept == COUNT
    epoch(loader)
    assert counted(loader) == (COUNT, 0)
