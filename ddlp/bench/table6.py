"""Table VI of the DDLP paper, and what its rows are made of.

Wei, Zhang, Pedrycz, Wang, Zhao: "Dual-pronged deep learning preprocessing on heterogeneous platforms with CPU, Accelerator
and CSD". Average time of preprocessing and training, seconds a batch: on the CPU alone, on the CSD alone, and by the paper's
MTE and WRR, each with 0 and with 16 extra processes. Rows with two GPUs are left out: their model of the transfer is another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddlp.bench.published import BATCH_SIZES, rows

__all__ = ["Cell", "clean_cells"]

_CORRECTED = {("AlexNet", "ImageNet1", "cpu0"): 38.48}
_LEFT_OUT = {("AlexNet", "ImageNet2", 0), ("AlexNet", "ImageNet2", 16), ("WRN", "ImageNet3", 16), ("ResNet152", "ImageNet3", 0)}

# Reading a CSD batch and training on it, seconds: Table VI less Table IX is the training, and batch * 602112 bytes come at
# 2.5 GB/s (batch sizes of Table V).
_READ_AND_TRAIN_S = {"WRN": 0.772, "ResNet152": 0.657, "ViT": 3.637, "VGG": 1.054, "AlexNet": 1.903}
_READ_S = 3 * 224 * 224 * 4 / 2.5e9  # of an image


@dataclass(frozen=True)
class Cell:
    """A row of the table with 0 or 16 extra processes; seconds a batch."""

    model: str
    pipeline: str
    processes: int
    cpu_s: float  # prepared and trained on, the CPU alone
    csd_s: float  # the same, the CSD alone
    wrr_s: float  # as printed

    @property
    def read_and_train_s(self) -> float:
        """A CSD's batch read and trained on."""
        return _READ_AND_TRAIN_S[self.model]

    @property
    def train_s(self) -> float:
        """A training step."""
        return self.read_and_train_s - BATCH_SIZES[self.model] * _READ_S

    @property
    def host_s(self) -> float:
        """Preparing a batch on the CPU."""
        return self.cpu_s - self.train_s

    @property
    def device_s(self) -> float:
        """Preparing a batch on the CSD."""
        return self.csd_s - self.read_and_train_s

    @property
    def limit_s(self) -> float:
        """T*: both prepare all the time, and training takes what is ready."""
        return max(1.0 / (1.0 / self.host_s + 1.0 / self.device_s), self.train_s)

    @property
    def prefetching_s(self) -> float:
        """A plain loader that prepares while training goes on, without a CSD."""
        return max(self.host_s, self.train_s)


def clean_cells() -> Iterator[Cell]:
    """All cells but those that are wrong in the paper; `ddlp.bench.published` says which."""
    for row in rows("table6"):
        model, pipeline = row["model"], row["preprocess_type"]
        if row["n_accel"] != "1":
            continue
        found = {k: _CORRECTED.get((model, pipeline, k), float(row[k])) for k in ("cpu0", "cpu16", "csd", "wrr0", "wrr16")}
        for processes in (0, 16):
            if (model, pipeline, processes) not in _LEFT_OUT:
                cpu, wrr = found[f"cpu{processes}"], found[f"wrr{processes}"]
                yield Cell(model, pipeline, processes, cpu, found["csd"], wrr)
