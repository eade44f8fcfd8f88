"""Start the engine of a device that was deployed, and wait until it serves."""

from __future__ import annotations

import argparse

from ddlp.deploy.options import add_device
from ddlp.deploy.service import Service
from ddlp.deploy.shell import Shell
from ddlp.devices import address_book as book


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_device(parser)


def run(options: argparse.Namespace) -> int:
    """Do it."""
    record = book.load(options.name)
    with Shell(record.destination, record.ssh_options) as shell:
        print(f"{record.name} runs and listens on {Service.of(record, shell).start()}")
    return 0
