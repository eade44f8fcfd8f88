"""DDLPLoaders with accelerate and Hugging Face's Trainer, in two processes with torchrun's environment.

two_ranks.py IMAGES DIRECTORY     writes which samples came, in what order, to DIRECTORY/RANK.json

The processes are forks of this one: importing the frameworks takes most of the time.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate
import torch
import transformers
from torch import nn
from torch.utils.data import IterableDataset

from ddlp import DDLPLoader
from ddlp.integrations.transformers import DDLPTrainerMixin
from tests.ddlp.dropin.frameworks import SMALL
from tests.ddlp.dropin.small_sets import Draws, numbered
from tests.ports import free_port

EVEN, ODD = 40, 41  # the number of samples: batches of 4 in two processes leave no rest, or one
EPOCHS = 2


class Numbers(IterableDataset):
    """A stream of dicts, shuffled anew in each epoch. It knows neither its length nor that there are several processes."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for number in random.Random(self.epoch).sample(range(ODD), ODD):
            yield {"pixel_values": torch.full((2,), float(number)), "label": number}


class Counted(Numbers):
    def __len__(self) -> int:
        return ODD


class Remembers(nn.Module):
    """Keeps the labels of each step."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 1)
        self.seen: list[list[int]] = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> Any:
        self.seen.append(labels.tolist())
        return {"loss": self.layer(pixel_values.flatten(1)).mean(), "logits": labels}


def epochs(accelerator: Any, loader: DDLPLoader) -> list[list[list[int]]]:
    """Each epoch's batches. An optimizer would step with every second batch, and with an epoch's last."""
    found = []
    for _ in range(EPOCHS):
        seen, steps = [], 0
        for batch in loader:
            seen.append((batch[1] if isinstance(batch, list) else batch["label"]).tolist())
            with accelerator.accumulate():
                steps += accelerator.sync_gradients
        assert steps == -(-len(seen) // 2), (steps, len(seen))
        assert not accelerator.gradient_state.in_dataloader
        found.append(seen)
    return found


def by_accelerate(paths: list[str], directory: Path) -> dict[str, Any]:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(accelerator.process_index)  # the order may not depend on it
    found: dict[str, Any] = {}
    for strategy in ("cpu", "wrr", "mte"):
        loader = DDLPLoader(numbered(paths[:EVEN], SMALL), 4, True, strategy=strategy)
        net, prepared = accelerator.prepare(nn.Linear(1, 1), loader)
        assert prepared is loader and len(loader) == EVEN // 8
        found[f"accelerate, {strategy}"] = epochs(accelerator, loader)
        report = loader.report()
        assert report.strategy == strategy and report.samples == EVEN // 2
    for name, given in {"user code": Draws(EVEN), "stream": Numbers()}.items():
        loader = accelerator.prepare(DDLPLoader(given, 4, shuffle=name == "user code"))
        found[f"accelerate, {name}"] = epochs(accelerator, loader)
    ordered = accelerator.prepare(DDLPLoader(numbered(paths, SMALL), 4, strategy="ordered"))
    found["gathered"] = torch.cat([accelerator.gather_for_metrics(labels) for _, labels in ordered]).tolist()
    return found


def by_trainer(paths: list[str], directory: Path) -> dict[str, Any]:
    class ImageTrainer(DDLPTrainerMixin, transformers.Trainer):
        ddlp_options = dict(strategy="wrr")

    class StreamTrainer(DDLPTrainerMixin, transformers.Trainer):
        pass

    arguments = transformers.TrainingArguments(
        output_dir=str(directory / "out"), per_device_train_batch_size=4, per_device_eval_batch_size=4,
        num_train_epochs=EPOCHS, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no",
        remove_unused_columns=False,
    )  # fmt: skip
    images, stream = Remembers(3 * 8 * 8), Remembers(2)
    trainer = ImageTrainer(model=images, args=arguments, train_dataset=numbered(paths[:EVEN], SMALL))
    trainer.train()
    found = {"Trainer": [images.seen[:5], images.seen[5:]]}
    predicted = trainer.predict(numbered(paths, SMALL))
    found["predicted"] = predicted.predictions.tolist()
    assert predicted.label_ids.tolist() == found["predicted"]
    StreamTrainer(model=stream, args=arguments, train_dataset=Counted()).train()
    found["Trainer, stream"] = [stream.seen[:6], stream.seen[6:]]
    return found


def main() -> None:
    torch.set_num_threads(1)
    images, directory = map(Path, sys.argv[1:])
    paths = sorted(map(str, images.rglob("*.jpg")))
    found: dict[str, Any] = {}
    for run in (by_accelerate, by_trainer):
        found.update(run(paths, directory))
    (directory / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    os.environ.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", GROUP_RANK="0", TORCHELASTIC_RUN_ID="none")
    faulthandler.cancel_dump_traceback_later()  # of tests/forks.py: a fork lacks its thread, and would wait for it at the end
    ranks = []
    for rank in range(2):
        ranks.append(os.fork())
        if not ranks[-1]:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            main()
            sys.exit()
    sys.exit(any([os.waitpid(one, 0)[1] for one in ranks]))
