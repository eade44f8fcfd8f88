"""Counts how long a thread has been reading samples. It reads the clock only twice a file, so it is always on."""

from __future__ import annotations

import threading

__all__ = ["READING"]


class _Reading(threading.local):
    """The seconds that the calling thread has spent on opening and reading the files of samples."""

    seconds = 0.0


READING = _Reading()
