"""Cards: in a shared directory each engine writes where it is, and each host leaves its public key.

DIR/NAME.card            one engine; renewed every `RENEW_S` seconds, removed at its end
DIR/clients/host-*.key   the public key of a host, which all these engines let in

Whoever may write there may use the engines, and send batches to training. So the directory and all that counts in it must
belong to the user whose processes these are, and nobody else may write there. No secret key lies there.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import socket
import stat
import threading
import time
from dataclasses import asdict, dataclass, fields
from typing import Any, Dict, Union

from csd_engine.errors import BadMessage, EngineError, quote
from csd_engine.machine.directory import Directory, Entry, distrusted
from csd_engine.protocol.fields import checked, count, text

__all__ = [
    "RENEW_S", "STALE_S", "Card", "PostedCard", "allow_host", "open_cards", "read_cards", "remove_card", "renew_card",
    "write_card",
]  # fmt: skip

_LOG = logging.getLogger("csd_engine")

RENEW_S = 10.0
STALE_S = 60.0  # a card that was not renewed for so long is removed; the computers' clocks may differ by half of it
_MAX_BYTES = 4096
_LAST_S = 2.0  # a network file system that does not answer must not keep the engine from its end
_WILD = re.compile(r"tcp://(0\.0\.0\.0|\*|\[::\]):")
_CARD, _PART = ".card", ".part"
_NAME = re.compile(rf"([A-Za-z0-9][A-Za-z0-9.-]{{0,63}})\{_CARD}(\{_PART})?")

PathLike = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Card:
    """Where one engine is.

    Attributes:
        address: tcp://HOST:PORT or ipc:///path, as hosts reach it.
        key: its public key, 40 Z85 characters.
        host, pid: its computer's name and its process there, for people.
    """

    address: str = checked(text(r"(tcp|ipc)://[!-~]{1,256}", "an address, tcp://HOST:PORT or ipc:///path"))
    key: str = checked(text(r"[0-9A-Za-z.:+=^!/*?&<>()\[\]{}@%$#-]{40}", "a public key of 40 characters"))
    host: str = checked(text(r"[!-~]{1,255}", "a host's name"))
    pid: int = checked(count)

    @classmethod
    def parse(cls, content: bytes) -> Card:
        """Return the card in a file's content. Raises BadMessage; fields that are not known are left out."""
        try:
            data: Any = json.loads(content.decode("ascii"))
            return cls(**{field.name: field.metadata["check"](data[field.name]) for field in fields(cls)})
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise BadMessage(f"{quote(content)} is no card: {error}") from None


def open_cards(path: PathLike) -> Directory:
    """Open a directory of cards.

    Raises:
        EngineError: it is missing, another user's, or others may write to it.
    """
    where = os.path.abspath(path)
    try:
        directory = Directory(os.path.realpath(where))
    except OSError as error:
        raise EngineError(
            f"the directory of cards {where} can't be used: {error.strerror}. Make it, for this user alone (mkdir -m 700)."
        ) from None
    _check(directory)
    return directory


def _check(directory: Directory) -> None:
    if why := distrusted(directory.status()):
        raise EngineError(
            f"the directory of cards {directory.path} can't be used: {why}, and whoever may write there may send batches to "
            "training. Give it to the user who runs the engines and the training, and take the right away from all others "
            "(chmod go-w)."
        )


def read_cards(path: PathLike) -> Dict[str, Card]:
    """Return the cards by their names, and remove those that are stale. Others' files, and what is no card, are left alone.

    Raises:
        EngineError: as `open_cards`.
        OSError: the directory can't be read now.
    """
    directory = open_cards(path)
    cards = {}
    for name in directory.names():
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        try:
            status = directory.status(name)
            if time.time() - status.st_mtime > STALE_S:
                directory.unlink(name)
            elif not match[2] and stat.S_ISREG(status.st_mode) and not distrusted(status):
                with open(directory.open(name, os.O_RDONLY), "rb") as stream:
                    cards[match[1]] = Card.parse(stream.read(_MAX_BYTES))
        except (OSError, BadMessage):  # removed meanwhile, or of another version
            continue
    return cards


def write_card(path: PathLike, name: str, card: Card) -> None:
    """Write a card, whole or not at all. Raises EngineError as `open_cards`, and OSError."""
    directory, part = open_cards(path), f"{name}{_CARD}{_PART}"
    directory.unlink(part)
    directory.write(part, json.dumps(asdict(card)))
    directory.rename(part, Entry(directory, name + _CARD))


def renew_card(path: PathLike, name: str, card: Card) -> None:
    """Say that the engine still works. Raises as `write_card`."""
    directory = open_cards(path)
    try:
        os.utime(name + _CARD, dir_fd=directory.descriptor, follow_symlinks=False)
    except FileNotFoundError:  # this process was stopped for long, and the card was removed
        write_card(path, name, card)


def remove_card(path: PathLike, name: str) -> None:
    """Remove a card. It is no error if it can't be removed."""
    try:
        open_cards(path).unlink(name + _CARD)
    except EngineError:
        pass


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


def allow_host(path: PathLike, name: str, public_key_file: str) -> None:
    """Put a host's public key, as in its .key file, on the engines' list, unless it is there.

    Raises:
        EngineError: as `open_cards`; also for the directory of the keys.
        OSError: it can't be written.
    """
    directory = open_cards(path)
    try:
        clients = directory.make("clients")
    except FileExistsError:
        clients = directory.below("clients")
    _check(clients)
    try:
        clients.status(f"{name}.key")
    except FileNotFoundError:
        draft = f"{name}-{secrets.token_hex(4)}{_PART}"  # several processes may do this at once
        clients.write(draft, public_key_file)
        clients.rename(draft, Entry(clients, f"{name}.key"))
