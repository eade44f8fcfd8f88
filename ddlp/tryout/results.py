"""What is kept of a comparison: the picture, and the page of `ddlp report` of an epoch under wrr."""

from __future__ import annotations

from pathlib import Path

from ddlp.errors import DDLPError
from ddlp.observe.report.write import needs_matplotlib, write_report
from ddlp.tryout.comparison import Comparison

__all__ = ["write"]


def write(found: Comparison, directory: Path) -> list[str]:
    """Write all; returns a line for each file, with its address. Raises DDLPError where that can't be.

    Without matplotlib nothing is written, and the line says so.
    """
    try:
        with needs_matplotlib():
            from ddlp.tryout.picture import draw
    except DDLPError as error:
        return [f"no pictures: {error}"]
    picture = directory / "comparison.png"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        draw(found, picture)
    except OSError as error:
        raise DDLPError(f"{picture} can't be written: {error}. --out DIR chooses another place.") from error
    written = [f"bars:  {picture.absolute().as_uri()}"]
    if found.recorded is not None:
        page = write_report(found.recorded, directory)
        written.append(f"page:  {page.absolute().as_uri()}  (an epoch under wrr)")
    return written
