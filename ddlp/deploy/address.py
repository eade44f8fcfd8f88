"""Where a device's engine is reached: by default where ssh reaches the device."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from ddlp.devices.address_book import DeviceRecord
from ddlp.errors import DDLPError

__all__ = ["engine_address", "full_address", "resolve_host"]


def engine_address(record: DeviceRecord) -> str:
    """The engine's address, whether or not it has answered there: the given host, else the host that ssh reaches."""
    given = record.given_address or resolve_host(record.destination, record.ssh_options)
    return full_address(given, record.listen_port)


def resolve_host(destination: str, ssh_options: Sequence[str]) -> str:
    """The host that ssh connects to, as its configuration says. Raises DDLPError where ssh can't tell."""
    done = subprocess.run(["ssh", "-G", *ssh_options, destination], capture_output=True, text=True, timeout=30)
    settings = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    if done.returncode != 0 or not settings.get("hostname"):
        raise DDLPError(f"ssh -G {destination}: {done.stderr.strip() or 'no hostname'}. Give the engine's host with --address.")
    return settings["hostname"]


def full_address(given: str, port: int) -> str:
    """tcp://HOST:PORT of a host; a whole address stays as it is. IPv6 numbers get brackets."""
    if given.startswith("tcp://"):
        if not re.search(r":\d+$", given):
            raise DDLPError(f"--address {given}: a whole address ends in a port. Give tcp://HOST:PORT, or the host alone.")
        return given
    return f"tcp://[{given}]:{port}" if given.count(":") > 1 and not given.startswith("[") else f"tcp://{given}:{port}"
