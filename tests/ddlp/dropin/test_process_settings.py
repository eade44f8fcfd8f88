"""What belongs to the process (torch's modes and types, the directory) does to a batch what it does to DataLoader's."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

from ddlp import Cache, DDLPLoader, ImageFiles
from ddlp.errors import Untranslatable
from tests.ddlp.dropin.beside import plain
from tests.ddlp.dropin.small_sets import numbered, write_images

SIZED = (v1.Resize(20), v1.CenterCrop(16))
WEIGHTS = torch.nn.Linear(16, 4)


def turned(image: Any) -> Any:
    return image.rotate(7)


def one_more(image: torch.Tensor) -> torch.Tensor:
    return image + torch.ones(1)


def weighed(image: torch.Tensor) -> torch.Tensor:
    return WEIGHTS(image.to(WEIGHTS.weight.dtype))


TRANSFORMS = {
    "ToTensor": v1.Compose([*SIZED, v1.ToTensor(), v1.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.2))]),
    "v2": v2.Compose([v2.Resize(20), v2.CenterCrop(16), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]),
    "bytes": v1.Compose([*SIZED, v1.PILToTensor()]),
    "erased": v1.Compose([*SIZED, v1.ToTensor(), v1.RandomErasing(p=1.0, scale=(1, 1), ratio=(1, 1))]),
    "own, of PIL": v1.Compose([*SIZED, v1.Lambda(turned), v1.ToTensor()]),
    "own, of tensors": v1.Compose([*SIZED, v1.ToTensor(), v1.Lambda(one_more)]),
    "user code": v1.Compose([v1.Lambda(turned), *SIZED, v1.ToTensor()]),
}


@contextlib.contextmanager
def during(set_value: Callable[[Any], None], value: Any, before: Any) -> Iterator[None]:
    set_value(value)
    try:
        yield
    finally:
        set_value(before)


def default_dtype(dtype: torch.dtype) -> contextlib.AbstractContextManager[None]:
    return during(torch.set_default_dtype, dtype, torch.get_default_dtype())


SETTINGS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "deterministic": lambda: during(torch.use_deterministic_algorithms, True, False),
    "one thread": lambda: during(torch.set_num_threads, 1, torch.get_num_threads()),
    "default device": lambda: torch.device("cpu"),
}


def given(kind: type[DataLoader], dataset: Any, setting: str, when: str, **arguments: Any) -> list[Any]:
    """Two epochs' batches. The setting holds from before the loader is made, or from then on, or only until its iter()."""
    torch.manual_seed(3)
    before = contextlib.nullcontext() if when != "before" else SETTINGS[setting]()
    with before, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = kind(dataset, 8, **arguments)
        if when == "at iter":
            with SETTINGS[setting]():
                iterator = iter(loader)
            return [plain(batch) for batch in iterator]
        with SETTINGS[setting]():
            return [plain(batch) for _ in range(2) for batch in loader]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("when", ["before", "between", "at iter"])
@pytest.mark.some(3)
def test_torchs_settings(paths, setting, when):
    """A setting that ends with iter() still holds in worker processes: they have what held when they began."""
    for name, transform in TRANSFORMS.items():
        dataset, workers = numbered(paths[:20], transform), 2 if when == "at iter" else 0
        if workers == 0 or (setting in ("float64", "no_grad") and name in ("ToTensor", "own, of PIL", "user code")):
            theirs = given(DataLoader, dataset, setting, when, num_workers=workers)
            assert given(DDLPLoader, dataset, setting, when, num_workers=workers) == theirs, name


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_own_steps_in_threads_have_the_modes_of_iter(paths, mode):
    dataset = numbered(paths[:20], v1.Compose([*SIZED, v1.ToTensor(), v1.Lambda(weighed)]))
    with mode():
        theirs = [plain(batch) for batch in DataLoader(dataset, 8)]
        loader = DDLPLoader(dataset, 8, num_workers=2, own_steps="threads")
        iterator = iter(loader)
    assert [plain(batch) for batch in iterator] == theirs
    assert not any(images[4] for _, (images, _) in theirs)  # requires_grad


def test_a_default_dtype_that_no_device_can_make_is_named(paths):
    with default_dtype(torch.float64):
        text = str(DDLPLoader(numbered(paths, TRANSFORMS["ToTensor"]), 8).explain())
        assert "torch.float64, torch's default dtype" in text
        with pytest.raises(Untranslatable, match=r"torch\.float64, torch's default dtype now"):
            DDLPLoader(numbered(paths, TRANSFORMS["ToTensor"]), 8, strategy="csd", own_steps="off")


def test_the_dtype_may_change_between_epochs(paths):
    dataset, kinds = numbered(paths, TRANSFORMS["ToTensor"]), (DataLoader, DDLPLoader)
    theirs, ours = (kind(dataset, 8, num_workers=2) for kind in kinds)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.float32):
        with default_dtype(dtype):
            assert [plain(batch) for batch in ours] == [plain(batch) for batch in theirs]


SETS: dict[str, Callable[[Any], Any]] = {
    "ImageFolder": lambda transform: datasets.ImageFolder("images", transform),
    "ImageFiles": lambda transform: ImageFiles(sorted(Path("images").rglob("*.jpg")), list(range(20)), transform),
}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty directory. The current one has images."""
    write_images(tmp_path / "here" / "images", 20)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "elsewhere"


def moved(loader: DataLoader, elsewhere: Path, epochs: int = 1) -> list[Any]:
    """The batches of epochs during which the current directory changes; it is the new one when the next begins."""
    batches: list[Any] = []
    before = os.getcwd()
    try:
        for _ in range(epochs):
            iterator = iter(loader)
            os.chdir(elsewhere)
            batches += [plain(batch) for batch in iterator]
    finally:
        os.chdir(before)
    return batches


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("transform", ["ToTensor", "own, of PIL", "user code"])
@pytest.mark.some(3)
def test_relative_paths_are_those_of_iter(elsewhere, kind, transform):
    dataset = SETS[kind](TRANSFORMS[transform])
    expected = moved(DataLoader(dataset, 8, num_workers=2), elsewhere)
    assert moved(DDLPLoader(dataset, 8, num_workers=2), elsewhere) == expected
    if transform == "ToTensor":
        assert moved(DDLPLoader(dataset, 8), elsewhere) == expected  # DataLoader fails: here a thread prefetches, too


@pytest.mark.parametrize("transform", ["ToTensor", "own, of PIL", "user code"])
def test_workers_that_persist_stay_where_they_began(elsewhere, transform):
    dataset = SETS["ImageFolder"](TRANSFORMS[transform])
    theirs, ours = (
        moved(kind(dataset, 8, num_workers=2, persistent_workers=True), elsewhere, 3) for kind in (DataLoader, DDLPLoader)
    )
    assert ours == theirs


def test_without_them_each_epoch_is_where_it_began(elsewhere):
    for kind in (DataLoader, DDLPLoader):
        loader = kind(SETS["ImageFolder"](TRANSFORMS["ToTensor"]), 8, num_workers=2)
        with pytest.raises(FileNotFoundError, match="images"):
            moved(loader, elsewhere, 2)


@pytest.mark.parametrize("strategy", ["csd", "wrr"])
def test_a_device_finds_relative_paths(elsewhere, engine, strategy):
    dataset = SETS["ImageFolder"](TRANSFORMS["ToTensor"])
    expected = sorted(moved(DataLoader(dataset, 8, num_workers=1), elsewhere))
    loader = DDLPLoader(dataset, 8, num_workers=2, strategy=strategy, spool=engine)
    assert sorted(moved(loader, elsewhere)) == expected
    assert strategy != "csd" or loader.report().batches_csd > 0


def test_relative_directories_of_the_loader(elsewhere):
    dataset = SETS["ImageFolder"](TRANSFORMS["ToTensor"])
    loader = DDLPLoader(dataset, 8, num_workers=2, strategy="wrr", spool="spool", cache=Cache("cache", "1G"), record="record")
    expected = sorted(plain(batch) for batch in DataLoader(dataset, 8))
    for _ in range(2):
        assert sorted(moved(loader, elsewhere)) == expected
    assert not os.listdir(elsewhere)
    assert {"cache", "images", "record"} <= set(os.listdir("."))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_missing_file_is_named_as_the_data_set_names_it(elsewhere, workers):
    dataset = SETS["ImageFolder"](TRANSFORMS["ToTensor"])
    os.unlink(dataset.samples[3][0])
    with pytest.raises(FileNotFoundError) as raised:
        list(DDLPLoader(dataset, 8, num_workers=workers))
    assert raised.value.filename == dataset.samples[3][0]
    assert os.getcwd() not in str(raised.value)
