"""See what DDLPLoader gains on this machine, then train a model with it.

First a comparison: torch's DataLoader and each of DDLPLoader's strategies, in turn, on the same images, while training waits
for data. Then a real model learns from these images with either loader. What follows is a complete
training script to read and to copy from; `train_epoch` is an ordinary PyTorch loop. The one line that differs from any other
script is the loader:

    loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2)
    loader = DDLPLoader(dataset, batch_size=32, shuffle=True, num_workers=2)

Strategies: cpu - the host's workers make all batches; csd - an engine, on a computer beside the storage, makes all; mte -
both, first the host's batches, then the engine's; wrr - both, whichever has a batch ready. Without csd= the loader starts the
engine on this machine, so nothing else is needed to try it. `ddlp try FOLDER` makes the comparison with images of your own.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

from csd_engine.errors import EngineError
from ddlp import DDLPError, DDLPLoader, decode
from ddlp.observe import progress
from ddlp.process.output_file import new_directory
from ddlp.sampledata import SampleDataError, make_imagefolder
from ddlp.schedule.strategies import STRATEGIES
from ddlp.stats.words import aligned
from ddlp.tryout.compare import compare
from ddlp.tryout.text import text, write_page

NORMALIZE = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TRAIN = transforms.Compose(
    [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(), NORMALIZE]
)

LOSSES = (
    "The loss is the mean over the last epoch. Each loader shuffles by numbers of its own, so losses differ a little,\n"
    "as they do from seed to seed. A sample's bits are torchvision's under either."
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One training: sums over its epochs, and the loss of the last epoch."""

    strategy: str
    samples: int
    seconds: float
    batches_cpu: int  # those that the host has prepared
    batches_csd: int
    loss: float  # mean over the last epoch


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data",
        type=Path,
        help="an ImageFolder data set with train/; without it one is made in data/ from sample photographs",
    )
    parser.add_argument("--images", type=int, default=1500, help="train images to make (default %(default)s)")
    parser.add_argument(
        "--seconds",
        type=float,
        help="how long the comparison takes, about (default: 60, or 4 for each 100 images if that is less)",
    )
    parser.add_argument("--epochs", type=int, default=1, help="epochs of each training (default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="images a step (default %(default)s)")
    parser.add_argument(
        "--workers",
        type=int,
        default=max(1, min(8, cores - 1)),
        help="num_workers, the host's threads that prepare batches (default here: %(default)s)",
    )
    parser.add_argument(
        "--strategies",
        nargs="+",
        default=["dataloader", "wrr"],
        choices=["dataloader", *STRATEGIES],
        metavar="NAME",
        help="what the model is trained with, in this order: %(choices)s; dataloader is torch's (default: dataloader wrr)",
    )
    parser.add_argument("--csd", help="address of an engine elsewhere (default: the loader starts one on this machine)")
    parser.add_argument("--model", default="shufflenet_v2_x0_5", help="any of torchvision.models (default %(default)s)")
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="what trains: cuda, cuda:1, cpu (default here: %(default)s)",
    )
    parser.add_argument(
        "--train-size",
        type=int,
        metavar="PIXELS",
        help="side of the images that the model sees, at most 224 (default: 224 on a GPU, 64 on a CPU). The loader "
        "prepares 224x224 in any case; the smaller size makes the training step cheap, as an accelerator would",
    )
    parser.add_argument("--out", type=Path, help="where the page goes (default: runs/quickstart-DATE)")
    return parser.parse_args()


def make_model(name: str, classes: int, device: torch.device) -> nn.Module:
    """Return a torchvision model with random weights, the same for every strategy."""
    torch.manual_seed(0)
    return models.get_model(name, num_classes=classes).to(device, memory_format=torch.channels_last)


def shrink(images: torch.Tensor, size: int) -> torch.Tensor:
    """Scale a batch down to `size` x `size` pixels if the model trains on a CPU."""
    images = images.contiguous(memory_format=torch.channels_last)
    if images.shape[-1] == size:
        return images
    return nn.functional.interpolate(images, size=size, mode="area")


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterable, device: torch.device, size: int) -> float:
    """Train for one epoch; returns the mean loss."""
    model.train()
    total, seen = torch.zeros((), device=device), 0
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(shrink(images, size)), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(labels)
        seen += len(labels)
    return total.item() / seen  # .item() waits for the GPU: the epoch's time ends after its last step


def make_loader(strategy: str, train: ImageFolder, options: argparse.Namespace) -> DataLoader:
    """Return the loader for training."""
    ordinary: dict[str, Any] = {
        "batch_size": options.batch_size,
        "shuffle": True,
        "num_workers": options.workers,
        "pin_memory": torch.device(options.device).type == "cuda",
    }
    if strategy == "dataloader":
        return DataLoader(train, **ordinary, worker_init_fn=decode.not_here)  # as it is where ddlp is not used
    csd = options.csd if STRATEGIES[strategy].uses_device else None
    return DDLPLoader(train, **ordinary, strategy=strategy, csd=csd, seed=0)


def run(strategy: str, train: ImageFolder, options: argparse.Namespace) -> Outcome:
    """Train a fresh model."""
    device = torch.device(options.device)
    model = make_model(options.model, len(train.classes), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    step_once(model, options.batch_size, len(train.classes), device, options.train_size)
    loader = make_loader(strategy, train, options)
    seconds, batches_cpu, batches_csd, loss = 0.0, 0, 0, 0.0
    for epoch in range(options.epochs):
        bar = progress(loader, f"{strategy:>10} epoch {epoch + 1}/{options.epochs}")
        started = time.perf_counter()
        loss = train_epoch(model, optimizer, bar, device, options.train_size)
        seconds += time.perf_counter() - started
        if isinstance(loader, DDLPLoader):
            report = loader.report()
            batches_cpu += report.batches_cpu
            batches_csd += report.batches_csd
        else:
            batches_cpu += len(loader)
    samples = options.epochs * len(train)
    return Outcome(strategy, samples, seconds, batches_cpu, batches_csd, loss)


def step_once(model: nn.Module, batch_size: int, classes: int, device: torch.device, size: int) -> None:
    """Run one forward and backward pass on noise. The first one allocates and tunes, and no strategy should pay for that."""
    images = torch.randn(batch_size, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch_size, device=device) % classes
    nn.functional.cross_entropy(model(images), labels).backward()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def table(outcomes: list[Outcome], on_cpu: bool) -> str:
    """Return a table with a line for each training."""
    head = ["trained with", "by the host", "by the engine", "loss", "images/s"]
    rows = [
        [
            outcome.strategy,
            f"{outcome.batches_cpu} batches",
            f"{outcome.batches_csd} batches" if outcome.batches_csd else "-",
            f"{outcome.loss:.2f}",
            f"{outcome.samples / outcome.seconds:.0f}",
        ]
        for outcome in outcomes
    ]
    shown = slice(0, -1 if on_cpu else None)  # on a CPU training is what takes the time, and takes it from the loader's workers
    lines = [head[shown], *(row[shown] for row in rows)]
    return "\n".join(aligned(lines))


def main() -> int:
    """Make the data set, compare the loaders, train with some of them."""
    options = arguments()
    try:
        return quickstart(options)
    except (SampleDataError, DDLPError) as error:
        print(f"quickstart: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("quickstart: stopped", file=sys.stderr)
        return 130


def quickstart(options: argparse.Namespace) -> int:
    """Run everything and return the exit status. Raises SampleDataError, DDLPError."""
    data = options.data
    if data is None:
        data = Path(__file__).resolve().parent.parent / "data" / f"photos-{options.images}"
        make_imagefolder(data, options.images)
        print(f"{data}: {options.images} images made of sample photographs")
    train = ImageFolder(data / "train", TRAIN)
    out = options.out or new_directory("quickstart")
    comparison = compare(
        train,
        batch_size=options.batch_size,
        seconds=options.seconds or min(60.0, 0.04 * len(train)),
        csd=options.csd,
        record=out / "wrr",
    )
    print(f"\n{text(comparison)}\n")
    page = write_page(comparison, out)

    on_cpu = torch.device(options.device).type == "cpu"
    options.train_size = min(options.train_size or (64 if on_cpu else 224), 224)
    if on_cpu:
        # Half of the cores train, the others prepare; else torch's threads crowd the workers out.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    side = f"at {options.train_size}x{options.train_size}"
    print(f"Now a real model, on all {len(train)} images {side}: {options.model} on {options.device}")
    outcomes = []
    for strategy in options.strategies:
        try:
            outcomes.append(run(strategy, train, options))
        except (DDLPError, EngineError) as error:  # csd with a transform of your own, or a device that can't be reached
            print(f"quickstart: --strategies {strategy}: {error}", file=sys.stderr)
    if not outcomes:
        return 1
    print(f"\n{table(outcomes, on_cpu)}\n\n{LOSSES}\n", page, "script to copy from: templates/quickstart.py", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
