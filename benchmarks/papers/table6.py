"""Table VI of the DDLP paper, and the times of which its rows consist.

Wei, Zhang, Pedrycz, Wang, Zhao: "Dual-pronged deep learning preprocessing on heterogeneous platforms with CPU, Accelerator
and CSD". Average time of preprocessing and training, seconds a batch: on the CPU alone, on the CSD alone, and by the paper's
MTE and WRR, each with 0 and with 16 extra processes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.papers.published import BATCH_SIZES, rows

__all__ = ["READ_BYTES_PER_S", "Cell", "cells", "clean_cells"]

#: At which a CSD batch is read by GPU direct storage. Of no table: one rate that fits all rows.
READ_BYTES_PER_S = 2.5e9
_IMAGE_BYTES = 3 * 224 * 224 * 4  # float32, as all pipelines of Table IV end

# Cells that contradict the rest of the paper; `benchmarks.papers.published` says how. Of one the right CPU time is known.
_WRONG = {(row["model"], row["preprocess_type"], int(row["extra_processes"])): row["cpu"] for row in rows("wrong")}
_CORRECTED_CPU_S = {place: float(cpu) for place, cpu in _WRONG.items() if cpu}


@dataclass(frozen=True)
class Cell:
    """A row of the table with 0 or with 16 extra processes, in seconds a batch."""

    model: str
    pipeline: str
    processes: int
    cpu_s: float  # prepared and trained on, the CPU alone
    csd_s: float  # the same, the CSD alone
    mte_s: float  # as printed
    wrr_s: float  # as printed
    accelerators: int = 1
    wrong: bool = False  # contradicts the rest of the paper

    @property
    def train_s(self) -> float:
        """A training step."""
        return _train_s(self.model) / self.accelerators

    @property
    def read_and_train_s(self) -> float:
        """To read a batch of the CSD and train on it; each of several accelerators reads its part."""
        return self.train_s + BATCH_SIZES[self.model] * _IMAGE_BYTES / READ_BYTES_PER_S / self.accelerators

    @property
    def host_s(self) -> float:
        """To prepare a batch on the CPU."""
        return self.cpu_s - self.train_s

    @property
    def device_s(self) -> float:
        """To prepare a batch on the CSD."""
        return self.csd_s - self.read_and_train_s

    @property
    def limit_s(self) -> float:
        """T*, the least time: both sides prepare without a pause, and training takes any batch that is ready."""
        return max(1.0 / (1.0 / self.host_s + 1.0 / self.device_s), self.train_s)

    @property
    def prefetching_s(self) -> float:
        """The time of a plain loader that prefetches during training, without a CSD."""
        return max(self.host_s, self.train_s)


@cache
def _train_s(model: str) -> float:
    """Seconds of a training step on one accelerator: Table VI minus Table IX, the mean of 0 and 16 extra processes."""
    (nine,) = (row for row in rows("table9") if row["model"] == model)
    pipeline = nine["preprocess_type"]
    (six,) = (row for row in rows("table6") if (row["model"], row["preprocess_type"]) == (model, pipeline))
    return statistics.mean(
        _CORRECTED_CPU_S.get((model, pipeline, processes), float(six[f"cpu{processes}"])) - float(nine[f"cpu{processes}"])
        for processes in (0, 16)
    )


def cells() -> Iterator[Cell]:
    """Yield all cells as printed, and a copy of each whose right CPU time is known, with that."""
    for row in rows("table6"):
        for processes in (0, 16):
            place = (row["model"], row["preprocess_type"], processes)
            cpu_s, mte_s, wrr_s = (float(row[f"{column}{processes}"]) for column in ("cpu", "mte", "wrr"))
            model, accelerators = row["model"].removesuffix(" (2GPUs)"), int(row["n_accel"])
            cell = Cell(model, *place[1:], cpu_s, float(row["csd"]), mte_s, wrr_s, accelerators, place in _WRONG)
            yield cell
            if place in _CORRECTED_CPU_S:
                yield replace(cell, cpu_s=_CORRECTED_CPU_S[place], wrong=False)


def clean_cells() -> Iterator[Cell]:
    """Yield the cells with one accelerator but those that are wrong in the paper; `benchmarks.papers.published` says which."""
    return (cell for cell in cells() if cell.accelerators == 1 and not cell.wrong)
