"""`ddlp analyse RUN`: where the time of a recorded run went, and which stage limits it.

RUN is the directory of `DDLPLoader(..., record=RUN)`, or one of its files. A profile of torch that lies there as torch*.json
(`profiler.export_chrome_trace`) tells when the accelerator was at work; without one that is the training thread's time.
"""

from __future__ import annotations

import argparse
import json

from ddlp.observe.analysis import Analysis, StageRates, analyse, by_size
from ddlp.observe.profile import find_profile, read_profile
from ddlp.observe.run import epoch_files, read_epoch

__all__ = ["add_arguments", "run", "table"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("run_directory", metavar="RUN")
    parser.add_argument("--all", action="store_true", help="every epoch, not only the one recorded last")
    parser.add_argument("--profile", metavar="FILE", help="torch's profile; by default the newest torch*.json of RUN")
    parser.add_argument("--json", action="store_true", help="as JSON: a list of epochs")


def run(options: argparse.Namespace) -> int:
    """Print it."""
    files = epoch_files(options.run_directory)
    where = options.profile or find_profile(options.run_directory)
    profile = None if where is None else read_profile(where)
    found = [analyse(read_epoch(file), profile) for file in (files if options.all else files[-1:])]
    if options.json:
        print(json.dumps([one.to_data() for one in found], indent=2))
    else:
        print("\n\n".join(map(table, found)))
        if len(files) > len(found):
            print(f"\n{len(files)} epochs were recorded; this is the last one. --all prints every one.")
    return 0


def table(analysis: Analysis) -> str:
    """For a person."""
    wall_s = max(analysis.wall_s, 1e-9)
    cpu, csd = analysis.batches["cpu"], analysis.batches["csd"]
    bound = "" if analysis.bound_s is None else f", at best {analysis.bound_s:.2f} s at these rates"
    rows = [
        f"epoch {analysis.epoch}, {analysis.strategy}: {analysis.wall_s:.2f} s, {analysis.samples} images, "
        f"{analysis.images_per_s:.0f} images/s; {cpu} batches by the host, {csd} by the device{bound}",
        f"rates: {_rates(analysis.rates)}",
        f"limit: {analysis.limit}. What would move it: {analysis.advice}.",
        f"verdict: {analysis.verdict}",
        "",
        "where the epoch's seconds went     seconds   part",
    ]
    for name, seconds in by_size(analysis.seconds):
        rows.append(f"  {name:32} {seconds:8.3f} {100 * seconds / wall_s:5.1f} %")
    for name, seconds in analysis.training_parts.items():
        rows.append(f"  of training: {name:19} {seconds:8.3f} {100 * seconds / wall_s:5.1f} %")
    rows += ["", "resource            busy   waiting      idle   unaccounted, % of its time"]
    for one in analysis.resources:
        parts = (100 * s / max(one.wall_s, 1e-9) for s in (one.busy_s, one.waiting_s, one.idle_s, one.unaccounted_s))
        named = f"{one.name} x {one.lanes}" if one.lanes > 1 else one.name
        rows.append(f"{named:17}" + "".join(f" {part:7.1f} " for part in parts))
    rows += ["", "work of each stage, all its workers: " + ", ".join(f"{n} {s:.2f} s" for n, s in analysis.stages.items())]
    names = list(analysis.overlap)
    rows += ["", "at work at once, s  " + "".join(f"{name:>19}" for name in names)]
    for a in names:
        rows.append(f"{a:20}" + "".join(f"{analysis.overlap[a][b]:19.2f}" for b in names))
    counts = ", ".join(f"{count} {name}" for name, count in analysis.counts.items() if count)
    rows += ["", counts] if counts else []
    return "\n".join(rows + [f"note: {note}" for note in analysis.notes])


def _rates(rates: StageRates) -> str:
    named = {"host": rates.host, **rates.devices, "transfer": rates.transfer, "training": rates.training}
    found = ", ".join(f"{name} {rate:.0f}" for name, rate in named.items() if rate is not None)
    return f"{found} images/s, each alone" if found else "none: nothing was made"
