"""What scheduling costs a batch, at a thousand batches and at a million.

`rules` drives the ledger and each strategy alone: every batch is claimed, leased, published, fetched and delivered at once.
`loader` iterates over a real loader with batches of one pixel. It has threads and a lock, and if the strategy uses a device,
an engine with its leases and batch files. `recorded` is the same with `record=`; what it takes more is the cost of recording.
The figure is this process's CPU time, less that of bare loops right before and after. A bare loop makes and finishes the host's
batches, and maps, verifies and finishes the device's.
`idle` is the CPU time of this process and of the engine while training does not ask for anything.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import itertools
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torchvision import transforms

from benchmarks.common import Aim, add_output, command, emit, say, spread
from csd_engine.batchfile.reader import Layout
from csd_engine.batchfile.writer import BatchWriter
from csd_engine.machine.directory import Directory
from ddlp.data.images import ImageArrays
from ddlp.loader import DDLPLoader
from ddlp.process.cores import cpu_s, family
from ddlp.schedule.ledger import Ledger
from ddlp.schedule.rates import Rates
from ddlp.schedule.strategies import STRATEGIES, Strategy
from ddlp.sources.base import BatchState, PreparedBatch
from ddlp.sources.host.native import prepare_batch
from ddlp.transfer.mapped_batch import map_batch
from ddlp.transfer.memory_pool import MemoryPool
from ddlp.tryout.rounds import ratios

BOUND_US = 100.0
_QUOTA = 1024  # batches in the device's spool, as for an embedded engine
_DEVICE_S = 3.0  # simulated time of a device's batch; a host's takes 1, a training step 0.4
_IDLE_S = 2.0
_FILLED_S = 20.0
_FLAT = 0.9  # the least ratio of a batch's time at the second longest length to that at the longest
_GROWTH_MIB = 8.0


@dataclass
class Line:
    """One strategy at one length: microseconds a batch in each round, and the MiB by which this process grew.

    ``what``: "rules", "loader", or "recorded": the same loader with `record=`.
    """

    what: str
    strategy: str
    batches: int
    us: list[float] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)


@dataclass
class Result:
    """What was measured.

    ``bare_us``: microseconds of the bare loops of the host's and of the device's batches. They are subtracted from the lines of
    the loader. ``idle``: CPU seconds a second.
    """

    bound_us: float
    bare_us: list[tuple[float, float]] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--batches", type=int, nargs="+", default=[1_000, 100_000, 1_000_000], metavar="N")
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), metavar="S", help="strategies for `rules` (all)")
    parser.add_argument("--loaders", nargs="*", default=["cpu", "wrr"], metavar="S", help="those for `loader` (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (%(default)s)")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    wrong = [name for name in (*options.strategies, *options.loaders) if name not in STRATEGIES]
    if wrong or min(options.batches) < 10 or options.rounds < 1:
        print(
            f"python -m benchmarks.overhead: strategies are {', '.join(STRATEGIES)}; give 10 batches and 1 round at least",
            file=sys.stderr,
        )
        return 2
    result = measure(options)
    emit(options, result, table(result), aims(result))
    return 0


def measure(options: argparse.Namespace) -> Result:
    """Measure all lines, turn by turn."""
    result = Result(BOUND_US)
    result.lines = [Line("rules", name, n) for n in options.batches for name in options.strategies]
    result.lines += [Line("loader", name, n) for n in options.batches for name in options.loaders]
    result.lines += [Line("recorded", name, min(options.batches)) for name in options.loaders]
    for k in range(options.rounds):
        for line in result.lines:
            if line.what == "rules":
                us, mib = rules(line.strategy, line.batches)
            else:
                before = bare()
                us, mib, of_device = loader(line.strategy, line.batches, line.what == "recorded")
                own, device = (statistics.mean(pair) for pair in zip(before, bare(), strict=True))
                result.bare_us.append((own, device))
                us -= (1 - of_device) * own + of_device * device
            line.us.append(us)
            line.mib.append(mib)
            say(f"round {k + 1}: {line.what} {line.strategy} {line.batches}: {line.us[-1]:.1f} us a batch, {mib:+.1f} MiB")
        result.idle.append(idle())
    return result


def resident_mib() -> float:
    """Return this process's resident memory in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def rules(name: str, n: int) -> tuple[float, float]:
    """Run an epoch of the ledger and a strategy. Return microseconds a batch, and the most MiB by which this process grew."""
    rates = Rates()
    for _ in range(10):
        rates.host.add(1.0)
        rates.device("d").add(_DEVICE_S)
        rates.trained(0.4)
    gc.collect()
    before = most = resident_mib()
    began = time.thread_time()
    ledger = Ledger(n, host_slots=5, fetch_slots=3)
    strategy = STRATEGIES[name].make(ledger, rates)
    if strategy.uses_device:
        ledger.join("d", quota=_QUOTA, window=2)
    look = max(1, n // 20)
    both_s = 1.0 / (1.0 + 1.0 / _DEVICE_S)
    for step in itertools.count(1):
        now = step * both_s
        if strategy.uses_device:
            _device(ledger, strategy, now, step % 4 == 0 or strategy.needs_device)
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


def _device(ledger: Ledger, strategy: Strategy, now: float, publishes: bool) -> None:
    """One step of the device: it takes all leases that it gets, and publishes the first if ``publishes``. All are fetched."""
    outstanding = ledger.devices["d"].outstanding
    while (position := strategy.next_lease("d")) is not None:
        ledger.lease("d", position, now)
    if publishes and outstanding:
        ledger.published("d", next(iter(outstanding)))
    while (position := strategy.next_fetch()) is not None:
        _, lease = ledger.fetch(position)
        ledger.verified(lease)


def dataset(n: int) -> ImageArrays:
    """Return a data set of so many images of one pixel."""
    return ImageArrays(np.zeros((n, 1, 1, 3), np.uint8), range(n), transforms.ToTensor())


def bare(n: int = 2000) -> tuple[float, float]:
    """Measure the CPU time of a batch of one pixel, with the loader's own steps one after another in one thread.

    Returns:
        Microseconds for a batch that the host makes, and for one whose file a device has published.
    """
    iterator = iter(DDLPLoader(dataset(n), 1, seed=0))
    resources = iterator.executor.resources
    iterator.executor.close()  # ends its threads; the rest can still make a batch
    resources = dataclasses.replace(resources, pool=MemoryPool(2))
    began = time.thread_time()
    for k in range(n):
        prepared = prepare_batch(resources, k, lambda: True)
        iterator._assemble(k, prepared)
    host_us = 1e6 * (time.thread_time() - began) / n
    with tempfile.TemporaryDirectory(prefix="ddlp-bench-") as spool:
        layout, name = Layout(1, 1, 1, 3), f"{0:032x}"
        writer = BatchWriter(Directory(spool), name, 0, layout)
        writer.write_rows(0, np.zeros((1, 1, 1, 3), np.uint8))
        path = writer.publish()
        began = time.thread_time()
        for k in range(n):
            batch = map_batch(path, name, 0, layout)
            assert batch is not None
            pixels = resources.epoch.portable.epilogue(torch.from_numpy(batch.images), pool=resources.pool)
            iterator._assemble(k, PreparedBatch(pixels, None, BatchState.TENSORS))
        return host_us, 1e6 * (time.thread_time() - began) / n


def loader(name: str, n: int, recorded: bool = False) -> tuple[float, float, float]:
    """Run an epoch of a real loader; ``recorded``: into a temporary directory.

    Returns:
        Microseconds of this process's CPU time a batch, the most MiB by which it grew after the first tenth of the epoch, and
        the part of the batches that the device made, 0 to 1.
    """
    with tempfile.TemporaryDirectory(prefix="ddlp-bench-") as home:
        return _epoch(DDLPLoader(dataset(n), 1, strategy=name, seed=0, record=home if recorded else None), n)


def _epoch(loader: DDLPLoader, n: int) -> tuple[float, float, float]:
    gc.collect()
    before = most = 0.0
    first, look = n // 10, max(1, n // 20)
    began = time.process_time()
    for k, _ in enumerate(loader):
        if k == first:  # plan, threads and the engine's first answers are there by now
            before = most = resident_mib()
        elif k > first and k % look == 0:
            most = max(most, resident_mib())
    return 1e6 * (time.process_time() - began) / n, most - before, loader.report().batches_csd / n


def idle() -> float:
    """Return CPU seconds a second of this process and its engine, while training is at one step and all is prepared."""
    loader = DDLPLoader(dataset(5000), 1, strategy="wrr", seed=0, spool_bytes=1 << 20)  # a hundred batches fill the spool
    batches = iter(loader)
    for _ in range(100):
        next(batches)
    accounts, until = batches.executor.ledger.devices.values(), time.monotonic() + _FILLED_S
    while not all(account.held == account.quota > 0 for account in accounts) and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(0.5)  # by now both sides have prepared as much as they may
    began, cpu = time.monotonic(), cpu_s(family(os.getpid()))
    time.sleep(_IDLE_S)
    used = (cpu_s(family(os.getpid())) - cpu) / (time.monotonic() - began)
    batches._shutdown_workers()
    return used


def aims(result: Result) -> list[Aim]:
    """Return the aims: a batch's time is below the bound; neither it nor the memory grows with the length of the epoch."""
    aims = [
        Aim(f"{what}: {result.bound_us:g} us over the worst line's", 1.0, result.bound_us / max(worst, 1e-9))
        for what in ("rules", "loader")
        if (worst := max((statistics.median(line.us) for line in result.lines if line.what == what), default=0.0))
    ]
    lengths = sorted({line.batches for line in result.lines})
    if len(lengths) > 1:
        us = {(line.what, line.strategy, line.batches): line.us for line in result.lines}
        flat = min(
            statistics.median(ratios(us[what, name, lengths[-2]], taken))
            for (what, name, batches), taken in us.items()
            if batches == lengths[-1]
        )
        aims.append(Aim(f"a batch's time at {lengths[-2]} batches over that at {lengths[-1]}, the worst line", _FLAT, flat))
    grown = max((statistics.median(line.mib) for line in result.lines), default=0.0)
    aims.append(Aim(f"memory: {_GROWTH_MIB:g} MiB over what the worst line grew by", 1.0, _GROWTH_MIB / max(grown, 0.1)))
    return aims


def table(result: Result) -> str:
    """Return the figures as a table of text."""
    rounds = max((len(line.us) for line in result.lines), default=0)
    rows = [
        "",
        f"CPU time a batch, us, medians of {rounds} rounds (least .. most); bound {result.bound_us:.0f}, at any length",
        f"{'':24} {'batches':>9} {'us':>24} {'MiB more':>9}",
    ]
    for line in result.lines:
        mib = statistics.median(line.mib)
        what = f"{line.what} {line.strategy}"
        rows.append(f"{what:24} {line.batches:9d} {spread(line.us, '.1f'):>24} {mib:9.1f}")
    own, device = zip(*result.bare_us, strict=True) if result.bare_us else ((0.0,), (0.0,))
    rows.append(f"taken off the loader's: {spread(own, '.1f')} us a host batch, {spread(device, '.1f')} a device batch")
    rows.append(f"idle, this process and the engine: {spread([100 * part for part in result.idle], '.2f')} % of a core")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
