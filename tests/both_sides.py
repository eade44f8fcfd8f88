"""Epochs in which the host and a device each have a part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from ddlp import DDLPLoader

EPOCHS = 20


def until_both(loader: DDLPLoader) -> Iterator[list[Any]]:
    """The batches of epoch 0, again and again until one had some of either side; each of them is to be right.

    A busy machine may start the engine too late for the first.
    """
    for _ in range(EPOCHS):
        loader.set_epoch(0)
        batches = []
        for batch in loader:
            batches.append(batch)
            time.sleep(0.03)  # a training step
        yield batches
        report = loader.report()
        if report.batches_cpu and report.batches_csd:
            return
    pytest.fail(f"one side had no part in {EPOCHS} epochs")
