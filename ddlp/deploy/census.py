"""Whether the data set on a device is the host's: files missing, other sizes, other contents.

Both sides walk their tree in the same order at the same time, and the host compares as the device's census comes in (see
`csd_engine.tools.census`). Contents are compared on a sample, or all of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from csd_engine.machine.sizes import size_text
from csd_engine.tools.census import OUTSIDE, CensusReader, Entry, Newest, digests, hashed, sort_key, walk

__all__ = ["CensusResult", "Few", "compare", "take_census"]

NAMED = 5  # files named of each kind of difference
SAMPLE = 256  # files drawn at random, of which the contents are compared
SAMPLE_BYTES = 1 << 30  # in all: a device reads this much in about a minute
_TELL_FILES = 256


def shown(path: bytes) -> str:
    """A path for messages: on one line, whatever bytes are in it."""
    text = path.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else ascii(text)[1:-1]


@dataclass
class Few:
    """How many files there are of a kind, and the names of the first."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, path: bytes) -> None:
        """Count one more."""
        self.count += 1
        if len(self.first) < NAMED:
            self.first.append(shown(path))

    def __str__(self) -> str:
        more = f" and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return ", ".join(self.first) + more


@dataclass
class CensusResult:
    """What a comparison found.

    Attributes:
        files, bytes: number and bytes of the files that are on both sides with the same size.
        missing_there: files that the device lacks.
        missing_here: files on the device that the host lacks.
        sizes: files of another size.
        contents: files of the same size whose contents differ, of those that were compared.
        refused: links on the device that lead out of its root, which the engine does not follow.
        unreadable: files and directories that could not be read on the device.
        unreadable_here: likewise on this host.
        compared, compared_bytes: files whose contents were compared.
        verified: whether the contents of all files were to be compared.
    """

    files: int = 0
    bytes: int = 0
    missing_there: Few = field(default_factory=Few)
    missing_here: Few = field(default_factory=Few)
    sizes: Few = field(default_factory=Few)
    contents: Few = field(default_factory=Few)
    refused: Few = field(default_factory=Few)
    unreadable: Few = field(default_factory=Few)
    unreadable_here: Few = field(default_factory=Few)
    compared: int = 0
    compared_bytes: int = 0
    verified: bool = False

    @property
    def same(self) -> bool:
        """Whether the device can stand in for this host. Files that only the device has do no harm."""
        return not any(few.count for few in (self.missing_there, self.sizes, self.contents, self.refused, self.unreadable))

    @property
    def coverage(self) -> str:
        """How much was compared, and what that can miss."""
        if self.verified:
            return f"names, sizes and contents of all {self.files:,} files compared ({size_text(self.bytes)})"
        text = f"names and sizes of {self.files:,} files compared"
        if self.compared >= self.files:
            return f"{text}, and all contents ({size_text(self.bytes)})"
        share, probability = self.compared / self.files, 1 - 0.99**self.compared
        return (
            f"{text}; contents of {self.compared:,} ({share:.2%}; drawn at random, the largest and the last changed): were 1 % "
            f"of the files damaged, that finds it with probability {probability:.2f}, but one changed file it can miss. "
            "--verify compares all"
        )


class _Sample:
    """Files whose contents will be compared: drawn at random from a stream of unknown length, and the largest."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._count = 0
        self._drawn: list[Entry] = []
        self._largest = Entry(b"", -1)

    def add(self, entry: Entry) -> None:
        """Each file has the same chance (reservoir sampling)."""
        self._count += 1
        if len(self._drawn) < SAMPLE:
            self._drawn.append(entry)
        else:
            place = int(self._draw.random() * self._count)
            if place < SAMPLE:
                self._drawn[place] = entry
        if entry.size > self._largest.size:
            self._largest = entry

    def entries(self) -> Iterator[Entry]:
        """The largest first."""
        if self._largest.size >= 0:
            yield self._largest
        yield from self._drawn


def compare(ours: Iterable[Entry], theirs: Iterable[Entry], result: CensusResult) -> Iterator[Entry]:
    """Merge two censuses into `result`; yields the entries that have the same size on both sides.

    Both must be in the order of `sort_key`, as `walk` gives them. Where both entries have digests, contents are compared.
    """
    left, right = iter(ours), iter(theirs)
    mine, other = next(left, None), next(right, None)
    while mine is not None or other is not None:
        if other is None or (mine is not None and mine.path != other.path and sort_key(mine.path) < sort_key(other.path)):
            assert mine is not None
            (result.missing_there if mine.size >= 0 else result.unreadable_here).add(mine.path)
            mine = next(left, None)
            continue
        if other.size < 0:
            (result.refused if other.size == OUTSIDE else result.unreadable).add(other.path)
        if mine is None or mine.path != other.path:
            if other.size >= 0:
                result.missing_here.add(other.path)
            other = next(right, None)
            continue
        if mine.size < 0:
            result.unreadable_here.add(mine.path)
        elif other.size >= 0 and mine.size != other.size:
            result.sizes.add(mine.path)
        elif other.size >= 0:
            result.files += 1
            result.bytes += mine.size
            if mine.digest and other.digest:
                _contents(mine, mine.digest, other.digest, result)
            yield mine
        mine, other = next(left, None), next(right, None)


def _contents(entry: Entry, mine: bytes, other: bytes, result: CensusResult) -> None:
    """Compare two digests of a file."""
    if mine.startswith(b"!"):
        result.unreadable_here.add(entry.path)
    elif other.startswith(b"!"):
        result.unreadable.add(entry.path)
    else:
        result.compared += 1
        result.compared_bytes += entry.size
        if mine != other:
            result.contents.add(entry.path)


def take_census(
    root: str,
    read: Callable[[int], bytes],
    ask: Callable[[list[bytes]], Iterable[bytes]],
    *,
    verify: bool = False,
    skip: Iterable[bytes] = (),
    draw: random.Random | None = None,
    progress: Callable[[CensusResult], None] = lambda _: None,
) -> CensusResult:
    """Compare the tree below `root` with a device's.

    Args:
        root: on this host; links that lead out of it are followed here.
        read: the device's census, as `CensusReader` reads it; taken with digests if `verify`.
        ask: returns the device's digests of the files with these relative paths, in turn.
        verify: compare the contents of all files, not of a sample.
        skip: relative paths to leave out; the device's census must leave out the same.
        draw: draws the sample; another one each time by default.
        progress: called now and then with what was found so far.

    Raises:
        CensusError: the root can't be listed here, or the device's census broke off.
    """
    result = CensusResult(verified=verify)
    theirs = CensusReader(read)
    sample, newest = _Sample(draw or random.Random()), Newest()
    ours = walk(root, set(skip), confined=False)
    for entry in compare(hashed(root, ours, confined=False) if verify else ours, theirs, result):
        if result.files % _TELL_FILES == 0:
            progress(result)
        if not verify:
            sample.add(entry)
            newest.add(entry)
    if not verify:
        theirs_too = (entry for entry in theirs.newest if _bytes_here(root, entry.path) == entry.size)
        chosen = {entry.path: entry for entry in (*theirs_too, *newest.entries(), *sample.entries())}
        _compare_contents(root, list(_within(SAMPLE_BYTES, chosen.values())), ask, result)
    return result


def _bytes_here(root: str, path: bytes) -> int:
    try:
        return os.stat(os.path.join(os.fsencode(root), path)).st_size
    except OSError:
        return -1


def _within(limit: int, entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries that together have no more bytes than the limit; one that is too large is passed over."""
    for entry in entries:
        if entry.size <= limit:
            limit -= entry.size
            yield entry


def _compare_contents(
    root: str, entries: list[Entry], ask: Callable[[list[bytes]], Iterable[bytes]], result: CensusResult
) -> None:
    paths = [entry.path for entry in entries]
    for entry, mine, other in zip(entries, digests(root, paths, confined=False), ask(paths), strict=True):
        _contents(entry, mine, other, result)
