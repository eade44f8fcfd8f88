"""A device as the user names it: deployed under a name, or an engine's address and the keys to it. Imports no torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from ddlp.devices import address_book as book
from ddlp.errors import DDLPError

__all__ = ["Data", "Device", "check_data"]

Data = Literal["there", "carried"]


def check_data(data: str) -> None:
    """Raise ValueError unless this says where an engine has the data set from."""
    if data not in get_args(Data):
        raise ValueError(f"data={data!r}: 'there' if the engine sees the data set's files, 'carried' if this host sends them")


@dataclass(frozen=True)
class Device:
    """An engine, and the keys to it.

    Args:
        address: tcp://HOST:PORT or ipc:///path, as the engine's ``--listen``.
        keys: directory with ``server.key`` (public) and ``host.key_secret``, both from the engine's ``--keys`` directory.
        spool: where this host sees the engine's spool; None: under the same path.
        connect_timeout_s: how long to try.
        name: for messages and the report; empty: the address.
        data: "there": the engine sees the data set's files, as its ``--root`` says. "carried": it sees no copy, and this host
            sends the files of each batch with its lease. That costs this host reading and sending them: see docs/pools.md.

    Raises:
        ValueError: ``data`` is something else.
    """

    address: str
    keys: str | os.PathLike[str]
    spool: str | os.PathLike[str] | None = None
    connect_timeout_s: float = 10.0
    name: str = ""
    data: Data = "there"

    def __post_init__(self) -> None:
        check_data(self.data)

    @property
    def label(self) -> str:
        """Its name for messages: ``name``, else the address."""
        return self.name or self.address

    @staticmethod
    def at(which: str) -> Device:
        """The device that `ddlp deploy` has stored under a name; or an engine's address, with the keys from $DDLP_KEYS.

        The keys' default is ~/.config/ddlp/keys.

        Raises:
            ValueError: neither a name nor an address; or (`address_book.UnknownDevice`) no device of this name.
            DDLPError: its record can't be used, or its deployment was not finished.
        """
        if which.startswith(("tcp://", "ipc://")):
            return Device(which, os.environ.get("DDLP_KEYS") or book.ddlp_home() / "keys")
        if not book.is_name(which):
            raise ValueError(
                f"csd={which!r}: expected the name of a device (see ddlp deploy), tcp://HOST:PORT, ipc:///path or a ddlp.Device"
            )
        try:
            record = book.load(which)
        except book.UnknownDevice as error:
            raise book.UnknownDevice(f"csd={which!r}: {error}") from None
        if not record.address:
            raise DDLPError(f"the deployment of {which} was not finished. Run it again: ddlp deploy --name {which}.")
        return Device(record.address, book.directory(which), record.host_spool, name=which)
