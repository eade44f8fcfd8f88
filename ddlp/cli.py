"""The command line: `ddlp` or `python -m ddlp`."""

from __future__ import annotations

import argparse
import sys

from csd_engine.errors import EngineError
from ddlp.errors import DDLPError


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="ddlp", description="A DataLoader that prepares each epoch from both ends: tools around it."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    bench = commands.add_parser("bench", help="measure on this machine, each figure beside its bound and its peers")
    benches = bench.add_subparsers(dest="bench", required=True, metavar="BENCH")
    from ddlp.bench import overlap, transfer  # late: they bring torch

    overlap_parser = benches.add_parser(
        "overlap",
        help="host on one core, engine on another: how close both come to r_cpu + r_csd",
        description=overlap.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    overlap.add_arguments(overlap_parser)
    overlap_parser.set_defaults(run=overlap.run)
    transfer_parser = benches.add_parser(
        "transfer",
        help="a device's batch into memory, through the spool and over the socket",
        description=transfer.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    transfer.add_arguments(transfer_parser)
    transfer_parser.set_defaults(run=transfer.run)
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
        return status
    except (DDLPError, EngineError) as error:
        print(f"ddlp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("ddlp: stopped", file=sys.stderr)
        return 130
