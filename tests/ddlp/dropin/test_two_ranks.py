"""Two processes of accelerate and Hugging Face's Trainer: each sample comes once, in one of them."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.forks import Forks

EVEN, ODD = 40, 41  # as in two_ranks.py

Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(paths: list[str], forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What each process got, by framework: epochs of batches of sample numbers."""
    if missing := [name for name in ("accelerate", "transformers") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"pip install {' '.join(missing)}")
    directory = tmp_path_factory.mktemp("two_ranks")
    arguments = [str(Path(paths[0]).parents[1]), str(directory)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = forks.run(module="tests.ddlp.dropin.two_ranks", arguments=arguments, environment=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "of the 2 processes" not in done.stderr  # the warning of a loader that is not shared
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(2)]


def epochs(ranks: Ranks, name: str) -> list[list[int]]:
    """Each epoch's samples of both processes, step by step. Every batch must have four."""
    found = []
    for parts in zip(*(rank[name] for rank in ranks), strict=True):
        steps = list(zip(*parts, strict=True))
        assert all(len(batch) == 4 for step in steps for batch in step)
        found.append([number for step in steps for batch in step for number in batch])
    return found


@pytest.mark.parametrize(
    "name", ["accelerate, cpu", "accelerate, wrr", "accelerate, mte", "accelerate, user code", "Trainer"]
)
def test_each_sample_comes_once(ranks, name):
    first, second = epochs(ranks, name)
    assert sorted(first) == sorted(second) == list(range(EVEN))
    assert first != second and first != sorted(first)


@pytest.mark.parametrize("name", ["accelerate, stream", "Trainer, stream"])
def test_a_stream_is_shared(ranks, name):
    """The stream's first samples fill its last batches, and each epoch has the stream's own order."""
    first, second = epochs(ranks, name)
    for epoch in (first, second):
        assert sorted(epoch[:ODD]) == list(range(ODD))
        assert epoch[ODD:] == epoch[: 48 - ODD]
    assert first != second


@pytest.mark.parametrize("name", ["gathered", "predicted"])
def test_what_is_gathered_is_the_data_set_in_its_order(ranks, name):
    for rank in ranks:
        assert rank[name] == list(range(ODD))
