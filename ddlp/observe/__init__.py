"""Seeing where the time goes, and whether all is as promised: recording a run, analysing it, drawing it, checking it.

It watches from the side: `watched` puts itself between an epoch and its threads where somebody asked for it, and nothing in
here decides anything. `events` is what is recorded, `record` writes it, `run` reads it; `analyse`, `trace`, `report` and
`check` use it. Must not live here: whatever an epoch needs to run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddlp.observe.analysis import Analysis, analyse
    from ddlp.observe.check import Checked, Refuted, Verdict, checked
    from ddlp.observe.record import Recorder
    from ddlp.observe.run import EpochTrace, read_epoch, read_run
    from ddlp.observe.trace import chrome_trace

__all__ = [
    "Analysis",
    "Checked",
    "EpochTrace",
    "Recorder",
    "Refuted",
    "Verdict",
    "analyse",
    "checked",
    "chrome_trace",
    "read_epoch",
    "read_run",
]

_WHERE = {
    "Analysis": "analysis",
    "Checked": "check",
    "EpochTrace": "run",
    "Recorder": "record",
    "Refuted": "check",
    "Verdict": "check",
    "analyse": "analysis",
    "checked": "check",
    "chrome_trace": "trace",
    "read_epoch": "run",
    "read_run": "run",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first wanted: the checker brings torch, the others do not."""
    if name not in _WHERE:
        raise AttributeError(f"module 'ddlp.observe' has no attribute {name!r}")
    return getattr(importlib.import_module(f"ddlp.observe.{_WHERE[name]}"), name)
