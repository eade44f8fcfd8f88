"""How many files, pipes and connections this process may have open."""

from __future__ import annotations

import resource

__all__ = ["raise_limit"]

_ENOUGH = 16384  # more would only be held by strangers; each connection without a word takes 4 kB


def raise_limit() -> int:
    """Let this process open as many files as it may set itself, but at most 16384. Return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _ENOUGH if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # for example a sandbox that allows no change
        return soft
    return wanted
