"""`ddlp.Cache`: where samples are kept, and how many bytes they may take."""

from __future__ import annotations

import os
from dataclasses import dataclass

from csd_engine.machine.sizes import size_bytes

__all__ = ["Cache"]

KEEPS = ("auto", "pixels", "files")


@dataclass(frozen=True)
class Cache:
    """A directory for what a loader would do again in every epoch: ``DDLPLoader(cache=ddlp.Cache(directory, "200G"))``.

    Several loaders, processes and runs may share one. Only this user may be able to write there.

    Args:
        directory: it is made if it is missing.
        size: the most bytes that all files there may have together: a number, or a text such as "500M" or "1.5T", with powers
            of 1024.
        keeps: ``"pixels"``; ``"files"``, of object storage, as they are there; ``"auto"``: the one of these that is predicted
            to take the least time.
        epochs: that will be trained with it. Where results have no fixed size, or not all of object storage have room, the
            loader makes a few samples with and without the cache before the first epoch, and keeps what saves time in so many
            epochs, the writing included, or nothing. None: it measures nothing, assumes ten epochs, and keeps something in any
            case.

    Raises:
        ValueError: if ``size`` is no such number or text, ``keeps`` is none of these, or ``epochs`` is no number from 1.
    """

    directory: str | os.PathLike[str]
    size: int | str
    keeps: str = "auto"
    epochs: int | None = None

    def __post_init__(self) -> None:
        _ = self.bytes
        if self.keeps not in KEEPS:
            raise ValueError(f"keeps={self.keeps!r}: expected one of {', '.join(KEEPS)}")
        if self.epochs is not None and (not isinstance(self.epochs, int) or self.epochs < 1):
            raise ValueError(f"epochs={self.epochs!r}: a number from 1, or None")

    @property
    def bytes(self) -> int:
        """``size`` as a number of bytes."""
        size = size_bytes(self.size) if isinstance(self.size, str) else self.size
        if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
            return size
        raise ValueError(f"size={self.size!r}: a number of bytes, or a text such as '500M', '200G' or '1.5T'")
