r"""Predict a run without running it: an epoch under each strategy, beside the least time that its rates allow.

From a run that was recorded (`DDLPLoader(..., record=RUN)`), or from a set-up that you describe in a file:

    ddlp plan --from-run runs/first
    ddlp plan --from-run runs/first --engine csd0=5          # what would a device bring that makes 5 batches a second?
    ddlp plan --setup plan.toml
    ddlp plan --from-run runs/first --setup plan.toml        # what is in the file counts more than the recording

    # plan.toml
    step_s = 0.1               # seconds of a training step that does not wait for data
    host_rate = 4              # batches a second of the host, all its workers together
    workers = 8
    [[engine]]
    name = "csd0"
    rate = 2.5                 # batches a second

An epoch is played in simulated time by the ledger and the strategies that a loader uses. What is neither recorded nor given is
assumed, and said below the table. docs/plan.md has all fields, and explains the columns.

Status 0: all is well; 1: a recording can't be read; 2: what was given is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from ddlp.observe.measured_run import measured_run
from ddlp.observe.plan import rows, text
from ddlp.observe.run import epoch_files, read_epoch
from ddlp.observe.setup import Fields, checked, engine_of, merged, read_file, setup_of

__all__ = ["add_arguments", "run"]

_NOTHING = "nothing to predict was given. Give a recorded run (--from-run) or a file that describes a set-up (--setup); --help "
_NOTHING += "has an example"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("--from-run", type=Path, metavar="RUN", help="a recorded run's directory (the last epoch counts), or a file of it")
    add("--setup", type=Path, metavar="FILE", help="a set-up, or what is different from the recorded run, as TOML or JSON")
    add("--engine", action="append", default=[], metavar="NAME=RATE",
        help="an engine and its batches a second; may be repeated")  # fmt: skip
    add("--json", action="store_true", help="print the figures as JSON")


def run(options: argparse.Namespace) -> int:
    """Predict and print. Returns the exit status. Raises DDLPError for a recording that can't be read."""
    try:
        fields: Fields = {} if options.setup is None else read_file(options.setup)
        fields = merged(fields, checked({"engine": [engine_of(engine) for engine in options.engine]}, "the options"))
        sources = [*([] if options.setup is None else [str(options.setup)]), *(["the options"] if options.engine else [])]
        if options.from_run is not None:
            file = epoch_files(options.from_run)[-1]
            measured = measured_run(read_epoch(file), fields.get("batch_bytes"))
            sources = [str(file), *sources]
            setup = setup_of(merged(measured.fields, fields), measured.assumed)
            epochs = rows(setup, measured.played, measured.strategy)
        elif options.setup is not None:
            setup = setup_of(fields)
            epochs = rows(setup)
        else:
            raise ValueError(_NOTHING)
    except ValueError as error:
        print(f"ddlp plan: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"source": ", ".join(sources), "setup": asdict(setup), "rows": list(map(asdict, epochs))}, indent=2))
    else:
        print(text(setup, ", ".join(sources), epochs))
    return 0
