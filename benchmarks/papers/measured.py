r"""Set your own measurements beside the DDLP paper's Tables II and VI to IX and its Figures 1 and 8, in their layout.

    python templates/train_imagenet.py --model resnet152 --workers 0 --strategy dataloader csd mte wrr --report runs ...
    python templates/train_imagenet.py --model resnet152 --workers 16 --strategy dataloader mte wrr --report runs ...
    python -m benchmarks.papers.measured --report runs

It reads the reports (*.json) that the templates write into --report, prints the tables and writes them there as
paper_tables.md. Times depend on the machine, so below them stands what each strategy
saves against the CPU alone, which can be compared. Where something was measured under several seeds, the cell is their mean and
standard deviation. Reports of bottleneck_study.py become Figure 1, and runs that were recorded (--record of the templates)
Table II.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.papers.published import IMAGENET_IMAGES, rows
from ddlp import DDLPError
from ddlp.observe.energy.model import PaperModel, Tariff
from ddlp.observe.report import read_comparison

PROCESSOR = ("dataloader0", "dataloader16")  # torch's DataLoader in Table IX, whatever stands for the paper's CPU
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
            for (of, name, by, count), runs in self._runs.items()
            if of == setup and name == strategy and by in backends and workers in (None, count)
            for run in runs
        ]

    def column(self, setup: Setup, column: str) -> list[dict[str, Any]]:
        """Return the runs of one of `COLUMNS` or of `PROCESSOR`."""
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


@dataclass(frozen=True)
class Contents:
    """What stands in the cells of Tables VI, VIII and IX.

    Attributes:
        printed: (the paper's row, a column) -> text.
        printed_value: the same as a number, to say what is saved; None: there is none.
        own: (setup, a column, its runs, at least one) -> text.
        own_value: its number.
    """

    printed: Callable[[dict[str, str], str], str]
    printed_value: Callable[[dict[str, str], str], float | None]
    own: Callable[[Setup, str, list[dict[str, Any]]], str]
    own_value: Callable[[list[dict[str, Any]]], float | None]


def by_columns(
    table: str, measured: Measured, contents: Contents, more: Callable[[Setup], list[list[str]]] = lambda _: []
) -> list[list[str]]:
    """The lines of Tables VI, VIII and IX: the paper's, and below each those of the own measurements that belong to it.

    Below both stands what the strategies save against the CPU columns.

    Args:
        table: its name.
        measured: what there is.
        contents: of the cells.
        more: further lines of a setup.
    """
    lines = []

    def add_saved(whose: str, values: dict[str, float]) -> None:
        by_column = savings(values)
        lines.append(["", "", f"{whose}, saved", *(percent(by_column[c]) if c in by_column else "" for c in COLUMNS)])

    for row, model, pipeline, ranks in paper_rows(table):
        lines.append([row["model"], row["preprocess_type"], "paper", *(contents.printed(row, column) for column in COLUMNS)])
        add_saved("paper", {c: value for c in COLUMNS if (value := contents.printed_value(row, c)) is not None})
        for setup in measured.setups(model, pipeline, ranks):
            runs = {column: measured.column(setup, column) for column in COLUMNS}
            cells = [contents.own(setup, c, column_runs) if column_runs else NONE for c, column_runs in runs.items()]
            lines.append(["", "", str(setup), *cells])
            known = {c: contents.own_value(column_runs) for c, column_runs in runs.items() if column_runs}
            add_saved("own", {c: value for c, value in known.items() if value is not None})
            lines += more(setup)
    return lines


def savings(values: dict[str, float]) -> dict[str, float]:
    """Return for each column of a strategy the per cent that it saves against the CPU alone with as many processes."""
    by_column = {}
    for column, value in values.items():
        baseline = None if column.startswith(("cpu", "csd")) else values.get("cpu" + column[3:])
        if (part := saved(value, baseline)) is not None:
            by_column[column] = part
    return by_column


def head(measured: Measured) -> list[str]:
    """Return the section about Tables VI, VIII and IX."""
    many = "" if measured.many == 16 else f" (own: {measured.many})"
    titles = [c.upper().replace("0", "_0").replace("16", f"_16{many}") for c in COLUMNS]  # ``many`` last: it may have a 0
    return ["model", "pipeline", "whose", *titles]


def table6(measured: Measured) -> str:
    """Return the section about the average time of preprocessing and training."""
    wrong = {(row["model"], row["preprocess_type"], row["extra_processes"]) for row in rows("wrong")}
    contents = Contents(
        lambda row, c: row[c],
        lambda row, c: None if (row["model"], row["preprocess_type"], c[3:]) in wrong else float(row[c]),
        lambda _, __, runs: cell(figure(runs, "s_per_batch")),
        lambda runs: statistics.mean(figure(runs, "s_per_batch")),
    )
    lines = by_columns("table6", measured, contents)
    title = "Table VI: preprocessing and training, seconds a batch; time saved against the CPU alone"
    wrong_ones = "The paper's cells are as printed; for wrong ones (benchmarks/papers/published) nothing is said to be saved."
    notes = [wrong_ones, _baseline(measured)]
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

    def add_saved(whose: str, times: dict[str, float]) -> None:
        dali = min((times[c] for c in ("dali_c", "dali_g") if c in times), default=None)
        for against, baseline in (("torchvision", times.get("tv")), ("DALI", dali)):
            by_column = {c: part for c in ("mte_d", "wrr_d") if (part := saved(times.get(c), baseline)) is not None}
            cells = (percent(by_column[c]) if c in by_column else "" for c in columns)
            lines.append(["", "", f"{whose} against {against}, saved", *cells])

    for row, model, pipeline, ranks in paper_rows("table7"):
        lines.append([row["model"], row["preprocess_type"], "paper", *(row[c] for c in columns)])
        add_saved("paper", {c: float(row[c]) for c in columns})
        for setup in measured.setups(model, pipeline, ranks):
            column_runs = [
                next((runs for by in backends if (runs := measured.runs(setup, name, measured.many, by))), [])
                for name, backends in columns.values()
            ]
            if any(column_runs):
                lines.append(["", "", str(setup), *(cell(figure(runs, "s_per_batch")) for runs in column_runs)])
                times = [statistics.mean(figure(runs, "s_per_batch")) if runs else None for runs in column_runs]
                add_saved("own", {c: s for c, s in zip(columns, times, strict=True) if s is not None})
    title = f"Table VII: with DALI, 16 extra processes (own: {measured.many}), seconds a batch"
    names = ["model", "pipeline", "whose", "torchvision", "DALI_C", "DALI_G", "MTE_D", "WRR_D"]
    return markdown(title, names, lines, ["DALI in lines of what is saved: the faster of DALI_C and DALI_G."])


def table8(measured: Measured) -> str:
    """Return the section about the energy of a batch, and the cost of 100 epochs of ImageNet."""
    model, tariff = PaperModel(), Tariff()
    modelled = False

    def metered_of(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [run for run in runs if run["energy"] and run["energy"]["unit"] == "batch"]

    def joules_of(runs: list[dict[str, Any]]) -> list[float]:
        return [run["energy"]["joules"] for run in metered_of(runs)] or [
            run["figures"]["s_per_batch"] * sum(model.watts(_strategy(run), run["workers"]).values()) for run in runs
        ]

    def own(setup: Setup, column: str, runs: list[dict[str, Any]]) -> str:
        nonlocal modelled
        metered, joules = metered_of(runs), joules_of(runs)
        kinds = {run["energy"]["how"] for run in metered} or {"modelled"}
        how = "" if kinds == {"measured"} else f" ({'modelled' if kinds == {'modelled'} else 'partly modelled'})"
        modelled = modelled or bool(how)
        batches = math.ceil(IMAGENET_IMAGES / (setup.batch_size * setup.ranks)) * 100
        return f"{cell(joules)} J, {tariff.cost(statistics.mean(joules) * batches):.4g} USD{how}"

    contents = Contents(
        lambda row, c: f"{row[c + '_j']} J, {row[c + '_usd']} USD",
        lambda row, c: float(row[c + "_j"]),
        own,
        lambda runs: statistics.mean(joules_of(runs)),
    )
    lines = by_columns("table8", measured, contents)
    notes = [f"USD: 100 epochs of ImageNet at {tariff.price_per_kwh} a kWh. " + _baseline(measured)]
    if modelled:
        watts = f"{model.watts_per_process:g} W a process and {model.watts_csd:g} W for the CSD, for the whole time"
        notes.append(f"Modelled: not metered (measure_energy.py does that) but by the paper's model, {watts}.")
    return markdown("Table VIII: energy a batch, cost", head(measured), lines, notes)


def _strategy(run: dict[str, Any]) -> str:
    return "cpu" if run["strategy"] == "dataloader" else str(run["strategy"])


def preparing_s(runs: list[dict[str, Any]]) -> list[float]:
    """Return the wall time in which the host made batches, all its workers together, over all batches; one value a seed.

    That is the paper's measure: the host's images over its rate. Without a rate (it made none) the host took no time.
    """
    values = []
    for run in runs:
        epochs = [epoch for epoch in run["epochs"] if epoch["number"] > 0] or run["epochs"]
        seconds, known = 0.0, True
        for epoch in epochs:
            prepared = epoch["batches_cpu"] + epoch["batches_csd"]
            if epoch["batches_cpu"]:
                known = known and bool(epoch["rate_cpu"])
                seconds += epoch["samples"] * epoch["batches_cpu"] / prepared / epoch["rate_cpu"] if epoch["rate_cpu"] else 0.0
        if known and (batches := sum(epoch["batches"] for epoch in epochs)):
            values.append(seconds / batches)
    return values


def table9(measured: Measured) -> str:
    """Return the section about the time of the host's CPU and DRAM."""

    def processor(setup: Setup) -> list[list[str]]:
        column_runs = [measured.column(setup, column) for column in (*COLUMNS, *PROCESSOR)]
        return [["", "", "own, processor s", *(cell(figure(runs, "host_cpu_s_per_batch")) for runs in column_runs)]]

    contents = Contents(
        lambda row, c: row.get(c, NONE),
        lambda row, c: float(row[c]) if c in row else None,
        lambda _, __, runs: cell(preparing_s(runs)),
        lambda runs: statistics.mean(seconds) if (seconds := preparing_s(runs)) else None,
    )
    names = [*head(measured), *(f"DataLoader_{workers}, processor s" for workers in (0, measured.many))]
    lines = [line + [""] * (len(names) - len(line)) for line in by_columns("table9", measured, contents, processor)]
    title = "Table IX: the host's CPU and DRAM preparing, seconds a batch"
    note = "The paper's and own lines: wall time. \"Processor s\": of the host's preparation, all its workers together."
    return markdown(title, names, lines, [note, _baseline(measured)])


def figure8(measured: Measured) -> str:
    """Return the paper's bars as lines of a table, each followed by the measured ones."""
    lines = []
    for row in rows("figure8"):
        panel, processes = f"{row['panel']}: {row['model']} on a {row['accelerator']}", int(row["extra_processes"])
        printed = [percent(float(row[f"faster_than_{side}_percent"])) for side in ("cpu", "csd")]
        lines.append([panel, f"{row['strategy'].upper()}_{processes}", "paper", *printed])
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
            own_saved = [percent(saved(own, alone)) for alone in (cpu, csd)]
            lines.append([panel, f"{row['strategy'].upper()}_{workers}", str(setup), *own_saved])
    columns = ["panel", "strategy", "whose", "against CPU", "against CSD"]
    return markdown("Figure 8: CIFAR-10, time saved", columns, lines, [_baseline(measured)])


def figure1(studies: Sequence[dict[str, Any]]) -> str:
    """Return the ratios of preprocessing to training by model and number of workers, of each report of bottleneck_study.py."""
    lines: list[list[str]] = []
    counts = sorted({int(workers) for study in studies for workers in study["figures"]["preprocessing_s"]})
    for study in studies:
        preparing = {int(workers): statistics.mean(s) for workers, s in study["figures"]["preprocessing_s"].items()}
        strategy = study["options"]["strategy"][0]
        machine = study["accelerator"] or study["options"]["device"]
        for name, seconds in study["figures"]["training_s"].items():
            own = statistics.mean(seconds)
            ratios = [f"{preparing[count] / own:.3g}" if count in preparing else NONE for count in counts]
            lines.append([name, f"own: {strategy}, batch {study['options']['batch_size']}, {machine}", *ratios])
    notes = ["Above 1 training waits for data. The paper prints no figures of it, and names none of its 19 models."]
    title = "Figure 1: preprocessing over training, by num_workers"
    return markdown(title, ["model", "whose", *map(str, counts)], lines or [[NONE, "not measured"]], notes)


def table2(reports: Sequence[dict[str, Any]]) -> str:
    """Return what ran side by side: of the runs of each report that were recorded, a column for each strategy."""
    entries: list[tuple[str, dict[str, str]]] = []  # (whose, cell by column), one a line
    for report in reports:
        record = report.get("options", {}).get("record")
        runs = [run for run in report["runs"] if run["complete"]] if record else []
        recorded = [path for run in runs if (path := Path(record) / f"{run['strategy']}-seed{run['seed']}").is_dir()]
        if not recorded:
            continue
        groups = {group.kind.strategy: group.beside() for group in read_comparison(recorded).groups}
        whose = f"own: {runs[0]['model']}, batch {runs[0]['batch_size']}, {report['accelerator'] or runs[0]['device']}"
        for title in next(iter(groups.values())):
            cells = {name: _part(*times[title]) for name, times in groups.items()}
            entries.append((whose, {"": title, **cells}))
    columns = list(dict.fromkeys(name for _, cells in entries for name in cells if name))
    lines = [[whose, cells[""], *(cells.get(column, NONE) for column in columns)] for whose, cells in entries]
    titles = ["PyTorch" if column == "dataloader" else column.upper() for column in columns]
    notes = ["The part of the time in which data are prepared that ran beside other work. Recorded by the templates' --record."]
    title = "Table II: what runs side by side"
    return markdown(title, ["whose", "", *titles], lines or [["not recorded", ""]], notes)


def _part(both_s: float, prepared_s: float) -> str:
    return percent(100 * both_s / prepared_s if prepared_s else None)


def read(directory: Path) -> list[dict[str, Any]]:
    """Return the templates' reports in a directory. Other JSON files are skipped."""
    reports = []
    for path in sorted(directory.glob("*.json")):
        data = json.loads(path.read_text())
        if isinstance(data, dict) and {"template", "runs", "accelerator"} <= data.keys():
            reports.append(data)
    return reports


def tables(measured: Measured, reports: Sequence[dict[str, Any]] = ()) -> str:
    """Return all sections as one text; Figure 1 and Table II come from the reports themselves."""
    studies = [report for report in reports if report["template"] == "bottleneck_study"]
    others = [report for report in reports if report["template"] != "bottleneck_study"]
    sections = [make(measured) for make in (table6, table7, table8, table9, figure8)]
    return "\n\n".join([figure1(studies), table2(others), *sections])


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the reports, print the tables, write the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--report", type=Path, default=Path("runs"), metavar="DIR", help="reports, and the result (default %(default)s)")
    add("--baseline", choices=["dataloader", "cpu"], help="stands for the paper's CPU (default: dataloader if it was measured)")
    add("--processes", type=int, metavar="N", help="workers that stand for the paper's 16 (default: the most measured)")
    options = parser.parse_args(arguments)
    reports = read(options.report)
    try:
        measured = Measured(reports, options.baseline, options.processes)
    except ValueError as error:
        print(f"papers.measured: {error} in {options.report}; the training templates write them there", file=sys.stderr)
        return 1
    try:
        text = tables(measured, reports)
    except (DDLPError, OSError) as error:
        print(f"papers.measured: {error}", file=sys.stderr)
        return 1
    print(text)
    path = options.report / "paper_tables.md"
    path.write_text(f"# The DDLP paper's figures and own ones\n\n{text}\n")
    print(f"\nreport: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
