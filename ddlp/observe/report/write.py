"""Writing a report: the page, and the plots beside it."""

from __future__ import annotations

import os
from pathlib import Path

from ddlp.errors import DDLPError
from ddlp.observe.report.page import page
from ddlp.observe.report.run import RunReport, read_report

__all__ = ["place", "write_page", "write_report"]


def place(run: str | os.PathLike[str], out: str | os.PathLike[str] | None) -> Path:
    """Where the page goes: ``out`` is a file (.html) or a directory; without it, report.html in the run's directory."""
    run = Path(run)
    if out is None:
        return run.with_suffix(".html") if run.is_file() else run / "report.html"
    path = Path(out)
    return path if path.suffix.lower() in (".html", ".htm") and not path.is_dir() else path / "report.html"


def write_page(report: RunReport, path: Path) -> Path:
    """Write the page. Raises DDLPError where that can't be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise DDLPError(f"{path} can't be written: {error}. --out DIR_OR_FILE chooses another place.") from error
    return path


def write_report(
    run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, energy: str | os.PathLike[str] | None = None
) -> Path:
    """Write the page of a recorded run, its last epoch in detail; returns the file. Raises DDLPError as `read_report` does."""
    return write_page(read_report(run, energy=energy), place(run, out))
