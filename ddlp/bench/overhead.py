"""`ddlp bench overhead`: what scheduling costs a batch, at a thousand batches and at a million.

`rules` drives the ledger and each strategy alone: every batch is claimed, leased, published, fetched and delivered at once.
`loader` iterates over a real loader with batches of one pixel: its threads, its lock and, where the strategy has a device,
an engine with its leases and batch files; CPU time of this process, less what torch's DataLoader without workers takes for
the same batches in one thread.
`idle` is the CPU time of this process and of the engine while training does not ask for anything.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader
from torchvision import transforms

from ddlp.datasets import ImageArrays
from ddlp.ledger import Ledger
from ddlp.loader import DDLPLoader
from ddlp.rates import Rates
from ddlp.strategies import STRATEGIES

BOUND_US = 100.0
_QUOTA = 1024  # batches in the device's spool, as an embedded engine's
_DEVICE_S = 3.0  # of a device's batch; a host's takes 1, a step of training 0.4
_IDLE_S = 2.0
_FILLED_S = 20.0
_MAX_ROUND = 300_000  # batches: what is larger runs once, an average of its own


@dataclass
class Line:
    """One strategy at one length: microseconds a batch of each round, and MiB that this process grew by."""

    what: str
    strategy: str
    batches: int
    us: list[float] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)


@dataclass
class Result:
    """What was measured. ``plain_us``: DataLoader's, taken off the loader's lines. ``idle``: CPU seconds a second."""

    bound_us: float
    plain_us: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--batches", type=int, nargs="+", default=[1_000, 100_000, 1_000_000], metavar="N")
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), metavar="S", help="of the rules (all)")
    parser.add_argument("--loaders", nargs="*", default=["cpu", "wrr"], metavar="S", help="of the loader (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="each line's turns; longer ones have fewer (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on standard output")


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    wrong = [name for name in (*options.strategies, *options.loaders) if name not in STRATEGIES]
    if wrong or min(options.batches) < 10 or options.rounds < 1:
        print(
            f"ddlp bench overhead: strategies are {', '.join(STRATEGIES)}; 10 batches and 1 round at least", file=sys.stderr
        )
        return 2
    result = measure(options, lambda text: print(text, file=sys.stderr, flush=True))
    print(json.dumps(asdict(result)) if options.json else table(result))
    return 0


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> Result:
    """All lines, turn by turn."""
    result = Result(BOUND_US)
    result.lines = [Line("rules", name, n) for n in options.batches for name in options.strategies]
    result.lines += [Line("loader", name, n) for n in options.batches for name in options.loaders]
    for k in range(options.rounds):
        result.plain_us.append(plain())
        for line in result.lines:
            if k >= max(1, min(options.rounds, _MAX_ROUND // line.batches)):
                continue
            us, mib = rules(line.strategy, line.batches) if line.what == "rules" else loader(line.strategy, line.batches)
            line.us.append(us - (result.plain_us[-1] if line.what == "loader" else 0.0))
            line.mib.append(mib)
            say(f"round {k + 1}: {line.what} {line.strategy} {line.batches}: {line.us[-1]:.1f} us a batch, {mib:+.1f} MiB")
        result.idle.append(idle())
    return result


def resident_mib() -> float:
    """This process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def rules(name: str, n: int) -> tuple[float, float]:
    """An epoch of the ledger and a strategy: microseconds a batch, and MiB grown by at most."""
    rates = Rates()
    for _ in range(10):
        rates.host.add(1.0)
        rates.device("d").add(_DEVICE_S)
        rates.trained(0.4)
    gc.collect()
    before = most = resident_mib()
    began = time.thread_time()
    ledger = Ledger(n, host_slots=5, fetch_slots=3)
    if name != "cpu":
        ledger.join("d", quota=_QUOTA, window=2)
    strategy = STRATEGIES[name](ledger, rates)
    look = max(1, n // 20)
    both_s = 1.0 / (1.0 + 1.0 / _DEVICE_S)
    for step in itertools.count(1):
        now = step * both_s
        if name != "cpu":
            _device(ledger, strategy, now, step % 4 == 0 or name == "csd")
        while (position := strategy.next_claim(now)) is not None:
            ledger.made(ledger.claim(position))
        if (position := strategy.next_delivery()) is not None:
            ledger.deliver(position)
        ledger.effects.clear()
        if step % look == 0:
            most = max(most, resident_mib())
        if ledger.done:
            break
        if step > 20 * n:
            raise AssertionError(f"{name} came to a stand at {len(ledger.delivered)} of {n} batches")
    return 1e6 * (time.thread_time() - began) / n, most - before


def _device(ledger: Ledger, strategy: object, now: float, publishes: bool) -> None:
    """The device takes what leases it gets, publishes the first of them when it is time; all that lies there is fetched."""
    outstanding = ledger.devices["d"].outstanding
    while (position := strategy.next_lease("d", now)) is not None:  # type: ignore[attr-defined]
        ledger.lease("d", position, now)
    if publishes and outstanding:
        ledger.published("d", next(iter(outstanding)))
    while (position := strategy.next_fetch()) is not None:  # type: ignore[attr-defined]
        _, lease = ledger.fetch(position)
        ledger.verified(lease)


def dataset(n: int) -> ImageArrays:
    """So many images of one pixel."""
    return ImageArrays(np.zeros((n, 1, 1, 3), np.uint8), range(n), transforms.ToTensor())


def plain(n: int = 5000) -> float:
    """Microseconds of CPU time for a batch of one pixel through torch's DataLoader without workers."""
    made = DataLoader(dataset(n), 1)
    began = time.process_time()
    for _ in made:
        pass
    return 1e6 * (time.process_time() - began) / n


def loader(name: str, n: int) -> tuple[float, float]:
    """An epoch of a real loader: microseconds of this process's CPU time a batch, and MiB grown by after the first tenth."""
    images = dataset(n)
    made = DDLPLoader(images, 1, strategy=name, seed=0)
    gc.collect()
    before = most = 0.0
    first, look = n // 10, max(1, n // 20)
    began = time.process_time()
    for k, _ in enumerate(made):
        if k == first:  # the plan, the threads, the engine's first answers
            before = most = resident_mib()
        elif k > first and k % look == 0:
            most = max(most, resident_mib())
    return 1e6 * (time.process_time() - began) / n, most - before


def idle() -> float:
    """CPU seconds a second of this process and its engine while training is at one step and everything is prepared."""
    made = DDLPLoader(dataset(5000), 1, strategy="wrr", seed=0, spool_bytes=1 << 20)  # a hundred batches fill that
    batches = iter(made)
    for _ in range(100):
        next(batches)
    accounts, until = batches.run.ledger.devices.values(), time.monotonic() + _FILLED_S
    while not all(account.held == account.quota > 0 for account in accounts) and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(0.5)  # all that may be prepared ahead is, on both sides
    began, cpu = time.monotonic(), _cpu_s()
    time.sleep(_IDLE_S)
    used = (_cpu_s() - cpu) / (time.monotonic() - began)
    batches._shutdown_workers()
    return used


def _cpu_s() -> float:
    """CPU seconds so far of this process and of those that it started, theirs included."""
    ticks, pids = 0, [os.getpid()]
    while pids:
        pid = pids.pop()
        try:
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids.extend(map(int, (task / "children").read_text().split()))
        except OSError:
            continue  # it has ended
    return ticks / os.sysconf("SC_CLK_TCK")


def table(result: Result) -> str:
    """The figures for a person."""
    rows = [
        "",
        f"CPU time a batch, us, medians (least .. most); bound {result.bound_us:.0f}, the same at any length",
        f"{'':24} {'batches':>9} {'us':>24} {'MiB more':>9}",
    ]
    for line in result.lines:
        mib = statistics.median(line.mib)
        rows.append(f"{line.what + ' ' + line.strategy:24} {line.batches:9d} {_spread(line.us, '.1f'):>24} {mib:9.1f}")
    rows.append(f"taken off the loader's: DataLoader's {_spread(result.plain_us, '.1f')} us a batch")
    rows.append(f"idle, this process and the engine: {_spread([100 * part for part in result.idle], '.2f')} % of a core")
    return "\n".join(rows)


def _spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} .. {max(values):{form}})"
