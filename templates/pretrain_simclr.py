r"""Pretrain a ResNet without labels, by SimCLR (Chen et al., arXiv 2002.05709), under ddlp's strategies or torch's DataLoader.

    python templates/pretrain_simclr.py --small                                   # seconds, on any machine
    python templates/pretrain_simclr.py --data /imagenet --model resnet50 --strategy wrr --csd csd0 --epochs 100 \
        --amp bf16 --workers 16 --evaluate-beside --checkpoint simclr.pt
    python templates/pretrain_simclr.py --data /imagenet --strategy dataloader cpu wrr --workers 16 --epochs 2 --seeds 3

--data is a directory with train/CLASS/*.jpg and val/CLASS/*.jpg. The classes are used for the evaluation alone: top-1 by the
nearest neighbours among the train images (Wu et al., arXiv 1805.01978).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from common import AMP, flags, image_folder, no_image_folder, parse
from ddlp.sampledata import SampleDataError
from ddlp.transforms import Views
from training import Task, compare, to_device, val_loader

MODELS = ("resnet50", "resnet18", "resnet101")
BATCH_SIZES = {"resnet50": 256, "resnet18": 512, "resnet101": 128}
TEMPERATURE = 0.1  # of the loss and of the neighbours' votes; the papers' choices for ImageNet are 0.1 and 0.07
NEIGHBOURS = 20
NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def two_views(size: int) -> Views:
    """SimCLR's augmentations (its appendix A), two of each image of `size` pixels."""
    kernel = size // 20 * 2 + 1  # a tenth of the image, an odd number
    steps = [
        T.RandomResizedCrop(size),
        T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        T.RandomGrayscale(0.2),
        T.RandomApply([T.GaussianBlur(kernel, (0.1, 2.0))], p=0.5),
        T.ToTensor(),
        NORMALIZE,
    ]
    view = T.Compose(steps)
    return Views(view, view)


class SimCLR(nn.Module):
    """An encoder, and the head whose output is compared: (N, 3, H, W) to (N, `outputs`).

    Args:
        encoder: gives (N, `features`); what is kept after the pretraining.
        features: its width.
        outputs: the head's.
    """

    def __init__(self, encoder: nn.Module, features: int, outputs: int = 128) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the head's output."""
        return self.head(self.encoder(x))


def make_model(name: str, small: bool) -> SimCLR:
    """Return SimCLR with one of torchvision's ResNets; with `small` a tiny network."""
    if small:
        layers = [nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
        return SimCLR(nn.Sequential(*layers), 64, 32)
    encoder = models.get_model(name)
    width = encoder.fc.in_features
    encoder.fc = nn.Identity()
    return SimCLR(encoder, width)


def contrast(outputs: Tensor, _: Tensor) -> Tensor:
    """NT-Xent, equation 1 of SimCLR: each view has to find the other one of its image among all of the batch.

    Args:
        outputs: (2N, D): N first views, then the second views of the same images.

    Returns:
        The mean over all 2N.
    """
    directions = nn.functional.normalize(outputs.float())
    alike = directions @ directions.T / TEMPERATURE
    alike.fill_diagonal_(float("-inf"))  # nobody is its own partner
    return nn.functional.cross_entropy(alike, torch.arange(len(alike), device=alike.device).roll(len(alike) // 2))


def features(model: Any, task: Task, loader: Any, options: Any) -> tuple[Tensor, Tensor]:
    """Return (N, D) features of length 1 of a loader's images, and their N classes, on the device."""
    embeddings, classes, amp = [], [], AMP[options.amp]
    for batch in loader:
        images, labels = to_device(batch, task, torch.device(options.device))
        with torch.autocast(images.device.type, amp, enabled=amp is not None):
            encoded = model.encoder(images)
        embeddings.append(nn.functional.normalize(encoded.float()))
        classes.append(labels)
    return torch.cat(embeddings), torch.cat(classes)


def by_neighbours(model: nn.Module, task: Task, loader: Any, options: Any, *, known: Any) -> tuple[int, int]:
    """Return how many images of the loader are classified correctly by their neighbours, and how many there are.

    Args:
        model: a SimCLR in evaluation mode.
        task, loader, options: as of `training.evaluate`.
        known: the data set of the neighbours, prepared as the loader's images are.
    """
    bank, classes = features(model, task, val_loader(known, options), options)
    images, labels = features(model, task, loader, options)
    right = 0
    for some, truth in zip(images.split(1024), labels.split(1024), strict=True):
        alike, nearest = (some @ bank.T).topk(min(NEIGHBOURS, len(bank)))
        votes = torch.zeros(len(some), len(known.classes), device=some.device)
        votes.scatter_add_(1, classes[nearest], (alike / TEMPERATURE).exp())
        right += int((votes.argmax(1) == truth).sum())
    return right, len(labels)


def make_optimizer(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Return SGD with momentum. The paper's LARS is for batches of 4096."""
    return torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=1e-4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Pretrain, compare, report."""
    parser = flags(__doc__, MODELS)
    options = parse(parser, BATCH_SIZES, arguments)
    if options.model not in MODELS:
        parser.error(f"--model {options.model}: one of {', '.join(MODELS)}")
    size = 32 if options.small else 224
    plain = T.Compose([T.Resize(size * 256 // 224), T.CenterCrop(size), T.ToTensor(), NORMALIZE])
    try:
        data = image_folder(options)
        train, known = (ImageFolder(data / "train", transform) for transform in (two_views(size), plain))
        val = ImageFolder(data / "val", plain)
    except (SampleDataError, FileNotFoundError) as error:
        raise no_image_folder("pretrain_simclr", options, error) from None
    task = Task(
        template="pretrain_simclr",
        model_name=options.model + (" (small)" if options.small else ""),
        pipeline="simclr",
        train=train,
        val=val,
        model=lambda: make_model(options.model, options.small),
        optimizer=make_optimizer,
        lr=0.3 * options.batch_size / 256,  # the paper's
        loss=contrast,
        views=2,
        evaluate=partial(by_neighbours, known=known),
    )
    return compare(task, options)


if __name__ == "__main__":
    sys.exit(main())
