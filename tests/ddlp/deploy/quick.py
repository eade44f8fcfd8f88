"""Shortens what takes long in deploying and in the doctor, for tests that are not about it."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from csd_engine.tools.parity import Case
from ddlp.deploy import deployment, kernel, parity
from ddlp.deploy.kernel import cross_compile
from ddlp.deploy.parity import all_cases

_FEW = ("decode JPEG 4:2:0", "Grayscale, ", "RandomHorizontalFlip")


@cache
def few_cases() -> tuple[dict[str, np.ndarray], list[tuple[str, Case]]]:
    """As `all_cases`, but only with a few operators."""
    sources, cases = all_cases()
    few = [one for one in cases if one[0].startswith(_FEW)]
    return {name: sources[name] for name in {case.source for _, case in few}}, few


@cache
def _compiled(target: str, _path: str) -> tuple[str, bytes]:
    with tempfile.TemporaryDirectory() as scratch:
        library = Path(scratch) / "kernel.so"
        return cross_compile(target, library), library.read_bytes()


def compile_once(target: str, library: Path) -> str:
    """Do what `cross_compile` does, but compile only once for each target and PATH, and copy the result afterwards."""
    made, content = _compiled(target, os.environ["PATH"])
    library.write_bytes(content)
    return made


def quicken(patch: pytest.MonkeyPatch) -> None:
    """Measure a device's images/s only for a moment, and compare few of the thousand cases of operators.

    A kernel is compiled once for each kind of device. A deploy in another process takes the full time.
    `every_operator` restores all cases.
    """
    patch.setattr(deployment, "_RATE_S", 0.1)
    patch.setattr(kernel, "cross_compile", compile_once)
    patch.setattr(parity, "all_cases", few_cases)


def every_operator(patch: pytest.MonkeyPatch) -> None:
    """Undo for one test or module what `quicken` did to the comparison of operators."""
    patch.setattr(parity, "all_cases", all_cases)
