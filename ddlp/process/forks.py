"""Locks and forks: a child has the descriptors of the process that it was forked from, and with them what they lock."""

from __future__ import annotations

import functools
import os
import weakref
from typing import Protocol

__all__ = ["unlocked_in_children"]


class _Locked(Protocol):
    def unlock(self) -> None:
        """Close what is locked, in a child; nothing happens where it is closed already."""


_all: weakref.WeakSet[_Locked] = weakref.WeakSet()


def unlocked_in_children(one: _Locked) -> None:
    """Have ``one.unlock()`` called in each child that is forked from now on: a DataLoader's worker may live for days."""
    _all.add(one)
    _register()


def _unlock() -> None:
    for one in _all:
        one.unlock()


@functools.cache
def _register() -> None:
    """Once, with the first lock: importing this has no side effects."""
    os.register_at_fork(after_in_child=_unlock)
