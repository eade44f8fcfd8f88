"""Errors of the portable core. Each message says what happened (with the value), where, and what to do next."""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors that ``csd_engine`` raises on purpose."""


class PipelineError(EngineError):
    """A pipeline's data are not valid, or an image can't go through it; quotes the operator, parameter and value."""
