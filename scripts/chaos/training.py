"""How an epoch is trained under faults: to its end, or broken off, or in a process that is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

from ddlp import DDLPLoader
from scripts.chaos.faults import Fault, Mend
from scripts.chaos.world import BATCH, IMAGES, REPOSITORY, Engine, Finding, World

__all__ = ["ENDINGS", "Plan", "draw_options", "train"]

STEPS = IMAGES // BATCH
STRATEGIES = ("csd", "mte", "wrr", "ordered")
PATIENCE_S = 40.0  # for a child process


class Plan:
    """The faults of one epoch: which, on which engine, before which steps they strike and are mended.

    Args:
        world: gives the random numbers and the engines.
        faults: of these.
        count: so many at most.
        done: called with each fault's name once it has struck.
    """

    def __init__(self, world: World, faults: list[Fault], count: int, done: Callable[[str], None]) -> None:
        self._world, self._done = world, done
        self.engines_were_down = False  # as the epoch began
        self._due: list[tuple[int, Fault, Engine, int]] = []
        self._mends: list[tuple[int, Mend]] = []
        draw = world.random
        for _ in range(count):
            engine = draw.choice(world.engines)
            fitting = [fault for fault in faults if fault.fits(engine)]
            if fitting:
                step = draw.randrange(1, STEPS)
                self._due.append((step, draw.choice(fitting), engine, step + draw.randrange(1, STEPS)))

    def begin(self) -> None:
        """Do what comes before the epoch."""
        for _, fault, engine, _ in self._due:
            fault.before(engine)
        self.engines_were_down = not all(engine.runs for engine in self._world.engines)

    def step(self, number: int) -> None:
        """Strike and mend what is due before this step."""
        for due, fault, engine, until_step in list(self._due):
            if due <= number:
                self._due.remove((due, fault, engine, until_step))
                mend = fault.strike(self._world, engine)
                if mend is not None:
                    self._mends.append((until_step, mend))
                    self._done(fault.name)
        for due, mend in list(self._mends):
            if due <= number:
                self._mends.remove((due, mend))
                mend()

    def mend(self) -> None:
        """Mend all that is left, the last fault first."""
        while self._mends:
            self._mends.pop()[1]()
        for engine in self._world.engines:
            engine.start()


def draw_options(world: World) -> dict[str, Any]:
    """A loader's strategy and options, by chance."""
    draw = world.random
    devices = [engine.device for engine in draw.sample(world.engines, draw.randrange(1, len(world.engines) + 1))]
    return {
        "strategy": draw.choice(STRATEGIES),
        "csd": devices if len(devices) > 1 or draw.random() < 0.5 else devices[0],
        "transfer": draw.choice([None, "stream"]),
        "num_workers": draw.choice([0, 1, 2]),
        "shuffle": draw.random() < 0.5,
    }


def train(world: World, loader: DDLPLoader, plan: Plan, until_step: int | None = None) -> list[Any]:
    """Train on the loader's next epoch, or on what a state has left of it. ``until_step``: so many batches at most."""
    batches, step_s = [], world.random.choice([0.0, 0.01, 0.03])
    for step, batch in enumerate(loader):
        batches.append(batch)
        if step + 1 == until_step:
            break
        plan.step(step + 1)
        time.sleep(step_s)
    return batches


# -- what else may happen in an epoch: each trains, and checks what it got ---------------------------------------------


def to_the_end(world: World, epoch: int, plan: Plan) -> None:
    """Two whole epochs of one loader."""
    options = draw_options(world)
    loader = world.loader(options.pop("strategy"), **options)
    loader.set_epoch(epoch)
    world.check(train(world, loader, plan), epoch)
    world.check(train(world, loader, plan), epoch + 1)


def broken_off(world: World, epoch: int, plan: Plan) -> None:
    """The loop is left in mid-epoch, by break or by an exception; the next epoch is whole."""
    options = draw_options(world)
    loader = world.loader(options.pop("strategy"), **options)
    loader.set_epoch(epoch)
    if world.random.random() < 0.5:
        train(world, loader, plan, world.random.randrange(1, STEPS))
    else:
        try:
            for step, _ in enumerate(loader):
                plan.step(step)
                if step == STEPS // 2:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    loader.set_epoch(epoch)
    world.check(train(world, loader, plan), epoch)


def resumed(world: World, epoch: int, plan: Plan) -> None:
    """A state is saved in mid-epoch, again and again; loaders with other strategies, workers and devices go on from it."""
    options, batches, state = draw_options(world), [], None
    shuffle = options["shuffle"]
    for last in (False, False, True):
        loader = world.loader(options.pop("strategy"), **options)
        if state is None:
            loader.set_epoch(epoch)
        else:
            loader.load_state_dict(state)
        batches += train(world, loader, plan, None if last else world.random.randrange(1, STEPS // 3))
        state = loader.state_dict()
        options = {**draw_options(world), "shuffle": shuffle}
    world.check(batches, epoch)


def dropped(world: World, epoch: int, plan: Plan) -> None:
    """Loaders are made and dropped, some in mid-epoch; then one trains."""
    for number in range(20):
        options = draw_options(world)
        loader = world.loader(options.pop("strategy"), **options)
        if number % 2:
            next(iter(loader))
    to_the_end(world, epoch, plan)


def by_own_engine(world: World, epoch: int, plan: Plan) -> None:
    """The loader starts an engine itself, which is killed in mid-epoch."""
    loader = world.loader(world.random.choice(STRATEGIES), num_workers=1)
    loader.set_epoch(epoch)
    batches = []
    for step, batch in enumerate(loader):
        batches.append(batch)
        if step == STEPS // 3:
            for pid in world.own_engines():
                os.kill(pid, world.random.choice([signal.SIGKILL, signal.SIGTERM]))
        plan.step(step)
    world.check(batches, epoch)


_CHILD = """
import sys, time
from ddlp import DDLPLoader, Device
from tests.ddlp.faults.scene import dataset
paths, epoch = {paths!r}, {epoch}
loader = DDLPLoader(dataset(paths), {batch}, seed=3, strategy={strategy!r}, num_workers=1,
                    csd=[Device(address, keys) for address, keys in {devices!r}])
loader.set_epoch(epoch)
for step, batch in enumerate(loader):
    print(step, flush=True)
    time.sleep(0.02)
"""


def _child(world: World, epoch: int, plan: Plan, number: int | None) -> None:
    """Train in another process, and beside it here; send the signal to that process in mid-epoch."""
    devices = [(engine.device.address, str(engine.device.keys)) for engine in world.engines]
    script = textwrap.dedent(_CHILD).format(
        paths=world.paths, epoch=epoch, batch=BATCH, strategy=world.random.choice(STRATEGIES[1:]), devices=devices
    )  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=REPOSITORY,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        for _ in range(world.random.randrange(1, STEPS) if number else STEPS):
            if not child.stdout.readline():
                break
        if number:
            child.send_signal(number)
        to_the_end(world, epoch, plan)
        _, err = child.communicate(timeout=PATIENCE_S)
        expected: dict[int | None, tuple[int, ...]] = {
            None: (0,), signal.SIGKILL: (-signal.SIGKILL,), signal.SIGINT: (-signal.SIGINT, 1, 130),
        }  # fmt: skip
        if child.returncode not in expected[number] and "EngineUnreachable" not in err and "EngineRefused" not in err:
            raise Finding(f"a second host ended with {child.returncode} after signal {number}:\n{err[-3000:]}")
        if err.count("Traceback") > (number == signal.SIGINT):
            raise Finding(f"a second host told more than one traceback:\n{err[-3000:]}")
    except subprocess.TimeoutExpired:
        raise Finding(f"a second host did not end within {PATIENCE_S:g} s of signal {number}") from None
    finally:
        child.kill()
        child.communicate()


def beside_another(world: World, epoch: int, plan: Plan) -> None:
    """Two hosts train with the same engines."""
    _child(world, epoch, plan, None)


def another_killed(world: World, epoch: int, plan: Plan) -> None:
    """A host that trains with the same engines is killed."""
    _child(world, epoch, plan, signal.SIGKILL)


def another_interrupted(world: World, epoch: int, plan: Plan) -> None:
    """A host that trains with the same engines gets Ctrl-C."""
    _child(world, epoch, plan, signal.SIGINT)


ENDINGS: dict[str, tuple[Callable[[World, int, Plan], None], float]] = {
    "two whole epochs": (to_the_end, 6.0),
    "loop left": (broken_off, 2.0),
    "state saved and resumed": (resumed, 2.0),
    "20 loaders dropped": (dropped, 0.5),
    "own engine killed": (by_own_engine, 1.0),
    "two hosts": (beside_another, 0.5),
    "other host killed": (another_killed, 0.7),
    "other host interrupted": (another_interrupted, 0.7),
}
"""What a round does, and its weight. All but the first count as a fault themselves."""


def draw_ending(draw: random.Random, names: list[str]) -> str:
    """One of these, by weight."""
    return draw.choices(names, [ENDINGS[name][1] for name in names])[0]
