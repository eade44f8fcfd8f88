"""The user's own images: found below a folder, looked at, never written to."""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from csd_engine.data.image_files import pillow_open
from ddlp.errors import DDLPError

__all__ = ["Images", "find_images"]

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # as torchvision's ImageFolder
_SOME = 10  # so many times the wanted images are looked for, and some of them drawn
_SECONDS = 10.0  # to find images, and again to read them: a large set on a slow disk is read in part


@dataclass(frozen=True)
class Images:
    """Image files that can be read, and the class of each (its directory). ``mean_bytes``: of a file."""

    paths: list[str]
    classes: list[int]
    mean_bytes: float
    passed_over: str  # what was not taken, in a few words; "" if there was nothing

    def __str__(self) -> str:
        """One line."""
        directories = len(set(self.classes))
        where = "one directory" if directories == 1 else f"{directories} directories"
        return f"{len(self.paths):,} images of {self.mean_bytes / 1e3:,.0f} kB from {where}" + (
            f"; passed over: {self.passed_over}" if self.passed_over else ""
        )


def find_images(folder: Path, most: int) -> Images:
    """Find image files below a folder, in class directories or flat, draw some and look whether they can be read.

    Takes 20 seconds at most, whatever the size of the set. Hidden files and directories are left alone.

    Args:
        folder: looked through in a random order, links to directories as well.
        most: images at most.

    Raises:
        DDLPError: it is not there, can't be read, or there is no image in it that can.
    """
    draws = random.Random(0)
    paths, others, shut = _walk(folder, most * _SOME, draws)
    if not paths:
        more = f" ({others:,} other files are there)" if others else ""
        raise DDLPError(
            f"{folder}: there is no image in it or below{more}; looked for {', '.join(SUFFIXES)}. Name the folder of your "
            "training images, with a directory for each class or without."
        )
    draws.shuffle(paths)
    good, broken = _readable(paths[:most])
    if not good:
        path, why = broken[0]
        raise DDLPError(f"{folder}: none of {len(broken):,} images can be read; {path}: {why}. Name another folder.")
    passed_over = []
    if broken:
        passed_over.append(f"{_counted(len(broken), 'image')} that can't be read (such as {broken[0][0]}: {broken[0][1]})")
    if others:
        passed_over.append(_counted(others, "other file"))
    if shut:
        passed_over.append(f"{_counted(len(shut), 'directory', 'directories')} without permission")
    numbers: dict[str, int] = {}
    classes = [numbers.setdefault(os.path.dirname(path), len(numbers)) for path in good]
    mean = sum(os.path.getsize(path) for path in good) / len(good)
    return Images(good, classes, mean, "; ".join(passed_over))


def _counted(number: int, singular: str, plural: str = "") -> str:
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def _walk(folder: Path, enough: int, draws: random.Random) -> tuple[list[str], int, list[str]]:
    """Image files, the number of other ones, directories that can't be read; until there are enough, or the time is up."""
    paths: list[str] = []
    others, shut, seen = 0, [], set()
    directories, until = [os.path.abspath(folder)], time.monotonic() + _SECONDS
    while directories and len(paths) < enough and time.monotonic() < until:
        at = draws.randrange(len(directories))
        directories[at], directories[-1] = directories[-1], directories[at]
        directory = directories.pop()
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        status = entry.stat()
                        if (status.st_dev, status.st_ino) not in seen:  # links may go round in circles
                            seen.add((status.st_dev, status.st_ino))
                            directories.append(entry.path)
                    elif entry.name.lower().endswith(SUFFIXES):
                        paths.append(entry.path)
                    else:
                        others += 1
                    if len(paths) >= enough or time.monotonic() > until:
                        break
        except OSError as error:
            if directory == os.path.abspath(folder):
                raise DDLPError(f"{folder} can't be read: {error.strerror}. Name the folder of your training images.") from None
            shut.append(directory)
    return paths, others, shut


def _readable(paths: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The files that can be decoded, and what is wrong with each of the others; as many as there is time for."""
    until = time.monotonic() + _SECONDS
    good, broken = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of palettes and EXIF, for each file
        for path in tqdm(paths, "reading images", unit="image", leave=False, disable=None):
            if time.monotonic() > until:
                break
            try:
                with pillow_open(path) as image:
                    image.convert("RGB")
                good.append(path)
            except Exception as error:  # Pillow's decoders raise errors of all kinds
                broken.append((path, (str(error) or type(error).__name__).splitlines()[0]))
    return good, broken
