r"""How much longer preprocessing takes than training: the paper's Figure 1, for 22 torchvision models, over num_workers.

    python templates/bottleneck_study.py --small                                  # seconds: 2 models, 0 and 1 workers
    python templates/bottleneck_study.py --data /imagenet --amp bf16 --seeds 3    # on a GPU: about 10 minutes a seed
    python templates/bottleneck_study.py --data /imagenet --strategy cpu          # the same with ddlp's own host side

Preprocessing is reading, preprocessing and transfer to the accelerator: a loader is gone through, its batches sent there, and
nothing trained. Training is forward, backward and update on a batch that is there already. Both are seconds a batch; above a
ratio of 1 training waits for data. The first batches of both are not counted. The paper names none of its 19 models: these
are ours, with three transformers of today. Its pipeline is ImageNet1: RandomResizedCrop(224), flip, ToTensor, Normalize.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler
from torchvision import models
from torchvision.datasets import ImageFolder
from tqdm import tqdm

from common import AMP, flags, image_folder, parse, turns, write_pages, write_report
from csd_engine.errors import EngineError
from ddlp import DDLPError
from ddlp.sampledata import SampleDataError
from ddlp.stats.words import aligned
from ddlp.tryout.rounds import rotated
from train_imagenet import pipeline
from training import Task, make_loader, noise, start, to_device

MODELS = (
    "alexnet", "vgg16", "vgg19", "resnet18", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "wide_resnet101_2",
    "resnext50_32x4d", "densenet121", "densenet169", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_large",
    "shufflenet_v2_x1_0", "mnasnet1_0", "efficientnet_b0", "vit_b_16", "swin_t", "swin_v2_s", "maxvit_t",
)  # fmt: skip
SMALL_MODELS = ("shufflenet_v2_x0_5", "squeezenet1_1")
WORKERS = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32)


class Enough:
    """Return a part of the data set that is large enough for so many batches. If the set is small, samples repeat."""

    def __init__(self, batches: int, batch_size: int) -> None:
        self._samples = batches * batch_size

    def __call__(self, dataset: Any, seed: int) -> RandomSampler:
        generator = torch.Generator().manual_seed(seed)
        return RandomSampler(dataset, replacement=True, num_samples=self._samples, generator=generator)


def preprocessing_s(loader: DataLoader, task: Task, options: Any) -> float:
    """Return the seconds that a batch takes from the files to the accelerator, while nothing trains."""
    device = torch.device(options.device)
    batches = iter(loader)
    for _ in range(options.ahead):  # workers start, and the batches that they prefetch are used up
        to_device(next(batches), task, device)
    _wait(device)
    started = time.perf_counter()
    count = 0
    for count, batch in enumerate(batches, 1):  # noqa: B007
        to_device(batch, task, device)
    _wait(device)
    return (time.perf_counter() - started) / count


def training_s(task: Task, options: Any, seed: int) -> float:
    """Return the seconds that forward, backward and update of a batch take."""
    device = torch.device(options.device)
    training = start(task, options, seed, options.steps + 3, lambda model: model)
    training.model.train()
    images, labels = noise(task, options)
    for step in range(options.steps + 3):  # three to warm up
        if step == 3:
            _wait(device)
            started = time.perf_counter()
        training.step(images, labels, AMP[options.amp])
    _wait(device)
    return (time.perf_counter() - started) / options.steps


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def study(options: Any, train: ImageFolder, classes: int) -> tuple[dict[int, list[float]], dict[str, list[float]]]:
    """Return the seconds a batch of preprocessing by number of workers, and of training by model; one figure a seed."""
    preparing: dict[int, list[float]] = {workers: [] for workers in options.num_workers}
    training: dict[str, list[float]] = {name: [] for name in options.models}
    count = options.seeds * (len(preparing) + len(training))
    with tqdm(total=count, unit="", mininterval=0.2 if sys.stderr.isatty() else 5, disable=None) as bar:
        for seed in range(options.seeds):
            for workers in rotated(options.num_workers, seed):
                bar.set_description(f"preprocessing, {workers} workers")
                options.workers = workers
                # DataLoader works on 2 batches a worker ahead, ddlp on fewer. What is begun before the clock starts and what
                # idles before it stops are about N / 2 batches each: small beside what is counted.
                options.ahead = max(2 * workers, 1) + 1
                counted = max(options.batches, 2 * workers)
                task = _task(options, train, options.models[0], classes, options.ahead + counted)
                preparing[workers].append(preprocessing_s(make_loader(task, options, options.strategy[0], seed), task, options))
                bar.update()
            for name in rotated(options.models, seed):
                bar.set_description(f"training {name}")
                training[name].append(training_s(_task(options, train, name, classes), options, seed))
                bar.update()
    return preparing, training


def _task(options: Any, train: ImageFolder, name: str, classes: int, batches: int = 1) -> Task:
    return Task(
        template="bottleneck_study",
        model_name=name,
        pipeline="imagenet1",
        train=train,
        val=train,
        model=lambda: models.get_model(name, num_classes=classes),
        optimizer=lambda model, lr: torch.optim.SGD(model.parameters(), lr, momentum=0.9),
        lr=1e-3,
        channels_last=not name.startswith("vit"),
        sampler=Enough(batches, options.batch_size),
    )


def table(preparing: dict[int, list[float]], training: dict[str, list[float]]) -> str:
    """Return a table of the ratios by model (lines) and number of workers (columns), with both times."""
    rows = [["preprocessing to training, by num_workers", "training s", *map(str, preparing)],
            ["preprocessing s", "", *(f"{statistics.mean(s):.4f}" for s in preparing.values())]]  # fmt: skip
    for name, seconds in training.items():
        own = statistics.mean(seconds)
        rows.append([name, f"{own:.4f}", *(f"{statistics.mean(s) / own:.2f}" for s in preparing.values())])
    return "\n".join(aligned(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, report."""
    parser = flags(__doc__, ["all", *MODELS], strategies=("dataloader",))
    parser.add_argument("--num-workers", type=int, nargs="+", metavar="N", help=f"in place of --workers (default {WORKERS})")
    parser.add_argument("--batches", type=int, metavar="N", help="preprocess so many, or 2 a worker (default: 20)")
    parser.add_argument("--steps", type=int, metavar="N", help="training steps of each model (default: 20)")
    options = parse(parser, {}, arguments)
    if len(options.strategy) > 1:
        parser.error("--strategy: one")
    options.models = (SMALL_MODELS if options.small else MODELS) if options.model == "all" else (options.model,)
    options.num_workers = options.num_workers or ((0, 1) if options.small else WORKERS)
    options.batches, options.steps = (n or (3 if options.small else 20) for n in (options.batches, options.steps))
    try:
        train = ImageFolder(image_folder(options) / "train", pipeline("imagenet1", 64 if options.small else 224))
    except (SampleDataError, FileNotFoundError) as error:
        raise SystemExit(f"bottleneck_study: {error}") from None
    try:
        preparing, training = study(options, train, 10 if options.small else 1000)
    except KeyboardInterrupt:
        print("\nstopped; nothing is written", file=sys.stderr)
        return 130
    except (DDLPError, EngineError) as error:  # a device can't be reached: a ratio needs both times
        print(f"bottleneck_study: {error}", file=sys.stderr)
        return 1
    print(table(preparing, training))
    figures = {"preprocessing_s": preparing, "training_s": training}
    path = write_report("bottleneck_study", options, [], figures=figures)
    print(f"report: {path}")
    write_pages(options, turns(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
