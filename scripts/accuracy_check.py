"""Does each training template reach the same score under ddlp as with DataLoader, over several seeds?

    python -m scripts.accuracy_check                            # all templates, 3 seeds each
    python -m scripts.accuracy_check --only train_audio --only train_dali
    python -m scripts.accuracy_check --keep                     # puts the result into docs/results, for benchmarks.papers.page

Each template trains with `--strategy dataloader cpu wrr`, by turns: torch's DataLoader, ddlp's host alone, and the host with
an engine on this machine (train_audio, whose data set is code of its own: with one process of a pool). The forms are small;
that of detection is larger, because so few images teach it nothing. cpu and wrr agree with DataLoader where the means differ by
no more than `scripts.accuracy.noise_limit`: Welch's t-test at the 1 % level, where a score of n images has at least the
variance of n draws. With few seeds and few images this finds large differences alone. Weights and batches are the same for all
under a seed, but not the draws of the augmentations: DataLoader's follow from its workers' states, ddlp's from (seed, epoch,
sample). So the scores differ a little.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Terminated, end_on_sigterm, say
from ddlp.sampledata import make_cifar10, make_thumbnails
from scripts.accuracy import noise_limit
from scripts.markdown import markdown_table
from scripts.results import RESULTS, Kept, result

ROOT = Path(__file__).parents[1]
VAL_IMAGES = 240  # more than the small forms have: a score of 16 images says little
KEPT = RESULTS / "accuracy-check.json"
STRATEGIES = ("dataloader", "cpu", "wrr")
_END_S = 60.0  # the time that a template has to end its step and to write its report


@dataclass(frozen=True)
class Check:
    """A template, and how it is started. `val_images`: how many its score is of."""

    template: str
    arguments: tuple[str, ...]
    val_images: int
    ranks: int = 1

    def command(self, seeds: int, reports: Path) -> list[str]:
        """Return what starts it."""
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks))
        return [
            sys.executable, *(torchrun if self.ranks > 1 else ()), str(ROOT / "templates" / f"{self.template}.py"),
            *self.arguments, "--workers", "1", "--strategy", *STRATEGIES, "--seeds", str(seeds), "--report", str(reports),
        ]  # fmt: skip


CHECKS = (
    Check("train_imagenet", ("--small", "--epochs", "8"), VAL_IMAGES),
    Check("train_cifar10", ("--small", "--epochs", "8"), VAL_IMAGES),
    Check("train_ddp", ("--small", "--epochs", "8"), VAL_IMAGES, ranks=2),
    Check("train_dali", ("--small", "--epochs", "8"), VAL_IMAGES),
    Check("pretrain_simclr", ("--small", "--epochs", "2"), VAL_IMAGES),
    Check("train_audio", ("--small", "--epochs", "8", "--pool", "1"), 48),
    Check("train_detection", ("--model", "retinanet_resnet18_fpn", "--size", "64", "--epochs", "8"), 120),
)


class CheckFailed(Exception):
    """A template did not end well, or its report lacks a run; the message says which."""


@dataclass(frozen=True)
class Scores:
    """What a template reached: a score for each seed, 0 to 1, and the images/s of the epochs behind the first, by strategy."""

    val_images: int
    score: str
    reached: Mapping[str, Sequence[float]]
    images_per_s: Mapping[str, Sequence[float]]
    engine_share: float  # of wrr's batches

    def difference(self, strategy: str) -> float:
        """Return the mean with this strategy minus that with DataLoader."""
        return statistics.mean(self.reached[strategy]) - statistics.mean(self.reached["dataloader"])

    def limit(self, strategy: str) -> float:
        """Return the largest difference that counts as noise."""
        return noise_limit(self.reached["dataloader"], self.reached[strategy], self.val_images)

    @property
    def agree(self) -> bool:
        """Whether both of ddlp's are within noise."""
        return all(abs(self.difference(one)) <= self.limit(one) for one in STRATEGIES[1:])

    @property
    def figures(self) -> dict[str, float]:
        """Return what is kept: scores, their spread and differences in %, images/s."""
        found: dict[str, float] = {"val_images": self.val_images, "from_engine_percent": round(100 * self.engine_share)}
        for one in STRATEGIES:
            reached = self.reached[one]
            found[f"{one}_percent"] = round(100 * statistics.mean(reached), 1)
            found[f"{one}_spread"] = round(100 * statistics.stdev(reached), 1)
            found[f"{one}_images_per_s"] = round(statistics.median(self.images_per_s[one]))
            if one != "dataloader":
                found[f"{one}_off"] = round(100 * abs(self.difference(one)), 1)
                found[f"{one}_limit"] = math.floor(1000 * self.limit(one)) / 10
        return found


def scores(check: Check, report: Mapping[str, Any]) -> Scores:
    """Return what a template's report holds. Raises CheckFailed if a run is missing, was stopped, or has no score."""
    by: dict[str, list[Mapping[str, Any]]] = {one: [] for one in STRATEGIES}
    for run in report["runs"]:
        by[run["strategy"]].append(run)
    seeds = report["options"]["seeds"]
    for strategy, runs in by.items():
        if sum(run["complete"] and run["accuracy"] is not None for run in runs) < seeds:
            raise CheckFailed(f"{check.template}: its report has fewer than {seeds} whole runs of {strategy}")
    return Scores(
        check.val_images,
        report["runs"][0]["score"],
        {one: [run["accuracy"] for run in runs] for one, runs in by.items()},
        {one: [run["figures"]["images_per_s"] for run in runs] for one, runs in by.items()},
        statistics.mean(run["figures"]["csd_share"] for run in by["wrr"]),
    )


def run(check: Check, seeds: int, home: Path) -> Scores:
    """Run a template there, with one thread of torch. It shows its progress. Raises CheckFailed; ends it first at Ctrl-C."""
    reports = home / "reports" / check.template
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    environment.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TMPDIR=str(home))  # torchrun leaves a directory there
    # In a session of its own: Ctrl-C at the terminal then reaches it once, by way of this process.
    child = subprocess.Popen(
        check.command(seeds, reports), cwd=home, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        status = child.wait()
    except KeyboardInterrupt:
        _end(child)
        raise
    if status:
        raise CheckFailed(f"{check.template} ended with status {status}; what it said stands above")
    return scores(check, json.loads(next(reports.glob("*.json")).read_text()))


def _end(child: subprocess.Popen[bytes]) -> None:
    """Have a template end as by Ctrl-C, with its workers and its engine."""
    for told in (signal.SIGINT, signal.SIGKILL):
        os.killpg(child.pid, told)
        try:
            child.wait(_END_S)
            return
        except subprocess.TimeoutExpired:
            continue


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Return Markdown: a line for each template, from `Scores.figures`."""
    head = ("template", "images", *(f"{one}, %" for one in STRATEGIES), "off, %", "noise, %", "within", "images/s", "by engine")
    lines = []
    for template, one in found.items():
        pair = [" and ".join(f"{one[f'{name}_{what}']:.1f}" for name in STRATEGIES[1:]) for what in ("off", "limit")]
        within = all(one[f"{name}_off"] <= one[f"{name}_limit"] for name in STRATEGIES[1:])
        lines.append((
            template, str(one["val_images"]),
            *(f"{one[f'{name}_percent']:.1f} ± {one[f'{name}_spread']:.1f}" for name in STRATEGIES),
            *pair, "yes" if within else "**no**", ", ".join(f"{one[f'{name}_images_per_s']:.0f}" for name in STRATEGIES),
            f"{one['from_engine_percent']:.0f} %",
        ))  # fmt: skip
    return markdown_table(head, lines)


def kept(found: Mapping[str, Scores], seeds: int) -> Kept:
    """Return what goes into docs/results. Templates that did not run keep their figures."""
    before = Kept.read(KEPT).figures if KEPT.exists() else {}
    figures = {**before, **{name: one.figures for name, one in found.items()}}
    ordered = {check.template: figures[check.template] for check in CHECKS if check.template in figures}
    return result(
        "python -m scripts.accuracy_check" + ("" if seeds == 3 else f" --seeds {seeds}"), "measured here",
        "paper.md#the-templates-scores", ordered, "other programs ran beside it",
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks. Return 0 if all agree, 1 if one does not or fails, 130 or 143 if it was stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [check.template for check in CHECKS]
    parser.add_argument("--only", action="append", choices=names, metavar="TEMPLATE", help=f"one of {', '.join(names)}")
    parser.add_argument("--seeds", type=int, default=3, help="runs with each loader, at least 2 (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help=f"write {KEPT.relative_to(ROOT)}; others than --only stay")
    options = parser.parse_args(arguments)
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds}: a spread needs at least 2 runs")
    chosen = [check for check in CHECKS if not options.only or check.template in options.only]
    found: dict[str, Scores] = {}
    stopped = 0
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="ddlp-accuracy-") as home:
        try:
            # The templates' small sets, where they look for them, with more images to evaluate on.
            make_thumbnails(Path(home) / "data" / "thumbnails", 48, VAL_IMAGES)
            make_cifar10(Path(home) / "data" / "cifar-tiny", 80, VAL_IMAGES)
            for number, check in enumerate(chosen, 1):
                say(f"{number}/{len(chosen)}  {check.template}: {len(STRATEGIES) * options.seeds} trainings")
                try:
                    found[check.template] = run(check, options.seeds, Path(home))
                except CheckFailed as error:
                    say(f"accuracy_check: {error}")
                    continue
                say(f"{number}/{len(chosen)}  {table({check.template: found[check.template].figures}).splitlines()[-1]}")
        except KeyboardInterrupt as told:
            stopped = 143 if isinstance(told, Terminated) else 130
            say(f"accuracy_check: stopped after {len(found)} of {len(chosen)}; what was found follows")
    print(table({name: one.figures for name, one in found.items()}))
    if options.keep and found:
        kept(found, options.seeds).write(KEPT)
        print(KEPT)
    return stopped or int(len(found) < len(chosen) or not all(one.agree for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
