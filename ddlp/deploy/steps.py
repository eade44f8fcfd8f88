"""The steps of a deployment as they are shown: each with its result, and with signs of life while it takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from csd_engine.protocol.printable import printable_lines
from ddlp.deploy.findings import Finding

__all__ = ["Step", "Steps"]

_WIDTH = 11
_TICK_S = 1.0
_SILENCE_S = 15.0  # without a terminal, a line is printed this often


class Step:
    """One step, while it is done.

    Attributes:
        doing: what is shown while it takes long.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.doing = ""
        self.results: list[str] = []

    def say(self, result: str | Finding) -> None:
        """Add a line to the result."""
        self.results.append(printable_lines(str(result)))

    def waiting(self, sent: int) -> None:
        """Show how much was sent: for `Shell.run`."""
        self.doing = f"{sent / 1e6:.1f} MB sent" if sent else ""


class Steps:
    """Prints steps.

    Args:
        stream: where to; None: standard output.

    Attributes:
        changed: whether any step has changed something on the device or here.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self.changed = False

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """A step. Its results are printed at its end, also if it fails."""
        step = Step(title)
        over = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(step, over), daemon=True)
        ticker.start()
        try:
            yield step
        finally:
            over.set()
            ticker.join()
            self._erase()
            self._print(step)

    def _tick(self, step: Step, over: threading.Event) -> None:
        began = printed_at = time.monotonic()
        while not over.wait(_TICK_S):
            now = time.monotonic()
            text = f"{step.title:{_WIDTH}}... {now - began:.0f} s {step.doing}".rstrip()
            if self._live:
                self._erase()
                print(text[:120], end="", file=self._stream, flush=True)
            elif now - printed_at >= _SILENCE_S:
                printed_at = now
                print(text, file=self._stream, flush=True)

    def _erase(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=self._stream, flush=True)

    def _print(self, step: Step) -> None:
        title = step.title
        for result in step.results:
            for line in result.splitlines():
                print(f"{title:{_WIDTH}}{line}", file=self._stream, flush=True)
                title = ""
