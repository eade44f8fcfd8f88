"""Errors of the loader. Each message says what happened (with the value), where, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence


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
