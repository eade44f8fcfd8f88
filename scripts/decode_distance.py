#!/usr/bin/env python3
"""How far decode="fast" is from exact: grey levels between both, over samples of a data set of JPEGs.

    python scripts/decode_distance.py --data data/bench

Prints the table of docs/decode.md: for RandomResizedCrop and Resize to several sizes, how many samples were decoded at a part
of their size, and for these samples the mean, 99th percentile and maximum of the absolute differences (0 to 255).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from csd_engine.keyed import Keyed
from csd_engine.transforms import Pipeline, native_order

SIZES = (224, 160, 112, 64)


def operators(size: int) -> dict[str, list[dict[str, Any]]]:
    """Return the pipelines to compare, as plain data."""
    drawn = {"scale": [0.08, 1.0], "ratio": [0.75, 4 / 3], "interpolation": "bilinear"}
    crop = {"op": "RandomResizedCrop", "size": [size, size], **drawn}
    shorter = {"op": "Resize", "size": size * 8 // 7, "max_size": None, "interpolation": "bilinear"}
    center = {"op": "CenterCrop", "size": [size, size]}
    return {f"RandomResizedCrop({size})": [crop], f"Resize({size * 8 // 7}), CenterCrop({size})": [shorter, center]}


def distance(paths: list[Path], ops: list[dict[str, Any]]) -> tuple[int, float, float, int]:
    """Return (samples decoded at a part of their size, mean, 99th percentile, maximum of the differences in these)."""
    data = {"format": 1, "order": native_order(), "mode": "RGB", "ops": ops}
    exact, fast = Pipeline.parse(data), Pipeline.parse({**data, "decode": "fast"})
    counts = np.zeros(256, np.int64)
    reduced = 0
    for number, path in enumerate(paths):
        with Image.open(path) as image:
            if fast.draw(image.size, Keyed(0, 0, number, 0), image.format == "JPEG").reduce == 1:
                continue
        reduced += 1
        results = []
        for pipeline in (exact, fast):
            with Image.open(path) as image:
                results.append(np.empty(pipeline.draw(image.size, Keyed(0, 0, number, 0)).shape, np.uint8))
                pipeline.run(image, Keyed(0, 0, number, 0), results[-1], None)
        differences = np.abs(results[0].astype(np.int16) - results[1])
        counts += np.bincount(differences.ravel(), minlength=256)
    if not reduced:
        return 0, 0.0, 0.0, 0
    total = counts.sum()
    return (
        reduced,
        float((counts * np.arange(256)).sum() / total),
        float(np.searchsorted(np.cumsum(counts), 0.99 * total)),
        int(np.flatnonzero(counts).max()),
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory of JPEG files, searched with all below it")
    parser.add_argument("--samples", type=int, default=2000, help="largest number of files (%(default)s)")
    options = parser.parse_args()
    paths = sorted(path for path in options.data.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[: options.samples]
    if not paths:
        print(f"decode_distance: no .jpg in {options.data}; python -m benchmarks.host makes data/bench", file=sys.stderr)
        return 2
    print(f"{len(paths)} files of {options.data}\n")
    print("| pipeline | decoded at a part | mean | 99 % at most | at most |\n| --- | --- | --- | --- | --- |")
    for size in SIZES:
        for name, ops in operators(size).items():
            reduced, mean, high, most = distance(paths, ops)
            print(f"| {name} | {100 * reduced / len(paths):.0f} % | {mean:.2f} | {high:.0f} | {most} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
