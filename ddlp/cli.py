"""The command line: `ddlp` or `python -m ddlp`."""

from __future__ import annotations

import argparse
import importlib
import os
import select
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import ddlp
from csd_engine.errors import EngineError
from csd_engine.protocol.printable import printable_lines
from ddlp.errors import DDLPError
from ddlp.process.platforms import other_system

# Name -> (module, help). A module has `add_arguments(parser)` and `run(options) -> exit status`; its docstring is the
# command's description. Only the module of the given command is imported: some of them import torch, which takes seconds.
_COMMANDS = {
    "run": ("ddlp.swap.command", "run a training script as it is, with torch's DataLoader swapped"),
    "deploy": ("ddlp.deploy.command", "put the engine on a device over SSH, bring it up to date, remove it"),
    "status": ("ddlp.deploy.status", "how each device is: reachable, version, jobs, images/s, memory, spool, temperature"),
    "logs": ("ddlp.deploy.logs", "what a device's engine has logged"),
    "stop": ("ddlp.deploy.stop", "stop a device's engine"),
    "start": ("ddlp.deploy.start", "start it again"),
    "keys": ("ddlp.deploy.keys", "replace the keys of a device, and of this host for it, by fresh ones"),
    "doctor": ("ddlp.deploy.doctor", "find out what is wrong with a device, and what to do"),
    "energy": ("ddlp.observe.energy.command", "what runs take in energy: meters, measuring, comparing"),
    "analyse": ("ddlp.observe.analysis", "where the time of a recorded run went, and which stage limits it"),
    "trace": ("ddlp.observe.trace", "a recorded run as a Chrome trace for Perfetto"),
    "report": ("ddlp.observe.report", "a recorded run as one HTML page; several runs side by side"),
    "plan": ("ddlp.observe.plan_command", "what strategies, devices and workers would bring, predicted without running it"),
    "cache": ("ddlp.caching.command", "what loaders keep with cache=: list it, verify it, remove it, make it ahead"),
    "try": ("ddlp.tryout.command", "what ddlp would bring for the images in a folder of yours, in two minutes"),
    "parity": ("ddlp.deploy.parity", "whether a device makes the same pixels as this host, operator by operator"),
}
_FILL = {"cache": ("ddlp.swap.fill_command", "make what loaders keep with cache= ahead of training")}  # in place of that


def _add(commands: Any, table: Mapping[str, tuple[str, str]], given: Sequence[str]) -> None:
    for name, (module_name, text) in table.items():
        parser = commands.add_parser(name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name in given[:1]:
            module = importlib.import_module(module_name)
            parser.description = module.__doc__
            module.add_arguments(parser)
            parser.set_defaults(run=module.run)


def make_parser(given: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of the command line ``given``. It knows only the options of the command that is named there."""
    parser = argparse.ArgumentParser(
        prog="ddlp", description="A DataLoader that prepares each epoch from both ends: tools around it."
    )
    parser.add_argument("--version", action="version", version=f"ddlp {ddlp.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add(commands, {**_COMMANDS, **(_FILL if given[:2] == ["cache", "fill"] else {})}, given)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return the exit status. ``arguments``: None: those of this process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return _run(given)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # not as the interpreter ends, where an error can't be caught
    except KeyboardInterrupt:
        if arguments is not None:  # a script called this function: it should end by Ctrl-C, too
            raise
        print("ddlp: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        if arguments is not None or not _reader_is_gone():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still buffered
        return 141  # as of a program that SIGPIPE ended


def _run(given: list[str]) -> int:
    if not given:
        make_parser().print_help()
        return 0
    if not given[0].startswith("-") and (other := other_system()) is not None:
        print(f"ddlp {given[0]}: {other}", file=sys.stderr)
        return 1
    options = make_parser(given).parse_args(given)
    try:
        return int(options.run(options))
    except (DDLPError, EngineError) as error:
        print(f"ddlp: {printable_lines(str(error))}", file=sys.stderr)  # it may quote a device, or a file
        return 1


def _reader_is_gone() -> bool:
    """Whether standard output is a pipe that nobody reads any more, as after `| head`."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
