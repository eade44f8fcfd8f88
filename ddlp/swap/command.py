r"""Run a training script as it is, with torch's DataLoader swapped.

    ddlp run -- train.py --epochs 3                          # a script and its arguments
    ddlp run -- -m package.train --epochs 3                  # a module
    ddlp run --csd csd0 -- train.py                          # a device that `ddlp deploy` knows prepares a part
    ddlp run --strategy dataloader --record runs/today -- train.py   # nothing is swapped: what torch's own loaders take
    ddlp run -- torchrun --nproc-per-node 2 train.py         # a command that starts Python: all of its processes
    torchrun --nproc-per-node 2 -m ddlp run -- train.py      # the same

Each DataLoader gets a line on standard error when it is first used: swapped, or left alone and why. A loader is left alone
where its data set, or the beginning of its transform, is code that ddlp can't run itself, and where it is of a subclass of
DataLoader: it is torch's own then, to the bit. JPEGs that the script's own code opens are decoded late, in one step with crop,
resize and flips, with the same pixels. At the script's end lines tell what was gained. For that the first use of a swapped
loader times both ways on 20 batches, 15 seconds each at most.

The script keeps its arguments, standard output, signals and exit status: this command becomes the script's interpreter.
docs/run.md: what reaches child processes, what the figures mean, what to do about a loader that is left alone.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from ddlp.errors import DDLPError
from ddlp.schedule.strategies import DATALOADER, STRATEGIES, called
from ddlp.swap.settings import VARIABLE, Settings

__all__ = ["add_arguments", "become", "run"]

_START = str(Path(__file__).parent / "start")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.usage = "ddlp run [OPTIONS] -- SCRIPT.py ... | -m MODULE ... | COMMAND ..."
    parser.add_argument(
        "--strategy", choices=[DATALOADER, *(name for name, strategy in STRATEGIES.items() if not strategy.needs_device)],
        help="where batches come from, see docs/strategies.md; a loader whose order is not random gets ordered, not auto, "
        "wrr or mte. Default: cpu; with --csd auto, or ordered. Without --csd, all but cpu start an engine on this machine. "
        "dataloader swaps nothing: torch's own loaders are measured",
    )  # fmt: skip
    parser.add_argument("--csd", action="append", default=[], metavar="NAME", help="a device, by name or address; repeatable")
    parser.add_argument("--record", metavar="DIR", help="record the epochs there, for `ddlp analyse` and `ddlp report`")
    parser.add_argument(
        "--only-exact", action="store_true",
        help="change no random number: swap a loader only if its transform draws none, and is known as a whole",
    )  # fmt: skip
    parser.add_argument("--no-postpone", action="store_true", help="decode JPEGs at once where Pillow opens them, not late")
    parser.add_argument("--no-compare", action="store_true", help="don't time torch's own workers: no gain is reported then")
    parser.add_argument(
        "command_line", nargs=argparse.REMAINDER, metavar="-- SCRIPT ...", help="what to run, and its arguments"
    )


def run(options: argparse.Namespace) -> NoReturn:
    """Become the script's interpreter. Raises DDLPError where that can't be."""
    words = options.command_line[1:] if options.command_line[:1] == ["--"] else options.command_line
    if not words:
        raise DDLPError("ddlp run: nothing to run. Write it after --, e.g. ddlp run -- train.py --epochs 3")
    if options.csd and options.strategy is not None and not called(options.strategy).uses_device:
        raise DDLPError(f"--csd with --strategy {options.strategy}: the device would have nothing to do. Leave one of them out")
    if options.csd:
        from ddlp.devices.device import Device  # a script of seconds notices the time that its import takes

        for name in options.csd:
            try:
                Device.at(name)
            except ValueError as error:
                raise DDLPError(str(error)) from None
    become(words, Settings(
        strategy=options.strategy, csd=tuple(options.csd), record=options.record and os.path.abspath(options.record),
        compare=not options.no_compare, only_exact=options.only_exact,
        postpone=not options.no_postpone and options.strategy != DATALOADER,
    ))  # fmt: skip


def become(words: list[str], settings: Settings) -> NoReturn:
    """Become the interpreter of a script, or the command, in these words. Its processes find the settings.

    Raises:
        DDLPError: it can't be run.
    """
    is_script = words[0].startswith("-") or words[0].endswith((".py", ".pyz")) or os.path.isdir(words[0])
    if is_script:
        words = [sys.executable, *_unbuffered(), *words]
    program = shutil.which(words[0])
    if program is None:
        raise DDLPError(
            f"{words[0]!r} is no command. Name a script that ends in .py, -m and a module, or a command such as torchrun; "
            "for a script of another name write python before it"
        )
    counts = _memory() if settings.postpone else ""
    settings = replace(settings, prefix=sys.prefix, pid=os.getpid() if is_script else 0, counts=counts)
    before = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", _START)]
    environment = {**os.environ, VARIABLE: settings.to_text(), "PYTHONPATH": os.pathsep.join([_START, *before])}
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the script would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(program, words, environment)
    except OSError as error:
        raise DDLPError(f"{program} can't be run: {error.strerror}") from None


def _memory() -> str:
    """Return the path of a file in memory, which all processes can open as long as this one lives; "" where there is none."""
    if not hasattr(os, "memfd_create"):  # macOS
        return ""
    descriptor = os.memfd_create("ddlp-run")
    os.set_inheritable(descriptor, True)  # the script's interpreter keeps it
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def _unbuffered() -> list[str]:
    """Return -u if this interpreter was started with it, as torchrun starts its processes."""
    return ["-u"] if "-u" in itertools.takewhile(lambda word: word.startswith("-") and word != "-m", sys.orig_argv[1:]) else []
