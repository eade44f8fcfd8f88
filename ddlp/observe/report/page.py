"""The page: one HTML file with everything in it. No script, no request; its own policy forbids both to the browser."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlp.errors import DDLPError
from ddlp.observe.analysis import START, TRAINING, WAITING, Analysis, analyse
from ddlp.observe.energy.result import find, load
from ddlp.observe.happened import happened
from ddlp.observe.report.comparison import Comparison
from ddlp.observe.run import EpochTrace, epoch_files, read_epoch
from ddlp.process.version import __version__
from ddlp.stats.words import aligned, number, percent, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["comparison_page", "report_page", "write_comparison", "write_report"]

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE = "body { max-width: 80rem; margin: auto; padding: 1rem; font-family: sans-serif } img { max-width: 100% }"
_STYLE += " pre { overflow-x: auto } .said { white-space: pre-wrap }"
_MOST_EVENTS = 100  # in the list; beyond that they are counted


def write_report(
    run: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, *, epoch: int | None = None, every: bool = False,
    energy: str | os.PathLike[str] | None = None,
) -> Path:  # fmt: skip
    """Write the page of a recorded run; returns the file.

    Args:
        run: the directory of `DDLPLoader(record=...)`, or one of its files.
        out: a file (.html) or a directory; by default report.html in the run's directory.
        epoch: show the epoch of this number (of several the one that was recorded last); else the last one.
        every: show every epoch in detail.
        energy: what `ddlp energy run --out` or `energy.save` has written; else the newest such file in the directory.

    Raises:
        DDLPError: nothing was recorded there, there is no such epoch, a file can't be read or written, or matplotlib is
            missing.
    """
    return _write(report_page(run, epoch=epoch, every=every, energy=energy), Path(run), out, "report.html")


def write_comparison(comparison: Comparison, out: str | os.PathLike[str] | None = None) -> Path:
    """Write the page of several runs; returns the file: by default comparison.html in the directory that holds all of them.

    Raises DDLPError as `write_report`.
    """
    above = os.path.commonpath([path.resolve().parent for group in comparison.groups for path in group.runs])
    return _write(comparison_page(comparison), Path(above), out, "comparison.html")


def _write(page: str, run: Path, out: str | os.PathLike[str] | None, name: str) -> Path:
    if out is None:
        path = run.with_suffix(".html") if run.is_file() else run / name
    else:
        path = Path(out)
        path = path if path.suffix.lower() in (".html", ".htm") and not path.is_dir() else path / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise DDLPError(f"{path} can't be written: {error}. --out DIR_OR_FILE chooses another place.") from error
    return path


def report_page(
    run: str | os.PathLike[str], *, epoch: int | None = None, every: bool = False, energy: str | os.PathLike[str] | None = None
) -> str:
    """Return the page of a run. Arguments and errors as of `write_report`."""
    analyses: list[Analysis] = []
    shown: dict[Path, EpochTrace] = {}
    for file in epoch_files(run):
        trace = read_epoch(file)
        analyses.append(analyse(trace))
        if every:
            shown[file] = trace
        elif epoch is None or trace.began.epoch == epoch:
            shown = {file: trace}
    if not shown:
        there = ", ".join(map(str, sorted({analysis.epoch for analysis in analyses})))
        raise DDLPError(f"{run}: epoch {epoch} was not recorded, only {there}. Choose one of these, or --all.")
    parts = [part for analysis in analyses if analysis.path in shown for part in _epoch(shown[analysis.path], analysis)]
    if len(analyses) > 1:
        parts += [_heading(f"All {len(analyses)} epochs of this run"), _text(_epochs(analyses))]
    energy_from = find(run) if energy is None else Path(energy)
    if energy_from is not None:
        parts += [_heading(f"Energy, from {energy_from}"), _text("\n\n".join(map(str, load(energy_from))))]
    return _document(f"{Path(run).name}: ddlp report", "\n".join(parts))


def comparison_page(comparison: Comparison) -> str:
    """Return the page of several runs."""
    drawn = _pictures().comparison(comparison)
    body = [_heading(comparison.headline, 1), _picture(drawn, "Time and seconds of an epoch, by strategy"),
            _text(str(comparison))]  # fmt: skip
    return _document("ddlp report: runs side by side", "\n".join(body))


def headline(analysis: Analysis) -> str:
    """A line that says what limited the epoch."""
    if not analysis.samples:
        return "No batch was delivered in this epoch"
    if analysis.limit == TRAINING:
        return "Training limited this epoch: data were ready when it asked"
    if analysis.limit == START:
        return "The start limited this epoch: it was over before it was under way"
    return f"What limited this epoch: {analysis.limit}"


def _epoch(trace: EpochTrace, analysis: Analysis) -> Iterator[str]:
    yield _heading(headline(analysis), 1)
    summary, _, tables = str(analysis).partition("\n\n")
    yield _text(summary, "said")
    yield _text(tables)
    label = f"Epoch {analysis.epoch} over {seconds(trace.wall_s)}: which batch was made when, who was at work when, rates"
    yield _picture(_pictures().epoch(trace, analysis), label)
    events = list(happened(trace))
    if events:
        more = f", the first {_MOST_EVENTS} of {len(events)}; ddlp trace has all" if len(events) > _MOST_EVENTS else ""
        yield _heading(f"Events{more}")
        yield _text("\n".join(f"{moment.at:10.3f} s  {moment.text}" for moment in events[:_MOST_EVENTS]))


def _epochs(analyses: list[Analysis]) -> str:
    rows = [["epoch", "file", "strategy", "state", "time", "images/s", "by the host", "by the device", "waited", "of the bound",
             "limit"]]  # fmt: skip
    for analysis in analyses:
        waited = percent(analysis.stages[WAITING], analysis.wall_s)
        bound = "-" if analysis.of_bound is None else percent(analysis.of_bound)
        rows.append([
            str(analysis.epoch), analysis.path.name, analysis.strategy, analysis.state, seconds(analysis.wall_s),
            number(analysis.images_per_s), str(analysis.batches["cpu"]), str(analysis.batches["csd"]), waited, bound,
            analysis.limit if analysis.samples else "-",
        ])  # fmt: skip
    return "\n".join(aligned(rows, left=(1, 2, 3, 10)))


def _pictures() -> Any:
    """The module that draws. Raises DDLPError, which says what to install, where matplotlib is missing."""
    try:
        from ddlp.observe.report import pictures
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "matplotlib":
            raise
        raise DDLPError("matplotlib, which draws the pictures, is missing: pip install 'ddlp[report]' brings it") from None
    return pictures


def _picture(drawn: Figure, label: str) -> str:
    written = io.BytesIO()
    drawn.savefig(written, format="png", metadata={"Software": None})
    encoded = base64.b64encode(written.getvalue()).decode("ascii")
    return f'<img alt="{escape(label)}" src="data:image/png;base64,{encoded}">'


def _heading(text: str, level: int = 2) -> str:
    return f"<h{level}>{escape(text)}</h{level}>"


def _text(text: str, kind: str = "table") -> str:
    return f'<pre class="{kind}" tabindex="0">{escape(text)}</pre>'


def _document(title: str, body: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n"
        f"<footer>Written by ddlp {escape(__version__)}; docs/seeing.md says how each figure is taken.</footer></body></html>\n"
    )
