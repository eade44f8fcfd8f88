"""Tries each recipe with torch's DataLoader and with ddlp, and makes the table of docs/recipes.md.

  python -m tests.recipes --quick                            all of them, in about ten minutes
  python -m tests.recipes --only timm --only "ImageFolder"   those whose names contain one of these
  python -m tests.recipes --list                             only prints their names
  python -m tests.recipes --quick --write docs/recipes.md    puts the table into that page

Each recipe runs in a process of its own, pinned to one CPU. The table says:

  works   every batch came and is right
  goes    whole: the transform runs in ddlp's kernel. prefix: its first operators do. host: all of it is user code, in torch's
          workers
  bits    equal: those of DataLoader. Random draws are fixed before the comparison. If they can't be fixed, only shapes and
          dtypes are compared. GaussianBlur may be off by 1 of 255 in less than 1 of 10,000 values
  times   images/s divided by DataLoader's: both take turns, with one worker each; median (least .. most)

It needs the packages of an extra: pip install -e '.[recipes]'. A recipe is left out, with a message, if its package is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.common import Terminated, end_on_sigterm, machine_line, say
from ddlp.errors import DDLPError
from ddlp.process.machine import machine
from tests.recipes.listing import RECIPES
from tests.recipes.photographs import make_photographs
from tests.recipes.recipe import Recipe
from tests.recipes.table import around, shown, summary, write
from tests.recipes.trial import Outcome, missing_packages, try_recipe

__all__ = ["main"]

_PACKAGES = ("timm", "albumentations", "datasets", "webdataset", "lmdb", "pyarrow", "torchcodec", "pycocotools", "scipy")
_END_S = 5.0  # time that a process has to end after a signal
_STOPS = (signal.SIGINT, signal.SIGTERM)


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is done for each recipe."""

    photos: int
    rounds: int
    turn_s: float


QUICK, FULL = Size(photos=64, rounds=3, turn_s=0.25), Size(photos=256, rounds=5, turn_s=1.0)


def main(given: Sequence[str] | None = None, recipes: Sequence[Recipe] = RECIPES) -> int:
    """Run the command. Returns 0 if all tried recipes work, else 1; 2: nothing could be tried; 130 and 143: it was stopped."""
    options = _parser().parse_args(given)
    try:
        chosen = _chosen(recipes, options.only)
        if options.list:
            print("\n".join(recipe.name for recipe in chosen))
            return 0
        if options.write and len(chosen) < len(recipes):
            raise DDLPError("--write needs the whole table from one run: leave out --only")
        if options.write:
            around(options.write)  # raises if the page is missing, before minutes of work
        return _run(options, chosen)
    except DDLPError as error:
        print(f"recipes: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tests.recipes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="recipes whose name contains this; may be given again")
    parser.add_argument("--list", action="store_true", help="print the names and try nothing")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK.photos} images in place of {FULL.photos}, shorter turns")
    rounds = f"turns of each loader ({FULL.rounds}, with --quick {QUICK.rounds}); 0: no timing"
    parser.add_argument("--rounds", type=int, metavar="N", help=rounds)
    parser.add_argument("--photos", type=int, metavar="N", help="number of image files of each recipe")
    parser.add_argument("--cpu", type=int, metavar="N", help="the CPU to run on (default: the last that this process may use)")
    parser.add_argument("--limit", type=float, default=180.0, metavar="S", help="most seconds of a recipe (%(default)g)")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output in place of the table")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page, between its two marks")
    return parser


def _chosen(recipes: Sequence[Recipe], only: Sequence[str] | None) -> list[Recipe]:
    if not only:
        return list(recipes)
    for part in only:
        if not any(part.lower() in recipe.name.lower() for recipe in recipes):
            near = difflib.get_close_matches(part, [recipe.name for recipe in recipes], 3, 0.4)
            raise DDLPError(f"no recipe's name contains {part!r}. {'Near it: ' + ', '.join(near) if near else 'See --list'}")
    return [recipe for recipe in recipes if any(part.lower() in recipe.name.lower() for part in only)]


def _run(options: argparse.Namespace, recipes: Sequence[Recipe]) -> int:
    size = QUICK if options.quick else FULL
    size = dataclasses.replace(
        size,
        photos=size.photos if options.photos is None else options.photos,
        rounds=size.rounds if options.rounds is None else options.rounds,
    )
    cpu = max(os.sched_getaffinity(0)) if options.cpu is None else options.cpu
    outcomes: dict[str, Outcome] = {}
    stopped = 0
    end_on_sigterm()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ddlp-recipes-") as folder:
        try:
            say(f"making {size.photos} photographs")
            photos = make_photographs(Path(folder) / "photographs", size.photos)
            for number, recipe in enumerate(recipes, 1):
                root = Path(folder) / "set"
                outcome = outcomes[recipe.name] = _apart(recipe, photos, root, size, cpu, options.limit)
                say(f"{number}/{len(recipes)}  {recipe.name:52.52}  {_told(outcome)}")
        except KeyboardInterrupt as told:
            stopped = 143 if isinstance(told, Terminated) else 130
            say(f"recipes: stopped after {len(outcomes)} of {len(recipes)}; what was found follows")
    found = list(outcomes.values())
    took_s = time.monotonic() - began
    if options.json:
        figures = {"machine": machine(), "size": dataclasses.asdict(size), "took_s": took_s}
        print(json.dumps({**figures, "recipes": [{**dataclasses.asdict(one), "works": one.works} for one in found]}))
    else:
        print(shown([recipe for recipe in recipes if recipe.name in outcomes], outcomes))
        print(f"\n{summary(found)}")
    if stopped:
        return stopped
    if options.write:
        asked = {"--photos": options.photos, "--rounds": options.rounds}
        sized = [f"{name} {value}" for name, value in asked.items() if value is not None]
        command = " ".join(["python -m tests.recipes", *["--quick"] * options.quick, *sized, "--write docs/recipes.md"])
        write(options.write, f"{summary(found)}\n\n{_figures(command, size, took_s)}\n\n{shown(recipes, outcomes)}")
        say(f"recipes: {options.write} has the table")
    return 0 if all(one.works or one.missing for one in found) else 1


def _told(outcome: Outcome) -> str:
    if outcome.missing:
        return f"left out, a package is missing: pip install {' '.join(outcome.missing)}"
    if outcome.error:
        return f"does not work: {outcome.error}"
    ratio = f"{sorted(outcome.ratio)[len(outcome.ratio) // 2]:.2f} times DataLoader" if outcome.ours else "not timed"
    return f"{outcome.goes:6} bits {outcome.bits}, {ratio}"


def _figures(command: str, size: Size, took_s: float) -> str:
    """Return in one line how the figures were made."""
    import importlib.metadata

    versions = []
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    computer = machine()
    return (
        f"`{command}`, {took_s / 60:.0f} minutes: one CPU, one worker each, {size.photos} JPEG files of 110 kB, {size.rounds} "
        f"rounds in turns; images/s (samples/s) are medians. {machine_line(computer)}; {', '.join(versions)}; "
        f"load {computer['load'][2]:g} (1 is this run's own)."
    )


# -- a process for each ----------------------------------------------------------------------------------------------


def _apart(recipe: Recipe, photos: Sequence[Path], root: Path, size: Size, cpu: int, limit_s: float) -> Outcome:
    """Run `try_recipe` in a process of its own on one CPU, since it may hang or die. Forked, since imports take seconds."""
    missing = missing_packages(recipe)
    if missing:
        return Outcome(recipe.name, missing=missing)
    with tempfile.TemporaryDirectory(prefix=root.name, dir=root.parent) as folder:
        ours, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)
        files = Path(folder) / "files"
        files.mkdir()
        said = Path(folder) / "said"
        process = multiprocessing.get_context("fork").Process(
            target=_child, args=(theirs, recipe, photos, files, size, cpu, said)
        )
        unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # a signal here would leave the process behind
        try:
            process.start()
            theirs.close()
            with contextlib.suppress(OSError):  # the child does the same: either may be first
                os.setpgid(process.pid or 0, process.pid or 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)
            if not ours.poll(limit_s):
                return Outcome(recipe.name, error=f"not finished within {limit_s:g} s")
            outcome: Outcome = ours.recv()
            process.join(_END_S)  # it ends now by itself
            return outcome
        except EOFError:
            process.join(_END_S)
            lines = said.read_text(errors="replace").strip().splitlines()
            last = lines[-1] if lines else "it printed nothing"
            return Outcome(recipe.name, error=f"its process ended with status {process.exitcode}: {last}"[:200])
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
            ours.close()
            _end(process)
            signal.pthread_sigmask(signal.SIG_SETMASK, unmasked)


def _child(
    connection: Connection, recipe: Recipe, photos: Sequence[Path], root: Path, size: Size, cpu: int, said: Path
) -> None:
    os.setpgrp()  # Ctrl-C is for the parent, which ends this process and its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    os.sched_setaffinity(0, {cpu})
    torch.set_num_threads(1)
    with said.open("w") as file:  # the packages' own output would hide the progress
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    connection.send(try_recipe(recipe, photos, root, size.rounds, size.turn_s))


def _end(process: multiprocessing.process.BaseProcess) -> None:
    """End the process and all that it has started."""
    if process.pid is None:  # it could not be started
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):  # its group has no process left
            os.killpg(process.pid, number)
            process.join(_END_S)
    process.join()
