"""Errors of the portable core. Each message says what happened (with the value), where, and what to do next."""

from __future__ import annotations

import reprlib
from typing import Any, TypeVar

__all__ = [
    "BadMessage",
    "BlurRefused",
    "CacheRefused",
    "DamagedBatch",
    "DamagedSegment",
    "DatasetError",
    "EngineError",
    "EngineGone",
    "EngineRefused",
    "EngineUnreachable",
    "ImageRefused",
    "LeftToHost",
    "MissingBatch",
    "OperatorFailed",
    "OperatorFileError",
    "PipelineError",
    "RootNotAllowed",
    "SampleError",
    "SizeRefused",
    "SpoolError",
    "SpoolFull",
    "StorageRefused",
    "WrongPixels",
    "named",
    "noted",
    "quote",
]

_Error = TypeVar("_Error", bound=BaseException)


def quote(value: Any) -> str:
    """Return a value for an error message. Of a long one, perhaps hostile, no more is looked at than is quoted."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 80
    return short.repr(value)


def noted(error: _Error, text: str) -> _Error:
    """Return the user's own error, with a note that says where it was raised. Python 3.11 and newer show it below the error."""
    notes = getattr(error, "__notes__", [])
    if text not in notes:
        vars(error)["__notes__"] = [*notes, text]  # as `add_note`, which older versions lack
    return error


def named(error: Exception, place: str) -> Exception:
    """Return an error of the same type whose text begins with the place, and whose cause is ``error``.

    If its type needs other arguments, return ``error`` itself with the place as a note.
    """
    try:
        named_error = type(error)(f"{place}: {error}")
    except Exception:
        return noted(error, place)
    named_error.__cause__ = error
    return named_error


class EngineError(Exception):
    """Base of every error that csd_engine raises on purpose."""


class PipelineError(EngineError):
    """A pipeline is malformed, or asks for something that it cannot do; quotes the operator, parameter and value."""


class ImageRefused(PipelineError):
    """An operator can't run on an image of this size. It is also of the type that torchvision raises, with the same text."""


class SizeRefused(ImageRefused, ValueError):
    """The image can't be cropped, padded or resized to such a size."""


class BlurRefused(ImageRefused, RuntimeError):
    """The image is smaller than the border that a blur reflects."""


class OperatorFileError(EngineError):
    """A file of the user's operators can't be used: missing, changed, not to be loaded here, or without the function."""


class OperatorFailed(EngineError):
    """A user's operator raised an exception (the cause) or returned something unfit; names file, line and function."""


class DatasetError(EngineError):
    """A data set's description or its manifest is malformed, or its files are not as described."""


class StorageRefused(DatasetError):
    """An object storage can't be used: a wrong URL, or obstore is missing."""


class RootNotAllowed(DatasetError):
    """A data set lies outside the directories that the engine may read."""


class SampleError(EngineError):
    """One sample cannot be read or decoded. Pickles, so that it can cross from a worker process.

    Attributes:
        where: the file or array row.
        why: the reason, with the original error's name.
        by_operator: a user's operator failed on it, so that the file itself may be sound.
    """

    def __init__(self, where: str, why: str, by_operator: bool = False) -> None:
        super().__init__(where, why, by_operator)
        self.where = where
        self.why = why
        self.by_operator = by_operator

    def __str__(self) -> str:
        way_out = (
            "Correct the operator"
            if self.by_operator
            else "Check the file (it may be missing, truncated or not an image) or leave it out of the data set"
        )
        return f"sample {self.where} cannot be prepared: {self.why}. {way_out}."


class LeftToHost(EngineError):
    """An image takes more memory or time than an engine allows one. Its host prepares it, without such a limit."""


class SpoolError(EngineError):
    """The spool directory cannot be used: missing, not writable, not a directory."""


class SpoolFull(SpoolError):
    """The spool's file system has no room for another batch file."""


class CacheRefused(EngineError):
    """A cache's directory can't be used: another user could write there, or it can't be made."""


class DamagedSegment(EngineError):
    """A file of the cache is not what its writer has published; says which check failed."""


class DamagedBatch(EngineError):
    """A batch file is not the one expected, or not what its writer published; says which check failed."""


class MissingBatch(DamagedBatch):
    """A batch file is not there, or too short: lost, or not yet visible through a network file system."""


class WrongPixels(DamagedBatch):
    """A batch is whole, but its writer has computed other pixels than the host does."""


class BadMessage(EngineError):
    """A message between host and engine is malformed; quotes the field and its value."""


class EngineRefused(EngineError):
    """The engine was reached and said no: wrong key, other protocol version, pipeline or data set it does not take."""


class EngineUnreachable(EngineError):
    """Nothing answered at the engine's address in time, or an engine of our own did not start."""


class EngineGone(EngineError):
    """The engine was there and is no longer; or this process is a fork of the one that was connected."""
