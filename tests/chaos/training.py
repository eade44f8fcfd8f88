"""How an epoch is trained under faults: to its end, or broken off, or in a process that is killed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ddlp import DDLPLoader
from ddlp.devices.device import Data
from tests.chaos.faults import Fault, Mend
from tests.chaos.world import BATCH, IMAGES, REPOSITORY, Engine, Finding, OwnProcesses, Setting, World, ends_within_s
from tests.engine_process import until

__all__ = ["ENDINGS", "Ending", "Plan", "draw_options", "train"]

STEPS = IMAGES // BATCH
STRATEGIES = ("csd", "mte", "wrr", "ordered", "auto")


class Plan:
    """The faults of one epoch: which, on which engine, before which steps they strike and are mended.

    Args:
        world: has the random numbers.
        things: the engines, or processes of pools, that are struck.
        faults: the faults to draw from.
        count: at most so many.
        done: called with each fault's name after it was applied.
    """

    def __init__(
        self,
        world: World,
        things: Sequence[Engine | OwnProcesses],
        faults: list[Fault],
        count: int,
        done: Callable[[str], None],
    ) -> None:
        self._world, self._done = world, done
        self.engines_were_down = False  # when the epoch began
        self._due: list[tuple[int, Fault, Engine | OwnProcesses, int]] = []
        self._mends: list[tuple[int, Mend]] = []
        draw = world.random
        fitting = [(thing, those) for thing in things if (those := [fault for fault in faults if fault.can_hit(thing)])]
        for _ in range(count if fitting else 0):
            thing, those = draw.choice(fitting)
            step = draw.randrange(1, STEPS)
            self._due.append((step, draw.choice(those), thing, step + draw.randrange(1, STEPS)))

    def begin(self) -> None:
        """Apply the faults that come before the epoch."""
        for _, fault, thing, _ in self._due:
            fault.before(thing)
        self.engines_were_down = not all(engine.runs for engine in self._world.engines)

    def step(self, number: int) -> None:
        """Apply and undo the faults that are due before this step."""
        for due, fault, thing, until_step in list(self._due):
            if due <= number:
                self._due.remove((due, fault, thing, until_step))
                mend = fault.strike(self._world, thing)
                if mend is not None:
                    self._mends.append((until_step, mend))
                    self._done(fault.name)
        for due, mend in list(self._mends):
            if due <= number:
                self._mends.remove((due, mend))
                mend()

    def mend(self) -> None:
        """Undo all remaining faults, the last one first."""
        while self._mends:
            self._mends.pop()[1]()
        for engine in self._world.engines:
            engine.start()


def draw_options(world: World, strategies: tuple[str, ...] = STRATEGIES) -> dict[str, Any]:
    """Draw a loader's strategy and options. It has devices, or a pool of the engines with cards if there are some, or both."""
    draw = world.random
    named = draw.sample(world.named, draw.randrange(1, len(world.named) + 1))
    devices = [dataclasses.replace(engine.device, data=_data(draw)) for engine in named]
    options: dict[str, Any] = {
        "strategy": draw.choice(strategies),
        "csd": devices if len(devices) > 1 or draw.random() < 0.5 else devices[0],
        "transfer": draw.choice([None, "stream", "stream"]),
        "num_workers": draw.choice([0, 1, 2]),
        "shuffle": draw.random() < 0.5,
    }
    if world.carded:
        options["pool"] = world.card_pool()
        if draw.random() < 0.5:
            del options["csd"]
    return options


def _data(draw: random.Random) -> Data:
    """Draw where a device has the images from."""
    return "carried" if draw.random() < 0.5 else "there"


def train(world: World, loader: DDLPLoader, plan: Plan, until_step: int | None = None, engines: int = 0) -> list[Any]:
    """Train on the loader's next epoch, or on the rest that a state has left of it.

    Args:
        until_step: at most so many batches.
        engines: for so many it waits now and then, since those of a pool take as long to start as an epoch.
    """
    batches, step_s = [], world.random.choice([0.0, 0.01, 0.03])
    for step, batch in enumerate(loader):
        batches.append(batch)
        if step + 1 == until_step:
            break
        if engines and step % STEPS in (0, STEPS // 2):
            with contextlib.suppress(AssertionError):
                until(lambda: sum(one.alive for one in loader.live().devices) >= engines, 30)
        plan.step(step + 1)
        time.sleep(step_s)
    return batches


# -- what a round does: each of these trains, and checks what it got --------------------------------------------------


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
        options = {**draw_options(world, (*STRATEGIES, "cpu")), "shuffle": shuffle}
        if options["strategy"] == "cpu":
            options.pop("csd", None)
            options.pop("pool", None)
    world.check(batches, epoch)


def dropped(world: World, epoch: int, plan: Plan) -> None:
    """Loaders are made and dropped, some in mid-epoch; then one trains."""
    for number in range(200):
        options = draw_options(world)
        loader = world.loader(options.pop("strategy"), **options)
        if number % 10 == 0:
            next(iter(loader))
    to_the_end(world, epoch, plan)


def restarted(world: World, epoch: int, plan: Plan) -> None:
    """All engines are killed and started again between two epochs."""
    options = draw_options(world)
    loader = world.loader(options.pop("strategy"), **options)
    loader.set_epoch(epoch)
    world.check(train(world, loader, plan), epoch)
    for engine in world.engines:
        engine.kill()
        engine.start()
    world.check(train(world, loader, plan), epoch + 1)


def by_own_engine(world: World, epoch: int, plan: Plan) -> None:
    """The loader starts an engine itself, which is killed in mid-epoch."""
    loader = world.loader(world.random.choice(STRATEGIES), num_workers=1)
    loader.set_epoch(epoch)
    batches = []
    for step, batch in enumerate(loader):
        batches.append(batch)
        if step == STEPS // 3:
            for pid in world.local_pool.pids():
                os.kill(pid, world.random.choice([signal.SIGKILL, signal.SIGTERM]))
        plan.step(step)
    world.check(batches, epoch)


def by_local_pool(world: World, epoch: int, plan: Plan) -> None:
    """Two epochs with a pool of this machine, whose engines the loader starts."""
    draw = world.random
    with _environment("DDLP_ENGINE_SLOWDOWN", draw.choice(["1", "8", "25"])):
        loader = world.loader(
            draw.choice(STRATEGIES), pool=world.local_pool.pool, transfer=draw.choice([None, "stream"]),
            num_workers=draw.choice([0, 1]), shuffle=draw.random() < 0.5,
        )  # fmt: skip
        loader.set_epoch(epoch)
        world.check(train(world, loader, plan, engines=1), epoch)
        world.check(train(world, loader, plan, engines=1), epoch + 1)


def by_code_pool(world: World, epoch: int, plan: Plan) -> None:
    """Two epochs of samples that only the user's code can make, on processes of a pool."""
    draw = world.random
    loader = world.loader(
        draw.choice(STRATEGIES), dataset=world.code, pool=world.code_pool.pool, num_workers=1, shuffle=draw.random() < 0.5
    )
    loader.set_epoch(epoch)
    world.check(train(world, loader, plan, engines=1), epoch, of_code=True)
    world.check(train(world, loader, plan, engines=1), epoch + 1, of_code=True)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


_STAGES = ("imported", "made", "begun", "batch", "trained", "dropped")  # what the second host reports, in this order
_SECOND_HOST = """
import json, sys, time
from ddlp import DDLPLoader, Device
from tests.chaos.world import checksum
from tests.ddlp.faults.scene import dataset
def tell(*words): print(*words, flush=True)
tell("imported")
loader = DDLPLoader(dataset({paths!r}), {batch}, seed=3, strategy={strategy!r}, num_workers=1,
                    csd=[Device(address, keys, data=data) for address, keys, data in {devices!r}])
loader.set_epoch({epoch})
tell("made")
batches, got = iter(loader), []
tell("begun")
for images, targets in batches:
    tell("batch")
    got += [(int(target), checksum(image)) for image, target in zip(images, targets)]
    time.sleep(0.02)
tell("trained")
del loader, batches
tell("dropped")
tell(json.dumps(got))
"""


class _SecondHost:
    """Another process that trains with the same engines. It must end, with one of the given statuses.

    Args:
        world: has the engines.
        epoch: the number of the epoch that it trains.
        environment: additional environment variables.
    """

    def __init__(self, world: World, epoch: int, environment: dict[str, str]) -> None:
        self._world, self._epoch = world, epoch
        devices = [(one.device.address, str(one.device.keys), _data(world.random)) for one in world.named]
        script = _SECOND_HOST.format(
            paths=world.paths, epoch=epoch, batch=BATCH, strategy=world.random.choice(STRATEGIES[1:]), devices=devices
        )
        self._out, self._err = world.home / "second host.out", world.home / "second host.err"
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            command = [sys.executable, "-W", "ignore", "-c", script]
            self.process = subprocess.Popen(command, stdout=out, stderr=err, cwd=REPOSITORY, env={**os.environ, **environment})

    def wait_for(self, stage: str) -> None:
        """Wait until it has reached a stage, or has ended."""
        times = self._world.random.randrange(1, STEPS) if stage == "batch" else 1
        while self.process.poll() is None and self._out.read_text().split().count(stage) < times:
            time.sleep(0.02)

    def check_end(self, *statuses: int) -> None:
        """Wait for its end. Raises Finding unless it ends as expected, with all samples right if it came so far."""
        within_s = ends_within_s(self._world.patience_s)
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise Finding(f"a second host did not end within {within_s:g} s") from None
        out, err = self._out.read_text(), self._err.read_text()
        status, whole = self.process.returncode, out.endswith("]]\n")
        met = "EngineUnreachable" not in err and "EngineRefused" not in err  # otherwise an engine was down, which is an error
        if met and status not in statuses and not (whole and status == 0):
            raise Finding(f"a second host ended with {status}:\n{err[-3000:]}")
        chained = err.count("During handling of the above") + err.count("was the direct cause of the following")
        if met and err.count("Traceback") - chained > (-signal.SIGINT in statuses):
            raise Finding(f"a second host told more than one traceback:\n{err[-3000:]}")
        if whole:
            self._world.check_told(json.loads(out.splitlines()[-1]), self._epoch)

    def close(self) -> None:
        """End it, if it runs."""
        self.process.kill()
        self.process.wait()


def _with_second_host(
    world: World,
    epoch: int,
    plan: Plan,
    stages: tuple[str, ...],
    strike: Callable[[_SecondHost], Mend],
    statuses: tuple[int, ...],
    environment: dict[str, str] | None = None,
) -> None:
    """Train here while a second host trains. A fault hits that host at one of the stages, and is undone when this one ends."""
    host = _SecondHost(world, epoch, environment or {})
    try:
        host.wait_for(world.random.choice(stages))
        time.sleep(world.random.choice([0.0, 0.1]))
        mend = strike(host)
        to_the_end(world, epoch, plan)
        mend()
        host.check_end(*statuses)
    finally:
        host.close()


def _nothing() -> None:
    pass


def _send(number: int, then: int | None = None) -> Callable[[_SecondHost], Mend]:
    def strike(host: _SecondHost) -> Mend:
        host.process.send_signal(number)
        return _nothing if then is None else lambda: host.process.send_signal(then)

    return strike


def beside_another(world: World, epoch: int, plan: Plan) -> None:
    """Two hosts train with the same engines."""
    _with_second_host(world, epoch, plan, ("begun",), lambda host: _nothing, (0,))


def another_killed(world: World, epoch: int, plan: Plan) -> None:
    """A host that trains with the same engines is killed."""
    _with_second_host(world, epoch, plan, _STAGES, _send(signal.SIGKILL), (-signal.SIGKILL,))


def another_interrupted(world: World, epoch: int, plan: Plan) -> None:
    """A host that trains with the same engines gets Ctrl-C."""
    _with_second_host(world, epoch, plan, _STAGES, _send(signal.SIGINT), (-signal.SIGINT, 1, 130))


def another_stopped(world: World, epoch: int, plan: Plan) -> None:
    """A host that trains with the same engines is stopped for longer than they wait for it, and goes on."""
    _with_second_host(world, epoch, plan, _STAGES[1:4], _send(signal.SIGSTOP, signal.SIGCONT), (0,))


def clock_of_another(world: World, epoch: int, plan: Plan) -> None:
    """The clock of a host that trains with the same engines jumps."""
    if world.preloads is None:
        return beside_another(world, epoch, plan)
    clock = Setting(world.home / "clock of the second host")

    def jump(host: _SecondHost) -> Mend:
        clock.set(world.random.choice([-1, 1]) * world.random.choice([5, 3600, 86400, 365 * 86400]))
        return _nothing

    environment = {"LD_PRELOAD": str(world.preloads[0]), "DDLP_CLOCK": str(clock.path)}
    _with_second_host(world, epoch, plan, _STAGES[1:4], jump, (0,), environment)


def _engines(world: World) -> Sequence[Engine | OwnProcesses]:
    return world.engines


class Ending(NamedTuple):
    """What a round does.

    Attributes:
        run: does it.
        weight: how often it is drawn.
        struck: what faults hit meanwhile.
    """

    run: Callable[[World, int, Plan], None]
    weight: float
    struck: Callable[[World], Sequence[Engine | OwnProcesses]] = _engines


ENDINGS: dict[str, Ending] = {
    "two whole epochs": Ending(to_the_end, 6.0),
    "loop left": Ending(broken_off, 2.0),
    "state saved and resumed": Ending(resumed, 2.0),
    "200 loaders dropped": Ending(dropped, 0.5),
    "own engine killed": Ending(by_own_engine, 1.0),
    "engines restarted between epochs": Ending(restarted, 0.7),
    "pool of this machine": Ending(by_local_pool, 1.0, lambda world: [world.local_pool]),
    "user code on a pool": Ending(by_code_pool, 0.3, lambda world: [world.code_pool]),
    "two hosts": Ending(beside_another, 0.4),
    "other host killed": Ending(another_killed, 0.7),
    "other host interrupted": Ending(another_interrupted, 0.9),
    "other host stopped": Ending(another_stopped, 0.5),
    "other host's clock jumps": Ending(clock_of_another, 0.4),
}
"""By name. All but the first count as a fault themselves."""


def draw_ending(draw: random.Random, names: list[str]) -> str:
    """Draw one of these, by weight."""
    return draw.choices(names, [ENDINGS[name].weight for name in names])[0]
