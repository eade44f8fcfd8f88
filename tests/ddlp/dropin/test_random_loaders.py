"""Loaders drawn at random are held beside DataLoader: values, types, order, errors, and the generators afterwards."""

from __future__ import annotations

import itertools
import os
import random
import warnings
from typing import Any

import pytest
from torch.utils.data import DataLoader

from ddlp import DDLPLoader
from tests.ddlp.dropin.beside import MOST_STEPS, epoch, generators, seed_all
from tests.ddlp.dropin.random_loaders import Combination, combination
from tests.ddlp.dropin.small_sets import write_images


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """Image files, and one that breaks off."""
    root = tmp_path_factory.mktemp("random")
    *paths, damaged = write_images(root, 15)
    content = open(damaged, "rb").read()
    with open(damaged, "wb") as stream:
        stream.write(content[: len(content) // 2])
    return paths, damaged


def outcome(given: Combination, kind: type[DataLoader]) -> list[Any]:
    seed_all(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loader = given.loader(kind)
        except Exception as error:
            return [type(error).__name__]
        found: list[Any] = []
        for steps in given.steps:
            batches = epoch(loader, steps)
            found += [batches if given.ordered or steps < MOST_STEPS else sorted(map(str, batches)), generators()]
            own = getattr(loader, "generator", None)
            found.append(None if own is None else own.get_state().tolist())
        return found


def hold_beside_dataloader(seed: int, files: tuple[list[str], str], spool: str, cache: str) -> None:
    given = combination(seed, *files, spool, cache)
    if not given.ordered:  # which batches come first is left to the strategy
        given.steps = (MOST_STEPS, MOST_STEPS)
    theirs, ours = outcome(given, DataLoader), outcome(given, DDLPLoader)
    for k, (his, our) in enumerate(itertools.zip_longest(theirs, ours)):
        if his != our:
            pytest.fail(f"seed {seed}, {given.text}: part {k}:\n{his!s:.600}\n{our!s:.600}")


@pytest.mark.parametrize("first", range(0, 60, 10))
@pytest.mark.some(2)
def test_beside_dataloader(files, engine, tmp_path, first):
    for seed in range(first, first + 10):
        hold_beside_dataloader(seed, files, engine, str(tmp_path / "cache"))


@pytest.mark.slow
def test_beside_dataloader_by_fresh_seeds(files, engine, tmp_path):
    """DDLP_TEST_SEED=N runs those from N on again."""
    first = int(os.environ.get("DDLP_TEST_SEED") or random.SystemRandom().randrange(1 << 30))
    print(f"DDLP_TEST_SEED={first}")
    for seed in range(first, first + 300):
        hold_beside_dataloader(seed, files, engine, str(tmp_path / f"cache {seed}"))
