"""`ddlp report`: a recorded run as one HTML page without scripts or requests, and as PNG plots.

`series` turns an epoch's events into what is drawn, bounded however long the epoch was; `svg` draws lines and boxes, `figures`
the plots, `page` the whole page, `png` the plots once more by matplotlib. What the figures are is `ddlp.observe.analyse`'s
word. Must not live here: any analysis of its own.
"""

from __future__ import annotations

from ddlp.observe.report.run import RunReport, read_report
from ddlp.observe.report.write import write_report

__all__ = ["RunReport", "read_report", "write_report"]
