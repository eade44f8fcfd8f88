r"""Set your own measurements beside the DDLP paper's Tables VI to IX and its Figure 8, in their layout.

    python templates/train_imagenet.py --model resnet152 --workers 0 --strategy dataloader csd mte wrr --report runs ...
    python templates/train_imagenet.py --model resnet152 --workers 16 --strategy dataloader mte wrr --report runs ...
    python templates/paper_tables.py --report runs

It reads the reports (*.json) that the templates write into --report, prints the tables and writes them there as
paper_tables.md, with paper_tables.png for Figure 8. Times depend on the machine, so below them stands what each strategy
saves against the CPU alone, which can be compared. Where something was measured under several seeds, the cell is their mean
and standard deviation.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlp.observe.energy.model import PaperModel, Tariff
from ddlp.planning.published import IMAGENET_IMAGES, rows

COLUMNS = ("cpu0", "cpu16", "csd", "mte0", "wrr0", "mte16", "wrr16")  # of Tables VI, VIII and IX
PIPELINES = {"imagenet1": "ImageNet1", "imagenet2": "ImageNet2", "imagenet3": "ImageNet3"}
NONE = "-"


@dataclass(frozen=True)
class Setup:
    """What measurements in one row must have in common."""

    paper_model: str
    model: str
    pipeline: str
    ranks: int
    batch_size: int
    machine: str  # the processor or GPU that trained

    def __str__(self) -> str:
        return f"own: {self.model}, batch {self.batch_size}, {self.machine}"


class Measured:
    """All complete runs of the reports, by what they are runs of.

    Args:
        reports: what the files hold.
        baseline: the strategy that stands for the paper's CPU columns; None: dataloader if it was measured, else cpu.
        many: the number of workers that stands for the paper's 16 extra processes; None: the most measured.

    Raises:
        ValueError: there are no complete runs.
    """

    def __init__(self, reports: Sequence[dict[str, Any]], baseline: str | None = None, many: int | None = None) -> None:
        runs = [run for report in reports for run in report["runs"] if run["complete"]]
        if not runs:
            raise ValueError("no finished runs")
        self.baseline = baseline or ("dataloader" if any(run["strategy"] == "dataloader" for run in runs) else "cpu")
        self.many: int = many or max(run["workers"] for run in runs) or 16
        self._runs: dict[tuple[Setup, str, str, int], list[dict[str, Any]]] = {}
        for report in reports:
            for run in report["runs"]:
                if run["complete"] and run["figures"]:
                    device = str(report["accelerator"] or run["device"])
                    setup = Setup(run["paper_model"], run["model"], run["pipeline"], run["ranks"], run["batch_size"], device)
                    key = (setup, run["strategy"], run["backend"], run["workers"])
                    self._runs.setdefault(key, []).append(run)

    def setups(self, paper_model: str, pipeline: str, ranks: int) -> list[Setup]:
        """Return the runs that belong to a row of the paper."""
        wanted = (paper_model, pipeline, ranks)
        return [s for s in dict.fromkeys(key[0] for key in self._runs) if (s.paper_model, s.pipeline, s.ranks) == wanted]

    def runs(self, setup: Setup, strategy: str, workers: int | None, backend: str | None = None) -> list[dict[str, Any]]:
        """Return the runs with so many workers; None: any number (the CSD alone uses none). `backend` None: not DALI."""
        backends = ("native", "torch") if backend is None else (backend,)
        return [
            run
            for (of, name, by, count), found in self._runs.items()
            if of == setup and name == strategy and by in backends and workers in (None, count)
            for run in found
        ]

    def column(self, setup: Setup, column: str) -> list[dict[str, Any]]:
        """Return the runs of one of `COLUMNS`."""
        strategy = column.rstrip("0123456789")
        workers = {"0": 0, "16": self.many}.get(column[len(strategy) :])
        return self.runs(setup, self.baseline if strategy == "cpu" else strategy, workers)


def cell(values: Sequence[float]) -> str:
    """Return mean and standard deviation as text, with four digits."""
    if not values:
        return NONE
    spread = f" +- {statistics.stdev(values):.2g}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.4g}{spread}"


def figure(runs: Sequence[dict[str, Any]], name: str) -> list[float]:
    """Return one of the runs' figures, one value for each seed."""
    return [run["figures"][name] for run in runs]


def saved(value: float | None, baseline: float | None) -> float | None:
    """Return the per cent of the baseline's time."""
    return None if not value or not baseline else 100 * (1 - value / baseline)


def percent(value: float | None) -> str:
    """Return the value as text."""
    return NONE if value is None else f"{value:.1f} %"


def markdown(title: str, head: Sequence[str], lines: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Return a Markdown table that is also readable as plain text."""
    widths = [max(len(row[k]) for row in (head, *lines)) for k in range(len(head))]
    rule = ["-" * width for width in widths]
    text = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in (head, rule, *lines)]
    return "\n".join([f"## {title}", "", *text, "", *notes])


def paper_rows(table: str) -> Iterator[tuple[dict[str, str], str, str, int]]:
    """Yield each row of a table with its model's plain name, our name of the pipeline, and the number of accelerators."""
    ours = {name: key for key, name in PIPELINES.items()}
    for row in rows(table):
        yield row, row["model"].split(" (")[0], ours[row["preprocess_type"]], int(row.get("n_accel", "1"))


def by_columns(
    table: str, measured: Measured, printed: Callable[[dict[str, str], str], str],
    own: Callable[[Setup, str, list[dict[str, Any]]], str], savings: bool,
) -> list[list[str]]:  # fmt: skip
    """The lines of Tables VI, VIII and IX: the paper's, and below each those of the own measurements that belong to it.

    Args:
        table: its name.
        measured: what there is.
        printed: (the paper's row, a column) -> text.
        own: (setup, a column, its runs, at least one) -> text.
        savings: show what the strategies save against the CPU columns.
    """
    lines = []
    for row, model, pipeline, ranks in paper_rows(table):
        name = [row["model"], row["preprocess_type"]]
        lines.append([*name, "paper", *(printed(row, column) for column in COLUMNS)])
        if savings:
            times = {column: float(row[column]) for column in COLUMNS if row.get(column)}
            lines.append(["", "", "paper, saved", *_savings(times)])
        for setup in measured.setups(model, pipeline, ranks):
            runs = {column: measured.column(setup, column) for column in COLUMNS}
            lines.append(["", "", str(setup), *(own(setup, c, found) if found else NONE for c, found in runs.items())])
            if savings:
                times = {c: statistics.mean(figure(found, "s_per_batch")) for c, found in runs.items() if found}
                lines.append(["", "", "own, saved", *_savings(times)])
    return lines


def _savings(times: dict[str, float]) -> list[str]:
    """Return for each column what it saves against the CPU alone with as many processes."""
    cells = []
    for column in COLUMNS:
        baseline = None if column.startswith(("cpu", "csd")) else times.get("cpu" + column[3:])
        value = saved(times.get(column), baseline)
        cells.append("" if value is None else percent(value))
    return cells


def head(measured: Measured) -> list[str]:
    """Return the section about Tables VI, VIII and IX."""
    many = "" if measured.many == 16 else f" (own: {measured.many})"
    titles = [c.upper().replace("0", "_0").replace("16", f"_16{many}") for c in COLUMNS]  # ``many`` last: it may have a 0
    return ["model", "pipeline", "whose", *titles]


def table6(measured: Measured) -> str:
    """Return the section about the average time of preprocessing and training."""
    lines = by_columns(
        "table6", measured, lambda row, c: row[c], lambda _, __, runs: cell(figure(runs, "s_per_batch")), savings=True
    )
    title = "Table VI: preprocessing and training, seconds a batch; time saved against the CPU alone"
    notes = ["The paper's cells are as printed; ddlp/planning/published says which of them are wrong.", _baseline(measured)]
    return markdown(title, head(measured), lines, notes)


def _baseline(measured: Measured) -> str:
    what = {"dataloader": "torch's DataLoader", "cpu": "DDLPLoader's host side alone (strategy cpu)"}[measured.baseline]
    return f"CPU in own lines: {what}."


def table7(measured: Measured) -> str:
    """Return the section about DALI."""
    either = ("dali", "dali_gpu")  # with the device: DALI by the CPU, or, where there was none of that, by the GPU
    columns: dict[str, tuple[str, tuple[str | None, ...]]] = {
        "tv": ("dataloader", (None,)), "dali_c": ("cpu", ("dali",)), "dali_g": ("cpu", ("dali_gpu",)), "mte_d": ("mte", either),
        "wrr_d": ("wrr", either),
    }  # fmt: skip
    lines = []
    for row, model, pipeline, ranks in paper_rows("table7"):
        lines.append([row["model"], row["preprocess_type"], "paper", *(row[c] for c in columns)])
        for setup in measured.setups(model, pipeline, ranks):
            found = [
                next((runs for by in backends if (runs := measured.runs(setup, name, measured.many, by))), [])
                for name, backends in columns.values()
            ]
            if any(found):
                lines.append(["", "", str(setup), *(cell(figure(runs, "s_per_batch")) for runs in found)])
    title = f"Table VII: with DALI, 16 extra processes (own: {measured.many}), seconds a batch"
    return markdown(title, ["model", "pipeline", "whose", "torchvision", "DALI_C", "DALI_G", "MTE_D", "WRR_D"], lines)


def table8(measured: Measured) -> str:
    """Return the section about the energy of a batch, and the cost of 100 epochs of ImageNet."""
    model, tariff = PaperModel(), Tariff()
    modelled = False

    def own(setup: Setup, column: str, runs: list[dict[str, Any]]) -> str:
        nonlocal modelled
        metered = [run for run in runs if run["energy"] and run["energy"]["unit"] == "batch"]
        kinds = {run["energy"]["how"] for run in metered} or {"modelled"}
        how = "" if kinds == {"measured"} else f" ({'modelled' if kinds == {'modelled'} else 'partly modelled'})"
        joules = [run["energy"]["joules"] for run in metered] or [
            run["figures"]["s_per_batch"] * sum(model.watts(_strategy(run), run["workers"]).values()) for run in runs
        ]
        modelled = modelled or bool(how)
        batches = math.ceil(IMAGENET_IMAGES / (setup.batch_size * setup.ranks)) * 100
        return f"{cell(joules)} J, {tariff.cost(statistics.mean(joules) * batches):.4g} USD{how}"

    lines = by_columns("table8", measured, lambda row, c: f"{row[c + '_j']} J, {row[c + '_usd']} USD", own, savings=False)
    notes = [f"USD: 100 epochs of ImageNet at {tariff.price_per_kwh} a kWh. " + _baseline(measured)]
    if modelled:
        watts = f"{model.watts_per_process:g} W a process and {model.watts_csd:g} W for the CSD, for the whole time"
        notes.append(f"Modelled: not metered (measure_energy.py does that) but by the paper's model, {watts}.")
    return markdown("Table VIII: energy a batch, cost", head(measured), lines, notes)


def _strategy(run: dict[str, Any]) -> str:
    return "cpu" if run["strategy"] == "dataloader" else str(run["strategy"])


def table9(measured: Measured) -> str:
    """Return the section about the time of the host's CPU and DRAM."""
    lines = by_columns(
        "table9", measured, lambda row, c: row.get(c, NONE), lambda _, __, runs: cell(figure(runs, "host_cpu_s_per_batch")),
        savings=False,
    )  # fmt: skip
    title = "Table IX: the host's CPU and DRAM preparing, seconds a batch"
    note = "Own: processor seconds of the host's preparation, all its workers together; the paper's is wall time."
    return markdown(title, head(measured), lines, [note, _baseline(measured)])


@dataclass(frozen=True)
class Bar:
    """A line of Figure 8: per cent of time saved; whose: 'paper' or a setup."""

    panel: str
    strategy: str
    processes: int
    whose: str
    against_cpu: float | None
    against_csd: float | None


def figure8_bars(measured: Measured) -> list[Bar]:
    """Return the paper's bars, each followed by the measured ones."""
    bars = []
    for row in rows("figure8"):
        panel, processes = f"{row['panel']}: {row['model']} on a {row['accelerator']}", int(row["extra_processes"])
        printed = (float(row["faster_than_cpu_percent"]), float(row["faster_than_csd_percent"]))
        bars.append(Bar(panel, row["strategy"], processes, "paper", *printed))
        pipeline, workers = f"cifar10_{row['accelerator'].lower()}", measured.many if processes else 0
        for setup in measured.setups(row["model"], pipeline, 1):
            own, cpu, csd = (
                statistics.mean(figure(runs, "s_per_batch")) if runs else None
                for runs in (
                    measured.runs(setup, row["strategy"], workers),
                    measured.runs(setup, measured.baseline, workers),
                    measured.runs(setup, "csd", None),
                )
            )
            bars.append(Bar(panel, row["strategy"], workers, str(setup), saved(own, cpu), saved(own, csd)))
    return bars


def figure8(measured: Measured) -> str:
    """Return the bars as a table."""
    lines = [
        [bar.panel, f"{bar.strategy.upper()}_{bar.processes}", bar.whose, percent(bar.against_cpu), percent(bar.against_csd)]
        for bar in figure8_bars(measured)
    ]
    columns = ["panel", "strategy", "whose", "against CPU", "against CSD"]
    return markdown("Figure 8: CIFAR-10, time saved", columns, lines, [_baseline(measured)])


def plot_figure8(path: Path, measured: Measured) -> None:
    """Plot groups of bars by strategy, the paper's beside the measured ones; a panel for each side of the comparison."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = figure8_bars(measured)
    groups = [bar for bar in bars if bar.whose == "paper"]
    whose = list(dict.fromkeys(bar.whose for bar in bars))
    figure_, both = pyplot.subplots(2, 1, figsize=(9, 7), sharex=True, layout="constrained")
    group_of, width = [k for k, bar in enumerate(bars) if bar.whose == "paper"], 0.8 / len(whose)
    for axes, field, title in zip(both, ("against_cpu", "against_csd"), ("the CPU alone", "the CSD alone"), strict=True):
        for n, name in enumerate(whose):
            own = [(k, getattr(bar, field)) for k, bar in enumerate(bars) if bar.whose == name]
            places = [bisect_right(group_of, k) - 1 + n * width for k, value in own if value is not None]
            heights = [value for _, value in own if value is not None]
            shown = axes.bar(places, heights, width, label=name, hatch="//" if name == "paper" else None)
            axes.bar_label(shown, fmt="%.0f", fontsize="small")
        axes.set_ylabel(f"% of time saved against\n{title}")
        axes.axhline(0, color="black", linewidth=0.8)
        axes.grid(axis="y", alpha=0.3)
    names = [f"{bar.strategy.upper()}_{bar.processes}\n{bar.panel}" for bar in groups]
    both[1].set_xticks([k + 0.4 - width / 2 for k in range(len(groups))], names, fontsize="small")
    both[0].legend(fontsize="small")
    figure_.suptitle("CIFAR-10 (the paper's Figure 8)", fontsize="medium")
    figure_.savefig(path, dpi=150)
    pyplot.close(figure_)


def read(directory: Path) -> list[dict[str, Any]]:
    """Return the templates' reports in a directory. Other JSON files are skipped."""
    found = []
    for path in sorted(directory.glob("*.json")):
        data = json.loads(path.read_text())
        if isinstance(data, dict) and {"template", "runs", "accelerator"} <= data.keys():
            found.append(data)
    return found


def tables(measured: Measured) -> str:
    """Return all sections as one text."""
    return "\n\n".join(make(measured) for make in (table6, table7, table8, table9, figure8))


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the reports, print the tables, write the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--report", type=Path, default=Path("runs"), metavar="DIR", help="reports, and the result (default %(default)s)")
    add("--baseline", choices=["dataloader", "cpu"], help="stands for the paper's CPU (default: dataloader if it was measured)")
    add("--processes", type=int, metavar="N", help="workers that stand for the paper's 16 (default: the most measured)")
    options = parser.parse_args(arguments)
    try:
        measured = Measured(read(options.report), options.baseline, options.processes)
    except ValueError as error:
        print(f"paper_tables: {error} in {options.report}; the training templates write them there", file=sys.stderr)
        return 1
    text = tables(measured)
    print(text)
    path = options.report / "paper_tables.md"
    path.write_text(f"# The DDLP paper's figures and own ones\n\n{text}\n")
    print(f"\nreport: {path}")
    try:
        plot_figure8(path.with_suffix(".png"), measured)
        print(f"plot: {path.with_suffix('.png')}")
    except ImportError:
        print("no plot: matplotlib is missing; pip install 'ddlp[report]' brings it", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
