"""All strategies, workers, orders and batch sizes: each sample once per epoch, and always with the same bits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms

from ddlp import DDLPLoader
from tests.ddlp.dropin.small_sets import DETERMINISTIC, RANDOM, SAMPLES, by_target, numbered, order

STRATEGIES = ("cpu", "csd", "mte", "wrr", "ordered")
SEED = 11


def run(loader: DataLoader, torch_seed: int = 5) -> list[Any]:
    torch.manual_seed(torch_seed)
    return list(loader)


@pytest.fixture(scope="module")
def reference(paths: list[str]) -> dict[int, torch.Tensor]:
    """Each sample as the simplest loader makes it, in its second epoch."""
    loader = DDLPLoader(numbered(paths, RANDOM), seed=SEED)
    loader.set_epoch(1)
    return by_target(run(loader))


SHAPES = [(shuffle, drop_last, size) for shuffle in (False, True) for drop_last in (False, True) for size in (8, 7, 41)]


@pytest.mark.parametrize(("shuffle", "drop_last", "batch_size"), [*SHAPES, (True, False, 1)])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.some(12)
def test_every_sample_once_with_the_same_bits(paths, engine, reference, strategy, shuffle, drop_last, batch_size):
    arguments = dict(batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
    expected = order(run(DataLoader(numbered(paths), **arguments)))
    for workers in (0, 2):
        loader = DDLPLoader(
            numbered(paths, RANDOM), **arguments, num_workers=workers, seed=SEED, strategy=strategy,
            spool=None if strategy == "cpu" else engine,
        )
        loader.set_epoch(1)
        got = run(loader)
        found = by_target(got)
        assert len(got) == len(loader) == len(expected)
        assert sorted(found) == sorted(itertools.chain.from_iterable(expected))
        for target, image in found.items():
            assert torch.equal(image, reference[target]), f"sample {target}, {workers} workers"
        if strategy in ("cpu", "csd", "ordered"):
            assert order(got) == expected
        else:  # only the order of whole batches differs
            assert sorted(order(got)) == sorted(expected)
        report = loader.report()
        assert report.batches_cpu + report.batches_csd == len(expected)
        assert report.samples == len(found)
        if strategy == "cpu":
            assert report.batches_csd == 0
        if strategy == "csd":
            assert report.batches_csd > 0 or SAMPLES < 2 * batch_size  # the host may make a short last batch


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("workers", [0, 2])
def test_mte_with_a_ratio_has_one_order(paths, engine, ratio, workers):
    loader = DDLPLoader(
        numbered(paths), batch_size=4, shuffle=True, num_workers=workers, strategy="mte", ratio=ratio, spool=engine
    )
    expected = order(run(DataLoader(numbered(paths), batch_size=4, shuffle=True)))
    split = round(len(expected) * ratio)
    for _ in range(2):
        assert order(run(loader)) == expected[:split] + expected[split:][::-1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_deterministic_samples_are_torchvisions_own(paths, engine, strategy):
    expected = run(DataLoader(numbered(paths, DETERMINISTIC), batch_size=6))
    got = run(DDLPLoader(numbered(paths, DETERMINISTIC), batch_size=6, strategy=strategy, spool=engine))
    theirs, ours = by_target(expected), by_target(got)
    assert len(ours) == SAMPLES
    assert all(torch.equal(ours[k], theirs[k]) and ours[k].dtype == theirs[k].dtype for k in theirs)
    for batch in got:
        assert type(batch) is type(expected[0]) and len(batch) == len(expected[0])
        assert batch[1].dtype == expected[0][1].dtype
        assert batch[0].is_contiguous()


def test_epochs_differ_and_come_again(paths):
    first, second = (by_target(run(DDLPLoader(numbered(paths, RANDOM), seed=SEED))) for _ in range(2))
    loader = DDLPLoader(numbered(paths, RANDOM), seed=SEED)
    one, two = by_target(run(loader)), by_target(run(loader))
    assert all(torch.equal(first[k], second[k]) and torch.equal(first[k], one[k]) for k in first)
    assert sum(torch.equal(one[k], two[k]) for k in one) < 3
    loader.set_epoch(0)
    again = by_target(run(loader))
    assert all(torch.equal(one[k], again[k]) for k in one)


def test_fast_decoding_is_the_same_on_either_side(paths, engine):
    small = transforms.Compose([transforms.RandomResizedCrop(8), transforms.ToTensor()])

    def made(**options):
        loader = DDLPLoader(numbered(paths, small), 6, seed=SEED, spool=engine, **options)
        samples = by_target(run(loader))
        return samples, loader.report()

    exact, _ = made()
    fast, _ = made(decode="fast")
    theirs, report = made(decode="fast", strategy="csd")
    assert report.batches_csd > 0
    assert all(torch.equal(fast[k], theirs[k]) for k in fast)
    assert sum(not torch.equal(fast[k], exact[k]) for k in fast) > SAMPLES // 4
    assert max(float((fast[k] - exact[k]).abs().mean()) for k in fast) < 0.1
