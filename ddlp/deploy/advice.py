"""Commands that messages advise, made from what is known of a device."""

from __future__ import annotations

import shlex

from csd_engine.data.objects.urls import is_url
from ddlp.devices import address_book as book
from ddlp.devices.address_book import DeviceRecord

__all__ = ["other_root", "upgrade"]


def upgrade(name: str) -> str:
    """How to bring this host's csd_engine to a device; ``name``: the device's name, or its engine's address."""
    return f"ddlp deploy --name {name} --upgrade" if book.is_name(name) else "copy this host's csd_engine there"


def other_root(record: DeviceRecord, wrong: tuple[str, str], host: str, device: str) -> str:
    """The command that replaces a wrong pair of directories.

    Args:
        record: of the device.
        wrong: one of its roots, (path on this host, path on the device).
        host, device: the right pair; DIR where the user has to find the path.
    """
    pairs = [(host, device) if pair == wrong else pair for pair in record.roots]  # name all roots: deploy drops the others
    words = [word for here, there in pairs for word in ("--root", there, *(() if is_url(there) else ("--host-root", here)))]
    return shlex.join(["ddlp", "deploy", "--name", record.name, *words])
