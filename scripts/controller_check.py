"""`cache="auto"` and the number of a pool's engines, decided together, beside each fixed set-up: how much slower it is.

Cachew's Figures 9 and 11 show one job, then several on one pool. Here a job trains some epochs of photographs on one core, and
its pool has an engine on another. Training sleeps for a given time a step; files, decoding, engine and cache are real. Fixed
set-ups: with and without the engine, with and without what can be kept. Two jobs share the core, the engine and cache.

    python -m scripts.controller_check                     # one job, then two; about forty minutes on two cores
    python -m scripts.controller_check --setups crops-0 --jobs 1 --rounds 1
    python -m scripts.controller_check --write             # puts the result into docs/results, for benchmarks.papers.page

Each time is that of all epochs, the first one, which measures and fills, included; of two jobs that of the later one.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import Terminated, child, end_on_sigterm, say, two_cpus
from ddlp.sampledata import make_imagefolder
from scripts.cache_decisions import WORKS
from scripts.markdown import markdown_table
from scripts.results import RESULTS, result
from tests.ddlp.pools.bed import Bed

KEPT = RESULTS / "controller-check.json"
STEPS_MS = (0, 8)
SETUPS = {f"{work}-{step_ms}": (work, step_ms / 1000) for work, step_ms in itertools.product(WORKS, STEPS_MS)}
FIXED = {
    "host alone": ("none", "none"), "with engine": ("none", "all"),
    "with cache": ("kept", "none"), "with both": ("kept", "all"),
}  # fmt: skip
AUTO = "auto"
WAYS = {**FIXED, AUTO: ("auto", "auto")}  # what of the cache and of the engines, as `scripts.controller_job` takes them


def trained(home: Path, root: str, bed: Bed, setup: str, way: str, jobs: int, epochs: int, cpu: int) -> list[dict[str, Any]]:
    """Train, all jobs at once; returns what each took."""
    work, step_s = SETUPS[setup]
    cache, engines = WAYS[way]
    works = [
        {"root": root, "work": work, "step_s": step_s, "epochs": epochs, "cache": cache, "directory": str(home / "cache"),
         "engines": engines, "cards": str(bed.cards)}
    ] * jobs  # fmt: skip
    try:
        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(lambda one: child("scripts.controller_job", one, [cpu]), works))
    finally:
        shutil.rmtree(home / "cache", ignore_errors=True)


def later_s(run: list[dict[str, Any]]) -> float:
    """Return the seconds of the job that took longest."""
    return max(sum(one["seconds"]) for one in run)


def compared(setup: str, jobs: int, took: dict[str, list[list[dict[str, Any]]]]) -> dict[str, Any]:
    """Return the figures of a set-up: the seconds of each way, the best fixed one, and auto's time as a part of its."""
    seconds = {way: statistics.median(map(later_s, runs)) for way, runs in took.items()}
    best = min(FIXED, key=seconds.__getitem__)
    last = took[AUTO][-1][0]
    return {
        "setup": setup, "jobs": jobs, "best": best, "seconds": seconds, "part": seconds[AUTO] / seconds[best],
        "hits": last["hits"][-1], "from_engines": last["from_engines"][-1],
    }  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """The table of all set-ups."""
    lines = [
        [row["setup"], str(row["jobs"]), *(f"{row['seconds'][way]:.1f}" for way in WAYS), f"{row['part']:.3f}",
         str(row["hits"]), str(row["from_engines"])]
        for row in rows
    ]  # fmt: skip
    head = ["set-up", "jobs", *(f"{way}, s" for way in WAYS), "auto, of the best", "kept", "from the engine"]
    return markdown_table(head, lines)


def figures_of(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return what is kept of the set-ups, by name and jobs: the seconds of each way, and auto's as a part of the best."""
    kept = {}
    for row in rows:
        seconds = {way: round(taken, 1) for way, taken in row["seconds"].items()}
        kept[f"{row['setup']}, {row['jobs']}"] = {**seconds, "part": round(row["part"], 2)}
    return kept


def summary(figures: dict[str, dict[str, float]]) -> str:
    """How near auto came to the best fixed set-up, in one sentence. ``figures``: as `figures_of` returns them."""
    told = []
    for jobs, called in ((1, "one job"), (2, "two jobs")):
        parts = [one["part"] for name, one in figures.items() if name.endswith(f", {jobs}")]
        if parts:
            spread = f"{min(parts):.2f} to {max(parts):.2f}"
            told.append(f"{called}: {statistics.median(parts):.2f} ({spread}) in {len(parts)} set-ups")
    return f"auto's time as a part of the best fixed set-up's, {'; '.join(told)}"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setups", nargs="+", choices=SETUPS, default=list(SETUPS), metavar="SETUP", help="%(choices)s")
    parser.add_argument("--jobs", nargs="+", type=int, choices=(1, 2), default=[1, 2], help="at once (default: 1 2)")
    parser.add_argument("--images", type=int, default=960, help="of an epoch (%(default)s)")
    parser.add_argument("--epochs", type=int, default=20, help="of a training (%(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each way (%(default)s)")
    parser.add_argument("--write", action="store_true", help="write the result to docs/results")
    options = parser.parse_args()
    end_on_sigterm()
    host, other = two_cpus()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        make_imagefolder(home / "images", options.images, val_images=1)
        root = str(home / "images" / "train")
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {other})
        with Bed(home, 1, 0.0, "--root", root) as bed:
            os.sched_setaffinity(0, before)
            for jobs, setup in itertools.product(options.jobs, options.setups):
                took: dict[str, list[list[dict[str, Any]]]] = {way: [] for way in WAYS}
                for turn in range(options.rounds):
                    for way in WAYS:
                        took[way].append(trained(home, root, bed, setup, way, jobs, options.epochs, host))
                        say(f"  {jobs} x {setup}, turn {turn + 1}, {way}: {later_s(took[way][-1]):.2f} s")
                rows.append(compared(setup, jobs, took))
    print(table(rows))
    figures = figures_of(rows)
    print(f"\n{summary(figures)}")
    if options.write:
        page = "cache.md#cache-and-pool-together"
        result("python -m scripts.controller_check", "measured here", page, figures, "nothing ran beside it").write(KEPT)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Terminated:
        sys.exit(143)
    except KeyboardInterrupt:
        sys.exit(130)
