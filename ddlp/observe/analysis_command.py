"""`ddlp analyse RUN`: where the time of a recorded run went, and which stage limits it.

RUN is the directory of `DDLPLoader(..., record=RUN)`, or one of its files.
"""

from __future__ import annotations

import argparse
import json

from ddlp.observe.analysis import analyse
from ddlp.observe.run import epoch_files, read_epoch

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("run_directory", metavar="RUN")
    parser.add_argument("--all", action="store_true", help="every epoch, not only the one recorded last")
    parser.add_argument("--json", action="store_true", help="as JSON: a list of epochs")


def run(options: argparse.Namespace) -> int:
    """Print it."""
    files = epoch_files(options.run_directory)
    analyses = [analyse(read_epoch(file)) for file in (files if options.all else files[-1:])]
    if options.json:
        print(json.dumps([analysis.to_data() for analysis in analyses], indent=2))
        return 0
    print("\n\n".join(map(str, analyses)))
    if len(files) > len(analyses):
        print(f"\n{len(files)} epochs were recorded; this is the last one. --all prints every one.")
    return 0
