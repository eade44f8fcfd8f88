"""Epochs in which both the host and a device make batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from ddlp import DDLPLoader

EPOCHS = 20


def until_both(loader: DDLPLoader) -> Iterator[list[Any]]:
    """Repeat epoch 0 until both sides have made batches in it. Yields the batches of each try; a test checks all of them.

    On a busy machine the engine may start too late for the first try.
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
