"""Objects of a storage, and parts of them, as a listing has them. What a reader reads by requests is a `Listing`."""

from __future__ import annotations

import hashlib
from typing import Iterable, Iterator, NamedTuple, Optional, Protocol, Tuple, Union

import numpy as np

from csd_engine.data.base import Origins

__all__ = ["Listing", "Part", "Stored", "mark_of", "same_tag", "versions_of"]

_ODD = np.uint64(0x9E3779B97F4A7C15)  # times an odd number: offsets in one object stay apart, modulo 2**64
_ROW = np.dtype([("name", np.uint64), ("offset", np.uint64), ("size", np.int64), ("mark", np.int64)])


class Stored(NamedTuple):
    """An object.

    Attributes:
        key: its path below the data set's URL.
        size: bytes.
        tag: its ETag; "" if that is not known.
        mark: `mark_of` its ETag, where the tag itself is not known; 0: that is not known either.
    """

    key: str
    size: int
    tag: str
    mark: int = 0


class Part(NamedTuple):
    """A part of an object: its bytes from ``offset`` on, ``size`` of them."""

    whole: Stored
    offset: int
    size: int


class Listing(Protocol):
    """What is read by requests, by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Union[Stored, Part]:
        """Return what a request brings. Raises IndexError."""

    def where(self, index: int) -> str:
        """Return the place below the data set's URL, for messages."""


def same_tag(tag: str, other: str) -> bool:
    """Whether two ETags are the same. One that is not known is like any other. Azure lists them without their quotes."""
    tag, other = _bare(tag), _bare(other)
    return not tag or not other or tag == other


def _bare(tag: str) -> str:
    return (tag[2:] if tag.startswith("W/") else tag).strip('"')


def mark_of(tag: str) -> int:
    """Return a digest of an ETag, negative, of 64 bits."""
    return -1 - (_digest_of(_bare(tag)) >> 1)


def _digest_of(text: str) -> int:
    """Return a digest of 64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def versions_of(url: str, samples: Iterable[Union[Stored, Part]]) -> Optional[Origins]:
    """Return the versions of samples of a data set at this URL; None if an ETag is not known. A part's mark is its object's."""
    table = np.fromiter(_rows(url, samples), _ROW)  # lists of a million samples would take some 100 MB more
    if not table["mark"].all():
        return None
    return Origins(table["name"] + table["offset"] * _ODD, table["size"].copy(), table["mark"].copy())


def _rows(url: str, samples: Iterable[Union[Stored, Part]]) -> Iterator[Tuple[int, int, int, int]]:
    """Give each sample's `_ROW`. The first one whose ETag is not known is the last."""
    last, name, mark = None, 0, 0
    for sample in samples:
        whole, offset = (sample.whole, sample.offset) if isinstance(sample, Part) else (sample, 0)
        if whole != last:  # parts of an object mostly follow each other
            last, name, mark = whole, _digest_of(url + whole.key), whole.mark or (mark_of(whole.tag) if whole.tag else 0)
        yield name, offset, sample.size, mark
        if not mark:
            return
