"""Where a command writes its output. That it can be written is checked before hours are spent on the content."""

from __future__ import annotations

import time
from pathlib import Path

from ddlp.errors import DDLPError

__all__ = ["new_directory", "try_file"]


def new_directory(kind: str, below: Path = Path("runs")) -> Path:
    """A name for a directory of this moment: runs/KIND-DATE-TIME. It is made when something is written there."""
    return below / f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}"


def try_file(path: Path, option: str) -> None:
    """Check that a file can be written. A missing directory is made; the file's content stays.

    Raises:
        DDLPError: it can't be written. The message names the ``option``.
    """
    try:
        there = path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
        if not there:
            path.unlink()
    except OSError as error:
        raise DDLPError(f"{option} {path} can't be written: {error.strerror}. Name another file; nothing was run.") from None
