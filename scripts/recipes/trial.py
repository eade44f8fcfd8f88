"""One recipe tried in this process: does it work with ddlp, how does it go, which bits, how fast."""

from __future__ import annotations

import importlib.util
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

from ddlp.bench.common import alternate, ratios
from ddlp.loader import DDLPLoader
from scripts.recipes.compare import BY_ONE, difference, worst
from scripts.recipes.recipe import Recipe

__all__ = ["Outcome", "how_it_goes", "missing_packages", "try_recipe"]

THEIRS, OURS = "DataLoader", "DDLPLoader"
SAME, FREE = "equal", "not compared"


@dataclass
class Outcome:
    """What a trial has found.

    Attributes:
        name: the recipe's.
        error: why it does not work, in one line; empty where it does.
        missing: packages that are to be installed first; nothing was tried then.
        goes: "whole", "prefix" or "host"; empty where it was not found out.
        bits: "equal", `BY_ONE`, "not compared", or where they differ.
        theirs: images/s (samples/s) of DataLoader, of each round.
        ours: of DDLPLoader.
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
        """Whether each batch came, with the right bits where these can be compared."""
        return not self.error and not self.missing and self.bits in (SAME, FREE, BY_ONE)

    @property
    def ratio(self) -> list[float]:
        """Ours divided by DataLoader's, round by round."""
        return ratios(self.ours, self.theirs)


def missing_packages(recipe: Recipe) -> list[str]:
    """Those that the recipe wants and that are not here."""
    return [package for package in recipe.needs if importlib.util.find_spec(package) is None]


def how_it_goes(explanation: str) -> str:
    """What `explain()` says of a loader, in one word.

    "whole": all of it travels and runs in the kernel. "prefix": the first operators do, user code goes on behind them. "host":
    all of it is user code, in torch's workers.
    """
    travels = re.search(r"^travels +(.*)$", explanation, re.MULTILINE)
    if travels is None or travels[1].startswith("nothing:"):  # "nothing but decoding" travels
        return "host"
    return "prefix" if re.search(r"^own steps\b|\b(cut here|prefix)\b", explanation, re.MULTILINE) else "whole"


def try_recipe(recipe: Recipe, photos: Sequence[Path], root: Path, rounds: int, turn_s: float) -> Outcome:
    """Make its files below `root`, compare the batches of both loaders, then have them take turns.

    Where the recipe's draws are free, structure, shapes and dtypes are compared alone.

    Args:
        recipe: which.
        photos: JPEG files that its files are made of.
        root: an empty folder.
        rounds: turns of each loader; 0: nothing is timed.
        turn_s: seconds of a turn at least; a turn is as many epochs as that takes.
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
                _turn(loader, count, 0.0)  # the first has its workers and its memory to make
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
    """Where they differ, or None."""
    nothing = object()

    def found() -> Iterator[str | None]:
        for number, (a, b) in enumerate(zip_longest(expected, ours, fillvalue=nothing)):
            if a is nothing or b is nothing:
                yield f"{'more' if a is nothing else 'fewer'} batches than DataLoader's {len(expected)}"
                return
            yield difference(a, b, f"batch {number}", values)

    return worst(found())


def _samples(recipe: Recipe, loader: Any, batches: Sequence[Any]) -> int:
    """Of an epoch."""
    return sum(map(_rows, batches)) if recipe.stream else len(loader.dataset)


def _rows(batch: Any) -> int:
    while not isinstance(batch, torch.Tensor):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return len(batch)


def _turn(loader: Any, count: int, least_s: float) -> float:
    """Samples/s of whole epochs, from `iter()` to the end."""
    began, epochs, took = time.perf_counter(), 0, 0.0
    while not epochs or took < least_s:
        for _ in loader:
            pass
        epochs += 1
        took = time.perf_counter() - began
    return count * epochs / took


def _line(error: BaseException) -> str:
    """The error in one line: the last of a worker's traceback is what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    text = lines[-1] if lines[0].startswith("Caught ") else lines[0]
    name = "" if lines[0].startswith("Caught ") else f"{type(error).__name__}: "
    return f"{name}{text}"[:200]
