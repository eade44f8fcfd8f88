"""Table VI of the DDLP paper, and what its rows are made of.

Wei, Zhang, Pedrycz, Wang, Zhao: "Dual-pronged deep learning preprocessing on heterogeneous platforms with CPU, Accelerator
and CSD". Average time of preprocessing and training, seconds a batch: on the CPU alone, on the CSD alone, and by the paper's
MTE and WRR, each with 0 and with 16 extra processes. Rows with two GPUs are left out: their model of the transfer is another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Cell", "clean_cells"]

_TABLE = """
WRN ImageNet1 3.527 1.779 10.014 2.761 2.698 1.618 1.604
ResNet152 ImageNet1 3.376 1.401 10.315 2.672 2.624 1.308 1.301
ViT ImageNet1 8.536 7.497 22.24 6.996 6.695 6.388 6.171
VGG ImageNet1 5.522 2.418 19.84 4.506 4.449 2.263 2.255
AlexNet ImageNet1 38.48 5.224 155.1 31.24 31.12 5.111 5.104
WRN ImageNet2 3.572 1.748 12.225 2.904 2.859 1.620 1.611
ResNet152 ImageNet2 3.571 1.459 12.242 2.883 2.845 1.369 1.364
ViT ImageNet2 9.031 7.492 25.614 7.458 7.198 6.513 6.351
VGG ImageNet2 6.001 2.460 23.368 4.948 4.898 2.321 2.315
WRN ImageNet3 3.612 1.629 11.30 2.891 2.839 1.626 1.615
ResNet152 ImageNet3 3.558 1.5821 11.65 2.956 2.894 1.480 1.473
ViT ImageNet3 9.003 7.451 25.74 7.449 7.194 6.487 6.329
VGG ImageNet3 5.943 2.462 23.16 4.906 4.857 2.323 2.316
AlexNet ImageNet3 41.06 5.773 176.4 33.58 33.49 5.643 5.641
"""
# AlexNet ImageNet1 is printed as 48.48; the paper's Tables VIII and IX and its text all say 38.48. AlexNet ImageNet2 is left
# out: its cells repeat those of ImageNet1. These two contradict the rest of their rows:
_WRONG = {("WRN", "ImageNet3", 16), ("ResNet152", "ImageNet3", 0)}

# Reading a CSD batch and training on it, seconds: Table VI less Table IX is the training, and batch * 602112 bytes come at
# 2.5 GB/s (batch sizes of Table V).
_READ_AND_TRAIN_S = {"WRN": 0.772, "ResNet152": 0.657, "ViT": 3.637, "VGG": 1.054, "AlexNet": 1.903}
_BATCH = {"WRN": 256, "ResNet152": 256, "ViT": 512, "VGG": 512, "AlexNet": 4096}
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
        return self.read_and_train_s - _BATCH[self.model] * _READ_S

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
    """All cells but those that are wrong in the paper."""
    for line in _TABLE.split("\n"):
        if not line:
            continue
        model, pipeline, *numbers = line.split()
        cpu0, cpu16, csd, _, wrr0, _, wrr16 = map(float, numbers)
        for processes, cpu, wrr in ((0, cpu0, wrr0), (16, cpu16, wrr16)):
            if (model, pipeline, processes) not in _WRONG:
                yield Cell(model, pipeline, processes, cpu, csd, wrr)
