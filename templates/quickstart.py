"""Train the same model on the same images under each of DDLPLoader's strategies, and compare.

A complete training script to read and to copy from; `train_epoch` is an ordinary PyTorch loop. The one line that
differs from any other script is the loader:

    loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=2)
    loader = DDLPLoader(dataset, batch_size=32, shuffle=True, num_workers=2, strategy="wrr")

Strategies: cpu - the host's workers make all batches; csd - the engine makes all; mte - both, first the host's
batches, then the engine's; wrr - both, whichever has a batch ready. Without csd= the loader starts the engine on this
machine, so nothing else is needed to try it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

from csd_engine.errors import EngineError
from ddlp import DDLPError, DDLPLoader
from ddlp.observe import progress
from ddlp.sampledata import SampleDataError, make_imagefolder

NORMALIZE = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
TRAIN = transforms.Compose(
    [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(), NORMALIZE]
)
EVALUATE = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(), NORMALIZE])


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One strategy's run: sums over its epochs, rates and bound of the last."""

    strategy: str
    epochs: int
    samples: int
    seconds: float
    batches_cpu: int
    batches_csd: int
    waiting_s: float
    host_cpu_s: float  # 0: not measured (transforms of your own, which torch's workers run)
    rate_cpu: float | None  # images/s of the host alone
    rate_csd: float | None  # images/s of the engine alone
    bound_s: float | None
    loss: float  # mean over the last epoch
    accuracy: float  # on val, 0 to 1


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    cores = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data",
        type=Path,
        help="an ImageFolder data set with train/ and val/; without it one is made in data/ from sample photographs",
    )
    parser.add_argument("--images", type=int, default=1500, help="train images to make (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=1, help="epochs under each strategy (default %(default)s)")
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
        default=["cpu", "csd", "mte", "wrr"],
        choices=["cpu", "csd", "mte", "wrr", "ordered"],
        metavar="NAME",
        help="which, in this order: %(choices)s (default: cpu csd mte wrr)",
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
    return parser.parse_args()


def make_model(name: str, classes: int, device: torch.device) -> nn.Module:
    """A torchvision model from scratch; the same weights for every strategy."""
    torch.manual_seed(0)
    return models.get_model(name, num_classes=classes).to(device, memory_format=torch.channels_last)


def shrink(images: torch.Tensor, size: int) -> torch.Tensor:
    """Scale a batch down to `size` x `size` for the model, where it trains on a CPU."""
    images = images.contiguous(memory_format=torch.channels_last)
    if images.shape[-1] == size:
        return images
    return nn.functional.interpolate(images, size=size, mode="area")


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, device: torch.device, size: int, title: str
) -> float:
    """Train for one epoch; returns the mean loss."""
    model.train()
    total, seen = torch.zeros((), device=device), 0
    for images, labels in progress(loader, title):
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(shrink(images, size)), labels)
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(labels)
        seen += len(labels)
    return total.item() / seen  # .item() waits for the GPU: the epoch's time ends after its last step


@torch.inference_mode()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device, size: int) -> float:
    """Return the share of images that the model classifies correctly."""
    model.eval()
    right = seen = 0
    for images, labels in loader:
        predicted = model(shrink(images.to(device), size)).argmax(1).cpu()
        right += int((predicted == labels).sum())
        seen += len(labels)
    return right / seen


def run(strategy: str, train: ImageFolder, val: ImageFolder, options: argparse.Namespace) -> Outcome:
    """Train a fresh model under one strategy and evaluate it."""
    device = torch.device(options.device)
    model = make_model(options.model, len(train.classes), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    step_once(model, options.batch_size, len(train.classes), device, options.train_size)
    loader: DDLPLoader = DDLPLoader(
        train,
        batch_size=options.batch_size,
        shuffle=True,
        num_workers=options.workers,
        pin_memory=device.type == "cuda",
        strategy=strategy,
        csd=options.csd if strategy != "cpu" else None,
        seed=0,
    )
    reports, seconds, loss = [], 0.0, 0.0
    for epoch in range(options.epochs):
        started = time.perf_counter()
        loss = train_epoch(
            model, optimizer, loader, device, options.train_size, f"{strategy:>7} epoch {epoch + 1}/{options.epochs}"
        )
        seconds += time.perf_counter() - started
        reports.append(loader.report())
    # No strategy, no csd: the host alone, in the data set's order.
    val_loader: DDLPLoader = DDLPLoader(val, batch_size=options.batch_size, num_workers=options.workers)
    return Outcome(
        strategy,
        options.epochs,
        sum(report.samples for report in reports),
        seconds,
        sum(report.batches_cpu for report in reports),
        sum(report.batches_csd for report in reports),
        sum(report.waiting_s for report in reports),
        sum(report.host_cpu_s for report in reports),
        reports[-1].rate_cpu,
        reports[-1].rate_csd,
        reports[-1].bound_s,
        loss,
        evaluate(model, val_loader, device, options.train_size),
    )


def step_once(model: nn.Module, batch_size: int, classes: int, device: torch.device, size: int) -> None:
    """One forward and backward pass on noise: the first one allocates and tunes, which no strategy should pay for."""
    images = torch.randn(batch_size, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch_size, device=device) % classes
    nn.functional.cross_entropy(model(images), labels).backward()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def table(outcomes: list[Outcome]) -> str:
    """The comparison, one line a strategy."""
    head = (
        "strategy",
        "s/epoch",
        "images/s",
        "from CPU",
        "from CSD",
        "waiting s",
        "host CPU s",
        "bound s",
        "loss",
        "acc",
    )
    rows = [
        (
            outcome.strategy,
            f"{outcome.seconds / outcome.epochs:.2f}",
            f"{outcome.samples / outcome.seconds:.0f}",
            f"{outcome.batches_cpu / outcome.epochs:.0f}",
            f"{outcome.batches_csd / outcome.epochs:.0f}",
            f"{outcome.waiting_s / outcome.epochs:.2f}",
            f"{outcome.host_cpu_s / outcome.epochs:.2f}" if outcome.host_cpu_s else "-",
            "-" if outcome.bound_s is None else f"{outcome.bound_s:.2f}",
            f"{outcome.loss:.2f}",
            f"{outcome.accuracy:.0%}",
        )
        for outcome in outcomes
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def reading(outcomes: list[Outcome], options: argparse.Namespace) -> str:
    """What the table's columns mean, and what limits the epoch on this machine."""
    cores = len(os.sched_getaffinity(0))
    on_cpu = torch.device(options.device).type == "cpu"
    lines = [
        "s/epoch: wall time; all counts and times are per epoch. from CPU, from CSD: batches by who prepared them.",
        "waiting: the training loop had no batch. host CPU: processor seconds of the host's workers and of bringing the",
        "  engine's batches in; training is not part of it.",
        "bound: n / (r_cpu + r_csd), the least time in which both sides together can prepare the epoch's n images,",
        "  each at the speed measured for it.",
    ]
    rate_cpu = next((outcome.rate_cpu for outcome in reversed(outcomes) if outcome.rate_cpu), None)
    rate_csd = next((outcome.rate_csd for outcome in reversed(outcomes) if outcome.rate_csd), None)
    if rate_cpu and rate_csd:
        both = rate_cpu + rate_csd
        lines.append(f"Measured: host {rate_cpu:.0f} images/s, engine {rate_csd:.0f}; together {both:.0f} at most.")
    host_only = next((outcome for outcome in outcomes if outcome.strategy == "cpu"), None)
    if host_only is not None:
        share = host_only.waiting_s / host_only.seconds
        limit = " Little here: the training step is the limit." if share < 0.15 else ""
        lines.append(
            f"Under cpu, training waited for data {share:.0%} of the time; at most that much can be saved by preparing "
            f"faster.{limit}"
        )
    if options.csd is None:
        shared = f"the {cores} cores of this machine with the host's workers" + (" and with training" if on_cpu else "")
        lines += [
            f"No device was given, so the engine shared {shared}.",
            "  What you see is that it works and who did what, not what a device gains: that takes cores of its own,",
            "  in the storage, on a DPU or on any other machine (--csd ADDRESS). On few cores mte and wrr can't be",
            "  faster here than cpu, and csd alone has one engine do the work of all the host's workers.",
            "  python -m ddlp bench overlap gives each side a core of its own and measures the gain.",
        ]
    if options.train_size < 224:
        side = options.train_size
        lines.append(
            f"The model saw the 224x224 batches scaled down to {side}x{side} (--train-size): on a CPU, training at "
            "full size would hide everything else."
        )
    return "\n".join(lines)


def main() -> int:
    """Make the data set, run the strategies, print the comparison."""
    options = arguments()
    on_cpu = torch.device(options.device).type == "cpu"
    options.train_size = min(options.train_size or (64 if on_cpu else 224), 224)
    if on_cpu:
        # Half of the cores train, the others prepare; else torch's threads crowd the workers out.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    data = options.data
    if data is None:
        data = Path(__file__).resolve().parent.parent / "data" / f"photos-{options.images}"
        try:
            print(make_imagefolder(data, options.images))
        except SampleDataError as error:
            print(f"quickstart: {error}", file=sys.stderr)
            return 1
    train, val = ImageFolder(data / "train", TRAIN), ImageFolder(data / "val", EVALUATE)
    print(f"{options.model} on {options.device}, batches of {options.batch_size}, {options.workers} host workers")
    outcomes = []
    for strategy in options.strategies:
        try:
            outcomes.append(run(strategy, train, val, options))
        except (DDLPError, EngineError) as error:  # csd, with a transform of your own; a device that is not there
            print(f"quickstart: --strategies {strategy}: {error}", file=sys.stderr)
    if not outcomes:
        return 1
    print(f"\n{table(outcomes)}\n\n{reading(outcomes, options)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
