"""`ddlp report`: a recorded run, or several side by side, as one HTML page without scripts or requests.

A page is the text of `ddlp analyse`, or that of a `Comparison`, with pictures that matplotlib draws. Must not live here: any
analysis of its own.
"""

from __future__ import annotations

from ddlp.observe.report.comparison import Comparison, read_comparison
from ddlp.observe.report.page import write_comparison, write_report

__all__ = ["Comparison", "read_comparison", "write_comparison", "write_report"]
