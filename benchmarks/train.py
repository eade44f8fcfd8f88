"""Epochs of real models on a GPU, under DataLoader and under each strategy, beside their bound.

The host has some cores, the engine others, as if these were a device's. The bound is min(r_train, r_cpu + r_csd). r_train is
the rate of the same training steps on a batch that stays in the GPU's memory. r_cpu and r_csd are the rates of loaders that use
one side each, without training. DataLoader has pinned memory, prefetching, and the best of some numbers of workers.

Between two steps the GPU is idle, from the last kernel of a step to the first of the next. Events on the training's stream
measure for how long. On a batch that stays in the GPU's memory, Python and the launches take this time. Whatever is longer
comes from the loader.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from benchmarks import data
from benchmarks.common import Aim, BenchFailed, add_output, command, emit, say, spread
from ddlp import decode
from ddlp.loader import DDLPLoader
from ddlp.process.cores import pinned
from ddlp.sources.engine.embedded import EmbeddedOptions, acquire
from ddlp.tryout.rounds import ratios, rotated

BASELINE = "DataLoader"
STRATEGIES = ("cpu", "mte", "wrr")
_AIM = 0.95  # wrr's part of the bound
_BUSY_AIM = 0.99  # the part of a step's time in which the GPU does not wait for a batch, if training alone is the bound
_WARM = 8  # steps, or batches, before the clock starts
_AHEAD = 4  # DataLoader's prefetch_factor


@dataclass
class Line:
    """One contender, round by round. ``rates``: samples a second.

    ``waiting``: the part of the epoch in which training waited. ``csd``: the part of the batches that the CSD made.
    ``idle_ms``: mean milliseconds between two steps in which the GPU was idle.
    """

    name: str
    rates: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    csd: list[float] = field(default_factory=list)
    idle_ms: list[float] = field(default_factory=list)


@dataclass
class Result:
    """Rates in samples a second, round by round. ``idle_ms``: as in `Line`, but for a batch that stays on the device."""

    device: str
    model: str
    batch: int
    batches: int
    host_cpus: list[int]
    engine_cpus: list[int]
    workers: int = 0
    r_train: list[float] = field(default_factory=list)
    r_cpu: list[float] = field(default_factory=list)
    r_csd: list[float] = field(default_factory=list)
    idle_ms: list[float] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    @property
    def bounds(self) -> list[float]:
        """The bound in each round."""
        return [min(t, a + b) for t, a, b in zip(self.r_train, self.r_cpu, self.r_csd, strict=True)]


def report_parts() -> list[tuple[str, list[str]]]:
    """Return what `python -m benchmarks --all` runs of this bench: titles and arguments; none if there is no GPU."""
    models = (("resnet50", "ResNet-50"), ("vit_b_16", "ViT-B/16"))
    if not torch.cuda.is_available():
        return []
    return [(f"An epoch of {title} on the GPU", ["--model", name]) for name, title in models]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    data.add_data(parser)
    parser.add_argument("--mean-kb", type=float, default=data.MEANS_KB[0], help="mean file size in kB (%(default)s)")
    parser.add_argument("--model", default="resnet50", help="name of a model of torchvision's (%(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="batch size (%(default)s)")
    parser.add_argument("--batches", type=int, default=100, help="batches of each epoch (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (%(default)s)")
    parser.add_argument("--device", default="cuda", help="cpu only shows that the benchmark runs (%(default)s)")
    parser.add_argument("--host-cpus", type=int, help="number of cores for the host (three quarters of all)")
    parser.add_argument("--engine-cpus", type=int, help="number of cores for the engine (the others)")
    parser.add_argument(
        "--workers", type=int, nargs="+",
        help="DataLoader's numbers of workers, of which the best is taken (as many as cores, and twice as many)",
    )  # fmt: skip
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    if options.device != "cpu" and not torch.cuda.is_available():
        raise BenchFailed("torch finds no GPU here (`nvidia-smi` says why); --device cpu shows that the benchmark runs.")
    options.directory = data.ensure_data(options.data, "imagenet1", options.mean_kb)
    result = measure(options)
    emit(options, result, table(result), aims(result))
    return 0


def measure(options: argparse.Namespace) -> Result:
    """Measure all rounds. Each begins with another contender."""
    usable = sorted(os.sched_getaffinity(0))
    engines = options.engine_cpus or max(1, len(usable) // 4)
    hosts = options.host_cpus or max(1, len(usable) - engines)
    if hosts + engines > len(usable):
        raise BenchFailed(f"{hosts} cores for the host and {engines} for the engine: there are {len(usable)}.")
    host_cpus, engine_cpus = usable[:hosts], usable[-engines:]
    os.environ["DDLP_ENGINE_CPUS"] = ",".join(map(str, engine_cpus))
    os.environ.setdefault("DDLP_ENGINE_WORKERS", str(len(engine_cpus)))
    device = torch.device(options.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    result = Result(name, options.model, options.batch, options.batches, host_cpus, engine_cpus)
    result.lines = [Line(name) for name in (BASELINE, *STRATEGIES)]
    with pinned(*host_cpus, engine=engine_cpus, threads=len(host_cpus)), _engine():
        step = training(options.model, device)
        candidates = options.workers or [hosts, 2 * hosts]
        speeds = {
            workers: _prepared(_baseline(options, workers, _AHEAD * workers + _WARM + 16), options.batch)
            for workers in candidates
        }
        result.workers = max(speeds, key=lambda workers: speeds[workers])
        say(f"DataLoader: {', '.join(f'{w} workers {r:.0f}' for w, r in speeds.items())} samples/s without training")
        loaders: dict[str, Any] = {BASELINE: _baseline(options, result.workers, options.batches)}
        loaders |= {strategy: _ours(options, strategy, hosts) for strategy in (*STRATEGIES, "csd")}
        for loader in loaders.values():
            _prepared(loader, options.batch)  # workers and engines up, rates known
        for k in range(options.rounds):
            r_train, idle_ms = _resident(step, options, device)
            result.r_train.append(r_train)
            result.idle_ms.append(idle_ms)
            result.r_cpu.append(_prepared(loaders["cpu"], options.batch))
            result.r_csd.append(_prepared(loaders["csd"], options.batch))
            bound = result.bounds[-1]
            for line in rotated(result.lines, k):
                rate, idle_ms = _epoch(loaders[line.name], step, options.batch, device)
                line.rates.append(rate)
                line.idle_ms.append(idle_ms)
                if line.name != BASELINE:
                    report = loaders[line.name].report()
                    line.waiting.append(report.waiting_s / report.seconds)
                    line.csd.append(report.batches_csd / options.batches)
                say(f"round {k + 1}/{options.rounds}  {line.name:12} {line.rates[-1]:8.1f} samples/s, bound {bound:.1f}")
    return result


@contextmanager
def _engine() -> Iterator[None]:
    """Hold the engine that all loaders share. Else it would end after some seconds without an epoch, and start again."""
    engine = acquire(EmbeddedOptions())
    try:
        yield
    finally:
        engine.release()


def training(model: str, device: torch.device) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Return a training step: SGD with momentum; on a GPU with bfloat16 under autocast, and channels last."""
    import torchvision

    on_gpu = device.type == "cuda"
    network: nn.Module = torchvision.models.get_model(model, weights=None, num_classes=1000).to(device)
    if on_gpu:
        network = network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
            loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _dataset(options: argparse.Namespace, batches: int) -> Subset:
    images: Any = data.dataset(options.directory, "imagenet1")
    return Subset(images, [k % len(images) for k in range(batches * options.batch)])


def _baseline(options: argparse.Namespace, workers: int, batches: int) -> DataLoader:
    pinned = options.device != "cpu"
    ahead: dict[str, Any] = {"prefetch_factor": _AHEAD, "persistent_workers": True} if workers else {}
    dataset = _dataset(options, batches)
    return DataLoader(
        dataset, options.batch, shuffle=True, num_workers=workers, pin_memory=pinned, worker_init_fn=decode.not_here, **ahead
    )


def _ours(options: argparse.Namespace, strategy: str, workers: int) -> DDLPLoader:
    return DDLPLoader(
        _dataset(options, options.batches), options.batch, shuffle=True, num_workers=workers, strategy=strategy,
        device=options.device, seed=0,
    )  # fmt: skip


def _prepared(loader: Any, batch: int) -> float:
    """Run an epoch without training. Return samples a second, once no batch is left that was made before the clock starts."""
    iterator = iter(loader)
    warm = min((loader.prefetch_factor or 2) * loader.num_workers + _WARM, len(loader) // 2)
    for _ in range(warm):
        next(iterator)
    began, count = time.monotonic(), 0
    for _ in iterator:
        count += batch
    return count / (time.monotonic() - began)


def _resident(
    step: Callable[[torch.Tensor, torch.Tensor], None], options: argparse.Namespace, device: torch.device
) -> tuple[float, float]:
    """Do as `_epoch`, with a batch that stays in the device's memory."""
    images = torch.rand(options.batch, 3, 224, 224, device=device)
    labels = torch.randint(1000, (options.batch,), device=device)
    for _ in range(_WARM if device.type == "cuda" else 1):
        step(images, labels)
    _settled(device)
    return _epoch(repeat((images, labels), max(_WARM, options.batches // 2)), step, options.batch, device)


def _epoch(
    batches: Iterable[Any], step: Callable[[torch.Tensor, torch.Tensor], None], batch: int, device: torch.device
) -> tuple[float, float]:
    """Train for an epoch. Return samples a second, to the end of the last step, and the device's idle ms between two steps."""
    began = time.monotonic()
    stamps: list[tuple[Any, Any]] = []
    for images, labels in batches:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        begin = _stamp(device)
        step(images, labels)
        stamps.append((begin, _stamp(device)))
    _settled(device)
    rate = len(stamps) * batch / (time.monotonic() - began)
    return rate, statistics.fmean(_between_ms(end, begin) for (_, end), (begin, _) in pairwise(stamps))


def _stamp(device: torch.device) -> Any:
    """Mark a moment in the device's work: on a GPU, when it has done all work that is in the stream by now."""
    if device.type != "cuda":
        return time.monotonic()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between_ms(first: Any, second: Any) -> float:
    """Return the milliseconds from one `_stamp` to a later one. The device must have done all its work."""
    milliseconds: float = first.elapsed_time(second) if isinstance(first, torch.cuda.Event) else 1e3 * (second - first)
    return milliseconds


def _settled(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def aims(result: Result) -> list[Aim]:
    """Return the aims: wrr against the bound; if training is the bound, also the part of a step without waiting for a batch."""
    line = next(line for line in result.lines if line.name == "wrr")
    aims = [Aim(f"wrr, {result.model}: of the bound", _AIM, statistics.median(ratios(line.rates, result.bounds)))]
    if result.bounds == result.r_train:
        rounds = zip(line.idle_ms, result.idle_ms, line.rates, strict=True)
        busy = [1 - (idle - least) / (1e3 * result.batch / rate) for idle, least, rate in rounds]
        aims.append(
            Aim(f"wrr, {result.model}: part of a step without waiting for a batch", _BUSY_AIM, statistics.median(busy))
        )
    return aims


def table(result: Result) -> str:
    """Return the figures as a table of text."""
    rows = [
        f"{result.device}, {result.model}, {result.batches} batches of {result.batch}; {len(result.host_cpus)} cores of the "
        f"host, {len(result.engine_cpus)} of the engine; samples/s, medians (least .. most)",
        f"r_train {spread(result.r_train)}, r_cpu {spread(result.r_cpu)}, r_csd {spread(result.r_csd)}, "
        f"bound {spread(result.bounds)}; idle between two steps on a batch that lies there {spread(result.idle_ms, '.2f')} ms",
        "",
        f"{'':24} {'samples/s':>26} {'of the bound':>26} {'idle a step, ms':>22} {'waiting, %':>22} {'from the CSD, %':>16}",
    ]
    for line in result.lines:
        name = f"{line.name}, {result.workers} workers" if line.name == BASELINE else line.name
        waiting = spread([100 * part for part in line.waiting], ".1f") if line.waiting else ""
        csd = f"{100 * statistics.median(line.csd):.0f}" if line.csd else ""
        of_bound = spread(ratios(line.rates, result.bounds), ".3f")
        idle = spread(line.idle_ms, ".2f")
        rows.append(f"{name:24} {spread(line.rates):>26} {of_bound:>26} {idle:>22} {waiting:>22} {csd:>16}")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
