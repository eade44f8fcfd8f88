"""How long a thread has been reading samples: two looks at the clock a file, so it is always counted."""

from __future__ import annotations

import threading

__all__ = ["READING"]


class _Reading(threading.local):
    """Of the thread that looks: seconds spent on opening and reading the files of samples."""

    seconds = 0.0


READING = _Reading()
