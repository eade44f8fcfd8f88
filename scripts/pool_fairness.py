#!/usr/bin/env python3
"""How the jobs that use the engines of one directory of cards share them, beside their max-min fair shares.

    python -m scripts.pool_fairness                   # a minute and a half for each case
    python -m scripts.pool_fairness --cases 2 --seconds 10 --hosts

Each job is a training process. Two or four of different appetite have two engines: some train slowly and want half an engine,
others take all that they get, and their batches are small or large. An operator that sleeps stands for heavy preparation, so
that a job's time of the engines is known: its samples times that. All jobs are one user's; with --hosts each has keys of its
own, as hosts have that share a device. The fair share is max-min (Bertsekas and Gallager, Data Networks, section 6.5): no job
gets more than it wants, and what one leaves is shared by the others. What a job wants is measured: what it would have if its
training never waited.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from scripts.pool_bed import Bed, loader_of

SLEEP_S = 0.02  # of an engine, for a sample
ENGINES = 2
_SETTLE_S = 5.0
_FOREVER = 1_000_000  # batches


@dataclass(frozen=True)
class Job:
    """A training: how many engines it wants, and the samples of its batches."""

    wants: float
    batch: int

    @property
    def step_s(self) -> float:
        """Seconds of its training step."""
        return self.batch * SLEEP_S / self.wants


CASES = {
    "2": (Job(0.5, 2), Job(math.inf, 2)),
    "2 hungry": (Job(math.inf, 1), Job(math.inf, 4)),
    "4": (Job(0.2, 2), Job(0.4, 2), Job(math.inf, 2), Job(math.inf, 2)),
    "4 batches": (Job(0.2, 4), Job(0.4, 1), Job(math.inf, 1), Job(math.inf, 4)),
}


def shares(wants: Mapping[int, float], engines: float) -> dict[int, float]:
    """Return the max-min fair share of each."""
    given, left = {}, engines
    hungry = sorted(wants, key=lambda job: wants[job])  # the smallest appetite first
    for place, job in enumerate(hungry):
        given[job] = min(wants[job], left / (len(hungry) - place))
        left -= given[job]
    return given


def train(job: Job, cards: str) -> None:
    """Be a job: print the samples by engines so far, and when, until the parent ends this process."""
    waited_s = told_s = 0.0
    loader = loader_of(cards, _FOREVER // job.batch, job.batch, 0.0, strategy="csd")
    batches = iter(loader)
    while True:
        asked = time.monotonic()
        next(batches)
        now = time.monotonic()
        waited_s += now - asked
        if now - told_s > 0.1:
            told_s = now
            samples = loader.report().batches_csd * job.batch  # the host makes some too while the engines hold leases back
            print(json.dumps((now, samples, waited_s)), flush=True)
        time.sleep(job.step_s)


class _Running:
    """A job's process, and what it has told."""

    def __init__(self, job: Job, cards: Path, home: Path) -> None:
        home.mkdir(exist_ok=True)
        text = json.dumps({**asdict(job), "wants": min(job.wants, 1e9)})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scripts.pool_fairness", "--job", text, str(cards)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "DDLP_HOME": str(home)},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.told: list[tuple[float, int, float]] = []
        self._thread = threading.Thread(target=self._read, args=(self.process.stdout,))
        self._thread.start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            self.told.append(tuple(json.loads(line)))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()

    def engines(self, begin: float, end: float) -> tuple[float, float]:
        """Return the engines that it had between these times, and how many it wanted."""
        inside = [one for one in self.told if begin <= one[0] <= end]
        seconds, samples, waited_s = (last - first for first, last in zip(inside[0], inside[-1], strict=True))
        return samples * SLEEP_S / seconds, samples * SLEEP_S / max(1e-6, seconds - waited_s)


def measure(jobs: tuple[Job, ...], seconds: float, hosts: bool) -> list[tuple[float, float, float]]:
    """Return the engines that each job had, how many it wanted, and its fair share."""
    with contextlib.ExitStack() as at_end:
        home = Path(at_end.enter_context(tempfile.TemporaryDirectory()))
        bed = at_end.enter_context(Bed(home, ENGINES, SLEEP_S, "--quota-batches", "32"))
        running = []
        for number, job in enumerate(jobs):
            running.append(_Running(job, bed.cards, home / (f"host{number}" if hosts else "host")))
            at_end.callback(running[-1].end)
            while not running[-1].told:  # it has made this user's keys
                assert running[-1].process.poll() is None
                time.sleep(0.1)
        time.sleep(_SETTLE_S)
        begin = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        seen = [one.engines(begin, end) for one in running]
    fair = shares(dict(enumerate(wanted for _, wanted in seen)), sum(had for had, _ in seen))
    return [(*one, fair[number]) for number, one in enumerate(seen)]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=60.0, help="that are measured (default %(default)s)")
    parser.add_argument("--hosts", action="store_true", help="each job has keys of its own")
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        train(Job(**json.loads(given.job[0])), given.job[1])
        return
    print("| jobs | samples a batch | engines that it wants | that it had | its fair share | off by |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in given.cases:
        for job, (had, wants, fair) in zip(CASES[name], measure(CASES[name], given.seconds, given.hosts), strict=True):
            print(f"| {name} | {job.batch} | {wants:.2f} | {had:.3f} | {fair:.3f} | {had / fair - 1:+.1%} |", flush=True)


if __name__ == "__main__":
    main()
