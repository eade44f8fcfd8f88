"""`strategy="auto"` beside every fixed strategy, on real engines: how much slower than the best of them it is.

A set-up says how long host, engines and training take for a batch; they sleep that long. All else is real: engine processes,
sockets, spools, a relay as a slow network. Each strategy trains two epochs of a set-up in a process of its own, and the second
one counts: auto has measured in the first. Events (an engine dies, comes back, becomes slow) happen in the second.

    python -m scripts.auto_check                      # 15 set-ups, an hour
    python -m scripts.auto_check --setups third dies --rounds 1
    python -m scripts.auto_check --offload            # training is 4.34 times as fast as the host: what of that auto reaches
    python -m scripts.auto_check --goals              # time, energy, cost: who takes part, and how long an epoch takes then
    python -m scripts.auto_check --cost --batches 1000     # what measuring costs a first epoch, and stored measurements one
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Subset
from torchvision import transforms

from csd_engine.prepare.operator_file import content_hash
from csd_engine.service.sealed_streams import PORT_STEP
from ddlp import DDLPLoader, Device, Goal, ImageArrays, Power, Prices, load_operators
from ddlp.observe import read_epoch
from ddlp.observe.measured_run import measured_run
from ddlp.planning.controller import Controller
from tests.chaos.proxy import HERE, THERE
from tests.chaos.world import free_port
from tests.engine_process import EngineProcess

REPOSITORY = Path(__file__).resolve().parents[1]
OPERATOR = Path(__file__).parents[1] / "tests" / "sleeping_operator.py"
FIXED = ("cpu", "wrr", "ordered", "mte")
_children: set[subprocess.Popen[str]] = set()  # trainings at work
IMAGES = 4  # different ones, few, since a slow network carries them first; the epoch has them again and again


@dataclass(frozen=True)
class Setup:
    """Seconds a batch of each side, the side of a batch's square image in pixels, and what happens in the second epoch.

    Attributes:
        latency_s: of each 16 KiB on the way, both ways, by `tests.chaos.proxy`; 0: no relay.
        event: "": nothing, "dies": the first engine is killed, and is back later; "slows": it takes 100 times as long.
        engines_s: of each engine.
    """

    host_s: float
    step_s: float
    engines_s: tuple[float, ...]
    side: int = 8
    transfer: str | None = None
    latency_s: float = 0.0
    event: str = ""


SETUPS = {
    "third": Setup(0.012, 0.0, (0.036,)),
    "equal": Setup(0.012, 0.0, (0.012,)),
    "faster": Setup(0.024, 0.0, (0.008,)),
    "training": Setup(0.006, 0.012, (0.02,)),
    "nearly": Setup(0.012, 0.010, (0.036,)),
    "slow": Setup(0.012, 0.0, (1.2,)),
    "slow and training": Setup(0.010, 0.008, (0.6,)),
    "two": Setup(0.018, 0.0, (0.036, 0.054)),
    "four": Setup(0.016, 0.0, (0.08, 0.08, 0.08, 0.08)),
    "network": Setup(0.012, 0.0, (0.012,), side=256, transfer="stream", latency_s=0.04),
    "stream": Setup(0.020, 0.0, (0.030,), side=640, transfer="stream"),
    "spool": Setup(0.020, 0.0, (0.030,), side=640),
    "stream, training": Setup(0.020, 0.016, (0.030,), side=640, transfer="stream"),
    "dies": Setup(0.012, 0.0, (0.024,), event="dies"),
    "slows": Setup(0.012, 0.0, (0.024,), event="slows"),
}
OFFLOAD = "offload"  # training is 4.34 times as fast as the host, as in FastFlow's paper; the engines alone are 4 times
GOALS_SETUP = "goals"  # the second engine brings a tenth, and takes as much power and money as the first one
OTHERS = {
    OFFLOAD: Setup(0.0868, 0.020, (0.0868, 0.0868, 0.0868, 0.0868)),
    GOALS_SETUP: Setup(0.020, 0.0, (0.020, 0.100)),
}
WATTS = Power(20, 20, 10, {"engine0": 60, "engine1": 60})
PRICES = Prices(0.2, 0.1, {"engine0": 0.6, "engine1": 0.6})
GOALS = {
    "time": Goal(),
    "energy": Goal("energy", power=WATTS),
    "energy, at most 25 % slower": Goal("energy", max_slowdown=0.25, power=WATTS),
    "cost, at most 25 % slower": Goal("cost", max_slowdown=0.25, prices=PRICES),
}
COSTLY = ("third", "equal", "training", "slow", "two")  # `--cost` looks at these


class Engine:
    """An engine whose speed a file says, and that can be killed and started again at its address."""

    def __init__(self, home: Path, sleep_s: float, listen: str | None = None) -> None:
        home.mkdir()
        self.home, self._speed = home, home / "sleep"
        self.sleep(sleep_s)
        (home / "root").mkdir()
        operators = home / "operators"
        operators.mkdir(mode=0o700)
        (operators / f"{content_hash(OPERATOR.read_bytes())}.py").write_bytes(OPERATOR.read_bytes())
        self._arguments = ("--operators", str(operators), "--root", str(home / "root"))
        self._within = ("env", f"DDLP_SLEEP={self._speed}")
        self.process = EngineProcess(home, *self._arguments, listen=listen, within=self._within)

    def sleep(self, seconds: float) -> None:
        """Let each of its batches take so long from now on."""
        whole = self._speed.with_suffix(".new")
        whole.write_text(repr(seconds))
        whole.replace(self._speed)

    def end(self) -> None:
        """SIGTERM."""
        self.process.end()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.process.kill()
        self.process.process.wait()

    def start(self) -> None:
        """Start it again, with the keys that it had."""
        keys, address = self.process.keys, self.process.address
        self.process = EngineProcess(self.home, *self._arguments, listen=address, keys=keys, within=self._within)


@contextlib.contextmanager
def engines(setup: Setup, home: Path) -> Iterator[tuple[list[Engine], list[Device]]]:
    """The set-up's engines, and how a loader reaches them. ``home``: a directory, made for them and removed."""
    home.mkdir()
    with contextlib.ExitStack() as at_end:
        at_end.callback(shutil.rmtree, home)
        started, devices = [], []
        for number, sleep_s in enumerate(setup.engines_s):
            port = free_port() if setup.latency_s else 0
            engine = Engine(home / f"e{number}", sleep_s, f"tcp://{THERE}:{port}" if port else None)
            at_end.callback(engine.end)
            address = at_end.enter_context(_relay(port, setup.latency_s)) if port else engine.process.address
            started.append(engine)
            devices.append(Device(address, engine.process.keys, name=f"engine{number}"))
        yield started, devices


@contextlib.contextmanager
def _relay(port: int, latency_s: float) -> Iterator[str]:
    """A slow network before the engine at this port. Yields the address of its near end."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.proxy", str(port), str(port + PORT_STEP)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, start_new_session=True,
    ) as relay:  # fmt: skip
        assert relay.stdout is not None and relay.stdin is not None
        assert relay.stdout.readline(), "the relay does not start"
        relay.stdin.write(f"latency {latency_s}\n")
        relay.stdin.flush()
        yield f"tcp://{HERE}:{port}"


def data_of(setup: Setup, batches: int) -> Any:
    """Return a data set of so many samples, each a batch."""
    images = np.random.default_rng(0).integers(0, 256, (IMAGES, setup.side, setup.side, 3), np.uint8)
    prepare = load_operators(OPERATOR).prepare(host_s=setup.host_s)
    data = ImageArrays(images, range(IMAGES), transforms.Compose([prepare, transforms.PILToTensor()]))
    return Subset(data, [number % IMAGES for number in range(batches)])


def events(setup: Setup, engine: Engine, batches: int) -> dict[int, Callable[[], None]]:
    """What happens before which batch of the second epoch."""
    if setup.event == "dies":
        return {batches // 4: engine.kill, batches // 2: engine.start}
    if setup.event == "slows":
        return {batches // 4: lambda: engine.sleep(100 * setup.engines_s[0])}
    return {}


def train(
    name: str, strategy: str, batches: int, home: str, *, epochs: int = 2, goal: str = "time", record: bool = False
) -> dict[str, Any]:  # fmt: skip
    """Train, with what is needed in the directory ``home``.

    Returns:
        Of each epoch its seconds, the processor seconds of this process, and the batches from engines; when engines rested
        after the event; what auto decided from which estimates. With ``record`` the figures of the first epoch, as
        `ddlp plan --from-run` reads them.
    """
    setup = (SETUPS | OTHERS)[name]
    run = Path(home) / "run"
    with engines(setup, Path(home) / "engines") as (started, devices):
        options: dict[str, Any] = {} if strategy == "cpu" else {"csd": devices, "transfer": setup.transfer}
        if strategy == "auto":
            options["goal"] = GOALS[goal]
        loader = DDLPLoader(
            data_of(setup, batches), 1, shuffle=True, strategy=strategy, seed=0, record=run if record else None, **options
        )  # fmt: skip
        seconds, cpu_s, from_engines, deciding, rested = [], [], [], [0.0], None
        _time_decisions(deciding)
        for epoch in range(epochs):
            due = events(setup, started[0], batches) if epoch else {}
            first = min(due, default=None)
            began, cpu_before_s = time.monotonic(), time.process_time()
            for number, _ in enumerate(loader):
                if number in due:
                    due[number]()
                time.sleep(setup.step_s)
                if first is not None and rested is None and number >= first and not number % 10:
                    rested = number - first if any("rest" in note for note in loader.report().notes) else None
            seconds.append(time.monotonic() - began)
            cpu_s.append(time.process_time() - cpu_before_s)
            from_engines.append(loader.report().batches_csd)
            loader.record = None
        why = next((note for note in loader.report().notes if note.startswith("auto")), "")
        found: dict[str, Any] = {
            "seconds": seconds, "cpu_s": cpu_s, "from_engines": from_engines, "rested": rested, "why": why,
            "deciding_s": [deciding[0] / epochs],
        }  # fmt: skip
        if record:
            found["figures"] = measured_run(read_epoch(run / "0000.jsonl"), setup.side * setup.side * 3.0).fields
        decision = loader.decision
        found["engines"] = [] if decision is None else [path.source for path in decision.chosen.paths]
        found["estimates"] = {} if decision is None else {
            " ".join(path.source for path in one.paths): [one.time_s, one.energy_j, one.cost] for one in decision.estimates
        }  # fmt: skip
        return found


def _time_decisions(into: list[float]) -> None:
    """Add up in ``into[0]`` the processor seconds in which auto measures and decides."""
    delivered = Controller.delivered

    def timed(*arguments: Any, **named: Any) -> str | None:
        began = time.thread_time()
        try:
            return delivered(*arguments, **named)
        finally:
            into[0] += time.thread_time() - began

    Controller.delivered = timed  # type: ignore[method-assign]


def child(home: str | None = None, **job: Any) -> dict[str, Any]:
    """`train` in a process of its own, which ends its engines if this one is ended."""
    with contextlib.ExitStack() as at_end:
        home = home or at_end.enter_context(own_directory())
        command = [sys.executable, "-W", "ignore", "-m", "scripts.auto_check", "--one", json.dumps({"home": home, **job})]
        process = at_end.enter_context(subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY,
            env={**os.environ, "XDG_CACHE_HOME": f"{home}/cache"},
        ))  # fmt: skip
        _children.add(process)
        at_end.callback(_children.discard, process)
        printed, told = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{job}: {told[-2000:]}")
    return dict(json.loads(printed.splitlines()[-1]))


def own_directory() -> tempfile.TemporaryDirectory[str]:
    """A directory for what a training needs. Its path is short, since sockets lie there."""
    return tempfile.TemporaryDirectory(prefix="ddlp-auto-", dir="/tmp")


def _ended(*_: Any) -> None:
    """SIGTERM ends the trainings, and each its engines."""
    for process in list(_children):
        process.terminate()
    sys.exit(143)


def trained(
    pool: ThreadPoolExecutor, rounds: int, jobs: Mapping[str, Mapping[str, Any]], do: Callable[..., dict[str, Any]] = child
) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """Do each job so many times, by turns. A job is the arguments of `train`."""
    turns = [label for _ in range(rounds) for label in jobs]
    found: dict[str, list[dict[str, Any]]] = {label: [] for label in jobs}
    ran = pool.map(lambda label: do(**jobs[label]), turns)
    for number, (label, one) in enumerate(zip(turns, ran, strict=True), 1):
        found[label].append(one)
        print(f"{number} of {len(turns)} trainings", end="\r", file=sys.stderr, flush=True)
    return found


def by_strategy(name: str, strategies: Iterable[str], batches: int, **more: Any) -> dict[str, dict[str, Any]]:
    """A set-up's jobs, one for each strategy."""
    return {strategy: {"name": name, "strategy": strategy, "batches": batches, **more} for strategy in strategies}


def median(ones: Iterable[dict[str, Any]], epoch: int, figure: str = "seconds") -> float:
    """The median of an epoch's figure."""
    return statistics.median(one[figure][epoch] for one in ones)


def compare(pool: ThreadPoolExecutor, options: argparse.Namespace) -> None:
    """auto's second epoch as a part of the best fixed strategy's."""
    print("| set-up | best fixed | its s | auto, of it | first epoch | from engines | what auto says |")
    print("| --- " * 7 + "|", flush=True)
    ratios = []
    for name in options.setups or SETUPS:
        ran = trained(pool, options.rounds, by_strategy(name, (*FIXED, "auto"), options.batches))
        first, second = ({strategy: median(ones, epoch) for strategy, ones in ran.items()} for epoch in range(2))
        best = min(FIXED, key=second.__getitem__)
        ratios.append(second["auto"] / second[best])
        last, rested = ran["auto"][-1], [str(one["rested"]) for one in ran["auto"] if one["rested"] is not None]
        after = f" Rested {', '.join(rested)} batches after the event." if rested else ""
        print(f"| {name} | {best} | {second[best]:.2f} | {ratios[-1]:.3f} | {first['auto'] / first[best]:.3f} | "
              f"{last['from_engines'][-1]} | {last['why']}{after} |", flush=True)  # fmt: skip
    print(f"\nauto takes {statistics.median(ratios) - 1:.1%} longer than the best fixed strategy in the median, and at most "
          f"{max(ratios) - 1:.1%}")  # fmt: skip


def offload(pool: ThreadPoolExecutor, options: argparse.Namespace) -> None:
    """FastFlow's headline: how many times as fast as the host alone, and as the engines alone."""
    ran = trained(pool, options.rounds, by_strategy(OFFLOAD, ("cpu", "csd", "auto"), options.batches))
    cpu_s, csd_s, auto_s = (median(ones, 1) for ones in ran.values())
    setup = OTHERS[OFFLOAD]
    print(f"Gthp/Lthp {setup.host_s / setup.step_s:.2f}: an epoch takes {cpu_s:.2f} s by the host alone, {csd_s:.2f} s by the "
          f"engines alone, {auto_s:.2f} s by auto\nauto is {cpu_s / auto_s:.2f} times as fast as the host alone, "
          f"{csd_s / auto_s:.2f} times as fast as the engines alone\n{ran['auto'][-1]['why']}")  # fmt: skip


def goals(pool: ThreadPoolExecutor, options: argparse.Namespace) -> None:
    """Time, energy and cost: who takes part, and what an epoch takes then."""
    jobs = {goal: {"name": GOALS_SETUP, "strategy": "auto", "goal": goal, "batches": options.batches} for goal in GOALS}
    ran = trained(pool, options.rounds, jobs)
    print("| goal | engines | s | of the fastest | J | cost | what auto says |\n" + "| --- " * 7 + "|")
    for goal, ones in ran.items():
        last, seconds = ones[-1], median(ones, 1)
        watts = WATTS.host_idle_watts + WATTS.accelerator_watts + sum(map(WATTS.engine_watts.__getitem__, last["engines"]))
        per_h = PRICES.host_per_h + PRICES.accelerator_per_h + sum(map(PRICES.engine_per_h.__getitem__, last["engines"]))
        print(f"| {goal} | {' '.join(last['engines']) or 'none'} | {seconds:.2f} | {seconds / median(ran['time'], 1):.3f} | "
              f"{seconds * watts:.0f} | {seconds / 3600 * per_h:.5f} | {last['why']} |")  # fmt: skip


def cost(pool: ThreadPoolExecutor, options: argparse.Namespace) -> None:
    """What measuring costs auto's first epoch: beside the best fixed strategy, and the one that does what auto decides.

    Processor time is the whole process's. Beside `cpu`, which reaches no engine, it holds the way to the engines too.
    """
    print("| set-up | best fixed | its s | auto | longer | decides like | more processor time | deciding | made elsewhere |")
    print("| --- " * 9 + "|", flush=True)
    for name in options.setups or COSTLY:
        ran = trained(pool, options.rounds, by_strategy(name, FIXED, options.batches, epochs=1))
        twice = trained(pool, options.rounds, by_strategy(name, ("auto",), options.batches, epochs=1), do=_twice)["auto"]
        best = min(FIXED, key=lambda strategy: median(ran[strategy], 0))
        best_s = median(ran[best], 0)
        for how in ("measures", "stored"):
            ones = [two[how] for two in twice]
            like = "wrr" if ones[-1]["engines"] else "cpu"
            more_cpu_s = median(ones, 0, "cpu_s") - median(ran[like], 0, "cpu_s")
            elsewhere = abs(median(ones, 0, "from_engines") - median(ran[like], 0, "from_engines"))
            print(f"| {name} | {best} | {best_s:.2f} | {how} | {median(ones, 0) / best_s - 1:.2%} | {like} | "
                  f"{more_cpu_s / best_s:.2%} | {median(ones, 0, 'deciding_s') / best_s:.2%} | "
                  f"{elsewhere:.0f}, {elsewhere / options.batches:.2%} |", flush=True)  # fmt: skip


def _twice(**job: Any) -> dict[str, Any]:
    with own_directory() as home:
        return {how: child(home, **job) for how in ("measures", "stored")}


def run_to_end(mode: Callable[[ThreadPoolExecutor, argparse.Namespace], None], options: argparse.Namespace) -> int:
    """Run a mode until it or the user ends it. Returns the status."""
    signal.signal(signal.SIGTERM, _ended)
    try:
        with ThreadPoolExecutor(options.jobs) as pool:
            mode(pool, options)
    except KeyboardInterrupt:  # the trainings got it too
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def add_arguments(parser: argparse.ArgumentParser, setups: Iterable[str]) -> None:
    """Add the options of how much is trained."""
    parser.add_argument("--setups", nargs="+", choices=list(setups), help="only these")
    parser.add_argument("--batches", type=int, default=600, help="batches of each epoch (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each training; medians count (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once; many engines disturb each other (%(default)s)")


def main(arguments: list[str] | None = None) -> int:
    """Run the set-ups, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_mutually_exclusive_group()
    for mode in (offload, goals, cost):
        name = f"--{mode.__name__}"
        modes.add_argument(name, dest="mode", action="store_const", const=mode, default=compare, help=mode.__doc__)
    add_arguments(parser, SETUPS)
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        signal.signal(signal.SIGTERM, _ended)
        print(json.dumps(train(**options.one)))
        return 0
    return run_to_end(options.mode, options)


if __name__ == "__main__":
    sys.exit(main())
