"""A training script around timm's own create_loader, in the shape of timm's train.py. It knows nothing of ddlp."""

from __future__ import annotations

import argparse
import zlib

import torch
from timm.data import FastCollateMixup, Mixup, create_dataset, create_loader
from timm.utils import random_seed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--aa")
    parser.add_argument("--reprob", type=float, default=0.0)
    parser.add_argument("--no-prefetcher", action="store_true")
    args = parser.parse_args()
    random_seed(42)
    shared = {
        "input_size": (3, 32, 32), "batch_size": 8, "device": torch.device("cpu"), "num_workers": 2,
        "use_prefetcher": not args.no_prefetcher,
    }  # fmt: skip
    mixing = {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "num_classes": 2}
    on_batch = Mixup(**mixing) if args.no_prefetcher else None
    train = create_loader(
        create_dataset("", root=args.folder, split="train"), **shared, is_training=True, auto_augment=args.aa,
        re_prob=args.reprob, interpolation="random", collate_fn=None if args.no_prefetcher else FastCollateMixup(**mixing),
    )  # fmt: skip
    evaluation = create_loader(create_dataset("", root=args.folder, split="validation"), **shared, interpolation="bicubic")
    for _ in range(2):
        for images, targets in train:
            images, targets = (images, targets) if on_batch is None else on_batch(images, targets)
            tell("train", images, targets)
        for images, targets in evaluation:
            tell("evaluation", images, targets)


def tell(name: str, images: torch.Tensor, targets: torch.Tensor) -> None:
    numbers = zlib.crc32(images.numpy().tobytes()), zlib.crc32(targets.numpy().tobytes())
    print(name, images.dtype, list(images.shape), images.stride(), targets.dtype, list(targets.shape), *numbers)


if __name__ == "__main__":
    main()
