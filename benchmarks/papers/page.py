r"""Tables of docs/paper.md that follow from others: fills them in between their marks.

    python -m benchmarks.papers.page            # a few seconds; measures nothing
    python -m benchmarks.papers.page --check    # status 1 if a table is not what this would write

Our times are those of `docs/benchmarks.md`, which `python -m benchmarks --all` writes; the rest follows from the paper's own
tables (`benchmarks.papers.published`). All else on the page is text, with the command and the date of its figures.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.papers.published import BATCH_SIZES, IMAGENET_IMAGES, rows
from benchmarks.papers.table6 import Cell, clean_cells
from benchmarks.papers.validation import Prediction, validate
from ddlp.auto.measured import Measured, OffloadPath
from ddlp.observe.energy.model import PaperModel, Tariff
from ddlp.observe.play import play_epoch

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "paper.md"
TABLE6 = "The paper's Table VI"  # a section of docs/benchmarks.md
EPOCH = 1000  # batches of a simulated epoch


# -- what was measured -----------------------------------------------------------------------------------------------


def table6_seconds(text: str) -> dict[tuple[str, int], float]:
    """Return our seconds a batch by (model and pipeline, extra processes). Raises ValueError if a cell is missing.

    ``text``: of docs/benchmarks.md.
    """
    section = text.partition(f"\n## {TABLE6}\n")[2].partition("\n## ")[0]
    if not section:
        raise ValueError(f"docs/benchmarks.md has no section {TABLE6!r}; `python -m benchmarks --all` writes it")
    form = r"^(\w+ \w+) +(\d+)(?: +[\d.]+){4} +[+-][\d.]+% +([\d.]+) +[\d.]+ \("
    seconds = {(name, int(extra)): float(s) for name, extra, s in re.findall(form, section, re.M)}
    if missing := [place for cell in clean_cells() if (place := _place(cell)) not in seconds]:
        raise ValueError(f"docs/benchmarks.md, {TABLE6}: no line of {missing[0]}")
    return seconds


def _place(cell: Cell) -> tuple[str, int]:
    return f"{cell.model} {cell.pipeline}", cell.processes


# -- what follows from it --------------------------------------------------------------------------------------------


def device_share(cell: Cell) -> float:
    """Return the part of an epoch's batches that the CSD makes under ddlp's wrr: what Table IX saves of the CPU's time.

    A simulated epoch at the paper's speeds of both sides. Batches of the CSD cost the host nothing, as with GPUDirect Storage.
    """
    rate = 1 / cell.device_s
    path = OffloadPath(
        "csd", transport="spool", batches_per_s=rate, host_cpu_s_per_batch=0.0
    )
    measured = Measured(
        step_s=cell.train_s, host_batches_per_s=1 / cell.host_s, host_cpu_s_per_batch=cell.host_s, paths=(path,)
    )
    return play_epoch(measured, (path,), batches=EPOCH).taken["csd"] / EPOCH


def less(value: float, baseline: float) -> str:
    """Return the per cent of the baseline that is saved, as text."""
    return f"{100 * (1 - value / baseline):.1f} %"


def modelled_joules(seconds: float, processes: int) -> float:
    """Return the joules of a batch under wrr by the paper's model."""
    return seconds * sum(PaperModel().watts("wrr", processes).values())


# -- the tables ------------------------------------------------------------------------------------------------------


def table6(cells: Sequence[Cell], ours: dict[tuple[str, int], float]) -> Iterator[Sequence[str]]:
    """Yield the lines of Table VI."""
    for cell in cells:
        own = ours[_place(cell)]
        printed = [f"{s:.3f}" for s in (cell.cpu_s, cell.wrr_s)]
        yield (
            *map(str, _place(cell)), *printed, less(cell.wrr_s, cell.cpu_s), f"{cell.prefetching_s:.3f}", f"{own:.3f}",
            less(own, cell.cpu_s), less(own, cell.prefetching_s),
        )  # fmt: skip


def table7(predicted: Sequence[Prediction]) -> Iterator[Sequence[str]]:
    """Yield the lines of Table VII."""
    for prediction in predicted:
        if prediction.part.startswith("Table VII"):
            yield (
                prediction.cell, f"{prediction.cpu_s:.3f}", f"{prediction.strategy.upper()}_D", f"{prediction.printed_s:.3f}",
                less(prediction.printed_s, prediction.cpu_s), f"{prediction.rules_s:.3f}", "not run",
            )  # fmt: skip


def table8(ours: dict[tuple[str, int], float]) -> Iterator[Sequence[str]]:
    """Yield the lines of Table VIII."""
    for row in rows("table8"):
        epochs = math.ceil(IMAGENET_IMAGES / BATCH_SIZES[row["model"]]) * 100
        for processes in (0, 16):
            cpu, wrr = (float(row[f"{column}{processes}_j"]) for column in ("cpu", "wrr"))
            own = modelled_joules(ours[f"{row['model']} {row['preprocess_type']}", processes], processes)
            yield (
                f"{row['model']} {row['preprocess_type']}", str(processes), f"{cpu:.4g}", f"{wrr:.4g}", less(wrr, cpu),
                f"{own:.4g}", less(own, cpu), row[f"wrr{processes}_usd"], f"{Tariff().cost(own * epochs):.4g}",
            )  # fmt: skip


def table9(cells: Sequence[Cell]) -> Iterator[Sequence[str]]:
    """Yield the lines of Table IX."""
    for row in rows("table9"):
        for processes in (0, 16):
            place = (f"{row['model']} {row['preprocess_type']}", processes)
            (cell,) = (cell for cell in cells if _place(cell) == place)
            cpu, wrr = (float(row[f"{column}{processes}"]) for column in ("cpu", "wrr"))
            own = cpu * (1 - device_share(cell))
            yield *map(str, place), f"{cpu:.3f}", f"{wrr:.3f}", less(wrr, cpu), f"{own:.3f}", less(own, cpu)


def saved(cells: Sequence[Cell], ours: dict[tuple[str, int], float]) -> str:
    """Return what ours saves, in the two sentences behind Table VI."""
    savings = [100 * (1 - ours[_place(cell)] / cell.cpu_s) for cell in cells]
    beaten = statistics.median(1 - ours[_place(cell)] / cell.wrr_s for cell in cells)
    return (
        f"Against the paper's CPU ours saves {min(savings):.1f} to {max(savings):.1f} % in these {len(cells)} cells. "
        f"Against the paper's WRR it takes {100 * beaten:.0f} % less time in the median."
    )


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def tables() -> dict[str, str]:
    """Return the tables by the names in their marks. Raises ValueError or OSError if our times are missing."""
    cells = list(clean_cells())
    ours = table6_seconds((DOCS / "benchmarks.md").read_text())
    of_six = ["cell", "extra", "paper, CPU", "paper, WRR", "saved", "prefetching", "ours", "saved against CPU",
              "against prefetching"]  # fmt: skip
    of_eight = ["cell", "extra", "paper, CPU", "paper, WRR", "saved", "ours", "saved", "paper, WRR, USD", "ours, USD"]
    return {
        "Table VI": f"{_table(of_six, table6(cells, ours))}\n\n{saved(cells, ours)}",
        "Table VII": _table(
            ["cell", "DALI on the GPU", "strategy", "paper", "saved", "predicted", "ours"], table7(validate().predictions)
        ),
        "Table VIII": _table(of_eight, table8(ours)),
        "Table IX": _table(["cell", "extra", "paper, CPU", "paper, WRR", "saved", "ours", "saved"], table9(cells)),
    }


def filled(text: str) -> str:
    """Return the page with its tables. Raises ValueError if one has no place there."""
    for name, table in tables().items():
        begins, ends = f"<!-- written: {name} -->\n", "\n<!-- end -->"
        before, begin, rest = text.partition(begins)
        _, end, after = rest.partition(ends)
        if not begin or not end:
            raise ValueError(f"{PAGE} has no place for {name}: {begins.strip()} and {ends.strip()}")
        text = f"{before}{begins}\n{table}\n{ends}{after}"
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the tables. Return 1 if they can't be made, or are not what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if a table is another")
    options = parser.parse_args(arguments)
    try:
        there = PAGE.read_text()
        text = filled(there)
    except (OSError, ValueError) as error:
        print(f"papers.page: {error}", file=sys.stderr)
        return 1
    if options.check and text != there:
        print(f"papers.page: tables of {PAGE} are not what {DOCS / 'benchmarks.md'} gives; run this without --check",
              file=sys.stderr)  # fmt: skip
        return 1
    if not options.check:
        PAGE.write_text(text)
        print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
