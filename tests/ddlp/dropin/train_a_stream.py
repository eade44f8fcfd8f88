"""A Trainer's process over a stream, started by torchrun. Writes the numbers of each step's batch to DIRECTORY/RANK.json."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.utils.data import IterableDataset

from ddlp.integrations.transformers import DDLPTrainerMixin

COUNT = 41


class Numbers(IterableDataset):
    """As dicts, shuffled anew in each epoch; it knows nothing of processes."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[Any]:
        for number in random.Random(self.epoch).sample(range(COUNT), COUNT):
            yield {"pixel_values": torch.full((2,), float(number)), "label": number}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.seen: list[list[int]] = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> Any:
        self.seen.append(labels.tolist())
        return {"loss": self.layer(pixel_values).mean()}


class StreamTrainer(DDLPTrainerMixin, transformers.Trainer):
    pass


def main() -> None:
    directory, net = Path(sys.argv[1]), Net()
    arguments = transformers.TrainingArguments(
        output_dir=str(directory / "out"), per_device_train_batch_size=4, num_train_epochs=2, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    StreamTrainer(model=net, args=arguments, train_dataset=Numbers()).train()
    (directory / f"{os.environ['RANK']}.json").write_text(json.dumps(net.seen))


if __name__ == "__main__":
    main()
