"""What a user wants deployed: the command line, once what was given before is added."""

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
        record: name, destination, ssh_options, roots, spools, home, engine_options, and what was given, as wanted; what is
            found out later is taken from the run before, where there was one.
        given_options: those of engine_options that were given now, with their values.
        changes: the options given now that ask for other settings of the engine than those given before.
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
