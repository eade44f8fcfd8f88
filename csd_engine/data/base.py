"""The base of all kinds of data sets: a description that is sent as plain data, and a reader that opens the samples.

Each kind has its own file beside this one; csd_engine.data.kinds lists them. Readers open files below allowed roots only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from abc import ABC, abstractmethod
from typing import Any, Callable, ClassVar, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
from PIL import Image

from csd_engine.data.image_files import content, open_image, turned_upright
from csd_engine.data.safe_open import OpenFile
from csd_engine.kernels.files import Parts
from csd_engine.kernels.pixels import Pixels

__all__ = [
    "ARRAY", "MANIFEST", "Access", "Dataset", "Fetch", "Origin", "Origins", "Places", "Reader", "Source", "at_hand",
    "fingerprint", "open_reader",
]  # fmt: skip

MANIFEST, ARRAY = "manifest", "array"  # the kinds of files that a host sends

PathLike = Union[str, "os.PathLike[str]"]


class Places(NamedTuple):
    """Where samples lie in files.

    Attributes:
        paths: of the files, one for each sample. The caller that opens them must respect `Reader.beneath`.
        parts: where the samples lie in the files; None: each sample is a whole file. The descriptors in it stay open as long
            as the reader.
    """

    paths: List[str]
    parts: Optional[Parts] = None

    @staticmethod
    def join(some: List[Optional[Places]]) -> Optional[Places]:
        """Join all places in this order; None if one of them is None."""
        known = [places for places in some if places is not None]
        if len(known) < len(some):
            return None
        paths = [path for places in known for path in places.paths]
        if all(places.parts is None for places in known):
            return Places(paths)
        parts = [_whole(len(places.paths)) if places.parts is None else places.parts for places in known]
        return Places(paths, Parts(*(np.concatenate(column) for column in zip(*parts))))


class Origin(NamedTuple):
    """What a sample is made of. ``size`` -1: not known, so that the sample is not kept."""

    name: int
    size: int
    mtime_ns: int


class Origins(NamedTuple):
    """What n samples are made of: it tells them from others, and from what they may become later.

    Attributes:
        names: uint64 (n,), a digest of each one's name and place.
        sizes: int64 (n,), bytes, of the whole file where it lies in one; -1: there is no such file.
        mtimes_ns: int64 (n,), when the file was changed, in nanoseconds since 1970; negative: a mark of its content, of an
            object: a digest of its ETag.
    """

    names: np.ndarray
    sizes: np.ndarray
    mtimes_ns: np.ndarray

    def one(self, position: int) -> Origin:
        """Return one sample's."""
        return Origin(int(self.names[position]), int(self.sizes[position]), int(self.mtimes_ns[position]))

    @staticmethod
    def join(some: Iterable[Optional[Origins]]) -> Optional[Origins]:
        """Join all origins in this order; None if there are none, or as soon as one of them is None."""
        known = []
        for origins in some:
            if origins is None:
                return None
            known.append(origins)
        return Origins(*map(np.concatenate, zip(*known))) if known else None


def _whole(count: int) -> Parts:
    zeros, none = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    return Parts(zeros, none, none.astype(np.int32), zeros.astype(np.int32))


Source = Union[OpenFile, np.ndarray]
"""The source of a sample's pixels: an opened file, or uint8 (height, width[, 3])."""


class Access(NamedTuple):
    """Where a data set's files are on this computer, and which of them may be read.

    Attributes:
        resolve_root: maps a path on the host to a path here; raises RootNotAllowed if it may not be read.
        manifest_path: maps a manifest's fingerprint to its file.
        beneath: real directories; a file is not read if it lies outside all of them after links are followed. None: any.
    """

    resolve_root: Callable[[str], str]
    manifest_path: Callable[[str], PathLike]
    beneath: Optional[Sequence[str]]


class Dataset(ABC):
    """The description of a data set: a frozen dataclass for each kind. Its paths are absolute paths on the host.

    Attributes:
        type: the kind's name in its plain data.
    """

    type: ClassVar[str]

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def to_data(self) -> Dict[str, Any]:
        """Return the description as plain data for JSON: a dict with "type", from which `parse` makes an equal one."""

    @classmethod
    @abstractmethod
    def parse(cls, data: Any, parse_part: Callable[[Any], Dataset]) -> Dataset:
        """Make a data set from `to_data`'s result, and check every field with csd_engine.data.checks.

        Args:
            data: plain data that may be hostile; its "type" is this kind's.
            parse_part: parses a data set within this one.

        Raises:
            DatasetError: quotes the field and the value; or it is too large for this computer.
        """

    @abstractmethod
    def content(self) -> str:
        """Return ASCII text that tells what the source indices mean, for `fingerprint`. It contains no paths."""

    def host_paths(self, arrays: PathLike) -> List[str]:
        """Return the host's files and directories that the device must be able to read, without those that `uploads` names.

        Args:
            arrays: the directory of the arrays that hosts have sent.
        """
        return []

    def uploads(self, arrays: PathLike) -> List[Tuple[str, str]]:
        """Return (MANIFEST or ARRAY, fingerprint) of each file that a reader needs and the host sends.

        Args:
            arrays: the directory of the arrays that hosts have sent.
        """
        return []

    def urls(self) -> List[str]:
        """Return the URLs of storages that the device must be allowed to read."""
        return []

    @property
    def carried(self) -> bool:
        """Whether the host sends the bytes of some of its samples with each lease (`csd_engine.data.carried`)."""
        return False

    def image_size(self) -> Optional[Tuple[int, int]]:
        """Return (width, height) in pixels if all samples have the same size and the description tells it, else None."""
        return None

    @abstractmethod
    def open(self, access: Access) -> Reader:
        """Open a reader; errors are those of `open_reader`."""


def fingerprint(dataset: Dataset) -> str:
    """Return 32 hex digits that tell what the source indices mean. They don't depend on paths of this computer."""
    digest = hashlib.blake2b(digest_size=16, person=b"ddlp data set")
    digest.update(dataset.content().encode("ascii"))
    return digest.hexdigest()


def open_reader(
    dataset: Dataset,
    resolve_root: Callable[[str], str],
    manifest_path: Callable[[str], PathLike],
    beneath: Optional[Sequence[str]] = None,
) -> Reader:
    """Open a reader of the data set.

    Args:
        dataset: the description.
        resolve_root, manifest_path, beneath: as of `Access`.

    Raises:
        DatasetError: a manifest or array is missing, damaged or not as described. RootNotAllowed is a DatasetError.
    """
    return dataset.open(Access(resolve_root, manifest_path, beneath))


class Fetch(ABC):
    """Samples of a slow storage that are on their way into memory. Any thread may use it."""

    @abstractmethod
    def hurry(self) -> None:
        """Note that somebody waits for them now; they no longer count as fetched ahead."""

    @abstractmethod
    def wait(self, wanted: Callable[[], bool]) -> Optional[Reader]:
        """Wait until each sample has come, or has failed. Return a reader of them, for one thread, to be used until `close`.

        Return None once ``wanted``, which is called now and then, returns False.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the memory, and drop what is still on its way. Must be called; may be called again."""


@contextlib.contextmanager
def at_hand(
    reader: Reader, indices: Sequence[int], wanted: Callable[[], bool] = lambda: True, begun: Optional[Fetch] = None
) -> Iterator[Reader]:
    """Yield a reader for these samples: this one, or one that has brought them all.

    Args:
        reader: of the data set.
        indices: the samples.
        wanted: as for `Fetch.wait`.
        begun: the samples' fetch, if there is one already; it is closed.
    """
    fetch = begun or reader.fetch(indices)
    if fetch is None:
        yield reader
        return
    with contextlib.closing(fetch):
        fetch.hurry()
        there = fetch.wait(wanted)
        yield reader if there is None else there


class Reader:
    """Opens single samples of a data set. Any number of threads may use it, but not while it closes.

    Attributes:
        beneath: real directories; a file that really lies outside all of them must not be read. None: any.
        slow: samples come from a storage that answers slowly: bring many at a time, by `fetch`.
    """

    beneath: Optional[Sequence[str]] = None
    slow: bool = False

    def __len__(self) -> int:
        raise NotImplementedError

    def open(self, index: int) -> Source:
        """Return sample `index` without reading any of it. If it is a file, the caller closes it.

        Raises:
            SampleError: missing, no regular file, too large, or outside the allowed roots.
            IndexError: there is no such sample.
        """
        raise NotImplementedError

    def image(self, index: int) -> Image.Image:
        """Return sample `index` with its header read. Its pixels are not yet decoded, unless it must be turned upright.

        Raises:
            SampleError: as `open`, or not an image.
            IndexError: there is no such sample.
        """
        source = self.open(index)
        if not isinstance(source, OpenFile):
            return Image.fromarray(np.array(source))  # a copy, which the image's owner may change
        image = open_image(source.path, content(source))
        return turned_upright(image) if source.upright else image

    def places(self, indices: List[int]) -> Optional[Places]:
        """Return the places of these samples in files; None unless each is a file or a part of one. Raises as `open` does.

        One call takes all samples of a batch: a few Python calls for each sample would take half a percent of its time.
        """
        return None

    def versions(self, indices: List[int]) -> Optional[Origins]:
        """Return these samples' origins as their storage tells them; None unless all lie in one. Raises as `open` does."""
        return None

    def fetch(self, indices: Sequence[int], ahead: bool = False) -> Optional[Fetch]:
        """Begin to bring samples into memory, all at once, and return without waiting. None: they need not be brought.

        Args:
            indices: samples that are wanted soon, such as a batch.
            ahead: nobody waits for them yet. None then means as well that enough is on its way, or in memory.

        Raises:
            IndexError: there is no such sample.
        """
        return None

    def pixels(self, indices: np.ndarray) -> Optional[Pixels]:
        """Return these samples, int64, where they lie in memory. None unless each is an array's row that exists."""
        rows = self.rows()
        return None if rows is None else Pixels.of_rows(rows, indices)

    def where(self, index: int) -> str:
        """Return where the sample lies, for messages."""
        raise NotImplementedError

    def rows(self) -> Optional[np.ndarray]:
        """Return all samples if they are one array, uint8 (n, height, width) or (n, height, width, 3); else None."""
        return None

    def close(self) -> None:
        """Close the files and unmap the memory that the reader holds."""
