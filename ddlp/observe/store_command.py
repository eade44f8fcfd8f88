"""The stored measurements in `ddlp plan`: `--show` lists them, `--forget` removes them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone

from ddlp.auto.fingerprints import words_of
from ddlp.auto.measured import Measured, OffloadPath
from ddlp.auto.store import Entry, Store

__all__ = ["add_arguments", "run", "table"]

_COLUMNS = (
    "ID", "when", "data set", "pipeline", "batch", "model", "host", "sources", "step s", "host batches/s", "host CPU s/batch",
    "sources batches/s",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--show", action="store_true", help="list what was measured in earlier runs, the newest first")
    parser.add_argument("--forget", nargs="*", metavar="ID", help="forget such measurements; --show has their IDs")
    parser.add_argument("--all", action="store_true", help="with --forget: all of them")


def run(options: argparse.Namespace) -> int | None:
    """Show or forget, and return the exit status; None: neither is wanted."""
    store = Store()
    if options.forget is not None:
        status = _forget(store, options.forget, options.all)
    elif options.show:
        status = 0
        entries = store.entries()
        print(json.dumps([_plain(entry) for entry in entries], indent=2) if options.json else table(entries))
    else:
        return None
    if store.note:
        print(f"ddlp plan: {store.note}", file=sys.stderr)
    return status


def _forget(store: Store, wanted: Sequence[str], everything: bool) -> int:
    if everything == bool(wanted):
        print("ddlp plan: --forget wants IDs, as --show lists them, or --all", file=sys.stderr)
        return 2
    if everything:
        print(f"forgotten: {store.forget()}")
        return 1 if store.note else 0
    unknown = [one for one in wanted if not store.forget(one)]
    print(f"forgotten: {len(wanted) - len(unknown)}")
    if unknown:
        print(f"ddlp plan: no measurement was forgotten for {', '.join(unknown)}: see ddlp plan --show", file=sys.stderr)
    return 1 if unknown else 0


def _plain(entry: Entry) -> dict[str, object]:
    when = datetime.fromtimestamp(entry.measured_at_s, timezone.utc).isoformat(timespec="seconds")
    return {"id": entry.id, "measured_at": when, "key": asdict(entry.key), "measured": asdict(entry.measured)}


def table(entries: Sequence[Entry]) -> str:
    """Return the entries as a table of text, without columns that are empty in all of them."""
    if not entries:
        return "No measurements are stored."
    columns = [column for column in zip(_COLUMNS, *map(_row, entries), strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in zip(*columns, strict=True))


def _row(entry: Entry) -> tuple[str, ...]:
    key, found = entry.key, entry.measured
    return (
        entry.id, time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.measured_at_s)),
        *map(words_of, (key.dataset, key.pipeline, key.batch_size, key.model, key.host, key.sources)), *_figures(found),
    )  # fmt: skip


def _figures(found: Measured) -> tuple[str, ...]:
    figures = (found.step_s, found.host_batches_per_s, found.host_cpu_s_per_batch)
    return (*("" if one is None else f"{one:.3g}" for one in figures), ", ".join(map(_path, found.paths)))


def _path(path: OffloadPath) -> str:
    return f"{words_of(str(path))} " + ("?" if path.batches_per_s is None else f"{path.batches_per_s:.3g}")
