"""Forked children have their parent's descriptors, and with them hold the parent's locks, and the ends of its pipes."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Protocol

__all__ = ["no_forks", "unlocked_in_children"]


class _Locked(Protocol):
    def unlock(self) -> None:
        """Close the locked descriptor in a child. Does nothing if it is closed already."""


_forking = threading.RLock()
_all: weakref.WeakSet[_Locked] = weakref.WeakSet()


def unlocked_in_children(holder: _Locked) -> None:
    """Call ``holder.unlock()`` in each child that is forked from now on: a DataLoader's worker may live for days."""
    _all.add(holder)
    _register()


@contextlib.contextmanager
def no_forks() -> Iterator[None]:
    """Let no other thread fork meanwhile, such as a DataLoader that starts its workers.

    `subprocess.Popen` waits for the end of a pipe that its child closes. A fork at that moment has it open too, and Popen
    returns when that worker ends.
    """
    _register()
    with _forking:
        yield


def _unlock() -> None:
    for holder in _all:
        holder.unlock()


@functools.cache
def _register() -> None:
    """Register the hooks once, with the first use, so that importing this module has no side effects."""
    os.register_at_fork(after_in_child=_unlock)
    os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_forking.release)
