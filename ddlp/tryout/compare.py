"""Measuring: DataLoader and ddlp's strategies, in turn, on the same images, while training waits for data.

Host and engine have a core each. The training step is a stand-in that sleeps: half as long as both sides together need for a
batch. So training waits under every loader, and the comparison shows how fast batches come.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler

from csd_engine.errors import EngineError
from csd_engine.kernels import why_not
from ddlp import decode
from ddlp.errors import DDLPError
from ddlp.loader import DDLPLoader
from ddlp.process.cores import pinned
from ddlp.schedule.strategies import called
from ddlp.sources.host.torch_workers import samples_in
from ddlp.tryout.comparison import Comparison, Cores, Row
from ddlp.tryout.rounds import rotated

__all__ = ["compare"]

_ROUNDS = 5
_STEP = 0.5  # part of the time that both sides together need for a batch
_OTHER_TURNS = 13  # besides those of the rounds: rates, warming up, numbers of workers, the recorded epoch
_LATE = 1.2  # after so many times the given seconds, no turn of a further round begins
_UNSTEADY = 1.5  # a ratio: on a machine without other work the figures differ by less
_LEAST_BATCHES = 8  # in an epoch: every loader has to wait for the first one
_STUCK_S = 30.0  # after waiting so long for a batch: DataLoader's workers will never deliver it
_SILENCE_S = 5.0  # between two lines that say how far it is
_STRATEGIES = ("cpu", "csd", "mte", "wrr")


def compare(
    dataset: Dataset, *, batch_size: int = 32, seconds: float = 60.0, csd: str | None = None, record: Path | None = None
) -> Comparison:
    """Measure all rows; shows on standard error how far it is.

    Args:
        dataset: its samples are tuples, the image first. Of a large one, only as many images take part as there is time for.
        batch_size: images; smaller where there are few, or little time.
        seconds: about as long as it may take.
        csd: a device instead of an engine on this machine.
        record: a directory: an epoch under ``wrr`` is recorded there.

    Raises:
        DDLPError: one image takes longer than there is time for.
    """
    with warnings.catch_warnings(), _engine_on((cores := choose_cores()).engine):
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # DataLoader only counts cores; we measure
        return _Comparing(dataset, batch_size, seconds, csd, cores).run(record)


def choose_cores() -> Cores:
    """The first CPU that this process may use, and the next one that is no hyperthread of it, if there is one."""
    host, *others = sorted(os.sched_getaffinity(0))
    apart = [cpu for cpu in others if _physical(cpu) != _physical(host)]
    return Cores(host, (apart or others or [host])[0])


def _physical(cpu: int) -> tuple[str, ...]:
    """An id that only the hyperthreads of one core share."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        return tuple((topology / name).read_text() for name in ("physical_package_id", "core_id"))
    except OSError:
        return (str(cpu),)


@contextlib.contextmanager
def _engine_on(cpu: int) -> Iterator[None]:
    """Engines that this process starts run on this CPU."""
    before = os.environ.get("DDLP_ENGINE_CPUS")
    os.environ["DDLP_ENGINE_CPUS"] = str(cpu)
    try:
        yield
    finally:
        if before is None:
            del os.environ["DDLP_ENGINE_CPUS"]
        else:
            os.environ["DDLP_ENGINE_CPUS"] = before


def _begin_worker(worker: int) -> None:
    """Have a worker of DataLoader's decode as it does without ddlp, and ignore Ctrl-C.

    This process ends its workers; a worker that ends by itself would be an error here.
    """
    decode.not_here(worker)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Let Ctrl-C wait for the block's end. In a fork it would be raised in a callback, which prints it, or in the child."""
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


class _Comparing:
    """One comparison under way."""

    def __init__(self, dataset: Any, batch_size: int, seconds: float, csd: str | None, cores: Cores) -> None:
        self._dataset, self._csd, self._cores, self._silent_until = dataset, csd, cores, 0.0
        self._seconds, self._began = seconds, time.monotonic()
        self._turn_s = seconds / ((len(_STRATEGIES) + len(cores.both)) * _ROUNDS + _OTHER_TURNS)
        self._ring = self._chosen()
        self._batch_size = min(batch_size, max(1, len(self._ring) // _LEAST_BATCHES))
        if whole := len(self._ring) // (2 * self._batch_size) * 2 * self._batch_size:
            del self._ring[whole:]  # an even number of batches, so that two workers end together
        self._order: list[int] = []  # the next epoch's indices; every loader's sampler draws from them

    def run(self, record: Path | None) -> Comparison:
        """All of it."""
        ours = {"cpu": self._ours("cpu")}
        alone = {"cpu": self._rate("the host alone", ours["cpu"])}
        comparison = Comparison(len(self._ring), self._batch_size, self._cores, self._csd, alone["cpu"])
        if why := why_not():
            comparison.notes.append(f"Without the C kernel Pillow did the work: {why}")
        try:
            others = {name: self._ours(name) for name in _STRATEGIES[1:]}
            comparison.rate_engine = alone["csd"] = self._rate("the engine alone", others["csd"])
            ours |= others
        except (DDLPError, EngineError) as error:  # a device that is not there, a transform that can't travel
            comparison.notes.append(f"csd, mte and wrr could not take part: {error}")
        both = sum(alone.values())
        comparison.step_s = _STEP * self._batch_size / both
        turns = [self._dataloader(comparison, (self._cores.host,), (0, 1, 2))]
        if len(self._cores.both) > 1:
            turns.append(self._dataloader(comparison, self._cores.both, (2, 3)))
        for name, loader in ours.items():
            alone_or_away = name in ("cpu", "csd") or self._csd is not None
            comparison.rows.append(row := Row(name, 1 if alone_or_away else len(self._cores.both)))
            turns.append(partial(self._turn, row, loader, (self._cores.host,), alone.get(name, both), comparison.step_s))
            if name not in alone:  # its first epoch finds out how fast both sides are
                self._epoch(loader, (self._cores.host,), self._ring, comparison.step_s)
        self._rounds(comparison.rows, turns)
        measured = [[*row.rates, alone.get(row.name, row.rate)] for row in comparison.rows]
        if (most := max(max(rates) / min(rates) for rates in measured)) > _UNSTEADY:
            comparison.notes.append(f"A row's figures differ by up to {most:.1f} times: others were at work. Try without them.")
        if record is not None and "wrr" in ours:
            self._doing("wrr, recorded")
            ours["wrr"].record = comparison.recorded = record
            ours["wrr"].set_epoch(0)
            self._epoch(ours["wrr"], (self._cores.host,), self._ring * self._times(both), comparison.step_s)
        return comparison

    def _doing(self, what: str) -> None:
        """Say it on standard error, unless something was said a moment ago."""
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE_S
            print(f"comparing: {what}, {now - self._began:.0f} of about {self._seconds:.0f} s", file=sys.stderr, flush=True)

    # -- the images ----------------------------------------------------------------------------------------------------

    def _chosen(self) -> list[int]:
        """Indices from all over the set, as many as DataLoader prepares in a turn. Raises DDLPError if one takes too long."""
        self._doing("how long an image takes")
        total = len(self._dataset)
        with pinned(self._cores.host, engine=(self._cores.engine,)):
            self._dataset[0]  # the first image takes longer, so it is not measured
            began, done = time.monotonic(), 0
            while done < 3 or (done < total and time.monotonic() - began < self._turn_s / 2):
                self._dataset[done * 7919 % total]  # a prime step, for images from all over the set
                done += 1
            one_s = (time.monotonic() - began) / done
        if one_s > 2 * self._turn_s:
            raise DDLPError(
                f"an image takes {one_s:.1f} s to prepare: {self._seconds:.0f} s are too few to compare loaders with that. "
                f"Give --seconds {self._seconds * one_s / self._turn_s:.0f}."
            )
        count = max(1, min(total, round(self._turn_s / one_s)))
        return [k * total // count for k in range(count)]

    def _times(self, rate: float) -> int:
        """How often a loader of this rate goes through the images in a turn."""
        return max(1, round(self._turn_s * rate / len(self._ring)))

    # -- the loaders ---------------------------------------------------------------------------------------------------

    def _ours(self, strategy: str) -> DDLPLoader:
        csd = self._csd if called(strategy).uses_device else None
        sampler = SubsetRandomSampler(self._order)
        return DDLPLoader(self._dataset, self._batch_size, sampler=sampler, num_workers=1, strategy=strategy, csd=csd, seed=0)

    def _rate(self, doing: str, loader: DDLPLoader) -> float:
        """Images a second without a training step, after an epoch that reads the files and starts the engine."""
        self._doing(doing)
        rate, _ = self._epoch(loader, (self._cores.host,), self._ring, 0.0)
        for _ in range(2):
            rate, _ = self._epoch(loader, (self._cores.host,), self._ring * self._times(rate), 0.0)
        return rate

    def _dataloader(self, comparison: Comparison, cpus: Sequence[int], workers: Sequence[int]) -> Callable[[], None]:
        """Add DataLoader's row, with the best of these numbers of workers; returns the function that takes a turn."""
        loaders: dict[int, DataLoader] = {}
        rates: dict[int, float] = {}
        for number in workers:
            self._doing(f"dataloader on {len(cpus)} cores, {number} workers".replace("1 cores", "1 core"))
            loader = loaders[number] = DataLoader(
                self._dataset, self._batch_size, sampler=SubsetRandomSampler(self._order), num_workers=number,
                persistent_workers=number > 0, worker_init_fn=_begin_worker, timeout=_STUCK_S if number else 0,
            )  # fmt: skip
            try:
                self._order.clear()
                with pinned(*cpus, engine=(self._cores.engine,)), _ctrl_c_waits():
                    iter(loader)  # starts the workers; they stay, on these CPUs
                self._epoch(loader, cpus, self._ring[: 2 * self._batch_size], 0.0)
                rates[number], _ = self._epoch(loader, cpus, self._ring, comparison.step_s)
            except RuntimeError as error:  # /dev/shm is too small for its workers' batches, TMPDIR too long for their sockets
                if not number:
                    raise
                comparison.notes.append(f"DataLoader with {number} workers failed: {str(error).splitlines()[0]}")
        best = max(rates, key=rates.__getitem__)
        comparison.rows.append(row := Row("dataloader", len(cpus), best))
        return partial(self._turn, row, loaders[best], cpus, rates[best], comparison.step_s)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _rounds(self, rows: Sequence[Row], turns: Sequence[Callable[[], None]]) -> None:
        """Run as many rounds as time allows, at least one. In each, every row has a turn; each begins with another row."""
        for number in range(_ROUNDS):
            for row, turn in rotated(list(zip(rows, turns, strict=True)), number):
                if number and time.monotonic() - self._began > _LATE * self._seconds:
                    for row in rows:  # this round is not complete
                        del row.rates[number:], row.waited[number:], row.by_engine[number:]
                    return
                self._doing(f"round {number + 1}/{_ROUNDS}: {row.name}")
                turn()

    def _turn(self, row: Row, loader: DataLoader, cpus: Sequence[int], rate: float, step_s: float) -> None:
        """An epoch of a turn's length; ``rate``: what is expected."""
        measured, waited = self._epoch(loader, cpus, self._ring * self._times(rate), step_s)
        row.rates.append(measured)
        row.waited.append(waited)
        report = loader.report() if isinstance(loader, DDLPLoader) else None
        row.by_engine.append(0.0 if report is None else report.batches_csd / (report.batches_cpu + report.batches_csd))

    def _epoch(self, loader: DataLoader, cpus: Sequence[int], order: Sequence[int], step_s: float) -> tuple[float, float]:
        """Train on these images. Returns images a second, and the part of the time that training waited.

        Raises WrongCores if anything else than these CPUs and the engine's was used.
        """
        self._order[:] = order
        samples, waited_s = 0, 0.0
        # This process and its workers run on these CPUs, the engine on its own.
        with pinned(*cpus, engine=(self._cores.engine,)):
            began = asked = time.monotonic()
            for batch in loader:
                waited_s += time.monotonic() - asked
                samples += samples_in(batch)
                time.sleep(step_s)
                asked = time.monotonic()
            ended = time.monotonic()
        return samples / (ended - began), (waited_s + ended - asked) / (ended - began)
