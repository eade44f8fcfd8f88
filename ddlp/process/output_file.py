"""Checks that a command can write its output file, before it spends hours on the content."""

from __future__ import annotations

from pathlib import Path

from ddlp.errors import DDLPError

__all__ = ["try_file"]


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
