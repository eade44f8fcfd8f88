"""What a user wants deployed: the command line, completed by the values given before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ddlp.devices.address_book import DeviceRecord

__all__ = ["Wanted"]


@dataclass(frozen=True)
class Wanted:
    """What is to be deployed.

    Attributes:
        record: name, destination, ssh_options, roots, spools, home, engine_options and the given values, as wanted. Values
            that are found out later are those of the run before, if there was one.
        given_options: those of engine_options that were given now, with their values.
        changes: the options given now that would change the engine's settings.
        reserve_bytes: what the engine leaves free on the spool's disk.
        install: ``apt``, ``pip`` or ``no``.
        bundle: directory of .whl and .deb files to install from; None.
        operators: files of the user's operators.
        upgrade: replace another build by this host's.
        measure: measure again though nothing has changed.
    """

    record: DeviceRecord
    given_options: Mapping[str, str]
    changes: tuple[str, ...]
    reserve_bytes: int
    install: str
    bundle: Path | None
    operators: tuple[Path, ...]
    upgrade: bool
    measure: bool
