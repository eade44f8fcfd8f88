"""Make ahead of training what loaders keep with cache=.

    ddlp cache fill -- train.py --epochs 90         # what the script's loaders keep
    ddlp cache fill -- torchrun --nproc-per-node 2 train.py
    ddlp cache fill /data/imagenet/train --dir /data/cache --size 200G   # of a folder with a directory for each class

A script runs up to the first use of a DDLPLoader with cache=. Then the caches of all of its loaders that were made until then
are filled, and the script ends. It trains nothing. A folder gets what each pipeline that begins with a random crop can use:
decoded pixels.

What was made before is not made again: stop it with Ctrl-C, and go on later.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from ddlp.errors import DDLPError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.usage = "ddlp cache fill -- SCRIPT.py ... | -m MODULE ... | COMMAND ...\n       ddlp cache fill FOLDER [OPTIONS]"
    parser.add_argument("what", choices=("fill",), help=argparse.SUPPRESS)
    parser.add_argument("--dir", help="for a folder: the cache's directory; default: that of cache='auto'")
    parser.add_argument("--size", help="for a folder, with --dir: the most bytes of the cache, such as 200G")
    parser.add_argument("words", nargs="*", metavar="FOLDER | -- SCRIPT ...", help="what to fill the cache of")


def run(options: argparse.Namespace) -> int:
    """Fill, or become the script's interpreter. Raises DDLPError where that can't be."""
    words = options.words
    if not words:
        raise DDLPError("ddlp cache fill: name a folder of images, or a script after --, e.g. ddlp cache fill -- train.py")
    if not os.path.isdir(words[0]):
        if options.dir or options.size:
            raise DDLPError(
                f"ddlp cache fill: there is no folder {words[0]!r}; --dir and --size are for a folder, since a script's "
                "loaders have their own cache="
            )
        from ddlp.swap.command import become
        from ddlp.swap.settings import Settings

        try:
            become(words, Settings(fill=True, postpone=False))
        except DDLPError as error:
            raise DDLPError(f"ddlp cache fill: there is no folder {words[0]!r}, and {error}") from None
    if len(words) > 1:
        raise DDLPError(f"ddlp cache fill: one folder, and this is more: {' '.join(words[1:])}")
    if (options.dir is None) != (options.size is None):
        raise DDLPError("ddlp cache fill: --dir and --size belong together")
    try:
        print(_loader(words[0], options).fill_cache())
    except (ValueError, FileNotFoundError) as error:  # of the size, or of a folder without classes
        raise DDLPError(f"ddlp cache fill {words[0]}: {error}") from None
    return 0


def _loader(folder: str, options: argparse.Namespace) -> Any:
    """Return a loader whose cache is the one of every loader that begins with a random crop."""
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    from csd_engine.machine.computer import cpus
    from ddlp.caching.settings import Cache
    from ddlp.loader import DDLPLoader

    transform = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
    cache = "auto" if options.dir is None else Cache(options.dir, options.size)
    return DDLPLoader(ImageFolder(folder, transform), num_workers=max(1, int(cpus())), cache=cache)
