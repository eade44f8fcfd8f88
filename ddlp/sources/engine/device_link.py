"""A connection to the engine of a device, with the keys that the device is known by."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from csd_engine.errors import EngineError
from csd_engine.protocol.keys import load_pair, load_public
from ddlp.devices.device import Data, Device
from ddlp.errors import DDLPError
from ddlp.sources.engine.link import EngineLink

__all__ = ["CardedEngine", "link_to"]


@dataclass(frozen=True)
class CardedEngine:
    """An engine that is known by its card.

    Attributes:
        address: tcp://HOST:PORT or ipc:///path.
        key: its public key, 40 Z85 characters.
        pair: the file with this host's pair.
        data: where it has the data set from, as `ddlp.Device` says.
    """

    address: str
    key: bytes
    pair: Path
    data: Data = "there"


def link_to(device: Device | CardedEngine, connect_timeout_s: float = 10.0) -> EngineLink:
    """A connection, not yet opened. Raises DDLPError where the keys can't be read.

    ``connect_timeout_s``: of an engine that is known by its card.
    """
    spool: str | os.PathLike[str] | None = None
    try:
        if isinstance(device, Device):
            pair = load_pair(Path(device.keys) / "host.key_secret")
            server = load_public(Path(device.keys) / "server.key")
            spool, connect_timeout_s = device.spool, device.connect_timeout_s
        else:
            pair, server = load_pair(device.pair), device.key
    except (OSError, EngineError) as error:
        raise DDLPError(
            f"the keys of the engine at {device.address} can't be read: {error}. Copy server.key and host.key_secret from "
            "the engine's --keys directory and name their directory in Device(keys=...)."
        ) from None
    return EngineLink(device.address, server, pair.public, pair.secret, spool=spool, connect_timeout_s=connect_timeout_s)
