r"""Predict a run without running it: strategies side by side, and what more or other hardware would bring.

From a run that was recorded (`DDLPLoader(..., record=RUN)`), or from a set-up that you describe:

    ddlp plan --from-run runs/first
    ddlp plan --from-run runs/first --engine csd0=5 --processors 16      # what is given counts more than the recording
    ddlp plan --step-s 0.1 --host-rate 4 --workers 8 --engine csd0=2.5
    ddlp plan --step-s 0.1 --host-rate 4 --workers 8 --batches 5000 --batch-bytes 38.5M \
        --engine csd0=2.5,spool,4,bandwidth=1.2G --engine csd1=1,stream,bandwidth=110M
    ddlp plan --setup plan.toml --pool 6 --html plan.html
    ddlp plan --setup plan.toml --host-watts 80:250 --accelerator-watts 300 --engine-watts 12
    ddlp plan --setup plan.toml --host-price 1.2 --accelerator-price 3 --engine-price 0.1
    ddlp plan --setup plan.toml --leave csd0@120 --join csd0@300         # away for three minutes of each epoch

Rates are batches a second; sizes are bytes, 38.5M are 38.5 million. An epoch is played in simulated time by the ledger and the
strategies that a loader uses. What is neither recorded nor given is assumed, and said below the table. docs/plan.md explains
the columns and the answers.

`--show` lists what was measured in earlier runs and is stored; `--forget` removes it.

`--validate paper` predicts what is known already: the paper's figures, by its own event rules.

Status 0: all is well; 1: a file can't be read or written, or an aim of --validate is missed; 2: what was given is wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ddlp.observe.measured_run import measured_run
from ddlp.observe.run import epoch_files, read_epoch
from ddlp.planning import command
from ddlp.planning.command import Known
from ddlp.planning.described import Fields
from ddlp.planning.plan import Plan
from ddlp.process.output_file import try_file

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--from-run", type=Path, metavar="RUN", help="a recorded run's directory (the last epoch counts), or a file of it"
    )
    command.add_arguments(parser)
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page too: table, answers, curve over engines")


def run(options: argparse.Namespace) -> int:
    """Predict, print, and write the page."""

    def recorded(given: Fields) -> Known:
        file = epoch_files(options.from_run)[-1]
        found = measured_run(read_epoch(file), given.get("batch_bytes"))
        return Known(found.fields, found.assumed, str(file), found.recorded)

    def draw(plan: Plan) -> None:
        from ddlp.observe.report.write import needs_matplotlib  # imports torch, which takes seconds

        with needs_matplotlib():
            from ddlp.observe.report.plan_page import write_plan
        print(f"page: {write_plan(plan, options.html)}", file=sys.stderr)

    if options.html is not None:
        try_file(options.html, "--html")
    return command.run(
        options, None if options.from_run is None else recorded, None if options.html is None else draw
    )  # fmt: skip
