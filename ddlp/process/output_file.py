"""A file that a command writes at its end: seen to be writable before hours are spent on what goes into it."""

from __future__ import annotations

from pathlib import Path

from ddlp.errors import DDLPError

__all__ = ["try_file"]


def try_file(path: Path, option: str) -> None:
    """See that a file can be written, its directory made where it is missing; what is in the file stays.

    Raises:
        DDLPError: it can't; in the words of the ``option`` that named it.
    """
    try:
        there = path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
        if not there:
            path.unlink()
    except OSError as error:
        raise DDLPError(f"{option} {path} can't be written: {error.strerror}. Name another file; nothing was run.") from None
