#!/usr/bin/env python3
"""How the jobs that use the engines of one directory of cards share them, beside their max-min fair shares.

    python -m tests.ddlp.pools.fairness                   # a minute and a half for each case
    python -m tests.ddlp.pools.fairness --cases 2 --seconds 10 --hosts
    python -m tests.ddlp.pools.fairness --hostile         # what a host gets beside a hostile one; five minutes

Each job is a training process. Two or four of different appetite have two engines: some train slowly and want half an engine,
others take all that they get, and their batches are small or large. An operator that sleeps stands for heavy preparation, so
that a job's time of the engines is known: its samples times that. All jobs are one user's; with --hosts each has keys of its
own, as hosts have that share a device. The fair share is max-min (Bertsekas and Gallager, Data Networks, section 6.5): no job
gets more than it wants, and what one leaves is shared by the others. What a job wants is measured: what it would have if its
training never waited.

With --hostile, one host has a small engine beside another host that is hostile, in each of the ways of
`tests.hostile_client.ATTACKS`. It takes batches as fast as they are made, or fetches one batch over and over where bytes are
what is attacked. Its fair share is half of what it gets alone; a second honest host is measured as well.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch.utils.data import Subset
from torchvision import transforms

from csd_engine.batchfile.reader import BatchReceiver
from csd_engine.errors import EngineError
from csd_engine.machine.computer import process_memory
from csd_engine.prepare.operator_file import content_hash
from csd_engine.protocol import codec as say
from csd_engine.protocol.keys import load_pair, load_public
from csd_engine.transforms.pipeline import Pipeline
from ddlp import DDLPLoader, ImageArrays, load_operators
from ddlp.sources.engine.link import EngineLink
from tests.ddlp.pools.bed import Bed
from tests.engine_process import EngineProcess, Recipe, make_jpegs
from tests.hostile_client import ATTACKS, attack, list_client
from tests.sleeping_engine import OPERATOR

SLEEP_S = 0.02  # of an engine, for a sample
ENGINES = 2
_SETTLE_S = 5.0
_FOREVER = 1_000_000  # samples
_HOSTILE_SLEEP_S = 0.005
_AHEAD = 4  # leases of the honest host, as a loader has


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
    images = np.zeros((4, 8, 8, 3), dtype=np.uint8)
    operators = [load_operators(OPERATOR).prepare(host_s=0.0), transforms.PILToTensor()]
    data = ImageArrays(images, range(len(images)), transforms.Compose(operators))
    samples = Subset(data, [number % len(images) for number in range(_FOREVER // job.batch * job.batch)])
    loader = DDLPLoader(samples, job.batch, shuffle=True, seed=0, pool=cards, strategy="csd")
    batches = iter(loader)
    while True:
        asked = time.monotonic()
        next(batches)
        now = time.monotonic()
        waited_s += now - asked
        if now - told_s > 0.1:
            told_s = now
            prepared = loader.report().batches_csd * job.batch  # the host makes some too while the engines hold leases back
            print(json.dumps((now, prepared, waited_s)), flush=True)
        time.sleep(job.step_s)


class _Child:
    """This program in a process of its own, and the lines of numbers that it has told."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.ddlp.pools.fairness", *command], stdout=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.told: list[tuple[Any, ...]] = []
        self._thread = threading.Thread(target=self._read, args=(self.process.stdout,))
        self._thread.start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            self.told.append(tuple(json.loads(line)))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()


class _Running(_Child):
    """A job."""

    def __init__(self, job: Job, cards: Path, home: Path) -> None:
        home.mkdir(exist_ok=True)
        text = json.dumps({**asdict(job), "wants": min(job.wants, 1e9)})
        super().__init__("--job", text, str(cards), DDLP_HOME=str(home))

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


class _Scene:
    """An engine with one worker, in a directory: what its hosts need to know of it."""

    def __init__(self, home: Path) -> None:
        self.home, self.keys = home, home / "keys"
        root, names = home / "root", home / "names.json"
        if not root.exists():
            root.mkdir()
            names.write_text(json.dumps(make_jpegs(root, np.random.default_rng(7))))
        self._root, self._names = root, json.loads(names.read_text())

    def recipe(self, fetched: bool, name: str) -> Recipe:
        """Return batches of one sample that sleeps, or (to be fetched) of 3.6 MB."""
        if fetched:
            return Recipe(self._root, self._names, self.home / f"manifest-{name}", batch=24, size=224)
        recipe = Recipe(self._root, self._names, self.home / f"manifest-{name}", batch=1)
        data = recipe.pipeline.to_data()
        parameters = {"host_s": 0.0}
        call = {"op": "User", "file": content_hash(OPERATOR.read_bytes()), "function": "prepare", "size": None}
        recipe.pipeline = Pipeline.parse({**data, "ops": [{**call, "parameters": parameters}, *data["ops"]]})
        return recipe

    def engine(self) -> EngineProcess:
        """Start it, with the keys of two honest hosts and a hostile one."""
        (self.home / "sleep").write_text(repr(_HOSTILE_SLEEP_S))
        os.environ["DDLP_SLEEP"] = str(self.home / "sleep")
        operators = self.home / "operators"
        operators.mkdir(mode=0o700, exist_ok=True)
        (operators / f"{content_hash(OPERATOR.read_bytes())}.py").write_bytes(OPERATOR.read_bytes())
        shutil.rmtree(self.home / "spool", ignore_errors=True)
        shutil.rmtree(self.keys, ignore_errors=True)
        engine = EngineProcess(
            self.home, "--root", str(self._root), "--operators", str(operators), listen="tcp://127.0.0.1:*"
        )
        (self.home / "address").write_text(engine.address)
        for name in ("0", "1", "hostile"):
            shutil.rmtree(self.home / f"pair-{name}", ignore_errors=True)
            list_client(self.keys, name)
        return engine

    def pair(self, name: str) -> Path:
        """Return the file of a host's keys."""
        return self.home / f"pair-{name}" / f"{name}.key_secret"

    @property
    def address(self) -> str:
        """Of the engine."""
        return (self.home / "address").read_text()


def be_a_host(home: Path, name: str, fetched: bool) -> None:
    """Be an honest host: print how many batches have come, and when, until the parent ends this process."""
    scene, told_s, batches = _Scene(home), 0.0, 0
    recipe = scene.recipe(fetched, name)
    while True:  # a host that has lost the engine comes again
        events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        try:
            link = EngineLink(scene.address, load_public(scene.keys / "server.key"), *load_pair(scene.pair(name)))
            job = recipe.open(link, events)
            items = [recipe.lease(job, number, number) for number in range(1 if fetched else _AHEAD)]
            numbers = itertools.count(_AHEAD)
            while True:
                event = events.get(timeout=300)
                if not isinstance(event, (say.Published, say.Failed)):
                    continue
                while fetched:
                    receiver = BatchReceiver(recipe.identity(items[0]), 0, recipe.layout)
                    job.fetch_sealed(0, receiver, recipe.layout.file_bytes) or print("not sealed", file=sys.stderr)
                    batches += 1
                    if time.monotonic() - told_s > 0.1:
                        told_s = time.monotonic()
                        print(json.dumps((told_s, batches)), flush=True)
                if isinstance(event, say.Published):
                    job.release(event.lease)
                    batches += 1
                recipe.lease(job, number := next(numbers), number)
                if time.monotonic() - told_s > 0.1:
                    told_s = time.monotonic()
                    print(json.dumps((told_s, batches)), flush=True)
        except (EngineError, queue.Empty) as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            time.sleep(0.2)


class _Host(_Child):
    """An honest host or an attack."""

    def per_s(self, begin: float, end: float) -> float:
        """Return its batches a second between these times."""
        before = max((count for at, count in list(self.told) if at <= begin), default=0)
        return (max((count for at, count in list(self.told) if at <= end), default=0) - before) / (end - begin)


def beside(home: Path, fetched: bool, seconds: float, hosts: int, hostile: str = "") -> tuple[float, int]:
    """Return the batches a second of the first host beside the others, and the most memory of the engine's service, bytes."""
    scene, most = _Scene(home), 0
    with contextlib.ExitStack() as at_end:
        engine = scene.engine()
        at_end.callback(engine.end)
        running = [_Host("--host", str(home), str(number), str(int(fetched))) for number in range(hosts)]
        for one in running:
            at_end.callback(one.end)
        if hostile:
            running.append(_Host("--attack", str(home), hostile, str(int(fetched))))
            at_end.callback(running[-1].end)
        while not all(one.told for one in running):
            assert all(one.process.poll() is None for one in running)
            time.sleep(0.1)
        begin = time.monotonic() + _SETTLE_S
        while time.monotonic() < begin + seconds:
            time.sleep(0.05)
            most = max(most, process_memory([engine.process.pid])[0])
        return running[0].per_s(begin, begin + seconds), most


def hostile_table(names: list[str], seconds: float) -> None:
    """Print what a host gets beside each attack, and its fair share."""
    print("| attack | alone, batches/s | beside an honest host | fair share | beside the attack | of its share | engine, MB |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        honest: dict[bool, tuple[float, float]] = {}
        for name in names:
            fetched = name.startswith(("parts", "sealed"))
            if fetched not in honest:
                honest[fetched] = (beside(home, fetched, seconds, 1)[0], beside(home, fetched, seconds, 2)[0])
            alone, two = honest[fetched]
            got, most = beside(home, fetched, seconds, 1, name)
            rates = " | ".join(f"{rate:.1f}" for rate in (alone, two, alone / 2, got))
            print(f"| {name} | {rates} | {got / alone * 2:.2f} | {most / 1e6:.0f} |", flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seconds", type=float, default=60.0, help="that are measured (default %(default)s)")
    parser.add_argument("--hosts", action="store_true", help="each job has keys of its own")
    parser.add_argument("--hostile", nargs="*", metavar="ATTACK", help="instead: attacks of a host, by default all of them")
    for inner, values in (("--job", 2), ("--host", 3), ("--attack", 3)):
        parser.add_argument(inner, nargs=values, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.host:
        be_a_host(Path(given.host[0]), given.host[1], given.host[2] == "1")
    if given.attack:
        scene = _Scene(Path(given.attack[0]))
        recipe = scene.recipe(given.attack[2] == "1", "hostile")
        data = recipe.pipeline.to_data(), recipe.dataset.to_data(), recipe.layout.to_data()
        # It would be on a computer of its own. Its thirty threads have a nice value each, and at 19 they weigh half a process.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        print(json.dumps((time.monotonic(), 0)), flush=True)
        attack(scene.address, scene.keys, scene.pair("hostile"), given.attack[1], (*data, [recipe.manifest.read_bytes()]))
    if given.hostile is not None:
        hostile_table(given.hostile or list(ATTACKS), given.seconds)
        return
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
