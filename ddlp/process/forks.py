"""Locks and forks: a forked child has its parent's descriptors, and with them holds the parent's locks."""

from __future__ import annotations

import functools
import os
import weakref
from typing import Protocol

__all__ = ["unlocked_in_children"]


class _Locked(Protocol):
    def unlock(self) -> None:
        """Close the locked descriptor in a child. Does nothing if it is closed already."""


_all: weakref.WeakSet[_Locked] = weakref.WeakSet()


def unlocked_in_children(one: _Locked) -> None:
    """Call ``one.unlock()`` in each child that is forked from now on: a DataLoader's worker may live for days."""
    _all.add(one)
    _register()


def _unlock() -> None:
    for one in _all:
        one.unlock()


@functools.cache
def _register() -> None:
    """Register the hook once, with the first lock, so that importing this module has no side effects."""
    os.register_at_fork(after_in_child=_unlock)
