r"""Train the DDLP paper's ImageNet models with its three pipelines, under DDLPLoader's strategies or torch's DataLoader.

    python templates/train_imagenet.py --small                                    # seconds, on any machine
    python templates/train_imagenet.py --data /imagenet --model resnet152 --strategy dataloader cpu wrr \
        --workers 16 --amp bf16 --epochs 2 --seeds 3 --csd csd0                   # images/s, at full size
    python templates/train_imagenet.py --data /imagenet --model resnet152 --strategy wrr --epochs 90 \
        --amp bf16 --csd csd0 --checkpoint resnet152.pt                           # a whole training

--data is a directory with train/CLASS/*.jpg and val/CLASS/*.jpg. The report goes to --report.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torchvision import models
from torchvision import transforms as T
from torchvision.datasets import ImageFolder
from torchvision.models.resnet import Bottleneck, ResNet

from common import flags, image_folder, no_image_folder, parse
from ddlp.sampledata import SampleDataError
from training import Task, compare

# The paper's name, and torchvision's. Of ViT and VGG the paper does not name the variant.
MODELS = {
    "wide_resnet101_2": "WRN",
    "resnet152": "ResNet152",
    "vit_b_16": "ViT",
    "vgg16": "VGG",
    "alexnet": "AlexNet",
}
BATCH_SIZES = {"wide_resnet101_2": 256, "resnet152": 256, "vit_b_16": 512, "vgg16": 512, "alexnet": 4096}  # its Table V
PIPELINES = ("imagenet1", "imagenet2", "imagenet3")
NORMALIZE = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def pipeline(name: str, size: int) -> T.Compose:
    """The paper's pipelines (Table IV), for images of `size` pixels instead of its 224."""
    geometry: list[Any]
    if name == "imagenet1":
        geometry = [T.RandomResizedCrop(size), T.RandomHorizontalFlip()]
    else:
        geometry = [T.Resize(size * {"imagenet2": 256, "imagenet3": 232}[name] // 224), T.CenterCrop(size)]
    return T.Compose([*geometry, T.ToTensor(), NORMALIZE])


def make_model(name: str, classes: int, small: bool) -> nn.Module:
    """Return an untrained torchvision model; with `small` one of its family for 32x32 pixels (AlexNet: 64x64)."""
    if not small:
        return models.get_model(name, num_classes=classes)
    if name == "vit_b_16":
        return models.VisionTransformer(32, 16, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=classes)
    if name in ("wide_resnet101_2", "resnet152"):
        model = ResNet(Bottleneck, [1, 1, 1, 1], width_per_group=128 if "wide" in name else 64)
        model.layer2, model.layer3, model.layer4 = nn.Identity(), nn.Identity(), nn.Identity()
        model.fc = nn.Linear(256, classes)
        return model
    model = models.get_model(name, num_classes=classes)  # vgg16, alexnet: nearly all of their weights are in the classifier
    model.avgpool, model.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear({"vgg16": 512, "alexnet": 256}[name], classes)
    return model


def make_optimizer(name: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Return AdamW for ViT, SGD with momentum for the others."""
    if name == "vit_b_16":
        return torch.optim.AdamW(model.parameters(), lr, weight_decay=0.3)
    return torch.optim.SGD(model.parameters(), lr, momentum=0.9, nesterov=True, weight_decay=1e-4)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that only this template has."""
    parser.add_argument("--pipeline", choices=PIPELINES, default="imagenet1", help="the paper's (default %(default)s)")


def make_task(template: str, options: Any) -> Task:
    """Return the task. Raises SystemExit with a line for the user if there is no such data set or model."""
    if options.model not in MODELS:
        raise SystemExit(f"{template}: --model {options.model}: one of {', '.join(MODELS)}")
    size = (64 if options.model == "alexnet" else 32) if options.small else 224  # AlexNet needs 64
    try:
        data = image_folder(options)
        train = ImageFolder(data / "train", pipeline(options.pipeline, size))
        val = ImageFolder(data / "val", pipeline("imagenet2", size))
    except (SampleDataError, FileNotFoundError) as error:
        raise no_image_folder(template, options, error) from None
    # Goyal et al. (arXiv 1706.02677): 0.1 at a batch of 256, in proportion to the batch. AlexNet and VGG have no
    # normalisation and diverge with it.
    per_256 = {"vit_b_16": 5e-4, "vgg16": 0.01, "alexnet": 0.01}.get(options.model, 0.1)
    return Task(
        template=template,
        model_name=options.model + (" (small)" if options.small else ""),
        pipeline=options.pipeline,
        train=train,
        val=val,
        model=lambda: make_model(options.model, len(train.classes), options.small),
        optimizer=lambda model, lr: make_optimizer(options.model, model, lr),
        lr=per_256 * options.batch_size / 256,
        paper_model=MODELS[options.model],
        channels_last=options.model != "vit_b_16",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, compare, report."""
    parser = flags(__doc__, list(MODELS))
    add_flags(parser)
    options = parse(parser, BATCH_SIZES, arguments)
    return compare(make_task("train_imagenet", options), options)


if __name__ == "__main__":
    sys.exit(main())
