"""Stop the engine of a device, until ddlp start or until it boots. Batches that it has under way go back to the hosts."""

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
        ran = Service.of(record, shell).stop()
        print(f"{record.name} {'is stopped' if ran else 'did not run'}")
    return 0
