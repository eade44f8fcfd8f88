"""What the templates share: flags, small data sets, figures of a run, means over seeds, the report.

A template is copied together with this file and training.py, which has the loop.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ddlp.errors import DDLPError
from ddlp.observe.report import write_report as write_report_page
from ddlp.process.machine import machine
from ddlp.sampledata import make_cifar10, make_imagefolder, make_thumbnails
from ddlp.schedule.strategies import STRATEGIES as OURS
from ddlp.stats.words import aligned
from ddlp.tryout.rounds import rotated

STRATEGIES = ("dataloader", *OURS)
AMP = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Epoch:
    """One epoch of training, or what a run interrupted in it has done of it. Seconds; rates in images/s, each side alone."""

    number: int
    batches: int = 0  # steps of training
    samples: int = 0  # of all ranks
    seconds: float = 0.0
    waiting_s: float = 0.0  # time in which the loop had no batch
    loss: float = 0.0  # mean
    batches_cpu: int = 0  # of all ranks: those that the host has prepared
    batches_csd: int = 0
    host_cpu_s: float = 0.0  # processor time of all workers of the host together
    rate_cpu: float | None = None
    rate_csd: float | None = None
    bound_s: float | None = None  # the least time in which both sides together can prepare it
    accuracy: float | None = None  # the run's score on the val set after it, with --evaluate-beside


@dataclass
class Run:
    """One training with one strategy and one seed."""

    strategy: str
    seed: int
    model: str
    paper_model: str | None
    pipeline: str
    device: str
    batch_size: int  # of one process
    workers: int  # of one process
    ranks: int = 1
    backend: str = "native"  # of the host's batches: native, dali, dali_gpu, or torch (DataLoader)
    epochs: list[Epoch] = field(default_factory=list)
    accuracy: float | None = None  # its score on the val set, 0 to 1
    complete: bool = False
    score: str = "top-1"  # the name of the score
    energy: dict[str, Any] | None = None  # filled in by measure_energy.py

    @property
    def steady(self) -> list[Epoch]:
        """The epochs that count: all but the first, which starts the engine and the caches, if there are several."""
        return [epoch for epoch in self.epochs if epoch.number > 0] or self.epochs

    def per_batch(self, what: str) -> float:
        """The mean of an Epoch's field ('seconds', 'waiting_s', 'host_cpu_s', ...) over the batches of `steady`."""
        batches = sum(epoch.batches for epoch in self.steady)
        return float(sum(getattr(epoch, what) for epoch in self.steady)) / batches if batches else float("nan")

    @property
    def figures(self) -> dict[str, float]:
        """What the table shows and the report holds, over `steady`; empty if no batch was trained on."""
        if not any(epoch.batches for epoch in self.steady):
            return {}
        seconds = self.per_batch("seconds")
        return {
            "s_per_batch": seconds,
            "images_per_s": self.per_batch("samples") / seconds,
            "csd_share": self.per_batch("batches_csd") / self.ranks,
            "waiting_share": self.per_batch("waiting_s") / seconds,
            "host_cpu_s_per_batch": self.per_batch("host_cpu_s"),
            "loss": self.epochs[-1].loss,
        }


# -- flags ---------------------------------------------------------------------------------------------------------


# fmt: off
def flags(description: str | None, models: Sequence[str], *, strategies: Sequence[str] = ("wrr",)) -> argparse.ArgumentParser:
    """The flags that all templates have; `models` are the names that --model takes, the default first.

    A template adds its own and calls `parse`.
    """
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, help="the data set; without it a small one is made below data/")
    add("--model", default=models[0], help=f"{', '.join(models)} (default %(default)s)")
    add("--epochs", type=int, default=1,
        help="of each run (default %(default)s); of several the first, which warms up, is left out of the figures")
    add("--batch-size", type=int, help="images a step of each process (default: the paper's, or 4 with --small)")
    add("--workers", type=int, default=max(1, min(16, cores - 1)),
        help="num_workers, the host's that prepare batches (default here: %(default)s)")
    add("--strategy", nargs="+", default=list(strategies), choices=STRATEGIES, metavar="NAME",
        help="one or several, compared by turns: %(choices)s; dataloader is torch's own (default: %(default)s)")
    add("--csd", help="name or address of a device (default: the engine runs on this machine)")
    add("--pool", help="further engines: how many processes on this machine, or a directory with cards (docs/pools.md)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu",
        help="what trains: cuda, cuda:1, cpu, xla (TPUs, by torch_xla) ... (default here: %(default)s)")
    add("--seeds", type=int, default=1, metavar="K", help="runs of each strategy, seeds 0 to K-1; the paper's means are of 20")
    add("--lr", type=float, help="peak learning rate (default: the template's for this model and batch size)")
    add("--amp", choices=AMP, default="off", help="mixed precision (default %(default)s)")
    add("--compile", action="store_true", help="torch.compile the model")
    add("--small", action="store_true", help="tiny images, a tiny model: shows in seconds that all works")
    add("--cache", nargs="?", const="auto", metavar="DIR",
        help="keep what is the same in every epoch, up to 200 GiB in DIR; without DIR in the user's cache directory")
    add("--evaluate-beside", action="store_true", help="evaluate after each epoch, while the next one is trained")
    add("--checkpoint", type=Path, metavar="FILE",
        help="written after each epoch and on Ctrl-C; if it is there the run goes on from it. One strategy, one seed")
    add("--report", type=Path, default=Path("runs"), metavar="DIR", help="where the report goes (default %(default)s)")
    add("--record", type=Path, metavar="DIR",
        help="record what every thread does, each run below DIR, and write its page: what limits it, as `ddlp report` does")
    return parser
# fmt: on


def parse(parser: argparse.ArgumentParser, batch_sizes: dict[str, int], arguments: Sequence[str] | None = None) -> Any:
    """The command line, checked and with its defaults filled in; sets torch up for the device.

    Args:
        parser: from `flags`.
        batch_sizes: the default by model; 256 for others.
        arguments: those of the command line if None.
    """
    options = parser.parse_args(arguments)
    if options.batch_size is None:
        options.batch_size = 4 if options.small else batch_sizes.get(options.model, 256)
    for name in ("batch_size", "epochs", "seeds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: at least 1")
    if options.workers < 0:
        parser.error(f"--workers {options.workers}: at least 0")
    if options.pool is not None and options.pool.isdecimal():
        options.pool = int(options.pool)
    if options.pool == 0:
        options.pool = None
    if options.checkpoint is not None and (len(options.strategy) > 1 or options.seeds > 1):
        parser.error("--checkpoint: with one strategy and one seed only")
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device {options.device}: this torch sees no GPU; --device cpu")
    if options.amp == "fp16" and device.type != "cuda":
        parser.error(f"--amp fp16 on {device}: it needs a GPU's loss scaling; take bf16")
    if device.type == "xla":
        _need_xla(parser, options)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True  # all batches but the last have one shape
        torch.set_float32_matmul_precision("high")
    else:
        # Half of the cores train, the others prepare; else torch's threads crowd the workers out.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    return options


def _need_xla(parser: argparse.ArgumentParser, options: Any) -> None:
    """Import torch_xla, which gives torch its device. Ends the program where that or the flags forbid it."""
    for name, why in (("compile", "XLA compiles each step anyway"), ("evaluate_beside", "that was not tried")):
        if getattr(options, name):
            parser.error(f"--{name.replace('_', '-')} with --device {options.device}: {why}; leave it out")
    if "dataloader" in options.strategy and options.workers:
        parser.error("--strategy dataloader with --device xla: its workers are forks, which may hang beside XLA; --workers 0")
    try:
        importlib.import_module("torch_xla")
    except ImportError as error:
        raise SystemExit(
            f"{parser.prog}: --device {options.device}: {error}. It needs torch_xla, and its version of torch. "
            "Install both in an environment of their own: pip install 'ddlp[xla]'"
        ) from None


def accelerator(device: torch.device) -> str | None:
    """Return the name of what trains; None: this computer's CPU."""
    if device.type == "xla":
        return f"{importlib.import_module('torch_xla.runtime').device_type()}, by torch_xla"
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


# -- small data ----------------------------------------------------------------------------------------------------


def image_folder(options: Any) -> Path:
    """Return the directory with train/ and val/: --data, or a set made of sample photographs. Raises SampleDataError."""
    if options.data is not None:
        return Path(options.data)
    if options.small:
        return make_thumbnails(Path("data/thumbnails"), 48, 16)
    make_imagefolder(directory := Path("data/photos-1500"), 1500)
    return directory


def no_image_folder(template: str, options: Any, error: Exception) -> SystemExit:
    """Return the line for the user if `image_folder` or its directory failed with this error."""
    hint = "" if options.data is None else f". --data {options.data}: a directory with train/CLASS/ and val/CLASS/"
    return SystemExit(f"{template}: {error}{hint}")


def cifar_folder(options: Any) -> Path:
    """The directory with cifar-10-batches-py/: --data, or files of that format made of sample photographs.

    Raises SampleDataError.
    """
    if options.data is not None:
        return Path(options.data)
    directory, images = (Path("data/cifar-tiny"), 80) if options.small else (Path("data/cifar-5000"), 5000)
    if not (directory / "cifar-10-batches-py" / "batches.meta").exists():  # the file that is written last
        make_cifar10(directory, images, images // 5)
    return directory


# -- comparing and reporting ---------------------------------------------------------------------------------------


def turns(options: Any) -> Iterator[tuple[str, int]]:
    """Yield (strategy, seed) in turns: what changes on the machine in the meantime then affects all strategies alike."""
    for seed in range(options.seeds):
        for strategy in rotated(options.strategy, seed):
            yield strategy, seed


def finish(template: str, options: Any, runs: Sequence[Run]) -> int:
    """Print the table, write the report; returns the exit status: 130 if Ctrl-C ended it."""
    print(f"\n{table(runs)}\n")
    print(f"report: {write_report(template, options, runs)}")
    write_pages(options, ((run.strategy, run.seed) for run in runs))
    if len(runs) == options.seeds * len(options.strategy) and all(run.complete for run in runs):
        return 0
    goes_on = f"; the same command goes on from {options.checkpoint}" if options.checkpoint else ""
    print(f"stopped: the figures are of what was done until then{goes_on}")
    return 130


def record_directory(options: Any, strategy: str, seed: int) -> Path | None:
    """Return the directory in which a run is recorded; None: it is not recorded."""
    return None if options.record is None else Path(options.record) / f"{strategy}-seed{seed}"


def write_pages(options: Any, runs: Iterable[tuple[str, int]], energy: Path | None = None) -> None:
    """Write and name the page of each run (strategy, seed) that was recorded."""
    for strategy, seed in runs:
        directory = record_directory(options, strategy, seed)
        if directory is not None and any(directory.glob("*.jsonl")):
            try:
                print(f"page: {write_report_page(directory, energy=energy)}")
            except DDLPError as error:
                print(f"no page: {error}")


def mean_spread(values: Sequence[float], form: str = ".3f") -> str:
    """Return mean and standard deviation of the runs as text."""
    if not values:
        return "-"
    spread = f" +- {statistics.stdev(values):{form}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{spread}"


def table(runs: Sequence[Run]) -> str:
    """Return a table with a line for each strategy: means over the seeds, and their standard deviations."""
    columns = {
        "s_per_batch": ("s/batch", ".4f"), "images_per_s": ("images/s", ".0f"), "csd_share": ("from CSD", ".0%"),
        "waiting_share": ("waiting", ".0%"), "host_cpu_s_per_batch": ("host CPU s/batch", ".4f"), "loss": ("loss", ".2f"),
    }  # fmt: skip
    rows = [("strategy", "seeds", *(title for title, _ in columns.values()), runs[0].score if runs else "top-1")]
    for strategy in dict.fromkeys(run.strategy for run in runs):
        of = [run for run in runs if run.strategy == strategy and run.figures]
        cells = [mean_spread([run.figures[name] for run in of], form) for name, (_, form) in columns.items()]
        right = mean_spread([run.accuracy for run in of if run.accuracy is not None], ".1%")
        rows.append((strategy, str(len(of)), *cells, right))
    lines = aligned(rows)
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def write_report(template: str, options: Any, runs: Sequence[Run], **more: Any) -> Path:
    """Write the runs, the flags and the machine as JSON into --report; returns the new file.

    `more` are further top-level entries, plain data. `python -m benchmarks.papers.measured` reads these files.
    """
    now = datetime.datetime.now()
    said = {
        "template": template,
        "written": now.isoformat(timespec="seconds"),
        "machine": machine(),
        "accelerator": accelerator(torch.device(options.device)),
        "options": {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()},
        "runs": [{**asdict(run), "figures": run.figures} for run in runs],
        **more,
    }
    options.report.mkdir(parents=True, exist_ok=True)
    path: Path = options.report / f"{template}-{options.model}-{now:%Y%m%d-%H%M%S}-{os.getpid()}.json"
    path.write_text(json.dumps(said, indent=1) + "\n")
    return path
