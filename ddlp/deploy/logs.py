"""Print what the engine of a device has logged, and what its supervisor has: the last lines, or on and on with -f."""

from __future__ import annotations

import argparse
import shlex

from ddlp.deploy.options import add_device
from ddlp.deploy.shell import Shell
from ddlp.devices import address_book as book


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_device(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on printing until Ctrl-C")
    parser.add_argument("-n", "--lines", type=int, default=100, metavar="N", help="so many of the last lines; default 100")


def run(options: argparse.Namespace) -> int:
    """Print them."""
    record = book.load(options.name)
    log = shlex.quote(f"{record.home}/run/engine.log")
    lines = max(0, options.lines)
    with Shell(record.destination, record.ssh_options) as shell:
        if options.follow:
            return shell.attach(f"tail -n {lines} -F {log}")
        script = f"cat {log}.1 {log} 2> /dev/null | tail -n {lines}"
        print(shell.must(script, "reading the log", timeout_s=60), end="")
    return 0
