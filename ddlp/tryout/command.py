"""`ddlp try FOLDER`: what ddlp would bring for the images in a folder of yours, on this machine, in two minutes.

torch's DataLoader and ddlp's strategies prepare the same images in turn, each on one core, an engine on another one: at most
2,000 of them, drawn from all over the folder, through the usual pipeline for ImageNet (RandomResizedCrop(224), flip, ToTensor,
Normalize). A stand-in takes the part of training. You get a table, what it means for a job of yours, and the page of
`ddlp report`. Nothing is written into the folder, no GPU and no device is needed.

FOLDER holds a directory for each class, as for ImageFolder, or images only; subfolders of any depth are looked through. Files
that can't be read as images are counted and passed over.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import warnings
from pathlib import Path

from ddlp.errors import DDLPError
from ddlp.process.output_file import new_directory, try_file
from ddlp.tryout.folder import find_images

__all__ = ["add_arguments", "run"]

_MOST = 2000
_SECONDS = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="your training images")
    parser.add_argument("--images", type=int, default=_MOST, metavar="N", help="at most so many of them (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="images a batch (%(default)s)")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="of measuring, about (%(default)g)")
    parser.add_argument("--csd", metavar="NAME", help="measure with this device in place of an engine on this machine")
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="for the page (default: runs/try-DATE)")


def run(options: argparse.Namespace) -> int:
    """Find the images, compare, print, write."""
    for name in ("images", "batch_size", "seconds"):
        if getattr(options, name) <= 0:
            raise DDLPError(f"--{name.replace('_', '-')} {getattr(options, name):g}: give a number above 0")
    images = find_images(options.folder, options.images)
    out = _out(options)
    print(f"{options.folder}: {images}", flush=True)
    # Only now: they bring torch, which takes seconds.
    from torchvision import transforms

    from ddlp.data.images import ImageFiles
    from ddlp.tryout.compare import compare
    from ddlp.tryout.text import text, write_page

    pipeline = transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ])  # fmt: skip
    warnings.filterwarnings("ignore", module=r"PIL\.")  # of palettes and EXIF, for each file
    try:
        comparison = compare(
            ImageFiles(images.paths, images.classes, pipeline), batch_size=options.batch_size, seconds=options.seconds,
            csd=options.csd, record=out / "wrr",
        )  # fmt: skip
        print(f"\n{text(comparison)}\n", write_page(comparison, out), sep="\n")
    except OSError as error:
        raise DDLPError(f"{options.folder}: {error}. Did its files change meanwhile? Then try again.") from error
    finally:
        with contextlib.suppress(OSError):
            out.rmdir()  # nothing was written
    return 0


def _out(options: argparse.Namespace) -> Path:
    """Where to write, which is never in the user's folder. Raises DDLPError where it can't be."""
    inside = options.folder.resolve()
    out = options.out or new_directory("try")
    if out.resolve().is_relative_to(inside):
        if options.out is not None:
            raise DDLPError(f"--out {out} lies in {options.folder}, where nothing is to be written; name another directory.")
        out = new_directory("try", Path(tempfile.gettempdir()) / "ddlp-runs")
    try_file(out / "report.html", "--out")
    return out
