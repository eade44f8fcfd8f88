"""The embedded engines of this process, by their options. The ranks of a run on this machine share the run's engine."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator

from ddlp.process.ranks import here
from ddlp.sources.engine.embedded import EmbeddedEngine, EmbeddedOptions

__all__ = ["acquire"]

_Key = tuple[EmbeddedOptions, str]  # the options, and the run if it has several ranks here

_lock = threading.RLock()
_running: dict[_Key, EmbeddedEngine] = {}
_starting: dict[_Key, threading.Lock] = {}  # held while an engine is looked for and started: those of a pool start at once


def acquire(options: EmbeddedOptions | None = None, check: Callable[[], None] = lambda: None) -> EmbeddedEngine:
    """Return the embedded engine of this process, or of its run, for these options. Start it if there is none.

    ``check`` is called just before one is started, which may be long after the call: what it raises keeps that from happening.

    Raises:
        EngineUnreachable: it does not start; holds the end of its log.
        SpoolError: the spool directory cannot be used.
        EngineError: an option is out of range.
    """
    wanted = (options or EmbeddedOptions()).resolved()
    ranks = here()
    ranks = ranks if ranks is not None and ranks.local_ranks > 1 else None
    key = wanted, "" if ranks is None else ranks.run
    with _lock:
        _register()
        starting = _starting.setdefault(key, threading.Lock())
    with starting:
        if (running := _running_one(key)) is not None:
            return running
        check()
        engine = EmbeddedEngine(wanted, _let_go, ranks)
        with _lock:
            _running[key] = engine
            engine.users = 1
        return engine


def _running_one(key: _Key) -> EmbeddedEngine | None:
    """Return the engine for a key with one more user; None if there is none that works."""
    with _lock:
        for engine in _ours():
            if engine is _running.get(key):
                if engine.ended() is None and engine.link.lost is None:
                    engine.users += 1
                    return engine
                _forget(engine)  # its users release it; the last one removes its directory
        return None


def _let_go(engine: EmbeddedEngine) -> None:
    """Give an engine back. The last user to do so stops it."""
    with _lock:
        engine.users -= 1
        if engine.users <= 0:
            _forget(engine)
            engine.end()


def _forget(engine: EmbeddedEngine) -> None:
    for key in [key for key, one in _running.items() if one is engine]:
        del _running[key]


def _ours() -> Iterator[EmbeddedEngine]:
    for engine in list(_running.values()):
        if engine.inherited:
            _forget(engine)
        else:
            yield engine


def _end_all() -> None:
    with contextlib.ExitStack() as started:
        for starting in list(_starting.values()):  # an engine that starts now would be left out
            started.enter_context(starting)
        started.enter_context(_lock)
        for engine in _ours():
            _forget(engine)
            engine.end()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that exists only in the parent may hold the old one
    _running.clear()
    _starting.clear()


@functools.cache
def _register() -> None:
    """Register the hooks once, with the first engine, so that importing this module has no side effects."""
    atexit.register(_end_all)
    os.register_at_fork(after_in_child=_after_fork)
