"""Loaders of timm's create_loader: in a `DDLPLoader`, and in an unedited script that `ddlp run` runs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from benchmarks.common import user_environment
from ddlp import DDLPLoader
from ddlp.observe import checked
from tests.forks import Forks
from tests.small_images import make_images

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("timm.data")  # here: collecting these tests costs no import
    root = tmp_path_factory.mktemp("folder")
    for split in ("train", "validation"):
        for name in ("cats", "dogs"):
            make_images(root / split / name, 13)
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


# -- in a DDLPLoader -----------------------------------------------------------------------------------------------------


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


# -- under `ddlp run` ----------------------------------------------------------------------------------------------------


def by_name(done: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    """The lines that the script has printed for training and evaluation."""
    assert done.returncode == 0, done.stderr
    return {name: [line for line in done.stdout.splitlines() if line.startswith(name)] for name in ("train", "evaluation")}


def run(folder: Path, *options: str) -> tuple[dict[str, list[str]], list[str]]:
    """Run the script by `ddlp run`. Return its lines, and what `ddlp run` said."""
    words = [sys.executable, "-m", "ddlp", "run", "--no-compare", "--", "with_timm.py", folder, *options]
    environment = {**user_environment(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=HERE, env=environment, capture_output=True, text=True, timeout=300)
    return by_name(done), [line for line in done.stderr.splitlines() if line.startswith("ddlp run: ")]


DRAWN = "random crops, flips and colours are drawn by ddlp"
MIXES = "the collate_fn FastCollateMixup runs as it is, with random numbers of a seed for each sample"
OPTIONS = {
    "recipe": (("--aa", "rand-m9-mstd0.5-inc1", "--reprob", "0.25"), f"{DRAWN}, {MIXES}"),
    "without the prefetcher": (("--no-prefetcher", "--reprob", "0.25"), DRAWN),
}


@pytest.mark.slow  # test_run.py: test_a_script_like_timms
@pytest.mark.parametrize("name", OPTIONS)
def test_a_script_with_timms_loaders(folder: Path, forks: Forks, name: str) -> None:
    """Both loaders are swapped. Evaluation is the script's to the bit; of training shapes, strides and dtypes are."""
    options, changes = OPTIONS[name]
    arguments = [str(folder), *options]
    plain = by_name(forks.run(module="with_timm", arguments=arguments, cwd=HERE, environment=user_environment()))
    swapped, told = run(folder, *options)
    assert swapped["evaluation"] == plain["evaluation"] and plain["evaluation"]
    without_sums = [[line.rsplit(" ", 2)[0] for line in lines["train"]] for lines in (swapped, plain)]
    assert without_sums[0] == without_sums[1] and swapped["train"] != plain["train"]
    of_training, of_evaluation, *gains = told
    assert of_training.endswith(f"): swapped, cpu: this host alone, in the sampler's order; {changes}"), told
    assert of_evaluation.endswith("): swapped, cpu: this host alone, in the sampler's order"), told
    assert gains and all("samples in" in gain for gain in gains)
