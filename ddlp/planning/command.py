"""`ddlp plan`: what ddlp predicts without running it.

So far it predicts what is known already: `--validate paper` holds the paper's event rules in the simulator against its figures.
Status 0: all aims are met; 1: not all.

`--show` lists what was measured in earlier runs, `--forget` removes it.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from ddlp.planning import store_command
from ddlp.planning.paper import table, validate

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    store_command.add_arguments(parser)
    parser.add_argument("--validate", choices=["paper"], help="paper: predict its toy example and its Tables VI and VII")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(options: argparse.Namespace) -> int:
    """Predict, judge and print."""
    if (status := store_command.run(options)) is not None:
        return status
    if options.validate is None:
        print("ddlp plan: nothing to predict was given. So far there is --validate paper", file=sys.stderr)
        return 2
    found = validate()
    print(json.dumps(asdict(found), indent=2) if options.json else table(found))
    for aim in found.missed:
        print(f"ddlp plan: {aim.what}: must be {aim.aim}, is {aim.rules}", file=sys.stderr)
    return 1 if found.missed else 0
