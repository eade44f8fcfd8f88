"""What loaders keep with cache=: list it, verify it, remove it.

    ddlp cache ls                     # shelves: one for each data set and pipeline
    ddlp cache verify                 # read all of it and compare checksums; damaged files are removed and made again
    ddlp cache forget 3f2a9c01b7de    # remove a shelf that no process uses; --all: all of them
    ddlp cache ls --dir /data/cache   # of ddlp.Cache("/data/cache", ...); without --dir that of cache="auto"
    ddlp cache fill -- train.py       # make ahead what the script's loaders keep: ddlp cache fill -h
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from csd_engine.cache.shelves import ShelfSummary, Shelves
from csd_engine.machine.sizes import size_text
from csd_engine.protocol.printable import printable
from ddlp.process.cache_directory import samples_directory

__all__ = ["add_arguments", "run"]

_ID = 12  # digits of a shelf's key that are shown
_COLUMNS = ("ID", "used", "data set", "what", "samples", "bytes", "made in", "")
_PROGRESS_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "what", choices=("ls", "verify", "forget", "fill"), help="list, verify or remove shelves; fill: see above"
    )
    parser.add_argument("shelves", nargs="*", metavar="ID", help="of shelves, as ls shows them; none: all, for ls and verify")
    parser.add_argument("--dir", help="the cache's directory; default: that of cache='auto'")
    parser.add_argument("--all", action="store_true", help="with forget: all shelves")
    parser.add_argument("--json", action="store_true", help="with ls: as JSON")


def run(options: argparse.Namespace) -> int:
    """Do it, and return the exit status."""
    directory = options.dir or samples_directory()
    if directory is None or not os.path.isdir(directory):
        where = directory or "this account, which has no home"
        print(f"ddlp cache: there is no cache in {where}; --dir names one", file=sys.stderr)
        return 1 if options.dir else 0
    shelves = Shelves(directory, 0)
    summaries = shelves.summaries()
    names = options.shelves
    chosen = [shelf for shelf in summaries if not names or any(shelf.key.startswith(name) for name in names)]
    unknown = [name for name in names if not any(shelf.key.startswith(name) for shelf in summaries)]
    if unknown:
        print(f"ddlp cache: no shelf {', '.join(unknown)} in {directory}: see ddlp cache ls", file=sys.stderr)
        return 1
    if options.what == "ls":
        print(json.dumps([shelf._asdict() for shelf in chosen], indent=2) if options.json else _table(chosen))
        return 0
    if options.what == "verify":
        return _verify(shelves, chosen)
    if options.all == bool(options.shelves):
        print("ddlp cache: forget wants IDs, as ls lists them, or --all", file=sys.stderr)
        return 2
    in_use = [shelf.key[:_ID] for shelf in chosen if not shelves.forget(shelf.key)]
    print(f"forgotten: {len(chosen) - len(in_use)}")
    if in_use:
        print(f"ddlp cache: in use, and still there: {', '.join(in_use)}", file=sys.stderr)
    return 1 if in_use else 0


def _verify(shelves: Shelves, summaries: Sequence[ShelfSummary]) -> int:
    total, read, damaged, printed_s = sum(shelf.bytes for shelf in summaries), 0, 0, time.monotonic()
    for shelf in summaries:
        for name, size, why in shelves.verify(shelf.key):
            read += size
            if why:
                damaged += 1
                print(f"{shelf.key[:_ID]}/{name}: {why}; removed, its samples are made again")
            if time.monotonic() - printed_s > _PROGRESS_S:
                printed_s = time.monotonic()
                print(f"read {size_text(read)} of {size_text(total)}", file=sys.stderr)
    print(f"verified: {size_text(read)}, {damaged} damaged files")
    return 1 if damaged else 0


def _table(summaries: Sequence[ShelfSummary]) -> str:
    """Return the shelves as a table of text."""
    if not summaries:
        return "Nothing is kept."
    rows = [_COLUMNS, *map(_row, summaries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _row(shelf: ShelfSummary) -> tuple[str, ...]:
    data_set, point = (printable(str(shelf.about.get(name, "?")), 40) for name in ("data set", "point"))
    return (
        shelf.key[:_ID], time.strftime("%Y-%m-%d %H:%M", time.localtime(shelf.used_s)), data_set, point,
        f"{shelf.samples:,} of {printable(str(shelf.about.get('samples', '?')), 12)}", size_text(shelf.bytes),
        f"{shelf.seconds:,.0f} s", "in use" if shelf.in_use else "",
    )  # fmt: skip
