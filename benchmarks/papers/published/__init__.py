"""The DDLP paper's figures as printed: one CSV file a table, seconds a batch unless a column's name says otherwise.

Wei, Zhang, Pedrycz, Wang, Zhao: "Dual-pronged deep learning preprocessing on heterogeneous platforms with CPU, Accelerator
and CSD". Every number was checked digit by digit against the text, and stands here as it is printed. These are wrong:

- Table VI, AlexNet ImageNet1, cpu0: 48.48; Tables VIII and IX and the text all say 38.48.
- Table VI, AlexNet ImageNet2: the cells with 16 processes repeat those of ImageNet1, those with 0 do not fit either.
- Table VI, WRN ImageNet3 with 16 processes and ResNet152 ImageNet3 with 0 contradict the rest of their rows.
- Table VIII: AlexNet's cpu0 follows from 38.48, and the cost of its csd repeats VGG's.

table6: average time of preprocessing and training; cpu, mte and wrr with 0 and 16 extra processes. table7: the same with DALI
and 16 extra processes; tv: torchvision, dali_c and dali_g: DALI on the CPU and on the GPU, mte_d and wrr_d: with a CSD. table8:
energy (J) a batch, and cost (USD) of 100 epochs of ImageNet. table9: time in which the host's CPU and DRAM prepare. figure8:
CIFAR-10, the percentage of time saved against the CPU alone and the CSD alone. wrong: those cells of table6, and the CPU's time
where it is known.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

__all__ = ["BATCH_SIZES", "IMAGENET_IMAGES", "TABLES", "rows"]

TABLES = ("table6", "table7", "table8", "table9", "figure8", "wrong")
#: The paper's Table V.
BATCH_SIZES = {"WRN": 256, "ResNet152": 256, "ViT": 512, "VGG": 512, "AlexNet": 4096}
IMAGENET_IMAGES = 1281167


@cache
def rows(table: str) -> tuple[dict[str, str], ...]:
    """Return the lines of one of `TABLES`: text by column name. Don't change them. Raises KeyError for another name."""
    if table not in TABLES:
        raise KeyError(f"{table!r}: the paper's tables here are {', '.join(TABLES)}")
    with files(__name__).joinpath(f"{table}.csv").open() as file:
        return tuple(csv.DictReader(file))
