"""Writing a report: the page of a run, or of several. matplotlib draws, and is imported when a page is made."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ddlp.errors import DDLPError
from ddlp.observe.report.comparison import Comparison
from ddlp.observe.report.run import RunReport, read_report

__all__ = ["needs_matplotlib", "place", "write_comparison", "write_page", "write_report"]


@contextlib.contextmanager
def needs_matplotlib() -> Iterator[None]:
    """Raise DDLPError, which says what to install, where an import inside needs matplotlib and it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "matplotlib":
            raise
        raise DDLPError("matplotlib, which draws the pictures, is missing: pip install 'ddlp[report]' brings it") from None


def place(run: str | os.PathLike[str], out: str | os.PathLike[str] | None, name: str = "report.html") -> Path:
    """Where the page goes: ``out`` is a file (.html) or a directory; without it, ``name`` in the run's directory."""
    run = Path(run)
    if out is None:
        return run.with_suffix(".html") if run.is_file() else run / name
    path = Path(out)
    return path if path.suffix.lower() in (".html", ".htm") and not path.is_dir() else path / name


def write_page(report: RunReport, path: Path) -> Path:
    """Write the page. Raises DDLPError where that can't be."""
    with needs_matplotlib():
        from ddlp.observe.report.page import page
    return write_text(page(report), path)


def write_text(text: str, path: Path) -> Path:
    """Write a page's text. Raises DDLPError where that can't be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DDLPError(f"{path} can't be written: {error}. --out DIR_OR_FILE chooses another place.") from error
    return path


def write_report(
    run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, energy: str | os.PathLike[str] | None = None
) -> Path:
    """Write the page of a recorded run, its last epoch in detail; returns the file. Raises DDLPError as `read_report` does."""
    return write_page(read_report(run, energy=energy), place(run, out))


def write_comparison(comparison: Comparison, out: str | os.PathLike[str] | None = None) -> Path:
    """Write the page of several runs; returns the file: by default comparison.html in the directory that holds all of them.

    Raises DDLPError where that can't be.
    """
    with needs_matplotlib():
        from ddlp.observe.report.comparison_page import comparison_page
    above = os.path.commonpath([run.path.resolve().parent for run in comparison.runs])
    return write_text(comparison_page(comparison), place(above, out, "comparison.html"))
