"""`strategy="auto"` beside every fixed strategy, on real engines: how much slower than the best of them it is.

A set-up says how long host, engines and training take for a batch; they sleep that long. All else is real: engine processes,
sockets, spools, a relay as a slow network. Each strategy trains two epochs of a set-up in a process of its own, and the second
one counts: auto has measured in the first. Events (an engine dies, comes back, becomes slow) happen in the second.

    python -m scripts.auto_check                      # 15 set-ups, half an hour
    python -m scripts.auto_check --setups third dies --rounds 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Subset
from torchvision import transforms

from csd_engine.prepare.operator_file import content_hash
from ddlp import DDLPLoader, Device, ImageArrays, load_operators
from tests.engine_process import EngineProcess

REPOSITORY = Path(__file__).resolve().parents[1]
OPERATOR = Path(__file__).with_name("sleeping_operator.py")
STRATEGIES = ("cpu", "wrr", "ordered", "mte", "auto")
_children: set[subprocess.Popen[str]] = set()  # trainings at work
IMAGES = 16  # different ones; the epoch has them again and again


@dataclass(frozen=True)
class Setup:
    """Seconds a batch of each side, the side of a batch's square image in pixels, and what happens in the second epoch.

    Attributes:
        latency_s: of each 16 KiB on the way, both ways; 0: no relay.
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


class Engine:
    """An engine whose speed a file says, and that can be killed and started again at its address."""

    def __init__(self, home: Path, sleep_s: float) -> None:
        home.mkdir()
        self.home, self._speed = home, home / "sleep"
        self.sleep(sleep_s)
        (home / "root").mkdir()
        operators = home / "operators"
        operators.mkdir(mode=0o700)
        (operators / f"{content_hash(OPERATOR.read_bytes())}.py").write_bytes(OPERATOR.read_bytes())
        self._arguments = ("--operators", str(operators), "--root", str(home / "root"))
        self._within = ("env", f"DDLP_SLEEP={self._speed}")
        self.process = EngineProcess(home, *self._arguments, within=self._within)

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
def engines(setup: Setup) -> Iterator[tuple[list[Engine], list[Device]]]:
    """The set-up's engines, and how a loader reaches them."""
    with tempfile.TemporaryDirectory(prefix="ddlp-auto-", dir="/tmp") as home, contextlib.ExitStack() as at_end:
        started, devices = [], []
        for number, sleep_s in enumerate(setup.engines_s):
            engine = Engine(Path(home) / f"e{number}", sleep_s)
            at_end.callback(engine.end)
            address = engine.process.address
            if setup.latency_s:
                engine.process.end()
                engine.process = EngineProcess(
                    engine.home, *engine._arguments, listen="tcp://127.0.0.1:0", keys=engine.process.keys, within=engine._within
                )
                address = at_end.enter_context(_relay(engine.process.address, setup.latency_s))
            started.append(engine)
            devices.append(Device(address, engine.process.keys, name=f"engine{number}"))
        yield started, devices


@contextlib.contextmanager
def _relay(address: str, latency_s: float) -> Iterator[str]:
    """A slow network before an engine. Yields the address of its near end."""
    with subprocess.Popen(
        [sys.executable, "-m", "scripts.chaos.proxy", address.rpartition(":")[2]],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY,
    ) as relay:  # fmt: skip
        assert relay.stdout is not None and relay.stdin is not None
        yield_to = f"tcp://127.0.0.1:{int(relay.stdout.readline())}"
        relay.stdin.write(f"latency {latency_s}\n")
        relay.stdin.flush()
        yield yield_to
        relay.communicate()


def events(setup: Setup, engine: Engine, batches: int) -> dict[int, Callable[[], None]]:
    """What happens before which batch of the second epoch."""
    if setup.event == "dies":
        return {batches // 4: engine.kill, batches // 2: engine.start}
    if setup.event == "slows":
        return {batches // 4: lambda: engine.sleep(100 * setup.engines_s[0])}
    return {}


def train(name: str, strategy: str, batches: int) -> dict[str, Any]:
    """Train two epochs. Return the seconds of each, what auto decided, and when engines rested after the event."""
    setup = SETUPS[name]
    images = np.random.default_rng(0).integers(0, 256, (IMAGES, setup.side, setup.side, 3), np.uint8)
    prepare = load_operators(OPERATOR).prepare(host=os.getpid(), host_s=setup.host_s)
    data = ImageArrays(images, range(IMAGES), transforms.Compose([prepare, transforms.PILToTensor()]))
    samples: Any = Subset(data, [number % IMAGES for number in range(batches)])
    with engines(setup) as (started, devices):
        options: dict[str, Any] = {} if strategy == "cpu" else {"csd": devices, "transfer": setup.transfer}
        loader = DDLPLoader(samples, 1, shuffle=True, strategy=strategy, seed=0, **options)
        seconds, rested = [], None
        for epoch in range(2):
            due = events(setup, started[0], batches) if epoch else {}
            first = min(due, default=None)
            began = time.monotonic()
            for number, _ in enumerate(loader):
                if number in due:
                    due[number]()
                time.sleep(setup.step_s)
                if first is not None and rested is None and number >= first and not number % 10:
                    rested = number - first if any("rest" in note for note in loader.report().notes) else None
            seconds.append(time.monotonic() - began)
        report = loader.report()
        why = next((note for note in report.notes if note.startswith("auto")), "")
        return {"seconds": seconds, "why": why, "rested": rested, "from_engines": report.batches_csd}


def child(name: str, strategy: str, batches: int) -> dict[str, Any]:
    """`train` in a process of its own, which ends its engines if this one is ended."""
    command = [sys.executable, "-W", "ignore", "-m", "scripts.auto_check", "--one", name, strategy, "--batches", str(batches)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        _children.add(process)
        try:
            printed, told = process.communicate()
        finally:
            _children.discard(process)
    if process.returncode:
        raise RuntimeError(f"{name}, {strategy}: {told[-2000:]}")
    return dict(json.loads(printed.splitlines()[-1]))


def _ended(*_: Any) -> None:
    """SIGTERM ends the trainings, and each its engines."""
    for process in list(_children):
        process.terminate()
    sys.exit(143)


def compared(name: str, pool: ThreadPoolExecutor, rounds: int, batches: int) -> tuple[float, str]:
    """Run a set-up. Return auto's time as a part of the best fixed strategy's, medians of all rounds, and a line."""
    turns = [strategy for _ in range(rounds) for strategy in STRATEGIES]
    ran: dict[str, list[dict[str, Any]]] = {strategy: [] for strategy in STRATEGIES}
    for strategy, one in zip(turns, pool.map(partial(child, name, batches=batches), turns), strict=True):
        ran[strategy].append(one)
    first, second = ({strategy: statistics.median(one["seconds"][epoch] for one in ones) for strategy, ones in ran.items()}
                     for epoch in range(2))  # fmt: skip
    best = min((strategy for strategy in STRATEGIES if strategy != "auto"), key=lambda one: second[one])
    ratio, last = second["auto"] / second[best], ran["auto"][-1]
    rested = [str(one["rested"]) for one in ran["auto"] if one["rested"] is not None]
    after = f" Rested {', '.join(rested)} batches after the event." if rested else ""
    return ratio, (
        f"| {name} | {best} | {second[best]:.2f} | {ratio:.3f} | {first['auto'] / first[best]:.3f} | {last['from_engines']} | "
        f"{last['why']}{after} |"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the set-ups, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setups", nargs="+", choices=list(SETUPS), default=list(SETUPS), help="only these")
    parser.add_argument("--batches", type=int, default=600, help="batches of each epoch (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each strategy; medians count (%(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="trainings that run at once; they mostly sleep (%(default)s)")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _ended)
    if options.one:
        name, strategy = options.one
        print(json.dumps(train(name, strategy, options.batches)))
        return 0
    print("| set-up | best fixed | its s | auto, of it | first epoch | from engines | what auto says |")
    print("| --- " * 7 + "|", flush=True)
    ratios = []
    try:
        with ThreadPoolExecutor(options.jobs) as pool:
            for name in options.setups:
                ratio, line = compared(name, pool, options.rounds, options.batches)
                ratios.append(ratio)
                print(line, flush=True)
    except KeyboardInterrupt:  # the trainings got it too
        print(f"interrupted after {len(ratios)} set-ups", file=sys.stderr)
        return 130
    print(f"\nauto takes {statistics.median(ratios) - 1:.1%} longer than the best fixed strategy in the median, and at most "
          f"{max(ratios) - 1:.1%}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
