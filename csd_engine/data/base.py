"""What every kind of data set has: a description that travels as plain data, and a reader that opens its samples.

Each kind is a file of its own beside this one; csd_engine.data.kinds lists them. Readers open files below allowed roots only.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from typing import Any, Callable, ClassVar, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
from PIL import Image

from csd_engine.data.image_files import content, open_image
from csd_engine.data.safe_open import OpenFile

__all__ = ["ARRAY", "MANIFEST", "Dataset", "Reader", "Source", "fingerprint", "open_reader"]

MANIFEST, ARRAY = "manifest", "array"  # the kinds of files that a host sends

PathLike = Union[str, "os.PathLike[str]"]

Source = Union[OpenFile, np.ndarray]
"""Where a sample's pixels come from: an opened file, or uint8 (height, width[, 3])."""


class Dataset(ABC):
    """The description of a data set: a frozen dataclass for each kind. Paths in it are the host's, absolute.

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
        """Make a data set of `to_data`'s result, checking every field with csd_engine.data.checks.

        Args:
            data: plain data that may be hostile; its "type" is this kind's.
            parse_part: parses a data set within this one.

        Raises:
            DatasetError: quotes the field and the value; or it is too large for this computer.
        """

    @abstractmethod
    def content(self) -> str:
        """Return ASCII text that tells what the source indices mean, for `fingerprint`. Paths do not enter."""

    def host_paths(self, arrays: PathLike) -> List[str]:
        """Return what the device has to see of the host's files and directories. What `uploads` names is not among them.

        Args:
            arrays: the directory of the arrays that hosts have sent.
        """
        return []

    def uploads(self, arrays: PathLike) -> List[Tuple[str, str]]:
        """Return (MANIFEST or ARRAY, fingerprint) of the files that a reader needs and the host sends.

        Args:
            arrays: the directory of the arrays that hosts have sent.
        """
        return []

    def image_size(self) -> Optional[Tuple[int, int]]:
        """Return (width, height) in pixels where all samples have the same and the description tells it, else None."""
        return None

    @abstractmethod
    def open(
        self,
        resolve_root: Callable[[str], str],
        manifest_path: Callable[[str], PathLike],
        beneath: Optional[Sequence[str]],
    ) -> Reader:
        """Open a reader; arguments and errors are those of `open_reader`."""


def fingerprint(dataset: Dataset) -> str:
    """Return 32 hex digits that tell what the source indices mean; paths on this computer do not enter."""
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
        resolve_root: maps a path on the host to this computer's; raises RootNotAllowed where it may not be read.
        manifest_path: maps a manifest's fingerprint to its file.
        beneath: real directories; a file that lies outside all of them, links followed, is not read. None: any.

    Raises:
        DatasetError: a manifest or array is missing, damaged or not as described. RootNotAllowed is one.
    """
    return dataset.open(resolve_root, manifest_path, beneath)


class Reader:
    """Opens single samples of a data set. Not thread-safe while it closes; otherwise it is.

    Attributes:
        beneath: real directories; a file that really lies outside all of them must not be read. None: any.
    """

    beneath: Optional[Sequence[str]] = None

    def __len__(self) -> int:
        raise NotImplementedError

    def open(self, index: int) -> Source:
        """Return sample `index`, nothing of it read yet. A file is the caller's to close.

        Raises:
            SampleError: missing, no regular file, too large, or outside the allowed roots.
            IndexError: there is no such sample.
        """
        raise NotImplementedError

    def image(self, index: int) -> Image.Image:
        """Return sample `index` with its header read and its pixels not yet decoded.

        Raises:
            SampleError: as `open`, or not an image.
            IndexError: there is no such sample.
        """
        source = self.open(index)
        return open_image(source.path, content(source)) if isinstance(source, OpenFile) else Image.fromarray(source)

    def paths(self, indices: List[int]) -> Optional[List[str]]:
        """Return where these samples' files lie, to be opened there by whoever looks at `beneath`.

        None unless each sample is a whole file. Of a batch at once: a few calls of Python's for each sample would be half a
        percent of the time that it takes.

        Raises as `open` does.
        """
        return None

    def where(self, index: int) -> str:
        """Return the sample's place for messages."""
        raise NotImplementedError

    def rows(self) -> Optional[np.ndarray]:
        """Return all samples where they are one array, uint8 (n, height, width) or (n, height, width, 3); else None."""
        return None

    def close(self) -> None:
        """Unmap what is mapped."""
