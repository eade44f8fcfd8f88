#!/usr/bin/env python3
"""Trains through a `ddlp.RayPool` whose engines come, go and die, on a real Ray cluster of several nodes on this machine.

    python -m tests.chaos.ray_churn                               # 20 epochs, 200 events; up to an hour on two cores
    python -m tests.chaos.ray_churn --epochs 2 --events 10 --seed 3

In each epoch this happens at steps drawn from --seed: an actor is killed (`ray.kill`), an engine's process is killed
(SIGKILL), a node is removed with all its processes, a node is added, or the pool is asked for another number of engines. Each
of them is an event, and so is each engine that joins the epoch. Then every sample must have come exactly once, with the bits
that the host alone makes. In the second half of the epochs the samples are user code, which actors run instead of engines. At
the end of each half no process and no file of a pool may be left.

Needs `pip install ddlp[ray]`. The cluster listens on loopback alone, and reports to nobody. Ctrl-C takes it down.

Exit status 0: no sample was lost or doubled or had other bits, and nothing was left. 1: see what is printed. 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset

from ddlp import DDLPLoader, ImageFiles, RayPool
from tests.ray_cluster import RayCluster
from tests.small_images import make_images

IMAGES, BATCH = 320, 4
NODES = (1, 4)  # at least and at most
_END_S = 60.0
STEP_S = 0.35  # of training: an engine needs seconds to start, and an epoch should see some join
LONGEST_STEP_S = 30.0  # if something should happen, and on a busy machine no engine is there yet


class Photographs(Dataset[tuple[torch.Tensor, int]]):
    """User code: a data set that only its own `__getitem__` can make."""

    def __init__(self, paths: list[str], transform: Any) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB")), index


class Churn:
    """The cluster, the pool on it, and what has happened to them.

    Attributes:
        pool: its actors have engines, or run user code.
        events: how often each kind of event has happened.
    """

    def __init__(self, cluster: RayCluster, seed: int, user_code: bool) -> None:
        self.cluster, self.user_code = cluster, user_code
        here = {"env_vars": {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}} if user_code else None
        self.pool = RayPool(0, NODES[1], cluster.address, 1, user_code=user_code, runtime_env=here)
        self.random = random.Random(seed)
        self.events: Counter[str] = Counter()
        self._alive: set[str] = set()

    def one_more(self) -> bool:
        """Let something happen, drawn from what can happen now. False: no engine takes part yet that it could hit."""
        if not self._alive or not self._engines():
            return False
        possible: list[Callable[[], str]] = [self._want, self._kill_engine, self._kill_engine]
        if self.cluster.actors():
            possible += [self._kill_actor, self._kill_actor]
        nodes = len(self.cluster.nodes())
        possible += [self._remove] * (nodes > NODES[0]) + [self._add] * (nodes < NODES[1])
        self.events[self.random.choice(possible)()] += 1
        return True

    def look(self, loader: DDLPLoader) -> None:
        """Count the engines that have joined since the last look."""
        now = {device.name for device in loader.live().devices if device.alive}
        self.events["engine joined"] += len(now - self._alive)
        self._alive = now

    def _engines(self) -> list[int]:
        """The process numbers of the engines, or of the actors that run user code."""
        found, home = [], os.fsencode(self.cluster.home)
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (path / "cmdline").read_bytes()
                if self.user_code:
                    ours = command.startswith(b"ray::UserCodeOnNode") and home in (path / "environ").read_bytes()
                else:
                    ours = b"csd_engine\0--listen" in command and home in command
                found += [int(path.name)] * ours
        return sorted(found)

    def _kill_actor(self) -> str:
        self.cluster.kill(self.random.choice(sorted(self.cluster.actors())))
        return "actor killed"

    def _kill_engine(self) -> str:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.random.choice(self._engines()), signal.SIGKILL)
        return "engine killed"

    def _remove(self) -> str:
        self.cluster.remove(self.random.choice(self.cluster.nodes()))
        return "node removed"

    def _add(self) -> str:
        self.cluster.add_soon()
        return "node added"

    def _want(self) -> str:
        self.pool.want(self.random.randint(1, NODES[1]))
        return "another number wanted"

    def left(self) -> list[str]:
        """What of a pool is still there."""
        return [*map(str, self._engines()), *self.cluster.actors(), *(path.name for path in self.cluster.home.glob("ddlp-*"))]


def loader_of(paths: list[str], user_code: bool, **options: Any) -> DDLPLoader:
    """A loader over the images, whose labels are their numbers."""
    from torchvision import transforms as T

    transform = T.Compose([T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor(), T.RandomErasing(p=0.5)])
    data = Photographs(paths, transform) if user_code else ImageFiles(paths, list(range(len(paths))), transform)
    return DDLPLoader(data, BATCH, shuffle=True, seed=7, num_workers=1, **options)


def wrong(batches: list[Any], truth: dict[int, torch.Tensor]) -> Counter[str]:
    """Count the samples that were lost or doubled, or have other bits."""
    seen: Counter[int] = Counter()
    found: Counter[str] = Counter()
    for images, labels in batches:
        for image, label in zip(images, labels.tolist(), strict=True):
            seen[label] += 1
            found["with other bits"] += not torch.equal(image, truth[label])
    found["lost"] = sum(label not in seen for label in truth)
    found["doubled"] = sum(times - 1 for times in seen.values())
    return +found


def truth_of(paths: list[str], user_code: bool, epoch: int) -> dict[int, torch.Tensor]:
    """Each sample as the host alone makes it."""
    loader = loader_of(paths, user_code, strategy="cpu")
    loader.set_epoch(epoch)
    return {label: image for images, labels in loader for image, label in zip(images, labels.tolist(), strict=True)}


def run(churn: Churn, paths: list[str], epochs: int, events: int, step_s: float, longest_step_s: float) -> int:
    """Train; print a line for each epoch, and at the end, or at Ctrl-C, what has happened. Return the exit status.

    ``step_s``: of training. ``longest_step_s``: of a step in which something should happen, while no engine is there.
    """
    loader, status, by_engines, done = loader_of(paths, churn.user_code, strategy="wrr", pool=churn.pool), 0, 0, 0
    began = time.monotonic()
    try:
        for epoch in range(epochs):
            batches = []
            for step, batch in enumerate(loader):
                batches.append(batch)
                churn.look(loader)
                due = step % 4 == 0 and churn.events.total() < events * (epoch + (step + 1) / len(loader)) / epochs
                waits_until = time.monotonic() + longest_step_s
                while due and not churn.one_more() and time.monotonic() < waits_until:
                    time.sleep(step_s)
                    churn.look(loader)
                time.sleep(step_s)
            made = loader.report().batches_csd
            by_engines, done = by_engines + made, epoch + 1
            found = wrong(batches, truth_of(paths, churn.user_code, epoch))
            status |= bool(found)
            told = ", ".join(f"{count} {kind}" for kind, count in found.items()) or "each sample once, with the host's bits"
            print(
                f"epoch {epoch + 1:2} of {epochs}: {churn.events.total():3} of {events} events, {made} of {len(loader)} "
                f"batches by engines, {told}; {time.monotonic() - began:.0f} s",
                flush=True,
            )
    finally:
        print("; ".join(f"{kind}: {count}" for kind, count in sorted(churn.events.items())))
        print(f"{done} of {epochs} epochs, {churn.events.total()} events, "
              f"{by_engines} of {done * len(loader)} batches by engines", flush=True)  # fmt: skip
    return status


def ended(churn: Churn) -> int:
    """End the pool; return 1 if something of it is left then."""
    churn.pool.close()
    until = time.monotonic() + _END_S
    while (left := churn.left()) and time.monotonic() < until:
        time.sleep(0.2)
    if left:
        print(f"the pool has left {left}")
    return int(bool(left))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, metavar="N", help="default 20")
    parser.add_argument("--events", type=int, default=200, metavar="N", help="in all of them; default 200")
    parser.add_argument("--only", choices=("engines", "user-code"), help="in all epochs")
    parser.add_argument("--step", type=float, default=STEP_S, metavar="S", help="seconds of training; default %(default)s")
    parser.add_argument(
        "--longest-step", type=float, default=LONGEST_STEP_S, metavar="S",
        help="of a step in which something should happen, while no engine is there; default %(default)s",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what happens and when; default 0")
    options = parser.parse_args(arguments)
    kinds = [False, True] if options.only is None else [options.only == "user-code"]
    if options.epochs < 1 or options.epochs % len(kinds) or options.events < 0:
        parser.error("--epochs is 1 or more, without --only an even number; --events 0 or more")
    if importlib.util.find_spec("ray") is None:
        parser.error("Ray is not installed: pip install ddlp[ray]")
    warnings.filterwarnings("ignore", message="ddlp: ")  # of each engine that is gone
    print("a Ray cluster starts on this machine", flush=True)
    cluster, status = RayCluster(), 0
    try:
        with tempfile.TemporaryDirectory(prefix="ddlp-churn-") as home:
            os.environ.update(DDLP_HOME=f"{home}/keys", DDLP_ENGINE_SLOWDOWN="5")
            images = Path(home, "images")
            images.mkdir()
            make_images(images, IMAGES)
            paths = sorted(map(str, images.iterdir()))
            for _ in range(3):
                cluster.add()
            for user_code in kinds:
                print("user code in actors:" if user_code else "engines in actors:", flush=True)
                churn = Churn(cluster, options.seed, user_code)
                each = options.epochs // len(kinds), options.events // len(kinds)
                status |= run(churn, paths, *each, options.step, options.longest_step)
                status |= ended(churn)
        return status
    except KeyboardInterrupt:
        return 130
    finally:
        cluster.end()


if __name__ == "__main__":
    sys.exit(main())
