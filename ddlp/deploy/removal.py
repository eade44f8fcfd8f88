"""Removing an engine from a device, and what this host knows of it."""

from __future__ import annotations

import dataclasses

from ddlp.deploy import place, settings
from ddlp.deploy.service import Service
from ddlp.deploy.shell import Shell, ShellError
from ddlp.deploy.steps import Steps
from ddlp.deploy.survey import survey
from ddlp.devices import address_book as book
from ddlp.devices.address_book import DeviceRecord

__all__ = ["uninstall"]


def uninstall(record: DeviceRecord, steps: Steps, *, forget: bool = False, for_all: bool = False) -> None:
    """Remove the engine and all of ours from a device, and its record and keys here. It is no error if some are gone already.

    If other hosts use the engine as well, it stays, and only this host is taken out.

    Args:
        record: of the device; if none is stored any more, name, destination and home suffice.
        steps: tells what was done.
        forget: remove only what this host knows: the device is gone.
        for_all: remove it even though other hosts use it.

    Raises:
        ShellError: the device can't be reached; nothing was removed.
    """
    if not forget:
        with Shell(record.destination, record.ssh_options) as shell:
            with steps.step("connect") as step:
                try:
                    shell.connect()
                except ShellError as error:
                    raise ShellError(f"{error} If the device is gone for good: --uninstall --forget.") from error
                step.say(f"{record.destination} answers")
            device = survey(shell, place.check_home(record.home), record.device_spool, [])
            rest = settings.others(device, record.name)
            if rest and not for_all:
                with steps.step("device") as step:
                    settings.withdraw(shell, device, record.name)
                    step.say(
                        f"the engine stays for {settings.hosts(rest)}, this one's key and directories are gone from it; to "
                        "remove it for all: --uninstall --all"
                    )
            else:
                there = settings.Settings.parse(device.settings)
                _remove(shell, dataclasses.replace(record, home=device.home), steps, "" if there is None else there.cache)
    with steps.step("host") as step:
        book.remove(record.name)
        step.say(f"{book.directory(record.name)} removed")


def _remove(shell: Shell, record: DeviceRecord, steps: Steps, cache: str) -> None:
    """Stop the engine, and remove all of ours from the device."""
    with steps.step("service") as step:
        Service.of(record, shell).disable()
        step.say("stopped and removed")
    with steps.step("device") as step:
        foreign = place.remove_all(shell, record.home, record.device_spool or None, cache)
        step.say(
            f"{record.home} stays as it is: it holds files that are not ddlp's ({foreign})"
            if foreign
            else f"{record.home} removed; data untouched"
        )
