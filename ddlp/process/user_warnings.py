"""What the user is told at the user's own line: advice, which is a log record, and warnings of what may be wrong."""

from __future__ import annotations

import logging
import sys
import warnings
from types import FrameType

_OURS = ("ddlp", "torch", "contextlib", "accelerate", "lightning", "pytorch_lightning", "transformers")
_LOG = logging.getLogger("ddlp")
SAID: set[tuple[str, str, int]] = set()  # the advice given in this process, with the file and line


def warn_user(text: str) -> None:
    """Warn, at the user's own line, of something that may be wrong."""
    _, level = user_frame()
    warnings.warn(text, stacklevel=level)


def advise_user(text: str) -> None:
    """Tell the user something where nothing is wrong: a log record of logger "ddlp" at the user's own line, once for each line.

    It is no warning, which `python -W error` would make an error that ends the training. Where the user has set up no logging,
    Python prints the text to stderr.
    """
    frame, level = user_frame()
    said = text, frame.f_code.co_filename, frame.f_lineno
    if said not in SAID:
        SAID.add(said)
        _LOG.warning(text, stacklevel=level)


def user_frame() -> tuple[FrameType, int]:
    """The innermost frame that is not ours, torch's or a framework's, and the stacklevel at which the caller tells it.

    A fixed stacklevel can't do that: iterators are reached through torch's base classes and through frameworks, and
    ``skip_file_prefixes`` exists from Python 3.12 only.
    """
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        frame = frame.f_back
        level += 1
    return frame, level
