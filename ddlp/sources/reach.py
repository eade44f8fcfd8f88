"""How a loader reaches its devices: the embedded engine, or one that is named."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from csd_engine.keys import load_pair, load_public
from ddlp.errors import DDLPError
from ddlp.sources.csd import Place
from ddlp.sources.embedded import EmbeddedEngine, EmbeddedOptions, acquire
from ddlp.sources.link import EngineLink
from ddlp.sources.travel import Luggage

EMBEDDED = "embedded engine"
LINGER_S = 5.0  # the embedded engine outlives an epoch by this long, since the next one mostly follows at once


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
        except OSError as error:
            raise DDLPError(
                f"the keys of the engine at {self.address} can't be read: {error}. Copy server.key and host.key_secret from "
                "the engine's --keys directory and name their directory in Device(keys=...)."
            ) from None
        return EngineLink(
            self.address, server, pair.public, pair.secret, spool=self.spool, connect_timeout_s=self.connect_timeout_s
        )


class Reach:
    """The devices of one loader; connections are made when first wanted and kept between epochs."""

    def __init__(self, devices: tuple[Device, ...], options: EmbeddedOptions) -> None:
        self._devices = {device.address: device for device in devices}
        self._options = options
        self._lock = threading.Lock()
        self._links: dict[str, Place] = {}
        self._engine: EmbeddedEngine | None = None
        self._epochs = 0
        self._timer: threading.Timer | None = None
        self.met: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """The devices' names, for messages and the report."""
        return tuple(self._devices) or (EMBEDDED,)

    def epoch_began(self) -> None:
        """An epoch wants the devices."""
        with self._lock:
            self._epochs += 1
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def epoch_ended(self) -> None:
        """An epoch is over. Where no other one begins soon, the embedded engine is ended."""
        with self._lock:
            self._epochs -= 1
            if self._epochs == 0 and self._engine is not None:
                self._timer = threading.Timer(LINGER_S, self._end_if_idle)
                self._timer.daemon = True
                self._timer.start()

    def _end_if_idle(self) -> None:
        with self._lock:
            engine = None
            if self._epochs == 0:
                engine, self._engine = self._engine, None
                self._links.pop(EMBEDDED, None)
        if engine is not None:
            engine.release()

    def place(self, name: str) -> Place:
        """Connect to a device. Blocks; raises what the link raises."""
        with self._lock:
            return self._embedded() if name not in self._devices else self._named(name)

    def _embedded(self) -> Place:
        engine = self._engine
        if engine is None or engine.ended() is not None or engine.link.lost is not None:
            if engine is not None:
                engine.release()
            self._engine = engine = acquire(self._options)
            files = engine.directory / "files"
            files.mkdir(exist_ok=True)
            self._links[EMBEDDED] = Place(EMBEDDED, engine.link, Luggage(files))
        return self._links[EMBEDDED]

    def _named(self, name: str) -> Place:
        place = self._links.get(name)
        if place is None or place.link.lost is not None:
            link = self._devices[name].link()
            link.open()
            assert link.spool is not None
            files = link.spool / "files"
            files.mkdir(exist_ok=True)
            place = self._links[name] = Place(name, link, Luggage(files))
        return place

    def close(self) -> None:
        """Let go of all."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            engine, self._engine = self._engine, None
            links, self._links = self._links, {}
        for name, place in links.items():
            if name in self._devices:
                place.link.close()
        if engine is not None:
            engine.release()
