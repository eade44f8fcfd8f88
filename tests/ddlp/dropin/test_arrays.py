"""Arrays of small images are prepared in bulk, on the host and on the engine. The bits are those of single samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, WeightedRandomSampler
from torch.utils.data._utils.collate import default_collate_fn_map
from torchvision import transforms

from csd_engine.kernels.pixels import PixelSamples
from csd_engine.transforms.bulk import Bulk
from ddlp import DDLPLoader, ImageArrays
from ddlp.transforms import Cutout
from tests.ddlp.dropin.small_sets import SAMPLES, by_target, check_samples

CIFAR = transforms.Compose(
    [
        transforms.RandomCrop(32, padding=4),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.49, 0.48, 0.44), (0.24, 0.24, 0.26)),
        Cutout(length=9),
    ]
)


@pytest.fixture(scope="module")
def images() -> ImageArrays:
    array = np.random.default_rng(8).integers(0, 256, (SAMPLES, 32, 32, 3), dtype=np.uint8)
    return ImageArrays(array, list(range(SAMPLES)), CIFAR)


@pytest.fixture
def fills(monkeypatch) -> list[int]:
    """The number of samples of each call of Bulk.fill in this process."""
    seen: list[int] = []
    fill = Bulk.fill
    monkeypatch.setattr(Bulk, "fill", lambda one, indices, *rest: (seen.append(len(indices)), fill(one, indices, *rest))[1])
    return seen


def one_by_one(monkeypatch, loader: DDLPLoader) -> list:
    with monkeypatch.context() as patch:
        patch.setattr(Bulk, "of", staticmethod(lambda pipeline, rows: None))
        return list(loader)


@pytest.mark.parametrize("strategy", ["cpu", "csd", "wrr"])
def test_the_bits_of_each_sample_made_by_itself(images, engine, strategy, fills, monkeypatch):
    expected = by_target(one_by_one(monkeypatch, DDLPLoader(images, batch_size=7, seed=3)))
    assert not fills
    spool = None if strategy == "cpu" else engine
    loader = DDLPLoader(images, batch_size=7, shuffle=True, seed=3, strategy=strategy, spool=spool, audit=1)
    check_samples(loader, strategy, expected)
    if strategy == "cpu":
        assert sum(fills) == SAMPLES


@pytest.mark.parametrize("strategy", ["cpu", "csd", "wrr"])
def test_arrays_that_are_resized_have_pillows_bits(engine, strategy, need_kernel, monkeypatch):
    """Two arrays, of images of other sizes, one not packed; torchvision's pixels are those that are expected."""
    calls: list[int] = []
    made = PixelSamples.make
    monkeypatch.setattr(PixelSamples, "make", lambda self, first, *rest: (calls.append(first), made(self, first, *rest))[1])
    random = np.random.default_rng(8)
    steps = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()])
    wide = ImageArrays(random.integers(0, 256, (9, 50, 80, 3), dtype=np.uint8), list(range(9)), steps)
    rows = random.integers(0, 256, (SAMPLES - 9, 60, 47, 3), dtype=np.uint8).transpose(0, 2, 1, 3)
    both = ConcatDataset([wide, ImageArrays(rows, list(range(9, SAMPLES)), steps)])
    expected = {target: image for image, target in both}
    spool = None if strategy == "cpu" else engine
    check_samples(DDLPLoader(both, batch_size=7, shuffle=True, strategy=strategy, spool=spool), strategy, expected)
    assert strategy == "csd" or calls


@pytest.mark.parametrize(
    "target",
    [lambda k: k, lambda k: k > 3, lambda k: k + 0.5 if k else k, lambda k: np.int64(k), lambda k: str(k), lambda k: 2**70,
     lambda k: torch.tensor(k), lambda k: (k, -k)],
)  # fmt: skip
def test_targets_of_every_kind_are_joined_as_dataloader_joins_them(images, target):
    def joined(loader) -> list:
        try:
            return [batch[1] for batch in loader]
        except Exception as error:
            return [type(error), str(error)]

    given = ImageArrays(images.images, [target(k) for k in range(SAMPLES)], transforms.ToTensor())
    for ours, theirs in zip(joined(DDLPLoader(given, 7)), joined(DataLoader(given, 7)), strict=True):
        assert type(ours) is type(theirs)
        if isinstance(theirs, torch.Tensor):
            assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype
        else:
            assert str(ours).endswith(str(theirs))  # an error also names the sample


def test_a_collation_of_the_users_for_integers_is_called(images, monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, int, lambda batch, *, collate_fn_map=None: sum(batch))
    assert next(iter(DDLPLoader(images, 7)))[1] == sum(range(7))


@pytest.mark.parametrize("output", ["float32", "float16", "bfloat16", "uint8"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("way", ["kernel", "numpy"])
def test_every_output(images, output, memory_format, way, monkeypatch, request):
    """With a kernel, the call that makes the bytes also makes the numbers. Without one, a second step does."""
    if way == "kernel":
        request.getfixturevalue("need_kernel")
    else:
        for user in ("csd_engine.transforms.bulk", "csd_engine.arithmetic.keyed", "ddlp.transfer.epilogue"):
            monkeypatch.setattr(f"{user}.kernel", lambda: None)
    if output == "uint8":  # the mask's fill is no whole byte
        images = ImageArrays(images.images, images.targets, transforms.Compose(CIFAR.transforms[:-1]))
    options = {"batch_size": 7, "seed": 3, "output": output, "memory_format": memory_format}
    expected = by_target(one_by_one(monkeypatch, DDLPLoader(images, **options)))
    found = by_target(list(DDLPLoader(images, **options)))
    assert sorted(found) == list(range(SAMPLES))
    assert all(torch.equal(found[k], expected[k]) and found[k].dtype == expected[k].dtype for k in expected)


def test_samples_that_come_again_are_drawn_anew(images, fills, monkeypatch):
    def epoch() -> DDLPLoader:
        torch.manual_seed(2)
        return DDLPLoader(images, batch_size=8, sampler=WeightedRandomSampler([1.0] * SAMPLES, 80), seed=3)

    expected, found = one_by_one(monkeypatch, epoch()), list(epoch())
    assert sum(fills) == 80
    for (ours, targets), (theirs, same) in zip(found, expected, strict=True):
        assert torch.equal(targets, same) and torch.equal(ours, theirs)
    assert len(torch.unique(torch.cat([batch for batch, _ in found]), dim=0)) > SAMPLES
