"""Which code this is: a hash over csd_engine's own files, so that host and engine can tell whether both run the same."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import List

__all__ = ["SUFFIXES", "build", "source_files"]

SUFFIXES = (".py", ".c", ".h")  # without the kernel's compiled library: it differs from computer to computer


def source_files() -> List[Path]:
    """Return this package's source files, sorted by their names in it."""
    home = Path(__file__).resolve().parent.parent
    paths = [path for path in home.rglob("*") if path.suffix in SUFFIXES and path.is_file()]
    return sorted(paths, key=lambda path: path.relative_to(home).as_posix())


@functools.lru_cache(maxsize=None)
def build() -> str:
    """Return 32 hex digits over the names and contents of this package's source files as they are at the first call.

    Empty where the files cannot be read.
    """
    home = Path(__file__).resolve().parent.parent
    digest = hashlib.blake2b(digest_size=16, person=b"ddlp build")
    try:
        for path in source_files():
            content = path.read_bytes()
            digest.update(f"{path.relative_to(home).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    except OSError:
        return ""
    return digest.hexdigest()
