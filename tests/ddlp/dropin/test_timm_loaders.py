"""timm's data sets and its create_loader's loaders as a `DDLPLoader`. Under `ddlp run`: test_run.py, a script like timm's."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from ddlp import DDLPLoader
from ddlp.observe import checked
from tests.ddlp.dropin.small_sets import DETERMINISTIC, write_images
from tests.ddlp.dropin.test_data_sets import compare
from tests.small_images import make_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("timm.data")  # here: collecting these tests costs no import
    root = tmp_path_factory.mktemp("folder")
    for name in ("cats", "dogs"):
        make_images(root / "train" / name, 13)
    return root


def timms(folder: Path, **options: Any) -> DataLoader:
    """The DataLoader inside of the loader that create_loader makes."""
    from timm.data import create_dataset, create_loader

    data = create_dataset("", root=str(folder), split="train")
    given = {"num_workers": 0, "device": torch.device("cpu"), "persistent_workers": False, **options}
    loader: DataLoader = create_loader(data, (3, 32, 32), 6, **given).loader
    return loader


def ours(loader: DataLoader, **options: Any) -> DDLPLoader:
    """A DDLPLoader with the arguments of another loader."""
    given = {"batch_size": loader.batch_size, "sampler": loader.sampler, "drop_last": loader.drop_last, "seed": 3,
             "collate_fn": loader.collate_fn, "worker_init_fn": loader.worker_init_fn, **options}  # fmt: skip
    return DDLPLoader(loader.dataset, **given)


def facts(batches: Any) -> list[Any]:
    found = []
    for batch in batches:
        assert type(batch) is tuple and len(batch) == 2
        found.append([(one.dtype, one.shape, one.stride(), one.tolist()) for one in batch])
    return found


def _same(target: int) -> int:
    return target


def _dense(target: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(target), 3)


TARGETS: dict[str, Callable[[int], Any]] = {"int": _same, "float": float, "bool": bool, "dense": _dense}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", TARGETS)
def test_fast_collate_is_done_in_bulk(folder: Path, kind: str, workers: int) -> None:
    """Batches have timm's types, dtypes, strides and values, and nothing is left for the user's processes to do."""
    theirs = timms(folder, crop_pct=0.9)
    if kind != "int":
        theirs.dataset.target_transform = TARGETS[kind]  # type: ignore[attr-defined]
    loader = ours(theirs, num_workers=workers)
    assert "cut here" not in str(loader.explain())
    assert facts(loader) == facts(theirs)
    assert next(iter(loader))[0].dtype == torch.uint8


def test_the_checker_takes_its_batches(folder: Path) -> None:
    loader = checked(ours(timms(folder), num_workers=1))
    assert len(list(loader)) == 5
    assert re.search(r"proved +labels: 26 labels", str(loader.verdict))


@pytest.mark.parametrize(
    "steps",
    [[transforms.ToTensor()], [transforms.ToTensor(), transforms.ToPILImage(), transforms.PILToTensor()]],
    ids=["floats", "own steps"],
)
def test_fast_collate_of_other_images_is_called(folder: Path, steps: list[Any]) -> None:
    """It makes bytes of floats, and it gets the results of own steps."""
    theirs = timms(folder)
    theirs.dataset.transform = transforms.Compose([transforms.Resize((16, 20)), *steps])  # type: ignore[attr-defined]
    loader = ours(theirs, num_workers=1)
    assert "cut here" in str(loader.explain())
    assert facts(loader) == facts(theirs)


class ByHand:
    """Notes numpy's state and its samples, then mixes them."""

    def __init__(self, mix: Any) -> None:
        self.mix = mix

    def __call__(self, samples: list[Any]) -> Any:
        before = [(image.clone(), target) for image, target in samples]
        state = np.random.get_state(legacy=True)
        return before, state[1:], self.mix(samples)


@pytest.mark.parametrize("mode", ["batch", "pair", "elem", "half"])
@pytest.mark.some(2)
def test_mixup_gets_samples_of_its_own(folder: Path, mode: str) -> None:
    """FastCollateMixup, which may write to its samples, gives what it gives by hand; the draws follow from the seed alone."""
    from timm.data import FastCollateMixup

    mix = FastCollateMixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=2, mode=mode)
    loader = timms(folder, is_training=True, num_workers=0, collate_fn=mix)
    sampler = list(range(24))
    found = [list(ours(loader, num_workers=workers, sampler=sampler, collate_fn=ByHand(mix))) for workers in (0, 2)]
    kept = np.random.get_state()
    try:
        for samples, (words, *rest), made in found[0]:
            np.random.set_state(("MT19937", words, *rest))
            again = mix([(image.clone(), target) for image, target in samples])
            assert facts([made]) == facts([again])
    finally:
        np.random.set_state(kept)
    plain = [list(ours(loader, num_workers=workers, sampler=sampler)) for workers in (0, 2)]
    mixed = [facts(made for _, _, made in one) for one in found]
    assert mixed[0] == mixed[1] == facts(plain[0]) == facts(plain[1])
    whole = DDLPLoader(loader.dataset, 6, sampler=sampler, seed=3)  # type: ignore[arg-type]
    assert torch.equal(next(iter(whole))[0], torch.stack([image for image, _ in found[0][0][0]]))


@pytest.mark.parametrize("kind", ["OrderedDistributedSampler", "RepeatAugSampler"])
def test_timms_samplers(folder: Path, kind: str) -> None:
    """The order is theirs. A sample that RepeatAugSampler repeats is cropped anew."""
    from timm.data import distributed_sampler

    theirs = timms(folder, is_training=True)
    samplers = [getattr(distributed_sampler, kind)(theirs.dataset, num_replicas=2, rank=1) for _ in range(2)]
    indices = list(samplers[0])
    theirs.dataset.target_transform = None  # type: ignore[attr-defined]
    targets = [theirs.dataset[index][1] for index in indices]
    batches = list(ours(theirs, sampler=samplers[1], num_workers=1, drop_last=False))
    assert torch.cat([labels for _, labels in batches]).tolist() == targets
    images = torch.cat([images for images, _ in batches])
    again = [(first, second) for first in range(len(indices)) for second in range(first) if indices[first] == indices[second]]
    assert bool(again) == (kind == "RepeatAugSampler")
    assert not any(torch.equal(images[first], images[second]) for first, second in again)


GREY = transforms.Compose([transforms.Resize((20, 24)), transforms.ToTensor()])


def made(root: Any, transform: Any = DETERMINISTIC, **options: Any) -> Any:
    dataset = pytest.importorskip("timm.data").create_dataset("", str(root), **options)
    dataset.transform = transform
    return dataset


def test_a_data_set_on_a_folder(tmp_path, engine):
    write_images(tmp_path, 20)
    compare(made(tmp_path), engine)
    dataset = made(tmp_path, GREY, input_img_mode="L", class_map={"class0": 5, "class1": 6, "class2": 9})
    dataset.target_transform = lambda target: -target
    compare(dataset, engine)
    dataset.reader.samples[3] = (dataset.reader.samples[3][0], None)
    compare(dataset, engine)
    assert dataset[3][1] == -1


@pytest.mark.parametrize(
    ("options", "words"), [({"load_bytes": True}, "load_bytes"), ({"input_img_mode": None}, "input_img_mode is None")]
)
def test_which_data_set_stays_on_the_host(tmp_path, options, words):
    write_images(tmp_path, 20)
    said = DDLPLoader(made(tmp_path, **options), 4).explain()
    assert "travels    nothing" in said and words in said
