"""The share of an epoch that an engine makes, swept from 0 to 100 %, and the share that `strategy="auto"` finds by itself.

FastFlow's Figures 9 and 10 show such curves, and the point that FastFlow chose in each. Here are ddlp's, in scaled time: host,
engine and training sleep for a given time a batch. All else is real: loader, engine process, spool or stream, and a relay as a
slow network.

    python -m scripts.ratio_sweep                        # 4 set-ups, five minutes; a table of batches/s
    python -m scripts.ratio_sweep --setups training network --shares 0 50 100 --batches 60
    python -m scripts.ratio_sweep --write                # puts the result into docs/results, for benchmarks.papers.page

Each cell of the table is batches/s and, in brackets, the part of the time in which training waited for a batch. A fixed share
is kept to the batch: neither side makes one of the other's. It trains until the engine has joined, and then the epoch that
counts. auto trains two epochs, in which it measures and decides, and the third one counts. Below its rate stand the share that
the engine made in that epoch, and its time as a part of the best fixed share's: 100 % is as fast, more is slower. The host's
thread works beside training, so where training limits, many shares are equally fast. The best share may lie between two that
were tried: then auto can be ahead of all of them.

At Ctrl-C the set-ups that are complete are printed; no engine stays.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Terminated, end_on_sigterm, say
from ddlp import DDLPLoader, Device, Goal
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.strategies import Strategy
from scripts.auto_check import REPOSITORY, Setup, data_of, engines, own_directory
from scripts.markdown import markdown_table
from scripts.results import RESULTS, result

__all__ = ["SETUPS", "FixedShare", "SweepFailed", "main", "summary", "table"]

KEPT = RESULTS / "ratio-sweep.json"
SHARES = tuple(range(0, 101, 10))
LEARNING = 2  # epochs of auto before the one that counts
SETTLE_S = 0.3  # until the engine has dropped what an epoch that was left had asked for
SETUPS = {
    "slow-engine": Setup(0.030, 0.005, (0.070,)),  # 30 % would be the best without what handing over takes
    "fast-engine": Setup(0.045, 0.005, (0.030,)),  # 60 %
    "training": Setup(0.020, 0.030, (0.040,)),
    "network": Setup(0.030, 0.005, (0.020,), side=128, transfer="stream", latency_s=0.020),  # a batch: 3 pieces
}


class SweepFailed(Exception):
    """An epoch was not what it should have been; the message says how."""


class FixedShare(Strategy):
    """The engine makes a fixed part of an epoch's batches, the last ones, and the host the others: neither helps the other out.

    The host makes what an engine failed to make, and all if there is no engine any more. ``ratio``: the host's part, 0 to 1.
    """

    name = "fixed share"
    line = "the first batches by the host, the last ones by the engine, in a fixed proportion; as they become ready"
    needs_length = True
    takes_ratio = True

    def __init__(self, ledger: Ledger, rates: Rates, ratio: float) -> None:
        super().__init__(ledger, rates)
        self.host_batches = round(ledger.length * ratio)

    @classmethod
    def make(cls, ledger: Ledger, rates: Rates, ratio: float | None = None) -> FixedShare:
        assert ratio is not None
        return cls(ledger, rates, ratio)

    def free_for_host(self) -> int | None:
        first = self.ledger.free.at_least(0)
        mine = first is not None and (first < self.host_batches or not self.ledger.devices_there)
        return first if mine else None

    def free_for_device(self, device: str) -> int | None:
        return self.ledger.free.at_least(self.host_batches)

    def next_claim(self, now: float) -> int | None:
        """As ever, but a host that has made its part takes nothing back from an engine at work."""
        return super().next_claim(now) if self.ledger.returned or self.free_for_host() is not None else None


@dataclass(frozen=True)
class Point:
    """An epoch: the part of its batches that the engine made, 0 to 1, and the part of its time that training waited."""

    share: float
    seconds: float
    batches_per_s: float
    waiting: float


def epoch(loader: DDLPLoader, step_s: float, batches: int) -> Point:
    """Train an epoch."""
    began = time.monotonic()
    for _ in loader:
        time.sleep(step_s)
    seconds, report = time.monotonic() - began, loader.report()
    return Point(report.batches_csd / batches, seconds, batches / seconds, report.waiting_s / seconds)


def fixed(setup: Setup, devices: list[Device], batches: int, share: int) -> Point:
    """Train with this share, in %, for the engine. Raises SweepFailed if the engine made another one."""
    loader = DDLPLoader(
        data_of(setup, batches), 1, shuffle=True, seed=0, csd=devices, transfer=setup.transfer, strategy=FixedShare,
        ratio=1 - share / 100,
    )  # fmt: skip
    for _ in loader:
        if not share or loader.report().batches_csd:
            break
        time.sleep(setup.step_s)
    time.sleep(SETTLE_S)
    point = epoch(loader, setup.step_s, batches)
    if round(point.share * batches) != batches - round(batches * (1 - share / 100)):
        notes = "; ".join(loader.report().notes) or "it says no reason"
        raise SweepFailed(f"the engine made {point.share:.1%} of the batches instead of {share} %: {notes}")
    return point


def auto(setup: Setup, devices: list[Device], batches: int) -> Point:
    """Train by auto, and return its last epoch."""
    loader = DDLPLoader(
        data_of(setup, batches), 1, shuffle=True, seed=0, csd=devices, transfer=setup.transfer, strategy="auto",
        goal=Goal(remember=False),
    )  # fmt: skip
    return [epoch(loader, setup.step_s, batches) for _ in range(LEARNING + 1)][-1]


def sweep(name: str, shares: Sequence[int], batches: int, rounds: int) -> dict[str, float]:
    """Train a set-up with each share and by auto, by turns. Returns its figures, of medians; `table` reads them."""
    setup, points = SETUPS[name], dict[str, list[Point]]()
    trainings = (len(shares) + 1) * rounds
    with own_directory() as home, engines(setup, Path(home) / "engines") as (_, devices):
        for number in range(trainings):
            share = (*shares, None)[number % (len(shares) + 1)]
            point = auto(setup, devices, batches) if share is None else fixed(setup, devices, batches, share)
            points.setdefault("auto" if share is None else f"share_{share}", []).append(point)
            what = f"auto, engine {point.share:.0%}" if share is None else f"engine {share} %"
            rate = f"{point.batches_per_s:.1f} batches/s, waiting {point.waiting:.0%}"
            say(f"{name}, {number + 1} of {trainings}: {what}: {rate}")
    best_s = min(_median(ones, "seconds") for label, ones in points.items() if label != "auto")
    sleeps = {"host": setup.host_s, "engine": setup.engines_s[0], "step": setup.step_s, "piece": setup.latency_s}
    figures: dict[str, float] = {f"{what}_ms": round(1000 * seconds) for what, seconds in sleeps.items()}
    for label, ones in points.items():
        figures[f"{label}_batches_per_s"] = round(_median(ones, "batches_per_s"), 1)
        figures[f"{label}_waiting_percent"] = round(100 * _median(ones, "waiting"))
    figures["auto_engine_percent"] = round(100 * _median(points["auto"], "share"))
    figures["auto_time_of_best_percent"] = round(100 * _median(points["auto"], "seconds") / best_s, 1)
    return figures


def _median(points: Sequence[Point], figure: str) -> float:
    return statistics.median(getattr(point, figure) for point in points)


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Return Markdown: a column for each set-up, a line for each share, auto below them. The best share is bold."""
    shares = [label[: -len("_batches_per_s")] for label in next(iter(found.values()), {}) if label.endswith("_batches_per_s")]
    best = {name: max(one[f"{label}_batches_per_s"] for label in shares if label != "auto") for name, one in found.items()}
    lines: list[Sequence[str]] = []
    sleeps = (", ".join(str(one[f"{what}_ms"]) for what in ("host", "engine", "step", "piece")) for one in found.values())
    lines.append(("ms: host, engine, step, 16 KiB on the way", *sleeps))
    for label in shares:
        cells = []
        for name, one in found.items():
            rate = one[f"{label}_batches_per_s"]
            bold = "**" if label != "auto" and rate == best[name] else ""
            cells.append(f"{bold}{rate}{bold} ({one[f'{label}_waiting_percent']} %)")
        lines.append((label if label == "auto" else f"{label.removeprefix('share_')} %", *cells))
    lines.append(("auto's share", *(f"{one['auto_engine_percent']} %" for one in found.values())))
    lines.append(("auto's time, of the best", *(f"{one['auto_time_of_best_percent']} %" for one in found.values())))
    return markdown_table(("engine's share", *found), lines)


def summary(found: Mapping[str, Mapping[str, float]]) -> str:
    """Return in words how far auto's time is from that of the best fixed share. ``found``: of one set-up or more."""
    behind = [one["auto_time_of_best_percent"] - 100 for one in found.values()]
    both = statistics.median(behind), max(behind)
    median, worst = (f"{abs(value):.1f} % {'ahead of' if value < 0 else 'behind'}" for value in both)
    shares = sum(label.startswith("share_") for label in next(iter(found.values()))) // 2
    return f"auto is {median} the best of {shares} fixed shares in the median of {len(found)} set-ups, {worst} it at worst"


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep the set-ups. Return 0, 1 if an epoch was not what it should have been, 130 or 143 if it was stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setups", nargs="+", choices=list(SETUPS), default=list(SETUPS), help="only these")
    parser.add_argument("--shares", nargs="+", type=int, default=SHARES, metavar="PERCENT", help="the engine's (0, 10 .. 100)")
    parser.add_argument("--batches", type=int, default=120, help="of an epoch (default %(default)s); auto learns in about 200")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each training; medians count (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of the table")
    parser.add_argument("--write", action="store_true", help=f"write {KEPT.relative_to(REPOSITORY)}; all set-ups and shares")
    options = parser.parse_args(arguments)
    if wrong := [share for share in options.shares if not 0 <= share <= 100]:
        parser.error(f"--shares {wrong[0]}: a share is 0 to 100 %")
    if min(options.batches, options.rounds) < 1:
        parser.error(f"--batches {options.batches} --rounds {options.rounds}: both must be 1 or more")
    if options.write and (options.setups != list(SETUPS) or tuple(options.shares) != SHARES):
        parser.error("--write keeps all set-ups and shares: leave --setups and --shares out")
    found: dict[str, dict[str, float]] = {}
    status = 0
    end_on_sigterm()
    try:
        for name in options.setups:
            found[name] = sweep(name, options.shares, options.batches, options.rounds)
    except SweepFailed as error:
        say(f"ratio_sweep: {error}")
        status = 1
    except KeyboardInterrupt as told:
        say(f"ratio_sweep: stopped after {len(found)} of {len(options.setups)} set-ups; what is complete follows")
        status = 143 if isinstance(told, Terminated) else 130
    numbers = {name: getattr(options, name) for name in ("batches", "rounds")}
    changed = [f" --{name} {number}" for name, number in numbers.items() if number != parser.get_default(name)]
    kept = result(
        "python -m scripts.ratio_sweep" + "".join(changed), "in scaled time",
        "paper.md#fastflows-figures-9-and-10-the-share-that-is-offloaded", found,
        "other programs ran beside it, and all sides sleep",
    )  # fmt: skip
    if options.json:
        print(kept.json())
    elif found:
        print(table(found))
        print(f"\n{summary(found)}")
    if options.write and not status:
        kept.write(KEPT)
        say(f"wrote {KEPT}")
    return status


if __name__ == "__main__":
    sys.exit(main())
