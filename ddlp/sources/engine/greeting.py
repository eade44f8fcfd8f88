"""Whether anything that speaks ZeroMQ's protocol listens at an address."""

from __future__ import annotations

import socket

__all__ = ["greets"]

_SIGNATURE = (b"\xff", b"\x7f")  # the first and the tenth byte of ZMTP's greeting
_SIGNATURE_BYTES = 10


def greets(address: str, timeout_s: float = 1.0) -> bool:
    """Connect, and see whether ZMTP's greeting comes (rfc.zeromq.org/spec/23, its signature).

    A relay (a tunnel, a proxy) takes connections whether or not an engine runs behind it, and closes them without a greeting if
    none does. To libzmq that looks as an engine does that refuses a wrong server key.

    Args:
        address: tcp://HOST:PORT or ipc:///path.
    """
    kind, _, place = address.partition("://")
    try:
        if kind == "ipc":
            with socket.socket(socket.AF_UNIX) as one:
                one.settimeout(timeout_s)
                one.connect(place)
                return _greeted(one)
        host, _, port = place.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as one:
            return _greeted(one)
    except (OSError, ValueError):
        return False


def _greeted(one: socket.socket) -> bool:
    found = b""
    while len(found) < _SIGNATURE_BYTES:
        piece = one.recv(_SIGNATURE_BYTES - len(found))
        if not piece:
            return False
        found += piece
    return (found[:1], found[-1:]) == _SIGNATURE
