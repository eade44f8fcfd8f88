"""The engine's log. Peers can forge no line in it and no escape of a terminal, and cannot flood it."""

from __future__ import annotations

import logging
import sys
import time
from typing import Callable, Dict, Tuple

from csd_engine.protocol.printable import printable

__all__ = ["Formatter", "RepeatFilter", "set_up"]

_FORMAT = "%(asctime)s csd_engine %(levelname)s %(message)s"
_LONGEST = 500  # characters of a message
_REPEATS = 10  # lines of one kind
_WINDOW_S = 60.0  # in so many seconds


class Formatter(logging.Formatter):
    """Writes a record as one line, and a traceback below it as lines that are set in. Much of the text may be a peer's."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        """Return the line, without control characters."""
        record.message = printable(record.message, _LONGEST)
        return super().formatMessage(record)

    def formatException(self, ei: "logging._SysExcInfoType") -> str:  # noqa: N802 (logging's name)
        """Return the traceback's lines, without control characters."""
        return "\n".join(f"  {printable(line, _LONGEST)}" for line in super().formatException(ei).split("\n"))


class RepeatFilter(logging.Filter):
    """Lets a few records of each kind pass in a while, and says with the next one how many it has kept back.

    A kind is a text as it stands in the code, before values are put in: their number is fixed, whatever a peer sends.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: Dict[object, Tuple[float, int]] = {}  # when the window began, and the records since

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written."""
        now = self._clock()
        began, count = self._kinds.get(record.msg, (now, 0))
        if now - began < _WINDOW_S:
            self._kinds[record.msg] = (began, count + 1)
            return count < _REPEATS
        self._kinds[record.msg] = (now, 1)
        if count > _REPEATS:
            kept = f" (and {count - _REPEATS} more of this kind in the last {now - began:.0f} s)"
            record.msg, record.args = printable(record.getMessage(), _LONGEST - len(kept)) + kept, ()
        return True


def set_up(level: str) -> None:
    """Write the log of this process to standard error, from this level on ("info" and so on)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter(_FORMAT))
    handler.addFilter(RepeatFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
