"""Sealed parts of batch files: the bytes on the connection that carries them, beside the one that CURVE protects.

The engine makes a fresh key for each such connection, and tells it under CURVE. It alone writes with it. The host begins with
the ticket that it has told the engine under CURVE, and says nothing more. A record is

    kind (1 byte), bytes of the body (4), tag (16), body

The nonce is the number of the record under this key, and the tag vouches for kind, length, and the place of the body: which
fetch, job and lease, from which byte of how many. So a record that is changed, left out, repeated, cut, or put in another's
place is found, whatever it holds. Nothing here touches a socket.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from csd_engine.protocol.aead import TAG_BYTES, Aead, Buffer, NotAuthentic, Writable
from csd_engine.protocol.messages import MAX_PART_BYTES

__all__ = [
    "HEAD_BYTES", "MAX_REASON_BYTES", "MOST_BYTES", "NO_PLACE", "PART", "READY", "REASON", "TICKET_BYTES", "Opener", "Place",
    "Sealer", "part_bytes",
]  # fmt: skip

READY, PART, REASON = 1, 2, 3  #: the connection is open; bytes of a batch file; why there are none (the last record of a fetch)
TICKET_BYTES = 32
MAX_REASON_BYTES = 4096
MOST_BYTES = 1 << 36
"""Bytes under one key. Those of AES-GCM stay far below 2**38.5, where it gets distinguishable (RFC 8446, section 5.5)."""

_HEAD = struct.Struct("!BI")
HEAD_BYTES = _HEAD.size + TAG_BYTES
_NUMBERS = struct.Struct("!QQQQ")


class Place(NamedTuple):
    """Where a record's body belongs: `offset` of a batch file of `size` bytes."""

    fetch: int
    job: str
    lease: int
    offset: int
    size: int


NO_PLACE = Place(0, "", 0, 0, 0)  # of READY


def part_bytes(place: Place) -> int:
    """Return the length of the part there: 1 MiB, the last one less."""
    return min(MAX_PART_BYTES, place.size - place.offset)


def _about(head: bytes, place: Place) -> bytes:
    return head + _NUMBERS.pack(place.fetch, place.lease, place.offset, place.size) + place.job.encode("ascii")


class _Counted:
    """A key, and how many records and bytes it has seen."""

    def __init__(self, cipher: str, key: bytes, sealing: bool) -> None:
        self._aead = Aead(cipher, key, sealing)
        self._records = self.bytes = 0

    def _nonce(self, size: int) -> bytes:
        """Return the next nonce, for a record of so many bytes. Raises OSError where the key has seen too much."""
        if self.bytes + size > MOST_BYTES:
            raise OSError("the key has been used for as many bytes as it may")
        self._records += 1
        self.bytes += size
        return self._records.to_bytes(12, "big")


class Sealer(_Counted):
    """The engine's end. Args: cipher, key: as `Aead`."""

    def __init__(self, cipher: str, key: bytes) -> None:
        super().__init__(cipher, key, sealing=True)

    def seal(self, kind: int, place: Place, record: Writable, size: int) -> None:
        """Seal a record in its place: its body, `size` bytes, lies there already, behind room for its head.

        Raises:
            OSError: the key has been used up, or libcrypto refuses.
        """
        view = memoryview(record)
        head = _HEAD.pack(kind, size)
        view[: _HEAD.size] = head
        tag = view[_HEAD.size : HEAD_BYTES]
        self._aead.seal(self._nonce(size), _about(head, place), view[HEAD_BYTES : HEAD_BYTES + size], tag)


class Opener(_Counted):
    """The host's end. Args: cipher, key: as `Aead`."""

    def __init__(self, cipher: str, key: bytes) -> None:
        super().__init__(cipher, key, sealing=False)

    @staticmethod
    def kind(head: Buffer, place: Place) -> int:
        """Return the kind of the record with this head, and check its length, before its body has come.

        Raises:
            NotAuthentic: no record that may come there has such a head.
        """
        kind, size = _HEAD.unpack_from(head)
        expected = {READY: 0, PART: part_bytes(place)}.get(kind, size if kind == REASON and size <= MAX_REASON_BYTES else -1)
        if size != expected:
            raise NotAuthentic(f"a record of kind {kind} with {size} bytes")
        return int(kind)

    def begin(self, head: Buffer, place: Place) -> int:
        """Begin to open the next record, and return the length of its body. Raises OSError: the key has been used up."""
        size = int(_HEAD.unpack_from(head)[1])
        self._aead.begin(self._nonce(size), _about(bytes(memoryview(head)[: _HEAD.size]), place))
        return size

    def decrypt(self, piece: Writable) -> None:
        """Decrypt the next bytes of the body where they lie. Only `check` tells whether they are the engine's."""
        self._aead.run(piece)

    def check(self, head: Buffer) -> None:
        """Raise NotAuthentic unless the record is what the engine has sealed as the next one, for its place."""
        self._aead.opened(memoryview(head)[_HEAD.size : HEAD_BYTES])
