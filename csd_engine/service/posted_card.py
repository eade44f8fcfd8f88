"""The card of a running engine."""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import threading

from csd_engine.errors import EngineError
from csd_engine.protocol.cards import RENEW_S, Card, remove_card, renew_card, write_card

__all__ = ["PostedCard"]

_LOG = logging.getLogger("csd_engine")
_LAST_S = 2.0  # a network file system that does not answer must not keep the engine from its end
_WILD = re.compile(r"tcp://(0\.0\.0\.0|\*|\[::\]):")


class PostedCard:
    """A card in a shared directory, which a thread renews. It removes it after `withdraw` or `remove`.

    Args:
        path: the directory.
        endpoint: where the engine listens. An address that means all of this computer's becomes its name.
        key: the engine's public key.
        reached_as: the name or address by which hosts reach this computer; empty: its own host name.

    Raises:
        EngineError: the directory can't be used.
    """

    def __init__(self, path: str, endpoint: str, key: bytes, reached_as: str) -> None:
        host = socket.gethostname() or "localhost"
        address = _WILD.sub(lambda _: f"tcp://{reached_as or host}:", endpoint)
        self._path = path
        self._name = f"{re.sub('[^A-Za-z0-9]+', '-', host).strip('-')[:32] or 'engine'}-{os.getpid()}-{secrets.token_hex(2)}"
        self._card = Card(address, key.decode("ascii"), host, os.getpid())
        self._over = threading.Event()
        try:
            write_card(path, self._name, self._card)
        except OSError as error:
            raise EngineError(f"a card can't be written to {path}: {error.strerror}. Let this user write there.") from None
        self._thread = threading.Thread(target=self._renew, name="card", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._over.wait(RENEW_S):
            try:
                renew_card(self._path, self._name, self._card)
            except (EngineError, OSError) as error:
                _LOG.warning("the card in %s can't be renewed, and hosts will not find this engine: %s", self._path, error)
        remove_card(self._path, self._name)

    def withdraw(self) -> None:
        """Have the card removed, without waiting for that."""
        self._over.set()

    def remove(self) -> None:
        """Remove the card."""
        self.withdraw()
        self._thread.join(_LAST_S)
