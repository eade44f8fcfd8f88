"""The user's own line, and warnings that point at it."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

_OURS = ("ddlp", "torch", "contextlib", "accelerate", "lightning", "pytorch_lightning", "transformers")


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the user's own line."""
    _, level = user_frame()
    warnings.warn(text, category, stacklevel=level)


def user_frame() -> tuple[FrameType, int]:
    """The innermost frame that is not ours, torch's or a framework's, and the stacklevel at which the caller warns for it.

    A fixed stacklevel can't do that: iterators are reached through torch's base classes and through frameworks, and
    ``skip_file_prefixes`` exists from Python 3.12 only.
    """
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        frame = frame.f_back
        level += 1
    return frame, level
