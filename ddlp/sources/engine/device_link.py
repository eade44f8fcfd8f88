"""A connection to the engine of a device, with the keys that the device is known by; the engines that are known by cards."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from csd_engine.errors import EngineError
from csd_engine.machine.file_locks import fcntl
from csd_engine.protocol.cards import allow_host, read_cards
from csd_engine.protocol.keys import load_pair, load_public, make_pair
from ddlp.devices.address_book import ddlp_home
from ddlp.devices.device import Data, Device
from ddlp.errors import DDLPError
from ddlp.sources.engine.link import EngineLink

__all__ = ["CardedEngine", "carded_engines", "link_to", "own_pair"]


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


def carded_engines(directory: str | os.PathLike[str], data: Data = "there") -> dict[str, CardedEngine]:
    """Return the engines by their cards' names, in their order. This host's public key is left there for them.

    ``data``: where they have the data set from, as `ddlp.Device` says.

    Raises:
        EngineError: as `csd_engine.protocol.cards.open_cards`.
        OSError: the directory can't be read or written now.
    """
    pair = own_pair()
    public = pair.with_suffix(".key")
    allow_host(directory, f"host-{hashlib.blake2b(load_public(public), digest_size=6).hexdigest()}", public.read_text())
    cards = sorted(read_cards(directory).items())
    return {name: CardedEngine(card.address, card.key.encode("ascii"), pair, data) for name, card in cards}


def own_pair() -> Path:
    """Return the file of this user's pair for engines that are known by cards. It is made at the first call."""
    home = ddlp_home() / "pool"
    pair = home / "host.key_secret"
    if not pair.exists():
        home.mkdir(parents=True, exist_ok=True)
        with open(home / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other ranks make it too
            if not pair.exists():
                make_pair(home, "host")
    return pair
