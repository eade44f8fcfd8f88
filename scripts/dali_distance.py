#!/usr/bin/env python3
"""How far backend="dali" is from torchvision: grey levels between both, over the JPEGs of a data set.

    python scripts/dali_distance.py --data data/bench/46kb
    python scripts/dali_distance.py --data data/bench/46kb --device cuda      # DALI decodes on the GPU

Prints the table of docs/dali.md: for each pipeline the mean and the maximum of the absolute differences (0 to 255), and how
many of the numbers differ by more than 1. Needs DALI: pip install ddlp[dali].
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torchvision.transforms as T

from ddlp import DDLPLoader, ImageFiles

SIDE = 48  # pixels of a crop's side; every image of the benchmarks' sets is larger
BICUBIC = T.InterpolationMode.BICUBIC


def pipelines() -> dict[str, Callable]:
    """Return the transforms to compare, by what each of them shows."""
    flips = [T.RandomHorizontalFlip(), T.RandomVerticalFlip()]
    found: dict[str, list[Callable]] = {f"decode: RandomCrop({SIDE}), flips": [T.RandomCrop(SIDE), *flips]}
    for name, how in (("bilinear", T.InterpolationMode.BILINEAR), ("bicubic", BICUBIC)):
        found[f"{name}, smaller: Resize(128), CenterCrop(112)"] = [T.Resize(128, how), T.CenterCrop(112)]
        found[f"{name}, smaller, with its borders: Resize((112, 112))"] = [T.Resize((112, 112), how)]
        found[f"{name}, larger: RandomCrop({SIDE}), Resize((224, 224))"] = [T.RandomCrop(SIDE), T.Resize((224, 224), how)]
        found[f"{name}: RandomResizedCrop(224), flips"] = [T.RandomResizedCrop(224, interpolation=how), *flips]
    return {name: T.Compose([*steps, T.PILToTensor()]) for name, steps in found.items()}


def counts(paths: list[str], transform: Callable, device: str | None) -> np.ndarray:
    """Return how often each absolute difference occurs, int64 (256,)."""
    data = ImageFiles(paths, [0] * len(paths), transform)
    found = np.zeros(256, np.int64)
    both = [
        DDLPLoader(data, 32, seed=0, output=torch.uint8),
        DDLPLoader(data, 32, seed=0, output=torch.uint8, backend="dali", device=device),
    ]
    for (ours, _), (theirs, _) in zip(*both, strict=True):
        difference = np.abs(ours.numpy().astype(np.int16) - theirs.cpu().numpy())
        found += np.bincount(difference.ravel(), minlength=256)
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory of JPEG files, searched with all below it")
    parser.add_argument("--samples", type=int, default=2000, help="largest number of files (%(default)s)")
    parser.add_argument("--device", help="device on which DALI decodes, such as cuda (default: the CPU)")
    options = parser.parse_args()
    paths = sorted(str(path) for path in options.data.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    paths = paths[: options.samples]
    if not paths:
        print(f"dali_distance: no .jpg in {options.data}; python -m benchmarks.host makes data/bench", file=sys.stderr)
        return 2
    where = torch.cuda.get_device_name(options.device) if options.device else "the CPU"
    print(f"{len(paths)} files of {options.data}, DALI on {where}\n")
    print("| pipeline | mean | at most | more than 1 |\n| --- | --- | --- | --- |")
    for name, transform in pipelines().items():
        found = counts(paths, transform, options.device)
        mean = float((found * np.arange(256)).sum() / found.sum())
        far = 1e6 * found[2:].sum() / found.sum()
        print(f"| {name} | {mean:.3f} | {np.flatnonzero(found).max()} | {far:.0f} in a million |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
