"""Samples of several parts of a data set that are brought into memory together, some of them from slow storages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from csd_engine.data.base import Fetch, Places, Reader, Source

__all__ = ["JoinedFetch"]


class JoinedFetch(Fetch):
    """The fetches of the parts that are slow.

    Args:
        reader: of all parts.
        part: gives the number of a sample's part, and its index there.
        fetches: by the part's number.
    """

    def __init__(self, reader: Reader, part: Callable[[int], tuple[int, int]], fetches: Mapping[int, Fetch]) -> None:
        self._reader, self._part, self._fetches = reader, part, fetches

    def hurry(self) -> None:
        """See `Fetch.hurry`."""
        for fetch in self._fetches.values():
            fetch.hurry()

    def wait(self, wanted: Callable[[], bool]) -> Reader | None:
        """See `Fetch.wait`."""
        there: dict[int, Reader] = {}
        for number, fetch in self._fetches.items():
            reader = fetch.wait(wanted)
            if reader is None:
                return None
            there[number] = reader
        return _Joined(self._reader, self._part, there)

    def close(self) -> None:
        """See `Fetch.close`."""
        for fetch in self._fetches.values():
            fetch.close()


class _Joined(Reader):
    def __init__(self, reader: Reader, part: Callable[[int], tuple[int, int]], there: Mapping[int, Reader]) -> None:
        self._reader, self._part, self._there = reader, part, there

    def __len__(self) -> int:
        return len(self._reader)

    def open(self, index: int) -> Source:
        number, own = self._part(index)
        return self._there[number].open(own) if number in self._there else self._reader.open(index)

    def places(self, indices: list[int]) -> Places | None:
        each = zip(indices, map(self._part, indices), strict=True)
        return Places.join(
            [
                self._there[number].places([own]) if number in self._there else self._reader.places([index])
                for index, (number, own) in each
            ]
        )

    def where(self, index: int) -> str:
        return self._reader.where(index)
