r"""Train a Wide ResNet with Cutout, or a ViT, on CIFAR-10 under DDLPLoader's strategies or torch's DataLoader.

    python templates/train_cifar10.py --small                                     # seconds, on any machine
    python templates/train_cifar10.py --data data/cifar10 --model wrn-28-10 --epochs 200 --amp bf16 --strategy wrr \
        --csd csd0 --checkpoint wrn.pt
    python templates/train_cifar10.py --data data/cifar10 --model wrn-16-8 --strategy dataloader cpu csd mte wrr \
        --workers 16 --epochs 3 --seeds 5                                         # for the paper's Figure 8

--data is the directory that holds cifar-10-batches-py (torchvision.datasets.CIFAR10(root=..., download=True) fetches it).
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchvision import transforms as T
from torchvision.datasets import CIFAR10
from torchvision.models import VisionTransformer, vit_b_16

from common import cifar_folder, flags, parse
from ddlp.sampledata import SampleDataError, cifar10_checksums
from ddlp.transforms import Cutout
from training import Task, compare

# The paper's WRN18 (batches of 4096) is no depth of the Wide ResNets' 6n + 4; wrn-16-8 is the nearest.
MODELS = ("wrn-28-10", "wrn-16-8", "vit_b_16")
BATCH_SIZES = {"wrn-28-10": 128, "wrn-16-8": 4096, "vit_b_16": 256}
NORMALIZE = T.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def pipeline(name: str, train: bool, size: int) -> T.Compose:
    """The paper's pipelines (Table IV): `cifar10_gpu` at 32 pixels, `cifar10_dsa` at `size` (224 there)."""
    if name == "cifar10_gpu":
        # ddlp's Cutout travels to a device. 16 pixels: DeVries and Taylor's best for CIFAR-10; the paper gives no size.
        flip, cut = [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip()], [Cutout(16)]
        return T.Compose([*flip, T.ToTensor(), NORMALIZE, *cut] if train else [T.ToTensor(), NORMALIZE])
    crop = T.RandomResizedCrop(size, scale=(0.05, 1.0)) if train else T.Resize((size, size))
    return T.Compose([crop, T.ToTensor(), NORMALIZE])


class _Block(nn.Module):
    """Two 3x3 convolutions, each behind its BatchNorm and ReLU; the shortcut has a 1x1 one where the shape changes."""

    def __init__(self, inward: int, outward: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inward), nn.Conv2d(inward, outward, 3, stride, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(outward), nn.Conv2d(outward, outward, 3, 1, 1, bias=False)
        changes = stride != 1 or inward != outward
        self.shortcut = nn.Conv2d(inward, outward, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(x))
        short = x if self.shortcut is None else self.shortcut(y)
        return short + self.conv2(torch.relu(self.norm2(self.conv1(y))))


class WideResNet(nn.Module):
    """WRN-depth-width (Zagoruyko and Komodakis, arXiv 1605.07146, without dropout) for (N, 3, 32, 32).

    Args:
        depth: 6n + 4, e.g. 28: n blocks in each of three groups.
        width: the groups have 16, 32 and 64 channels times this.
        classes: outputs.

    Raises:
        ValueError: another depth.
    """

    def __init__(self, depth: int, width: int, classes: int = 10) -> None:
        super().__init__()
        n, rest = divmod(depth - 4, 6)
        if rest or n < 1:
            raise ValueError(f"a Wide ResNet of depth {depth}: it must be 6n + 4: 10, 16, 22, 28, 34, 40")
        channels, layers = 16, [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
        for group, outward in enumerate((16 * width, 32 * width, 64 * width)):
            for k in range(n):
                layers.append(_Block(channels, outward, 2 if group and k == 0 else 1))  # type: ignore[arg-type]
                channels = outward
        self.layers, self.norm, self.fc = nn.Sequential(*layers), nn.BatchNorm2d(channels), nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, classes) logits."""
        return self.fc(torch.relu(self.norm(self.layers(x))).mean((2, 3)))


def make_model(name: str, small: bool, size: int) -> nn.Module:
    """wrn-DEPTH-WIDTH or vit_b_16; with `small` WRN-10-1, or a tiny ViT."""
    if name == "vit_b_16" and small:
        return VisionTransformer(size, 8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=10)
    if name == "vit_b_16":
        return vit_b_16(num_classes=10, image_size=size)
    depth, width = (10, 1) if small else map(int, name.split("-")[1:])
    return WideResNet(depth, width)


def make_optimizer(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Return AdamW for ViT, SGD with momentum for Wide ResNets (their authors' decay)."""
    if isinstance(model, VisionTransformer):
        return torch.optim.AdamW(model.parameters(), lr, weight_decay=0.05)
    return torch.optim.SGD(model.parameters(), lr, momentum=0.9, nesterov=True, weight_decay=5e-4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, compare, report."""
    parser = flags(__doc__, MODELS)
    parser.add_argument("--pipeline", choices=["cifar10_gpu", "cifar10_dsa"], help="the paper's (default: cifar10_dsa for ViT)")
    options = parse(parser, BATCH_SIZES, arguments)
    vit = options.model == "vit_b_16"
    if not vit and not re.fullmatch(r"wrn-(10|16|22|28|34|40)-[1-9]\d*", options.model):
        parser.error(f"--model {options.model}: vit_b_16, or wrn-DEPTH-WIDTH with a depth of 6n + 4, e.g. {MODELS[0]}")
    options.pipeline = options.pipeline or ("cifar10_dsa" if vit else "cifar10_gpu")
    size = 32 if options.small or options.pipeline == "cifar10_gpu" else 224
    try:
        data = cifar_folder(options)
        # Files that were made of sample photographs have other checksums than the original's.
        with cifar10_checksums(data) if options.data is None else contextlib.nullcontext():
            train, val = (CIFAR10(data, part, pipeline(options.pipeline, part, size)) for part in (True, False))
    except (SampleDataError, RuntimeError) as error:
        hint = "" if options.data is None else f" --data {options.data}: the directory that holds cifar-10-batches-py"
        raise SystemExit(f"train_cifar10: {error}.{hint}") from None
    task = Task(
        template="train_cifar10",
        model_name=options.model + (" (small)" if options.small else ""),
        pipeline=options.pipeline,
        train=train,
        val=val,
        model=lambda: make_model(options.model, options.small, size),
        optimizer=make_optimizer,
        lr=(5e-4 if vit else 0.1) * options.batch_size / (256 if vit else 128),
        paper_model="ViT" if vit else "WRN18",
        channels_last=not vit,
    )
    return compare(task, options)


if __name__ == "__main__":
    sys.exit(main())
