"""Shards in a storage as seekable streams, for one pass over all of them.

The pass reads them whole, in pieces that come ahead of it, many at a time. A request for each header instead would be as many
requests as there are samples, and in one shard each has to wait for the one before.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from contextlib import closing

import numpy as np

from csd_engine.data.base import Fetch
from csd_engine.data.image_files import SizedStream
from csd_engine.data.objects.requests import ObjectReader, Requests, sample_bytes
from csd_engine.data.objects.stored import Stored
from csd_engine.errors import SampleError
from ddlp.data.objects.parts import Parts
from ddlp.data.objects.storage import Storage
from ddlp.data.tars import OpenedShard

__all__ = ["PIECE_BYTES", "shard_streams"]

PIECE_BYTES = 1 << 20  # of a request; on a slow line eight of them at once still come before obstore's 30 seconds are over


def shard_streams(storage: Storage, shards: list[Stored], most_bytes: int) -> Iterator[OpenedShard]:
    """Yield each shard in turn, to be read until the next one is asked for.

    Args:
        storage: has the shards.
        shards: which.
        most_bytes: of pieces that are in memory, or on their way.

    The streams raise OSError if a shard can't be read, or has changed meanwhile.
    """
    counts = [-(-shard.size // PIECE_BYTES) for shard in shards]
    first = np.cumsum([0, *counts])
    which = np.repeat(np.arange(len(shards)), counts)
    offsets = (np.arange(first[-1]) - first[which]) * PIECE_BYTES
    ends = np.array([shard.size for shard in shards], np.int64)[which]
    sizes = np.minimum(PIECE_BYTES, ends - offsets)
    parts = Parts(shards, which, offsets, sizes, lambda piece: shards[int(which[piece])].key)
    with closing(_Pieces(ObjectReader(Requests(storage, most_bytes), parts))) as pieces:
        for number, shard in enumerate(shards):
            stream = io.BufferedReader(_Shard(pieces, int(first[number]), shard.size))
            yield OpenedShard(storage.url + shard.key, stream, shard.size)


class _Pieces:
    """Reads pieces, mostly in their order: the next ones are on their way meanwhile."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._coming: deque[tuple[int, Fetch]] = deque()  # of successive pieces
        self._last = -1, b""

    def read(self, number: int) -> bytes:
        """Return a piece. Raises OSError."""
        if number != self._last[0]:
            self._last = number, self._read(number)
        return self._last[1]

    def _read(self, number: int) -> bytes:
        while self._coming and self._coming[0][0] < number:
            self._coming.popleft()[1].close()
        if self._coming and self._coming[0][0] > number:  # a step back, at a shard's end
            return sample_bytes(self._reader, number, _message)
        if not self._coming:
            self._begin(number, ahead=False)
        self._coming[0][1].hurry()
        while (after := self._coming[-1][0] + 1) < len(self._reader) and self._begin(after, ahead=True):
            pass
        _, fetch = self._coming.popleft()
        with closing(fetch):
            there = fetch.wait(lambda: True)
            assert there is not None
            return sample_bytes(there, number, _message)

    def _begin(self, number: int, ahead: bool) -> bool:
        fetch = self._reader.fetch([number], ahead)
        if fetch is not None:
            self._coming.append((number, fetch))
        return fetch is not None

    def close(self) -> None:
        """Drop what is on its way."""
        while self._coming:
            self._coming.popleft()[1].close()


def _message(error: SampleError) -> str:
    return f"{error.where}: {error.why}."


class _Shard(SizedStream):
    """The bytes of a shard whose first piece has this number."""

    def __init__(self, pieces: _Pieces, first: int, size: int) -> None:
        super().__init__(size)
        self._pieces, self._first = pieces, first

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill the buffer or its beginning; return the number of bytes."""
        if self._position >= self._size:
            return 0
        number, inside = divmod(self._position, PIECE_BYTES)
        piece = self._pieces.read(self._first + number)[inside : inside + len(buffer)]
        buffer[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)
