"""Showing where the time of an epoch goes, and checking that the loader keeps its promises.

These modules only watch: none of them decides anything. `ddlp.recording` watches an epoch and writes its events, `run` reads
them again, and `analysis`, `trace` and `report` use them. `check` watches an epoch itself. Must not live here: anything that
an epoch needs to run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddlp.observe.analysis import Analysis, analyse
    from ddlp.observe.bars import Progress, progress
    from ddlp.observe.check import Checked, Refuted, Verdict, checked
    from ddlp.observe.metrics import MetricsServer, prometheus_text, serve_metrics
    from ddlp.observe.pace import Live, live
    from ddlp.observe.run import EpochTrace, read_epoch, read_run
    from ddlp.observe.scalars import Scalars
    from ddlp.observe.trace import chrome_trace
    from ddlp.recording.dataloader import MeasuredDataLoader
    from ddlp.recording.recorder import Recorder

__all__ = [
    "Analysis",
    "Checked",
    "EpochTrace",
    "Live",
    "MeasuredDataLoader",
    "MetricsServer",
    "Progress",
    "Recorder",
    "Refuted",
    "Scalars",
    "Verdict",
    "analyse",
    "checked",
    "chrome_trace",
    "live",
    "progress",
    "prometheus_text",
    "read_epoch",
    "read_run",
    "serve_metrics",
]

_WHERE = {
    "Analysis": "ddlp.observe.analysis",
    "Checked": "ddlp.observe.check",
    "EpochTrace": "ddlp.observe.run",
    "Live": "ddlp.observe.pace",
    "MeasuredDataLoader": "ddlp.recording.dataloader",
    "MetricsServer": "ddlp.observe.metrics",
    "Progress": "ddlp.observe.bars",
    "Recorder": "ddlp.recording.recorder",
    "Refuted": "ddlp.observe.check",
    "Scalars": "ddlp.observe.scalars",
    "Verdict": "ddlp.observe.check",
    "analyse": "ddlp.observe.analysis",
    "checked": "ddlp.observe.check",
    "chrome_trace": "ddlp.observe.trace",
    "live": "ddlp.observe.pace",
    "progress": "ddlp.observe.bars",
    "prometheus_text": "ddlp.observe.metrics",
    "read_epoch": "ddlp.observe.run",
    "read_run": "ddlp.observe.run",
    "serve_metrics": "ddlp.observe.metrics",
}
_MODULES = ("energy", "report")


def __getattr__(name: str) -> Any:
    """Import a public name or module when it is first wanted: the checker brings torch, the others do not."""
    if name in _MODULES:
        return importlib.import_module(f"ddlp.observe.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'ddlp.observe' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
