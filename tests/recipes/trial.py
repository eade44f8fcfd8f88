"""A trial of one recipe in this process: does it work with ddlp, how does it go, are its bits right, how fast is it."""

from __future__ import annotations

import importlib.util
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.common import alternate
from ddlp.loader import DDLPLoader
from ddlp.process.cores import ran_on
from ddlp.tryout.rounds import ratios
from tests.recipes.compare import BY_ONE, difference, worst
from tests.recipes.recipe import Recipe

__all__ = ["Outcome", "how_it_goes", "missing_packages", "try_recipe"]

THEIRS, OURS = "DataLoader", "DDLPLoader"
SAME, FREE = "equal", "not compared"


@dataclass
class Outcome:
    """The outcome of a trial.

    Attributes:
        name: the recipe's name.
        error: why it does not work, in one line; empty if it works.
        missing: packages that must be installed first; if there are any, nothing was tried.
        goes: "whole", "prefix" or "host"; empty if that is not known.
        bits: "equal", `BY_ONE`, "not compared", or where the batches differ.
        theirs: images/s (samples/s) of DataLoader in each round.
        ours: the same of DDLPLoader.
    """

    name: str
    error: str = ""
    missing: list[str] = field(default_factory=list)
    goes: str = ""
    bits: str = ""
    theirs: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)

    @property
    def works(self) -> bool:
        """Whether each batch came, with the right bits if these can be compared."""
        return not self.error and not self.missing and self.bits in (SAME, FREE, BY_ONE)

    @property
    def ratio(self) -> list[float]:
        """Ours divided by DataLoader's, round by round."""
        return ratios(self.ours, self.theirs)


def missing_packages(recipe: Recipe) -> list[str]:
    """Return the packages that the recipe needs and that are not installed."""
    return [package for package in recipe.needs if importlib.util.find_spec(package) is None]


def how_it_goes(explanation: str) -> str:
    """Return what `explain()` says of a loader, in one word.

    "whole": the whole transform travels and runs in the kernel. "prefix": its first operators do; user code runs after them.
    "host": all of it is user code, in torch's workers.
    """
    travels = re.search(r"^travels +(.*)$", explanation, re.MULTILINE)
    if travels is None or travels[1].startswith("nothing:"):  # "nothing but decoding" travels
        return "host"
    return "prefix" if re.search(r"^own steps\b|\b(cut here|prefix)\b", explanation, re.MULTILINE) else "whole"


def try_recipe(recipe: Recipe, photos: Sequence[Path], root: Path, rounds: int, turn_s: float) -> Outcome:
    """Make a recipe's files below `root`, compare the batches of both loaders, then time them by turns.

    If the recipe's draws are free, only structure, shapes and dtypes are compared.

    Args:
        recipe: the recipe.
        photos: JPEG files from which its files are made.
        root: an empty folder.
        rounds: turns of each loader; 0: nothing is timed.
        turn_s: least seconds of a turn; a turn consists of whole epochs.
    """
    outcome = Outcome(recipe.name, missing=missing_packages(recipe))
    if outcome.missing:
        return outcome
    try:
        recipe.files(root, photos)
        same = recipe.draws != "free"
        expected = list(_loader(DataLoader, recipe, root, same))
    except Exception as error:
        outcome.error = f"without ddlp: {_line(error)}"
        return outcome
    try:
        ours = _loader(DDLPLoader, recipe, root, same)
        outcome.goes = how_it_goes(ours.explain())
        found = _compare(expected, iter(ours), same)
        outcome.bits = FREE if found is None and not same else BY_ONE if found and found.endswith(BY_ONE) else found or SAME
        count = _samples(recipe, ours, expected)
        del ours
        if rounds:
            loaders = {kind.__name__: _loader(kind, recipe, root, False, timed=True) for kind in (DataLoader, DDLPLoader)}
            turns = {name: partial(_turn, loader, count, turn_s) for name, loader in loaders.items()}
            for loader in loaders.values():
                _turn(loader, count, 0.0)  # the first turn starts workers and allocates memory
            with ran_on(os.sched_getaffinity(0)):
                figures = alternate(turns, rounds, lambda text: None)
            outcome.theirs, outcome.ours = figures[THEIRS], figures[OURS]
    except Exception as error:
        outcome.error = _line(error)
    return outcome


def _loader(kind: Callable[..., Any], recipe: Recipe, root: Path, fixed: bool, timed: bool = False) -> Any:
    torch.manual_seed(0)
    dataset = recipe.opened(root, recipe.transform(fixed))
    shuffle = {} if recipe.stream else {"shuffle": timed}
    persistent = {"persistent_workers": True} if timed and recipe.workers else {}
    return kind(dataset, recipe.batch, num_workers=recipe.workers, **shuffle, **persistent, **recipe.options)


def _compare(expected: Sequence[Any], ours: Iterator[Any], values: bool) -> str | None:
    """Return where the batches differ, or None."""
    nothing = object()

    def found() -> Iterator[str | None]:
        for number, (a, b) in enumerate(zip_longest(expected, ours, fillvalue=nothing)):
            if a is nothing or b is nothing:
                yield f"{'more' if a is nothing else 'fewer'} batches than DataLoader's {len(expected)}"
                return
            yield difference(a, b, f"batch {number}", values)

    return worst(found())


def _samples(recipe: Recipe, loader: Any, batches: Sequence[Any]) -> int:
    """Return the number of samples of an epoch."""
    return sum(map(_rows, batches)) if recipe.stream else len(loader.dataset)


def _rows(batch: Any) -> int:
    while not isinstance(batch, torch.Tensor):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return len(batch)


def _turn(loader: Any, count: int, least_s: float) -> float:
    """Run whole epochs. Return samples/s, from `iter()` to the end."""
    began, epochs, took = time.perf_counter(), 0, 0.0
    while not epochs or took < least_s:
        for _ in loader:
            pass
        epochs += 1
        took = time.perf_counter() - began
    return count * epochs / took


def _line(error: BaseException) -> str:
    """Return the error in one line. For a worker's error that is the last line of its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    text = lines[-1] if lines[0].startswith("Caught ") else lines[0]
    name = "" if lines[0].startswith("Caught ") else f"{type(error).__name__}: "
    return f"{name}{text}"[:200]
