"""What takes long of deploying and of the doctor, and is no matter of most tests: done for a moment, or for a few."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from csd_engine.parity import Case
from ddlp.deploy import deployment, kernel, parity
from ddlp.deploy.kernel import cross_compile
from ddlp.deploy.parity import DRAWS, all_cases

_FEW = ("decode JPEG 4:2:0", "Grayscale, ", "RandomHorizontalFlip")


@cache
def few_cases(draws: range = range(DRAWS)) -> tuple[dict[str, np.ndarray], list[tuple[str, bool, Case]]]:
    """What `all_cases` returns, of a few operators."""
    sources, cases = all_cases(draws)
    few = [one for one in cases if one[0].startswith(_FEW)]
    return {name: sources[name] for name in {case.source for _, _, case in few}}, few


@cache
def _compiled(target: str, _path: str) -> tuple[str, bytes]:
    with tempfile.TemporaryDirectory() as scratch:
        library = Path(scratch) / "kernel.so"
        return cross_compile(target, library), library.read_bytes()


def compile_once(target: str, library: Path) -> str:
    """What `cross_compile` does; what a PATH's compiler has made once is copied from then on."""
    made, content = _compiled(target, os.environ["PATH"])
    library.write_bytes(content)
    return made


def quicken(patch: pytest.MonkeyPatch) -> None:
    """A device's images/s are measured, but not for seconds; of a thousand cases of operators a few are compared.

    A kernel is compiled for the first device of a kind alone. Deploys in processes of their own take the full time.
    `every_operator` brings all cases back.
    """
    patch.setattr(deployment, "_RATE_S", 0.1)
    patch.setattr(kernel, "cross_compile", compile_once)
    patch.setattr(parity, "all_cases", few_cases)


def every_operator(patch: pytest.MonkeyPatch) -> None:
    """Undo for one test, or one module, what `quicken` did to the comparison of operators."""
    patch.setattr(parity, "all_cases", all_cases)
