"""The files and descriptors that this process has open."""

from __future__ import annotations

import collections
import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path


def open_files() -> list[str]:
    """What its descriptors point to: paths (with " (deleted)" if the file was removed), "socket:[123]" and the like."""
    found = []
    for one in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{one}"))
        except OSError:  # the descriptor of the listing itself
            pass
    return found


def open_below(directory: Path) -> list[str]:
    return [one for one in open_files() if one.startswith(f"{directory}/")]


def opened_since(before: list[str]) -> list[str]:
    """What is open now and was not in `before`, a list by `open_files`.

    What was closed meanwhile does not count: threads of earlier tests close their pipes and sockets when they come to it.
    """
    return sorted((collections.Counter(open_files()) - collections.Counter(before)).elements())


@contextlib.contextmanager
def few_descriptors(free: int) -> Iterator[None]:
    """Let this process open exactly `free` more files."""
    limits, held = resource.getrlimit(resource.RLIMIT_NOFILE), [os.open(os.devnull, os.O_RDONLY)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + free + 1, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(held[0]))
        for _ in range(free):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for one in held:
            os.close(one)
