"""A connection to the engine of a device, with the keys that the device is known by."""

from __future__ import annotations

from pathlib import Path

from csd_engine.errors import EngineError
from csd_engine.protocol.keys import load_pair, load_public
from ddlp.devices.device import Device
from ddlp.errors import DDLPError
from ddlp.sources.engine.link import EngineLink

__all__ = ["link_to"]


def link_to(device: Device) -> EngineLink:
    """A connection, not yet opened. Raises DDLPError where the keys can't be read."""
    try:
        pair = load_pair(Path(device.keys) / "host.key_secret")
        server = load_public(Path(device.keys) / "server.key")
    except (OSError, EngineError) as error:
        raise DDLPError(
            f"the keys of the engine at {device.address} can't be read: {error}. Copy server.key and host.key_secret from "
            "the engine's --keys directory and name their directory in Device(keys=...)."
        ) from None
    return EngineLink(
        device.address, server, pair.public, pair.secret, spool=device.spool, connect_timeout_s=device.connect_timeout_s
    )
