"""Samples of several parts of a data set that are brought into memory together, some of them from slow storages."""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from csd_engine.data.base import Fetch, Places, Reader, Source

__all__ = ["fetch_parts"]


def fetch_parts(
    reader: Reader,
    part: Callable[[int], Tuple[int, int]],
    fetch: Callable[[int, List[int]], Optional[Fetch]],
    slow: Sequence[bool],
    indices: Sequence[int],
) -> Optional[Fetch]:
    """Begin to bring samples of all parts that are slow, as `Reader.fetch`. None: one of the parts has said so.

    Args:
        reader: of all parts.
        part: gives the number of a sample's part, and its index there.
        fetch: begins to bring samples of the part with this number.
        slow: of each part.
        indices: of the samples.
    """
    own: Dict[int, List[int]] = {}
    for number, index in map(part, indices):
        if slow[number]:
            own.setdefault(number, []).append(index)
    fetches: Dict[int, Fetch] = {}
    joined = _JoinedFetch(reader, part, fetches)
    try:
        for number, some in own.items():
            begun = fetch(number, some)
            if begun is None:
                joined.close()
                return None
            fetches[number] = begun
    except BaseException:
        joined.close()
        raise
    return joined


class _JoinedFetch(Fetch):
    """The fetches of the parts that are slow, by the part's number."""

    def __init__(self, reader: Reader, part: Callable[[int], Tuple[int, int]], fetches: Mapping[int, Fetch]) -> None:
        self._reader, self._part, self._fetches = reader, part, fetches

    def hurry(self) -> None:
        """See `Fetch.hurry`."""
        for fetch in self._fetches.values():
            fetch.hurry()

    def wait(self, wanted: Callable[[], bool]) -> Optional[Reader]:
        """See `Fetch.wait`."""
        there: Dict[int, Reader] = {}
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
    def __init__(self, reader: Reader, part: Callable[[int], Tuple[int, int]], there: Mapping[int, Reader]) -> None:
        self._reader, self._part, self._there = reader, part, there

    def __len__(self) -> int:
        return len(self._reader)

    def open(self, index: int) -> Source:
        number, own = self._part(index)
        return self._there[number].open(own) if number in self._there else self._reader.open(index)

    def places(self, indices: List[int]) -> Optional[Places]:
        each = zip(indices, map(self._part, indices))
        return Places.join(
            [
                self._there[number].places([own]) if number in self._there else self._reader.places([index])
                for index, (number, own) in each
            ]
        )

    def where(self, index: int) -> str:
        return self._reader.where(index)
