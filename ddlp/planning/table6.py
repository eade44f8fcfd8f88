"""Table VI of the DDLP paper, and the times of which its rows consist.

Wei, Zhang, Pedrycz, Wang, Zhao: "Dual-pronged deep learning preprocessing on heterogeneous platforms with CPU, Accelerator
and CSD". Average time of preprocessing and training, seconds a batch: on the CPU alone, on the CSD alone, and by the paper's
MTE and WRR, each with 0 and with 16 extra processes. Rows with two GPUs are left out: their transfers follow another model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddlp.planning.published import BATCH_SIZES, rows

__all__ = ["Cell", "clean_cells"]

_CORRECTED = {("AlexNet", "ImageNet1", "cpu0"): 38.48}
_LEFT_OUT = {("AlexNet", "ImageNet2", 0), ("AlexNet", "ImageNet2", 16), ("WRN", "ImageNet3", 16), ("ResNet152", "ImageNet3", 0)}

# Seconds to read a CSD batch and train on it. Training: Table VI minus Table IX. Reading: batch size (Table V) * 602112 bytes
# at 2.5 GB/s.
_READ_AND_TRAIN_S = {"WRN": 0.772, "ResNet152": 0.657, "ViT": 3.637, "VGG": 1.054, "AlexNet": 1.903}
_READ_S = 3 * 224 * 224 * 4 / 2.5e9  # seconds for an image


@dataclass(frozen=True)
class Cell:
    """A row of the table with 0 or with 16 extra processes, in seconds a batch."""

    model: str
    pipeline: str
    processes: int
    cpu_s: float  # prepared and trained on, the CPU alone
    csd_s: float  # the same, the CSD alone
    wrr_s: float  # as printed

    @property
    def read_and_train_s(self) -> float:
        """To read a batch of the CSD and train on it."""
        return _READ_AND_TRAIN_S[self.model]

    @property
    def train_s(self) -> float:
        """A training step."""
        return self.read_and_train_s - BATCH_SIZES[self.model] * _READ_S

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


def clean_cells() -> Iterator[Cell]:
    """Yield all cells but those that are wrong in the paper; `ddlp.planning.published` says which."""
    for row in rows("table6"):
        model, pipeline = row["model"], row["preprocess_type"]
        if row["n_accel"] != "1":
            continue
        found = {k: _CORRECTED.get((model, pipeline, k), float(row[k])) for k in ("cpu0", "cpu16", "csd", "wrr0", "wrr16")}
        for processes in (0, 16):
            if (model, pipeline, processes) not in _LEFT_OUT:
                cpu, wrr = found[f"cpu{processes}"], found[f"wrr{processes}"]
                yield Cell(model, pipeline, processes, cpu, found["csd"], wrr)
