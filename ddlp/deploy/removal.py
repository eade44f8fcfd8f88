"""Removing an engine from a device, and what this host knows of it."""

from __future__ import annotations

import dataclasses

from ddlp.deploy import book, place
from ddlp.deploy.book import DeviceRecord
from ddlp.deploy.service import Service
from ddlp.deploy.shell import Shell, ShellError
from ddlp.deploy.steps import Steps

__all__ = ["uninstall"]


def uninstall(record: DeviceRecord, steps: Steps, *, forget: bool = False) -> None:
    """Remove the engine and all of ours from a device, and its record and keys here. What is gone already is no error.

    Args:
        record: of the device; where there is none any more, name, destination and home suffice.
        steps: tells what was done.
        forget: remove only what this host knows: the device is gone.

    Raises:
        ShellError: the device can't be reached; nothing was removed.
    """
    if not forget:
        with Shell(record.destination, record.ssh_options) as shell:
            with steps.step("connect") as step:
                try:
                    shell.connect()
                except ShellError as error:
                    raise type(error)(f"{error} If the device is gone for good: --uninstall --forget.") from error
                step.say(f"{record.destination} answers")
            with steps.step("service") as step:
                home = place.absolute_home(shell, record.home)
                service = Service.of(dataclasses.replace(record, home=home), shell)
                service.disable()
                step.say("stopped and removed")
                user = service.made_linger()
                if user:
                    step.say(f"lingering of {user} stays on, others may need it by now; off: loginctl disable-linger {user}")
            with steps.step("device") as step:
                place.remove_all(shell, home, record.device_spool or None)
                step.say(f"{home} removed; data untouched")
    with steps.step("host") as step:
        book.remove(record.name)
        step.say(f"{book.directory(record.name)} removed")
