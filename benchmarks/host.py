"""Images a second that one core prepares: DataLoader, torchvision on tensors, DALI, SPDL, TurboLoader, ours.

Every turn is a fresh process on one core. It reads the same files in the same order, once or more often. Each contender has one
turn a round. The bound is a bare loop that prepares one batch after another, without loader, thread or ledger. Two cores with
two workers are measured as well; their bound is a bare loop on each of them at once. A core's speed changes from turn to turn.
A metronome (`benchmarks.metronome`) measures it, and each figure is scaled to the median speed of all turns. The last column
says whose pixels a contender makes. `--bits N` compares pixels instead: ours against torchvision's on PIL images, for N samples
of every kind of JPEG.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from benchmarks import bits
from benchmarks.common import Aim, Say, add_output, alternate, child, command, emit, say, spread
from benchmarks.contenders import (
    BARE,
    BARE_TWO,
    BASELINES,
    CONTENDERS,
    DALI,
    OURS,
    OURS_FAST,
    OURS_TWO,
    OURS_UINT8,
    PEERS,
    SPDL,
    TENSORS,
    TURBOLOADER,
    Work,
)  # fmt: skip
from benchmarks.data import MEANS_KB, PIPELINES, PRESETS, add_data, ensure_data
from benchmarks.metronome import Metronome
from ddlp.tryout.rounds import ratios

_BATCH = {"cifar10": 256}
# (pipeline, mean file size in kB) -> contender -> the wanted ratios: to DataLoader's best, and to DALI (None: no aim).
_AIMS: dict[tuple[str, float], dict[str, tuple[float, float | None]]] = {
    ("imagenet1", 110.0): {OURS: (3.0, 1.8), OURS_UINT8: (3.6, None)},
    ("imagenet1", 46.0): {OURS: (3.6, 2.2), OURS_UINT8: (3.6, None)},
    ("imagenet2", 110.0): {OURS: (2.5, None)},
    ("imagenet3", 110.0): {OURS: (2.5, None)},
    ("cifar10", 110.0): {OURS: (5.0, None)},
    **{(preset, 110.0): {OURS: (3.0, 1.0 if preset in CONTENDERS[DALI].pipelines else None)} for preset in PRESETS},
}
_TWO_CORES = 1.85
# Fast contenders go through small sets so often in a turn: a turn of half a second tells nothing.
_TIMES = {"cifar10": 25, "46": 3}
_FAST = (OURS, OURS_UINT8, OURS_FAST, OURS_TWO, BARE, BARE_TWO)


@dataclass
class Table:
    """Images a second of one pipeline over one set, round by round. `rates`: scaled to the median of all `speeds`."""

    pipeline: str
    mean_kb: float
    batch: int
    images: int
    rates: dict[str, list[float]] = field(default_factory=dict)
    measured: dict[str, list[float]] = field(default_factory=dict)  # the rates before scaling
    speeds: dict[str, list[float]] = field(default_factory=dict)  # the metronome's samples a second in the same turns

    def level(self) -> None:
        """Set `rates`: what was measured, scaled to the median speed."""
        usual = statistics.median(itertools.chain.from_iterable(self.speeds.values()))
        self.rates = {
            name: [usual * rate for rate in ratios(rates, self.speeds[name])] for name, rates in self.measured.items()
        }

    @property
    def baseline(self) -> list[float] | None:
        """DataLoader's best rate in each round; None if it did not take part."""
        if not set(BASELINES) <= set(self.rates):
            return None
        return [max(pair) for pair in zip(*(self.rates[name] for name in BASELINES), strict=True)]


@dataclass
class Result:
    """All tables. `missing`: contenders that could not take part, and why."""

    rounds: int
    clock: str
    missing: dict[str, str]
    tables: list[Table] = field(default_factory=list)


def report_parts() -> list[tuple[str, list[str]]]:
    """Return what `python -m benchmarks --all` runs of this bench: titles and arguments."""
    few = [OURS, OURS_UINT8, *BASELINES, BARE, OURS_TWO, BARE_TWO]
    all_peers = [*few, TENSORS, DALI, SPDL, TURBOLOADER]
    parts = [
        ("ImageNet1, files of 110 kB", ["--pipelines", "imagenet1", "--mean-kb", "110", "--contenders", *all_peers]),
        ("ImageNet1, files of 46 kB", ["--pipelines", "imagenet1", "--mean-kb", "46", "--contenders", *all_peers]),
        ("ImageNet2", ["--pipelines", "imagenet2", "--contenders", *few]),
        ("ImageNet3", ["--pipelines", "imagenet3", "--contenders", *few]),
        ("CIFAR-10", ["--pipelines", "cifar10", "--contenders", *few]),
        ("Presets", ["--pipelines", *PRESETS, "--contenders", OURS, *BASELINES, DALI, BARE, "--rounds", "3"]),
    ]
    # Half of the set; all of it if a turn of ours would be too short.
    short = ["--images", "880"]
    fast = {"cifar10", "46"}
    return [
        *(
            (f"Images/s on one core: {title}", [*arguments, *([] if fast & set(arguments) else short)])
            for title, arguments in parts
        ),
        ("The same bits as torchvision", ["--bits", "20000"]),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_data(parser)
    parser.add_argument(
        "--pipelines", nargs="+", default=list(PIPELINES), choices=[*PIPELINES, *PRESETS], metavar="P",
        help="any of %(choices)s (the first four, which are the paper's)",
    )
    parser.add_argument(
        "--mean-kb", type=float, nargs="+", default=list(MEANS_KB),
        help="mean file sizes in kB for imagenet1; the other pipelines take the first",
    )  # fmt: skip
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), metavar="C", help="only these of %(choices)s")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (%(default)s)")
    parser.add_argument("--images", type=int, default=0, help="largest number of images in a turn (all)")
    parser.add_argument("--batch", type=int, help="batch size (64; 256 for cifar10)")
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall",
        help="cpu: images per processor second, for a machine on which other programs run (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--bits", type=int, metavar="N", help="compare the pixels of N samples of each kind of JPEG instead")
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Measure and print."""
    if options.bits is not None:
        comparison = bits.compare_kinds(options.bits, say)
        emit(options, comparison, bits.table(comparison), bits.aims(comparison))
        return 0 if comparison.all_right else 1
    result = measure(options, say)
    emit(options, result, table(result), aims(result))
    return 0


def measure(options: argparse.Namespace, tell: Say) -> Result:
    """Measure all tables."""
    wanted = options.contenders or list(CONTENDERS)
    missing = {name: why for name in wanted if (why := _missing(name)) is not None}
    for name, why in missing.items():
        tell(f"without {name}: {why}")
    result = Result(options.rounds, options.clock, missing)
    for pipeline in options.pipelines:
        for mean_kb in options.mean_kb if pipeline == "imagenet1" else options.mean_kb[:1]:
            directory = ensure_data(options.data, pipeline, mean_kb)
            here = Table(pipeline, mean_kb, options.batch or _BATCH.get(pipeline, 64), options.images)
            names = [name for name in wanted if name not in missing and pipeline in CONTENDERS[name].pipelines]
            tell(f"{title(here)}: {len(names)} contenders, {options.rounds} rounds")
            here.speeds = {name: [] for name in names}
            # The metronome's sample comes from ImageNet, whatever is measured.
            sample = ensure_data(options.data, mean_kb=options.mean_kb[0])
            with Metronome(sample, sorted(os.sched_getaffinity(0))[-2:]) as metronome:
                turns = {name: partial(_turn, name, here, directory, options, metronome) for name in names}
                here.measured = alternate(turns, options.rounds, tell)
            here.level()
            result.tables.append(here)
    return result


def _missing(name: str) -> str | None:
    if CONTENDERS[name].cores > len(os.sched_getaffinity(0)):
        return f"{CONTENDERS[name].cores} cores are needed"
    return CONTENDERS[name].missing()


def _turn(name: str, here: Table, directory: Path, options: argparse.Namespace, metronome: Metronome) -> float:
    cores = CONTENDERS[name].cores
    times = _TIMES.get(here.pipeline, _TIMES.get(f"{here.mean_kb:g}", 1)) if name in _FAST else 1
    work = Work(name, here.pipeline, str(directory), here.batch, here.images, cores, times)
    used = sorted(os.sched_getaffinity(0))[-cores:]
    done = child("benchmarks.contenders", asdict(work), used)
    speeds = metronome.speeds(done["began"], done["ended"])
    here.speeds[name].append(statistics.mean(speeds[cpu] for cpu in used))
    # By processor time all cores count as busy all the time: that two cores wait for each other does not show.
    seconds = done["ended"] - done["began"] if options.clock == "wall" else done["cpu_seconds"] / cores
    return float(done["samples"] / seconds)


def aims(result: Result) -> list[Aim]:
    """Return the aims of all tables."""
    aims = []
    for here in result.tables:
        wanted = _AIMS.get((here.pipeline, here.mean_kb), {})
        for name, (of_baseline, of_dali) in wanted.items():
            aims.append(Aim(f"{title(here)}: {name} / DataLoader's best", of_baseline, _median(here, name, here.baseline)))
            if of_dali is not None:
                aims.append(Aim(f"{title(here)}: {name} / {DALI}", of_dali, _median(here, name, here.rates.get(DALI))))
        peers = [here.rates[name] for name in PEERS if name in here.rates]
        if peers:
            best = [max(those) for those in zip(*peers, *filter(None, [here.baseline]), strict=True)]
            aims.append(Aim(f"{title(here)}: {OURS} / the best peer", 1.0, _median(here, OURS, best)))
        if wanted and here.pipeline in PIPELINES:
            machine = _median(here, BARE_TWO, here.rates.get(BARE))
            own = "" if machine is None else f" (the bare loops: {machine:.3f})"
            aims.append(Aim(f"{title(here)}: two cores / one{own}", _TWO_CORES, _median(here, OURS_TWO, here.rates.get(OURS))))
    return aims


def _median(here: Table, name: str, other: Sequence[float] | None) -> float | None:
    """Return the median of the ratios; None if one of both did not take part."""
    return None if other is None or name not in here.rates else statistics.median(ratios(here.rates[name], other))


def title(here: Table) -> str:
    """Return a table's title: the pipeline and the size of its files."""
    return here.pipeline if here.pipeline == "cifar10" else f"{here.pipeline}, files of {here.mean_kb:g} kB"


def table(result: Result) -> str:
    """Return the figures as a table of text."""
    unit = "images/s" if result.clock == "wall" else "images per processor second"
    rows = [f"{unit}; medians of {result.rounds} rounds (least .. most); one core unless two are said"]
    for here in result.tables:
        rows += [
            "",
            f"{title(here)}, batches of {here.batch}; the cores' speed (one sample, over and over): "
            f"{spread([speed for speeds in here.speeds.values() for speed in speeds])} samples/s",
            f"{'':34}{unit[:10]:>28}{'x DataLoader':>28}{'of the bound':>14}  bits",
        ]
        for name, rates in here.rates.items():
            bound = _bound(here, name)
            against = None if here.baseline is None else ratios(rates, here.baseline)
            rows.append(
                f"{name:34}{spread(rates):>28}{spread(against, '.2f') if against else '':>28}"
                f"{f'{statistics.median(ratios(rates, bound)):.3f}' if bound else '':>14}  {CONTENDERS[name].bits}"
            )
    rows += [f"without {name}: {why}" for name, why in result.missing.items()]
    return "\n".join(rows)


def _bound(here: Table, name: str) -> list[float] | None:
    """Return the rates of the bare loop that is the bound of one of our contenders; None for other contenders."""
    return here.rates.get({OURS: BARE, OURS_TWO: BARE_TWO}.get(name, ""))


if __name__ == "__main__":
    sys.exit(command(sys.modules[__name__]))
