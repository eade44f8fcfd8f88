"""One training of `scripts.controller_check`, in a process of its own. It reads what to do as JSON, and prints what it took."""

from __future__ import annotations

import time
from typing import Any

import torch
from torchvision.datasets import ImageFolder

from ddlp import Cache, CardPool, DDLPLoader, Goal
from scripts.cache_decisions import WORKS

BATCH = 8
ROOM = "20G"


def train(root: str, work: str, step_s: float, epochs: int, cache: str, directory: str, engines: str, cards: str) -> Any:
    """Train, each step by sleeping.

    Args:
        root: of the images.
        work: a name of `WORKS`.
        step_s: seconds of a step.
        epochs: how many.
        cache: "none", "kept" (all that can be) or "auto".
        directory: of the cache.
        engines: "none", "all" or "auto".
        cards: the directory of the pool's engines.

    Returns:
        Of each epoch its seconds, the samples that came from the cache, and the batches from engines.
    """
    torch.set_num_threads(1)
    options: dict[str, Any] = {"strategy": "cpu"}
    if engines != "none":
        pool = CardPool(cards) if engines == "all" else CardPool(cards, min=0, max=1)
        options = {"strategy": "wrr", "pool": pool} if engines == "all" else {
            "strategy": "auto", "pool": pool, "goal": Goal(remember=False),
        }  # fmt: skip
    if cache != "none":
        options["cache"] = Cache(directory, ROOM, epochs=epochs if cache == "auto" else None)
    data = ImageFolder(root, WORKS[work])
    loader = DDLPLoader(data, BATCH, shuffle=True, num_workers=1, seed=1, **options)
    seconds, hits, from_engines = [], [], []
    for _ in range(epochs):
        began = time.monotonic()
        for _batch in loader:
            time.sleep(step_s)
        seconds.append(time.monotonic() - began)
        report = loader.report()
        hits.append(0 if report.cache is None else report.cache.hits)
        from_engines.append(report.batches_csd)
    return {"seconds": seconds, "hits": hits, "from_engines": from_engines}


def turn(work: dict[str, Any]) -> dict[str, list[float]]:
    """Train by a job's work."""
    return train(**work)
