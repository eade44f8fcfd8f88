"""`LocalPool`: engines in processes on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial

from ddlp.caching.settings import Cache
from ddlp.pools.base import check_number, check_range, check_wanted
from ddlp.sources.engine.connections import EngineAt
from ddlp.sources.engine.embedded import EmbeddedOptions
from ddlp.sources.usercode.process import ProcessNode
from ddlp.sources.usercode.wire import Starter

__all__ = ["LocalPool"]


class LocalPool:
    """Engines in processes on this machine, for ``DDLPLoader(pool=)``. ``pool=4`` means ``LocalPool(4)``.

    The processes belong to the loaders that use the pool. They start with the first epoch. They end with the last loader, or
    with this process, however that ends. One that dies is started again, after a pause of 1 s, then 2 s, up to 30 s. Loaders
    with equal pools share the processes, and so do the ranks of a torchrun job on one machine.

    Args:
        max: number of engines, 1 or more.
        min: if it is given, there are ``min`` to ``max`` engines: as many as training needs with ``strategy="auto"``, else
            ``max`` until `want` says another number. None: always ``max``, until `want` says another number.
        workers: number of worker processes in each engine, 1 or more. Each prepares one batch at a time.
        cpus: the CPUs of each engine, e.g. ``["0,1,2,3", "4,5,6,7"]`` for one engine on each of two NUMA nodes. The entries are
            used again if there are more engines. None: all CPUs of this process.
        cache: where the engines keep what is the same in every epoch, for later ones and later runs; loaders may have the same
            directory. ``keeps`` does not count: an engine chooses itself (docs/cache.md). None: they keep nothing.
        user_code: if the samples can't travel, since only your own data set, transform or collate_fn can make them, processes
            of the pool run that code (docs/pools.md). They are of this loader alone, ``engines * workers`` of them.

    Raises:
        ValueError: if a number is less than 1, or ``cpus`` is no list of such entries.
    """

    def __init__(
        self, max: int, *, min: int | None = None, workers: int = 1, cpus: Sequence[str] | None = None,
        cache: Cache | None = None, user_code: bool = False,
    ) -> None:  # fmt: skip
        if not isinstance(workers, int) or workers < 1:
            raise ValueError(f"workers={workers!r}: the number of worker processes in each engine, 1 or more")
        if cpus is not None and (isinstance(cpus, str) or not cpus):
            raise ValueError(f'cpus={cpus!r}: the CPUs of each engine, such as ["0,1", "2,3"], or None')
        self._workers, self._cpus = workers, (None,) if cpus is None else tuple(cpus)
        self.user_code = user_code
        self._cache = "" if cache is None else f"{os.path.abspath(cache.directory)}:{cache.bytes}"
        check_number(max, f"pool={max!r}")
        if min is not None:
            check_range(min, max)
        self.min, self.max, self._engines = min, max, max

    def want(self, engines: int) -> None:
        """Set the number of engines. Further ones join the epoch under way. Those too many finish what they have, and end.

        Raises:
            ValueError: if it is less than 1, or beyond ``min`` and ``max`` if they are given.
        """
        check_wanted(engines, self.min, self.max)
        self._engines = engines

    def engines(self) -> Mapping[str, EngineAt]:
        """Return the engines by their names. All of them together use as much of the spool as one embedded engine."""
        count, cpus = self._engines, self._cpus
        share = count if self.min is None else self.max
        return {
            f"pool engine {number}": EmbeddedOptions(
                workers=self._workers, cpus=cpus[(number - 1) % len(cpus)], number=number, share=share, cache=self._cache
            )
            for number in range(1, count + 1)
        }

    def nodes(self) -> Mapping[str, Starter]:
        """Return what starts the processes that run user code, by their names."""
        cpus = self._cpus
        places = [""] if self._workers == 1 else [f".{worker}" for worker in range(1, self._workers + 1)]
        return {
            f"pool engine {number}{place}": partial(ProcessNode, cpus[(number - 1) % len(cpus)])
            for number in range(1, self._engines + 1)
            for place in places
        }

    def __repr__(self) -> str:
        more = ", also for user code" if self.user_code else ""
        if self.min is not None:
            return f"{self.min} to {self.max} engines in processes on this machine{more}"
        return f"{self._engines} engine{'s' * (self._engines != 1)} in processes on this machine{more}"
