"""`ddlp report RUN`: a recorded run as one HTML page. `ddlp report RUN RUN ...`: several side by side.

RUN is the directory of `DDLPLoader(..., record=RUN)`, or one of its files. The page needs nothing else: no script, no network;
send it to whom you like. What `ddlp energy run --out RUN/energy.json` has measured is in it. matplotlib draws its pictures
(`pip install 'ddlp[report]'`).

Of several runs the page compares strategies: those that ran the same are seeds of one. All complete epochs of each run count
but the first, or those of one number with --epoch.
"""

from __future__ import annotations

import argparse

from ddlp.observe.report.comparison import Comparison, read_comparison
from ddlp.observe.report.page import write_comparison, write_report

__all__ = ["Comparison", "add_arguments", "read_comparison", "run", "write_comparison", "write_report"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("run_directory", nargs="+", metavar="RUN")
    parser.add_argument(
        "-o", "--out", metavar="DIR_OR_FILE",
        help="a directory, or a file .html (default: RUN/report.html; of several, comparison.html in the directory above all)",
    )  # fmt: skip
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--epoch", type=int, metavar="N", help="show this epoch in detail (default: the one recorded last)")
    which.add_argument("--all", action="store_true", help="show every epoch in detail; of several runs: the first count too")
    parser.add_argument("--energy", metavar="FILE", help="what `ddlp energy run --out` saved (default: energy*.json of RUN)")


def run(options: argparse.Namespace) -> int:
    """Write it."""
    chosen = {"epoch": options.epoch, "every": options.all, "energy": options.energy}
    if len(options.run_directory) > 1:
        page = write_comparison(read_comparison(options.run_directory, **chosen), options.out)
    else:
        page = write_report(options.run_directory[0], options.out, **chosen)
    print(f"report: {page}")
    return 0
