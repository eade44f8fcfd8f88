"""The options of `ddlp plan` and its jobs, but for what reads or draws a run: that is in `ddlp.observe.plan_command`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from benchmarks.papers.validation import table, validate
from ddlp.planning import store_command
from ddlp.planning.answers import CACHE_COST, ENGINES
from ddlp.planning.compared import Recorded
from ddlp.planning.described import FIELDS, Fields, checked, merged, read_file, setup_of
from ddlp.planning.plan import Plan, make_plan, text
from ddlp.schedule.strategies import STRATEGIES

__all__ = ["Known", "add_arguments", "run"]

_NOTHING = (
    "ddlp plan: nothing to predict was given. Give a recorded run (--from-run), or describe a set-up, at least --step-s and "
    "--host-rate; ddlp plan --help has examples"
)


class Known(NamedTuple):
    """What is known of a set-up before anything is given."""

    fields: Fields
    assumed: tuple[str, ...]
    source: str
    recorded: Recorded | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    store_command.add_arguments(parser)
    _add_described(parser)
    _add_asked(parser)
    parser.add_argument("--validate", choices=["paper"], help="paper: predict its toy example and its Tables VI and VII")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def _add_described(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe a set-up: each is a field of `FIELDS`, checked there."""
    group = parser.add_argument_group("the set-up")
    add = group.add_argument
    add("--setup", type=Path, metavar="FILE", help="a TOML or JSON file with the options as fields (step_s, engine, ...)")
    add("--step-s", metavar="S", help="seconds of a training step that does not wait for data")
    add("--host-rate", metavar="RATE", help="batches a second of the host, all its workers together")
    add("--workers", metavar="N", help="of the host (default: 1)")
    add("--processors", metavar="N", help="of the host; one trains, those that no worker needs take engines' batches")
    add("--host-cpu-s", metavar="S", help="processor seconds of the host to make a batch (default: workers / rate)")
    add("--batches", metavar="N", help="of an epoch (default: 1000)")
    add("--batch-bytes", metavar="SIZE", help="bytes of a batch as an engine sends it")
    add("--bandwidth", metavar="SIZE", help="bytes a second of each engine's link or disk")
    add("--host-bandwidth", metavar="SIZE", help="bytes a second that the host takes in from all engines together")
    add(
        "--engine", action="append", metavar="NAME=RATE[,...]",
        help="an engine and its batches a second; may be repeated. Behind commas: spool or stream (default), uint8 (default) "
        "or float32, carried (the host sends it the images' files), a number of workers, and KEY=VALUE: bytes, source_bytes "
        "(of a batch's files), bandwidth, room (batches in its spool), host_cpu_s (processor seconds of the host to take a "
        "batch), watts, price",
    )  # fmt: skip
    add("--join", action="append", metavar="NAME@S", help="an engine joins S seconds after the epoch began; may be repeated")
    add("--leave", action="append", metavar="NAME@S", help="an engine leaves then; may be repeated")
    group = parser.add_argument_group("energy and cost, for which these are needed")
    add = group.add_argument
    add("--host-watts", metavar="IDLE:BUSY", help="of the host without work, and with all processors busy")
    add("--accelerator-watts", metavar="W", help="of the accelerator, for the whole time")
    add("--engine-watts", metavar="W", help="of each engine, for the whole time")
    add("--host-price", metavar="P", help="of an hour of the host, in any currency")
    add("--accelerator-price", metavar="P", help="of an hour of the accelerator")
    add("--engine-price", metavar="P", help="of an hour of each engine")
    add("--storage-price", metavar="P", help="of 10^9 bytes of spool for a month")


def _add_asked(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the answers")
    with_devices = [name for name, one in STRATEGIES.items() if one.uses_device and not one.decides]  # auto is wrr here
    group.add_argument("--strategy", choices=with_devices, default="wrr", help="the engines work by it (%(default)s)")
    group.add_argument("--pool", type=int, default=4, metavar="N", help="engines of the pool that is asked about (%(default)s)")
    group.add_argument(
        "--cache-cost", type=float, default=CACHE_COST, metavar="PART",
        help="what reading a finished batch from a cache costs the host, as a part of making it (%(default)s)",
    )  # fmt: skip
    group.add_argument("--curve", action="store_true", help=f"an epoch's time with 0 to {ENGINES} engines like the first")


def run(
    options: argparse.Namespace, known: Callable[[Fields], Known] | None = None, draw: Callable[[Plan], None] | None = None
) -> int:
    """Predict and print.

    Args:
        options: the command's.
        known: returns what is known already, beside the fields that are given.
        draw: draws the plan, and is given it before it is printed.
    """
    if (status := store_command.run(options)) is not None:
        return status
    if options.validate is not None:
        return _validate(options)
    try:
        plan = _plan(options, known, with_curve=draw is not None)
    except ValueError as error:
        print(f"ddlp plan: {error}", file=sys.stderr)
        return 2
    if plan is None:
        print(_NOTHING, file=sys.stderr)
        return 2
    if draw is not None:
        draw(plan)
    print(json.dumps(plan.to_data(), indent=2) if options.json else text(plan))
    return 0


def _plan(options: argparse.Namespace, known: Callable[[Fields], Known] | None, with_curve: bool) -> Plan | None:
    """Return the plan; None if nothing is described. Raises ValueError for what is wrong."""
    if options.pool < 1:
        raise ValueError(f"--pool is {options.pool}; give a number of engines, at least 1")
    if not 0 < options.cache_cost <= 1:
        raise ValueError(f"--cache-cost is {options.cache_cost}; give a part above 0 and at most 1, such as 0.06")
    given = {name: value for name in FIELDS if (value := getattr(options, name)) is not None}
    fields = checked(given, "the options")
    if options.setup is not None:
        fields = merged(read_file(options.setup), fields)
    if known is None and not fields:
        return None
    before = Known({}, (), "") if known is None else known(fields)
    sources = [before.source, str(options.setup or ""), "the options" if given else ""]
    return make_plan(
        setup_of(merged(before.fields, fields), before.assumed), ", ".join(filter(None, sources)),
        STRATEGIES[options.strategy], pool=options.pool, cache_cost=options.cache_cost,
        engines=ENGINES if with_curve or options.curve or options.json else None, recorded=before.recorded,
    )  # fmt: skip


def _validate(options: argparse.Namespace) -> int:
    found = validate()
    print(json.dumps(asdict(found), indent=2) if options.json else table(found))
    for aim in found.missed:
        print(f"ddlp plan: {aim.what}: must be {aim.aim}, is {aim.rules}", file=sys.stderr)
    return 1 if found.missed else 0
