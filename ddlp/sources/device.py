"""A device as the user names it: an engine's address and the keys to it. Imports no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from csd_engine.errors import EngineError
from csd_engine.keys import load_pair, load_public
from ddlp.errors import DDLPError
from ddlp.sources.link import EngineLink

__all__ = ["Device"]


@dataclass(frozen=True)
class Device:
    """An engine that was started by hand, and the keys to it.

    Args:
        address: tcp://HOST:PORT or ipc:///path, as the engine's ``--listen``.
        keys: directory with ``server.key`` (public) and ``host.key_secret``, both from the engine's ``--keys`` directory.
        spool: where this host sees the engine's spool; None: under the same path.
        connect_timeout_s: how long to try.
    """

    address: str
    keys: str | os.PathLike[str]
    spool: str | os.PathLike[str] | None = None
    connect_timeout_s: float = 10.0

    @staticmethod
    def at(address: str) -> Device:
        """The engine at an address, with the keys from $DDLP_KEYS, else ~/.config/ddlp/keys.

        Raises ValueError for anything that is no address.
        """
        if not address.startswith(("tcp://", "ipc://")):
            raise ValueError(f"csd={address!r}: expected tcp://HOST:PORT, ipc:///path or a ddlp.Device")
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return Device(address, os.environ.get("DDLP_KEYS") or config / "ddlp" / "keys")

    def link(self) -> EngineLink:
        """A connection, not yet opened."""
        try:
            pair = load_pair(Path(self.keys) / "host.key_secret")
            server = load_public(Path(self.keys) / "server.key")
        except (OSError, EngineError) as error:
            raise DDLPError(
                f"the keys of the engine at {self.address} can't be read: {error}. Copy server.key and host.key_secret from "
                "the engine's --keys directory and name their directory in Device(keys=...)."
            ) from None
        return EngineLink(
            self.address, server, pair.public, pair.secret, spool=self.spool, connect_timeout_s=self.connect_timeout_s
        )
