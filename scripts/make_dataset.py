"""Make a JPEG data set in ImageFolder layout with ImageNet's size distribution, or files in CIFAR-10's format.

    python scripts/make_dataset.py data/sample --images 2000 --mean-kb 46
    python scripts/make_dataset.py data/cifar --cifar10 --images 5000

The images are made from the photographs that scikit-learn and scikit-image ship; nothing is downloaded. A complete set is
not made again; a set that was interrupted is completed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ddlp.sampledata import SampleDataError, make_cifar10, make_imagefolder


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="directory of the set; made if it is missing")
    parser.add_argument("--images", type=int, default=2000, metavar="N", help="train images (default %(default)s)")
    parser.add_argument("--val-images", type=int, metavar="N", help="val or test images (default: a tenth)")
    parser.add_argument(
        "--mean-kb",
        type=float,
        default=110.0,
        metavar="KB",
        help="mean size of a JPEG file in kB, reached by noise and quality: 110 is ImageNet's, 46 that of an easy set "
        "of the same dimensions (default %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws (default %(default)s)")
    parser.add_argument("--threads", type=int, metavar="N", help="images made at once (default: one a core)")
    parser.add_argument("--cifar10", action="store_true", help="write CIFAR-10's Python format, not JPEG files")
    options = parser.parse_args(arguments)
    try:
        if options.cifar10:
            test = options.val_images or max(options.images // 10, 1)
            folder = make_cifar10(options.directory, options.images, test, seed=options.seed)
            print(f"{folder}: {options.images} train and {test} test images")
        else:
            info = make_imagefolder(
                options.directory,
                options.images,
                options.mean_kb,
                val_images=options.val_images,
                seed=options.seed,
                threads=options.threads,
            )
            print(info)
    except SampleDataError as error:
        print(f"make_dataset: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
