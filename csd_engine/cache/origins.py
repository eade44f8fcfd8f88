"""What samples are made of: names, sizes and times of change of their files. A kept sample counts while these are the same.

Objects of a storage have a mark of their content in the place of a time.
"""

from __future__ import annotations

import hashlib
import os
from typing import Dict, Optional, Sequence, Tuple

import numpy as np

from csd_engine.data.base import Origins, Places, Reader
from csd_engine.data.safe_open import open_file
from csd_engine.errors import RootNotAllowed

__all__ = ["origins_at", "origins_of"]


def origins_of(reader: Reader, sources: np.ndarray) -> Optional[Origins]:
    """Return the origins of samples, as their files are now, or their objects were listed; None: one has none, or is not found.

    Args:
        reader: of the data set.
        sources: indices, int64 (n,).
    """
    try:
        versions = reader.versions(sources.tolist())
        if versions is not None:
            return versions
        places = reader.places(sources.tolist())
    except Exception:  # the sample that fails reports it at its turn
        return None
    return None if places is None else origins_at(places, reader.beneath)


def origins_at(places: Places, beneath: Optional[Sequence[str]] = None) -> Origins:
    """Return the origins of the samples that lie at these places, as their files are now.

    Args:
        places: of the samples.
        beneath: as of `Reader`. What a reader could not open has no origin, so that it is not taken from a shelf either.
    """
    known: Dict[str, Tuple[int, int]] = {}
    names, sizes, mtimes = [], [], []
    columns = None if places.parts is None else places.parts[:3]
    parts = None if columns is None else list(zip(*(column.tolist() for column in columns)))
    for position, path in enumerate(places.paths):
        if path not in known:
            known[path] = _status(path, beneath, -1 if parts is None else parts[position][2])
        size, mtime_ns = known[path]
        name = os.fsencode(os.path.abspath(path) if path[:1] != "/" else path)
        if parts is not None:
            name += b"\0%d %d" % parts[position][:2]
        names.append(hashlib.blake2b(name, digest_size=8).digest())
        sizes.append(size)
        mtimes.append(mtime_ns)
    return Origins(np.frombuffer(b"".join(names), "<u8"), np.array(sizes, np.int64), np.array(mtimes, np.int64))


def _status(path: str, beneath: Optional[Sequence[str]], descriptor: int) -> Tuple[int, int]:
    """Return a file's bytes and time of change; -1 and 0 if it can't be read. ``descriptor``: if not -1, of the open file.

    A reader that holds a file open reads that one, and not another one that has taken its name.
    """
    opened = -1
    try:
        if descriptor < 0 and beneath is not None:
            descriptor = opened = open_file(path, beneath).descriptor
        status = os.stat(path) if descriptor < 0 else os.fstat(descriptor)
        return status.st_size, status.st_mtime_ns
    except (OSError, ValueError, RootNotAllowed):
        return -1, 0
    finally:
        if opened >= 0:
            os.close(opened)
