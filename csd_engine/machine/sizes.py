"""A number of bytes as people read and write it, and how many a file system has left."""

from __future__ import annotations

import os
import re
from typing import Optional, Union

__all__ = ["free_bytes", "size_bytes", "size_text"]

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)


def size_bytes(text: str) -> Optional[int]:
    """Return the bytes that a text such as 500M or 1.5T says, with powers of 1024; None: it says none."""
    match = _SIZE.fullmatch(text)
    return None if match is None else int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def size_text(count: int) -> str:
    """Return a number of bytes in three digits: 999 B, 1.5 KiB, 38.5 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} PiB"


def free_bytes(directory: Union["os.PathLike[str]", str, int]) -> int:
    """Return the bytes that this user may still write on the file system of the directory, or of its descriptor."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize
