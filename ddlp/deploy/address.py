"""Where a device's engine is reached: by default where ssh reaches the device."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from ddlp.errors import DDLPError

__all__ = ["full_address", "resolve_host"]


def resolve_host(destination: str, ssh_options: Sequence[str]) -> str:
    """The host that ssh connects to, as its configuration says. Raises DDLPError where ssh can't tell."""
    done = subprocess.run(["ssh", "-G", *ssh_options, destination], capture_output=True, text=True, timeout=30)
    settings = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    if done.returncode != 0 or not settings.get("hostname"):
        raise DDLPError(f"ssh -G {destination}: {done.stderr.strip() or 'no hostname'}. Give the engine's host with --address.")
    return settings["hostname"]


def full_address(given: str, port: int) -> str:
    """tcp://HOST:PORT of a host, or of a whole address. Numbers of IPv6 are put into brackets."""
    if given.startswith("tcp://"):
        return given
    return f"tcp://[{given}]:{port}" if given.count(":") > 1 and not given.startswith("[") else f"tcp://{given}:{port}"
