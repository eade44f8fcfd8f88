"""Where an engine keeps samples: `--cache DIR[:SIZE]`."""

from __future__ import annotations

import os
import sys
from typing import Optional, Sequence, Tuple

from csd_engine.cache.shelves import Shelves
from csd_engine.errors import CacheRefused
from csd_engine.machine.directory import first_above
from csd_engine.machine.sizes import size_bytes

__all__ = ["cache_at_start", "cache_directory"]

_SHARE = 5  # without a size: a fifth of the free space
_MOST_BYTES_32 = 1 << 30  # what is kept is mapped, and a process of 32 bits has room for 2 to 3 GiB


def cache_directory(text: str) -> str:
    """Return DIR of DIR[:SIZE]; empty for "none". Raises CacheRefused: what is behind the last colon is no size."""
    return _parsed(text)[0]


def _parsed(text: str) -> Tuple[str, Optional[int]]:
    """Return DIR and SIZE in bytes of DIR[:SIZE]; None: no size is given. Raises as `cache_directory`."""
    if text == "none":
        return "", None
    path, _, size = text.rpartition(":")
    if not path or "/" in size:
        return text, None
    quota = size_bytes(size)
    if quota is None:
        raise CacheRefused(f"--cache {text}: {size!r} is no size. Write DIR or DIR:SIZE, such as {path}:200G.")
    return path, quota


def cache_at_start(text: str, others: Sequence[str]) -> Optional[Shelves]:
    """Return the cache in DIR[:SIZE]; None for "none". The directory is made if it is missing.

    Args:
        text: without a size, a fifth of what is free there, the cache's own files included.
        others: the data sets' roots, and the spool: directories that hosts may read or write.

    Raises:
        CacheRefused: the text makes no sense, the directory lies in one of ``others``, can't be used, or another user may write
            there.
    """
    path, quota = _parsed(text)
    if not path:
        return None
    real = os.path.realpath(path)
    above = first_above(real, others)
    if above is not None:
        raise CacheRefused(
            f"--cache {path} lies in {os.path.realpath(above)}, which hosts may read or write. Give a directory outside all "
            "--root directories and the --spool."
        )
    shelves = Shelves(real, 0)  # refuses a directory that others may write to
    if quota is None:
        status = os.statvfs(real)
        quota = (status.f_bavail * status.f_frsize + shelves.held_bytes()) // _SHARE
    shelves.quota_bytes = min(quota, _MOST_BYTES_32) if sys.maxsize < 1 << 32 else quota
    return shelves
