"""Where an engine keeps samples: `--cache DIR[:SIZE]`."""

from __future__ import annotations

import os
import sys
from typing import Optional, Sequence

from csd_engine.cache.shelves import Shelves
from csd_engine.errors import CacheRefused
from csd_engine.machine.sizes import size_bytes

__all__ = ["cache_at_start", "cache_directory"]

_SHARE = 5  # without a size: a fifth of the free space
_MOST_BYTES_32 = 1 << 30  # what is kept is mapped, and a process of 32 bits has room for 2 to 3 GiB


def cache_directory(text: str) -> str:
    """Return DIR of DIR[:SIZE]; empty for "none". Raises CacheRefused: what is behind the last colon is no size."""
    if text == "none":
        return ""
    path, _, size = text.rpartition(":")
    if not path or "/" in size:
        return text
    if size_bytes(size) is None:
        raise CacheRefused(f"--cache {text}: {size!r} is no size. Write DIR or DIR:SIZE, such as {path}:200G.")
    return path


def cache_at_start(text: str, others: Sequence[str]) -> Optional[Shelves]:
    """Return the cache in DIR[:SIZE]; None for "none". The directory is made if it is missing.

    Args:
        text: without a size, a fifth of what is free there, the cache's own files included.
        others: the data sets' roots, and the spool: directories that hosts may read or write.

    Raises:
        CacheRefused: the text makes no sense, the directory lies in one of ``others``, can't be used, or another user may write
            there.
    """
    path = cache_directory(text)
    if not path:
        return None
    real = os.path.realpath(path)
    for other in map(os.path.realpath, others):
        if os.path.commonpath([real, other]) == other:
            raise CacheRefused(
                f"--cache {path} lies in {other}, which hosts may read or write. Give a directory outside all --root "
                "directories and the --spool."
            )
    shelves = Shelves(real, 0)  # refuses a directory that others may write to
    if path != text:
        quota = size_bytes(text[len(path) + 1 :]) or 0
    else:
        status = os.statvfs(real)
        quota = (status.f_bavail * status.f_frsize + shelves.held_bytes()) // _SHARE
    shelves.quota_bytes = min(quota, _MOST_BYTES_32) if sys.maxsize < 1 << 32 else quota
    return shelves
