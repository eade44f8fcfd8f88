"""Errors of the loader. Each message says what happened (with the value), where, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from csd_engine.errors import OperatorFailed, SampleError, noted


class DDLPError(Exception):
    """Base of all errors that ``ddlp`` raises on purpose."""


class Untranslatable(DDLPError):
    """A transform can't travel to a device as plain data; only the host can run it.

    Attributes:
        operator: the operator that can't travel, as the user would write it.
        why: the reason, in one sentence.
        ways_out: what the user can do, each in the imperative.
    """

    def __init__(self, operator: str, why: str, ways_out: Sequence[str]) -> None:
        super().__init__(operator, why, tuple(ways_out))
        self.operator = operator
        self.why = why
        self.ways_out = tuple(ways_out)

    def __str__(self) -> str:
        return f"{self.operator} can't run on a device: {self.why}. Ways out: {'; or '.join(self.ways_out)}."


def as_raised_by_the_dataset(error: SampleError, where: str | None = None) -> Exception:
    """Return the error that the data set's own code would have raised: of the same type, and it names the sample.

    What a user's operator has raised is returned itself. An error of the operating system has its errno and filename.
    ``where``: the sample, if it is only a part of the file.
    """
    cause, text, where = error.__cause__, str(error), error.where if where is None else where
    if not isinstance(cause, Exception):
        return OSError(text)
    if error.by_operator and not isinstance(cause, OperatorFailed):
        return noted(cause, text)
    try:
        if isinstance(cause, OSError) and cause.errno:
            part = "" if cause.filename in (None, where) else f" (for sample {where})"
            dataset_error: Exception = type(cause)(cause.errno, f"{cause.strerror}{part}", cause.filename or where)
        else:
            dataset_error = type(cause)(text)
    except Exception:  # its type needs other arguments
        return noted(cause, text)
    dataset_error.__cause__ = error
    return dataset_error
