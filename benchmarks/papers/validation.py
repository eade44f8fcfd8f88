"""The DDLP paper's own figures, predicted from its own measurements.

    python -m benchmarks.papers.validation       # under a second; status 1 if an aim is missed

Each cell of Tables VI and VII is predicted twice, from how long one batch takes on the CPU and on the CSD (the tables'
columns of each alone) and from how long it takes to read a CSD batch and train on it (`benchmarks.papers.table6`). No cell
has a fit of its own.

- By the event rules of Algorithms 1 (MTE) and 2 (WRR): `paper_epoch` plays an epoch of ImageNet. This decides.
- By a formula, the rules' limit for long epochs. T: a batch on the CPU; P: prepared on the CSD; g: read from there and trained
  on. MTE gives n P / (T + P) batches to the CPU, so that both sides are busy equally long: T (P + g) / (T + P) seconds a
  batch. Under WRR the CSD makes a batch in each P seconds of all the epoch: T P / (T + P - g).

The cells that are wrong in the paper must be missed. A model that hit them would have been fitted.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.papers.events import paper_epoch
from benchmarks.papers.published import BATCH_SIZES, IMAGENET_IMAGES, rows
from benchmarks.papers.table6 import Cell, cells, clean_cells
from ddlp.stats.words import aligned

__all__ = ["Aim", "Prediction", "Validation", "main", "split", "table", "validate"]

_ONE, _TWO, _DALI = "Table VI, one GPU", "Table VI, two GPUs", "Table VII, DALI on the GPU"
_WRONG = "Table VI, cells that are wrong"


@dataclass(frozen=True)
class Prediction:
    """A printed time and what the model says, in seconds a batch."""

    part: str
    cell: str
    processes: int  # extra ones
    cpu_s: float  # the CPU alone: what the prediction is made from
    strategy: str  # mte or wrr
    printed_s: float
    rules_s: float
    formula_s: float

    @property
    def error(self) -> float:
        """The relative difference of the rules' time from the printed one."""
        return self.rules_s / self.printed_s - 1

    @property
    def formula_error(self) -> float:
        """The same of the formula's."""
        return self.formula_s / self.printed_s - 1


@dataclass(frozen=True)
class Aim:
    """What the model must show, and what it shows: by the event rules, which decide, and by the formula (empty: nothing)."""

    what: str
    aim: str
    rules: str
    formula: str
    met: bool


@dataclass(frozen=True)
class Validation:
    """All predictions and aims."""

    predictions: list[Prediction]
    aims: list[Aim]

    @property
    def missed(self) -> list[Aim]:
        """The aims that are not met."""
        return [aim for aim in self.aims if not aim.met]


def validate() -> Validation:
    """Predict every cell and judge the predictions."""
    predictions = [
        *_predictions(_ONE, clean_cells()),
        *_predictions(_TWO, (cell for cell in cells() if cell.accelerators == 2)),
        *_predictions(_DALI, _dali_cells()),
        *_predictions(_WRONG, (cell for cell in cells() if cell.wrong)),
    ]
    aims = _toy_aims()
    for part, strategy, most, mean in (
        (_ONE, "mte", 0.01, 0.0015), (_ONE, "wrr", 0.01, 0.004), (_TWO, "mte", 0.015, None), (_TWO, "wrr", 0.015, None),
        (_DALI, "mte", 0.0015, None), (_DALI, "wrr", 0.0015, None),
    ):  # fmt: skip
        matching = [prediction for prediction in predictions if (prediction.part, prediction.strategy) == (part, strategy)]
        errors = [abs(prediction.error) for prediction in matching], [abs(prediction.formula_error) for prediction in matching]
        what = f"{part}, {strategy.upper()}: error of {len(matching)} cells,"
        aims.append(_at_most(f"{what} largest", most, *map(max, errors)))
        if mean is not None:
            aims.append(_at_most(f"{what} mean", mean, *map(statistics.mean, errors)))
    wrong = [prediction for prediction in predictions if prediction.part == _WRONG]
    least = min(abs(prediction.error) for prediction in wrong)
    by_formula = min(abs(prediction.formula_error) for prediction in wrong)
    what = f"{_WRONG}: error of {len(wrong)} figures, least"
    aims.append(Aim(what, "above 1 %", f"{least:.2%}", f"{by_formula:.2%}", least > 0.01))
    return Validation(predictions, aims)


def _at_most(what: str, limit: float, rules: float, formula: float) -> Aim:
    return Aim(what, f"{limit:.2%}", f"{rules:.3%}", f"{formula:.3%}", rules <= limit)


def _toy_aims() -> list[Aim]:
    """Section IV-D: 1000 batches; 1/4 s to prepare one on the CPU and train on it, 1 s on the CSD, 1/8 s to read and train."""
    n, toy = 1000, (0.25, 1.0, 0.125)
    examples = [
        ("MTE", (225.0, 1000, 200), paper_epoch(n, *toy, split(n, *toy[:2])), f"{n * _formula('mte', *toy):g} s"),
        ("WRR", (222.25, 1000, 222), paper_epoch(n, *toy), f"{n * _formula('wrr', *toy):.2f} s"),
        ("Algorithm 2 to the letter", (285.625, 1285, 285), paper_epoch(n, *toy, literal=True), ""),
    ]
    return [Aim(f"Section IV-D, {name}", _epoch(aim), _epoch(got), formula, got == aim) for name, aim, got, formula in examples]


def _epoch(outcome: tuple[float, int, int]) -> str:
    seconds, batches, from_csd = outcome
    return f"{seconds:g} s, {batches - from_csd} + {from_csd}"


def _dali_cells() -> Iterable[Cell]:
    """Table VII's rows: Table VI's cells with 16 processes whose CPU times are those of DALI on the GPU."""
    for row in rows("table7"):
        place = (row["model"], row["preprocess_type"], 16)
        (cell,) = (cell for cell in clean_cells() if (cell.model, cell.pipeline, cell.processes) == place)
        yield replace(cell, cpu_s=float(row["dali_g"]), mte_s=float(row["mte_d"]), wrr_s=float(row["wrr_d"]))


def _predictions(part: str, chosen: Iterable[Cell]) -> Iterable[Prediction]:
    for cell in chosen:
        n = math.ceil(IMAGENET_IMAGES / BATCH_SIZES[cell.model])
        times = (cell.cpu_s, cell.device_s, cell.read_and_train_s)
        for strategy, printed_s, head in (("mte", cell.mte_s, split(n, *times[:2])), ("wrr", cell.wrr_s, None)):
            rules_s, formula_s = paper_epoch(n, *times, head)[0] / n, _formula(strategy, *times)
            name = f"{cell.model} {cell.pipeline}"
            yield Prediction(part, name, cell.processes, cell.cpu_s, strategy, printed_s, rules_s, formula_s)


def split(n: int, cpu_s: float, device_s: float) -> int:
    """The CPU's batches under MTE: both sides are busy equally long."""
    return round(n * device_s / (cpu_s + device_s))


def _formula(strategy: str, cpu_s: float, device_s: float, read_and_train_s: float) -> float:
    """Seconds a batch of a long epoch."""
    if strategy == "mte":
        return cpu_s * (device_s + read_and_train_s) / (cpu_s + device_s)
    return cpu_s * device_s / (cpu_s + device_s - read_and_train_s)


def table(validation: Validation) -> str:
    """Return predictions and aims as a table of text."""
    columns = "  ".join(f"{strategy:>7} {'rules':>7}  {'error':>7}  formula" for strategy in ("MTE", "WRR"))
    lines = [
        "The DDLP paper's figures, predicted from its own measurements: seconds a batch. No cell has a fit of its own.",
        "rules: an epoch of ImageNet by the event rules of its Algorithms 1 (MTE) and 2 (WRR); formula: for long epochs",
        "",
        f"{'':22} {'extra':>5} {'CPU':>7}  {columns}",
    ]
    part = ""
    for mte, wrr in zip(validation.predictions[::2], validation.predictions[1::2], strict=True):
        if mte.part != part:
            part = mte.part
            lines.append(part)
        lines.append(f"  {mte.cell:20} {mte.processes:5} {mte.cpu_s:7.3f}  {_line(mte)}  {_line(wrr)}")
    aim_rows = [("what must come out", "aim", "rules", "formula", "")]
    aim_rows += [(aim.what, aim.aim, aim.rules, aim.formula, "met" if aim.met else "MISSED") for aim in validation.aims]
    lines += ["", *aligned(aim_rows, left=range(5))]
    return "\n".join(lines)


def _line(prediction: Prediction) -> str:
    return f"{prediction.printed_s:7.3f} {prediction.rules_s:7.3f} {prediction.error:+8.2%} {prediction.formula_error:+8.2%}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print predictions and aims. Return the exit status: 1 if an aim is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    validation = validate()
    print(json.dumps(asdict(validation), indent=2) if options.json else table(validation))
    for aim in validation.missed:
        print(f"validation: {aim.what}: must be {aim.aim}, is {aim.rules}", file=sys.stderr)
    return 1 if validation.missed else 0


if __name__ == "__main__":
    sys.exit(main())
