"""The engines whose cards are in a directory, and this user's keys for them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from csd_engine.machine.file_locks import fcntl
from csd_engine.protocol.cards import allow_host, read_cards
from csd_engine.protocol.keys import load_public, make_pair
from ddlp.devices.address_book import ddlp_home
from ddlp.devices.device import Data
from ddlp.sources.engine.device_link import CardedEngine

__all__ = ["carded_engines", "own_pair"]


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
