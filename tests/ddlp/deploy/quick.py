"""What takes long of deploying and of the doctor, and is no matter of most tests: done for a moment, or for a few."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from csd_engine.parity import Case
from ddlp.deploy import deployment, parity
from ddlp.deploy.parity import DRAWS, all_cases

_FEW = ("decode JPEG 4:2:0", "Grayscale, ", "RandomHorizontalFlip")


@cache
def few_cases(draws: range = range(DRAWS)) -> tuple[dict[str, np.ndarray], list[tuple[str, bool, Case]]]:
    """What `all_cases` returns, of a few operators."""
    sources, cases = all_cases(draws)
    few = [one for one in cases if one[0].startswith(_FEW)]
    return {name: sources[name] for name in {case.source for _, _, case in few}}, few


def quicken(patch: pytest.MonkeyPatch) -> None:
    """A device's images/s are measured, but not for seconds; of a thousand cases of operators a few are compared.

    Deploys in processes of their own take the full time. `every_operator` brings all cases back.
    """
    patch.setattr(deployment, "_RATE_S", 0.1)
    patch.setattr(parity, "all_cases", few_cases)


def every_operator(patch: pytest.MonkeyPatch) -> None:
    """Undo for one test, or one module, what `quicken` did to the comparison of operators."""
    patch.setattr(parity, "all_cases", all_cases)
