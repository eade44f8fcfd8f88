"""Cards: in a shared directory each engine writes where it is, and each host leaves its public key.

DIR/NAME.card            one engine; renewed every `RENEW_S` seconds, removed at its end
DIR/clients/host-*.key   the public key of a host, which all these engines let in

Whoever may write there may use the engines, and send batches to training. So the directory and all that counts in it must
belong to the user whose processes these are, and nobody else may write there. No secret key lies there.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import time
from dataclasses import asdict, dataclass, fields
from typing import Any, Dict, Union

from csd_engine.directory import Directory, Entry, distrusted
from csd_engine.errors import BadMessage, EngineError, quote
from csd_engine.protocol.fields import checked, count, text

__all__ = ["RENEW_S", "STALE_S", "Card", "allow_host", "open_cards", "read_cards", "remove_card", "renew_card", "write_card"]

RENEW_S = 10.0
STALE_S = 60.0  # a card that was not renewed for so long is removed; the computers' clocks may differ by half of it
_MAX_BYTES = 4096
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
            return cls(**{one.name: one.metadata["check"](data[one.name]) for one in fields(cls)})
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
    found = {}
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
                    found[match[1]] = Card.parse(stream.read(_MAX_BYTES))
        except (OSError, BadMessage):  # removed meanwhile, or of another version
            continue
    return found


def write_card(path: PathLike, name: str, card: Card) -> None:
    """Write a card, whole or not at all. Raises EngineError as `open_cards`, and OSError."""
    directory = open_cards(path)
    _write(directory, name + _CARD, json.dumps(asdict(card)))


def _write(directory: Directory, name: str, content: str) -> None:
    part = f"{name}{_PART}"
    directory.unlink(part)
    directory.write(part, content)
    directory.rename(part, Entry(directory, name))


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
