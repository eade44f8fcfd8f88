"""Objects of a storage, and parts of them, as a listing has them. What a reader reads by requests is a `Listing`."""

from __future__ import annotations

import hashlib
from typing import NamedTuple, Optional, Protocol, Union

import numpy as np

from csd_engine.data.base import Versions

__all__ = ["Listing", "Part", "Stored", "digest_of", "mark_of", "part_names", "same_tag"]

_ODD = np.uint64(0x9E3779B97F4A7C15)  # times an odd number: offsets in one object stay apart, modulo 2**64


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

    def fingerprint(self) -> str:
        """Return 32 hex digits that tell what the numbers mean."""

    def versions(self, url: str) -> Optional[Versions]:
        """Return the versions of all, for a data set at this URL; None if an ETag is not known."""


def same_tag(tag: str, other: str) -> bool:
    """Whether two ETags are the same. One that is not known is like any other. Azure lists them without their quotes."""
    tag, other = _bare(tag), _bare(other)
    return not tag or not other or tag == other


def _bare(tag: str) -> str:
    return (tag[2:] if tag.startswith("W/") else tag).strip('"')


def mark_of(tag: str) -> int:
    """Return a digest of an ETag, negative, of 64 bits."""
    return -1 - (digest_of(_bare(tag)) >> 1)


def digest_of(text: str) -> int:
    """Return a digest of 64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def part_names(names: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the digests of parts' names, uint64 (n,). ``names``: those of their objects. ``offsets``: in them, bytes."""
    return names + offsets.astype(np.uint64) * _ODD
