"""`ddlp report`: a recorded run, or several side by side, as one HTML page without scripts or requests.

`series` turns an epoch's events into tracks and curves of bounded size, however long the epoch was; `pictures` draws them by
matplotlib, `figures` adds words and tables, `page` is the whole page. `comparison` groups several runs by what they are runs
of, `comparison_page` shows them. `ddlp.observe.analyse` computes the figures. Must not live here: any
analysis of its own.
"""

from __future__ import annotations

from ddlp.observe.report.comparison import Comparison, read_comparison
from ddlp.observe.report.run import RunReport, read_report
from ddlp.observe.report.write import write_comparison, write_report

__all__ = ["Comparison", "RunReport", "read_comparison", "read_report", "write_comparison", "write_report"]
