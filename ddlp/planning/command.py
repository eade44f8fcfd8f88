"""`ddlp plan`: what ddlp predicts without running it: strategies side by side, and what more or other hardware would bring.

Describe a set-up by options or in a file. Rates are batches a second, sizes bytes (38.5M: 38.5 million):

    ddlp plan --step-s 0.1 --host-rate 4 --workers 8 --engine csd0=2.5
    ddlp plan --step-s 0.1 --host-rate 4 --workers 8 --batches 5000 --batch-bytes 38.5M \\
        --engine csd0=2.5,spool,4,bandwidth=1.2G --engine csd1=1,stream,bandwidth=110M
    ddlp plan --setup plan.toml --pool 6                     # options count more than the file
    ddlp plan ... --host-watts 80:250 --accelerator-watts 300 --engine-watts 12       # joules
    ddlp plan ... --host-price 1.2 --accelerator-price 3 --engine-price 0.1           # what an epoch costs
    ddlp plan ... --leave csd0@120 --join csd0@300           # csd0 is away for three minutes of an epoch

An epoch is played in simulated time by the ledger and the strategies that a loader uses. What is not given is assumed, and
said below the table. docs/plan.md explains the columns and the answers.

What is known already can be predicted as well: `--validate paper` holds the paper's event rules against its figures.
Status 0: all is well; 1: an aim of --validate is missed; 2: something is wrong with what was given.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from ddlp.planning.answers import CACHE_COST, ENGINES
from ddlp.planning.described import FIELDS, Fields, checked, merged, read_file, setup_of
from ddlp.planning.paper import table, validate
from ddlp.planning.plan import Plan, make_plan, text
from ddlp.schedule.strategies import STRATEGIES

__all__ = ["add_arguments", "described_plan", "run", "show"]

_NOTHING = (
    "ddlp plan: nothing to predict was given. Describe a set-up, at least --step-s and --host-rate, or give --setup FILE; "
    "--validate paper predicts the paper's figures; ddlp plan --help has examples"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    _add_described(parser)
    _add_asked(parser)
    parser.add_argument("--validate", choices=["paper"], help="paper: predict its toy example and its Tables VI and VII")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def _add_described(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe a set-up: each is a field of `FIELDS`, checked there."""
    group = parser.add_argument_group("the set-up")
    add = group.add_argument
    add("--setup", type=Path, metavar="FILE", help="a TOML or JSON file with the options' names as fields (step_s, engine, ...)")
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
        help="an engine and its batches a second; may be repeated. Behind commas: spool or stream (default), uint8 (default) or "
        "float32, a number of workers, and KEY=VALUE: bytes, bandwidth, room (batches in its spool), host_cpu_s (processor "
        "seconds of the host to take a batch), watts, price",
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
    with_devices = [name for name, one in STRATEGIES.items() if one.uses_device]
    group.add_argument("--strategy", choices=with_devices, default="wrr", help="the engines work by it (%(default)s)")
    group.add_argument("--pool", type=int, default=4, metavar="N", help="engines of the pool that is asked about (%(default)s)")
    group.add_argument(
        "--cache-cost", type=float, default=CACHE_COST, metavar="PART",
        help="what reading a finished batch from a cache costs the host, as a part of making it (%(default)s)",
    )  # fmt: skip
    group.add_argument("--curve", action="store_true", help=f"an epoch's time with 0 to {ENGINES} engines like the first")


def run(options: argparse.Namespace) -> int:
    """Predict and print."""
    if options.validate is not None:
        return _validate(options)
    try:
        plan = described_plan(options)
    except ValueError as error:
        print(f"ddlp plan: {error}", file=sys.stderr)
        return 2
    if plan is None:
        print(_NOTHING, file=sys.stderr)
        return 2
    show(plan, options)
    return 0


def described_plan(
    options: argparse.Namespace, known: Fields | None = None, source: str = "", assumed: tuple[str, ...] = (), curve: bool = False
) -> Plan | None:
    """Return the plan for what the options describe; None if they describe nothing.

    ``known``: fields that are known already, from ``source``; file and options count more. ``assumed``: what was assumed of
    them. ``curve``: the plan has the curve, also if the options do not ask for it. Raises ValueError for what is wrong.
    """
    given = checked({name: value for name in FIELDS if (value := getattr(options, name, None)) is not None}, "the options")
    if not options.pool >= 1:
        raise ValueError(f"--pool is {options.pool}; give a number of engines, at least 1")
    if not 0 < options.cache_cost <= 1:
        raise ValueError(f"--cache-cost is {options.cache_cost}; give a part above 0 and at most 1, such as 0.06")
    if known is None and options.setup is None and not given:
        return None
    fields = known or {}
    sources = [source] if source else []
    if options.setup is not None:
        fields = merged(fields, read_file(options.setup))
        sources.append(str(options.setup))
    if given:
        fields = merged(fields, given)
        sources.append("the options")
    wants_curve = curve or options.curve or options.json
    return make_plan(
        setup_of(fields, assumed), " and ".join(sources), STRATEGIES[options.strategy], pool=options.pool,
        cache_cost=options.cache_cost, engines=ENGINES if wants_curve else None,
    )  # fmt: skip


def show(plan: Plan, options: argparse.Namespace) -> None:
    """Print a plan."""
    print(json.dumps(plan.to_data(), indent=2) if options.json else text(plan))


def _validate(options: argparse.Namespace) -> int:
    found = validate()
    print(json.dumps(asdict(found), indent=2) if options.json else table(found))
    for aim in found.missed:
        print(f"ddlp plan: {aim.what}: must be {aim.aim}, is {aim.rules}", file=sys.stderr)
    return 1 if found.missed else 0
