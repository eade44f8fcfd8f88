"""Run the same work in several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def at_once(work: Callable[[int], T], count: int) -> list[T]:
    """Call work(0), work(1), ... in a thread each, all at the same time. Returns the results, or raises the first exception."""
    start = threading.Barrier(count)

    def one(number: int) -> T:
        start.wait(30)
        return work(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))
