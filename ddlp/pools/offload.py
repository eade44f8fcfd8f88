"""Who prepares a loader's batches beside this host: engines of devices and pools, a pool's nodes for user code, own sources.

A loader imports this module once it has such: a user without devices loads nothing of what serves them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol

from torch.utils.data import DataLoader

from ddlp.config import LoaderConfig
from ddlp.pools.base import Pool, is_pool, nodes_of
from ddlp.pools.cards import CardPool
from ddlp.pools.local import LocalPool
from ddlp.process.finalizers import when_dropped
from ddlp.sources.base import EpochSink, LeaseSource
from ddlp.sources.engine.connections import EngineConnections
from ddlp.sources.engine.embedded import EmbeddedOptions, default_spool
from ddlp.sources.engine.source import LOOK_S, EngineSource
from ddlp.sources.usercode.host import UserCodeHost
from ddlp.sources.usercode.nodes import Nodes
from ddlp.sources.usercode.source import UserCodeSource
from ddlp.sources.usercode.work import Work

__all__ = ["Offload", "pool_of"]


class Members(Protocol):
    """The engines that a loader's pool has at this moment."""

    trouble: str

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""


def pool_of(given: Any) -> Pool | None:
    """Return the pool that a loader's argument names; None: there is none.

    Args:
        given: a number of engines on this machine, the path of a directory of cards, or a pool.

    Raises:
        ValueError: for anything else.
        DDLPError: the directory can't be used.
    """
    if given is None or is_pool(given):
        return given
    if isinstance(given, int):
        return LocalPool(given)
    if isinstance(given, (str, os.PathLike)):
        return CardPool(given)
    raise ValueError(
        f"pool={given!r}: expected a number of engines, a directory of cards, a ddlp.LocalPool or ddlp.RayPool, or None"
    )


class Offload:
    """What all epochs of a loader share to have batches made elsewhere. After a fork it is the parent's, and another is needed.

    The loader and its iterators hold it, as an iterator may outlive its loader. Connections are closed once nobody does.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.connections: EngineConnections | None = None  # to the engines, of all epochs
        self._nodes: Nodes | None = None
        # Of the epoch that begins:
        self._engines: EngineConnections | None = None
        self._members: Members | None = None  # who may come and go
        self._source_of: Callable[[str], LeaseSource] | None = None

    @property
    def made_from(self) -> tuple[str, ...]:
        """The loader's arguments that can't change any more."""
        if self.connections is not None:
            return ("csd", "pool", "transfer", "spool", "spool_bytes")
        return () if self._nodes is None else ("pool",)

    def sources(self, config: LoaderConfig, work: Work | None) -> tuple[LeaseSource, ...]:
        """Return the sources of the epoch that begins. ``work``: the user's code, for a pool's nodes; None: for engines."""
        self._engines = self._members = self._source_of = None
        if work is not None:
            nodes = self._members = self._nodes_of_pool(config)
            self._source_of = partial(UserCodeSource, nodes=nodes)
            return tuple(map(self._source_of, nodes.names))
        own = config.own_sources
        if own and not config.engine_devices and config.pool is None:
            return own
        connections = self._engines = self._reached(config)
        if config.pool is not None:
            self._members = connections
        self._source_of = partial(
            EngineSource,
            connections=connections,
            audit=config.audit,
            allow_different_bits=config.allow_different_bits,
        )
        return (*map(self._source_of, connections.names), *own)

    def wanted(self, sources: tuple[LeaseSource, ...]) -> tuple[LeaseSource, ...]:
        """Return those of the epoch's sources that the pool has now. It may have been asked for fewer engines meanwhile."""
        if self._engines is None:
            return sources
        names = set(self._engines.names)
        return tuple(source for source in sources if source.name in names)

    @property
    def may_join(self) -> bool:
        """Whether more may join the epoch."""
        return self._members is not None

    def began(self) -> Callable[[], None]:
        """Note that the epoch uses them from now on. Return what to call at its end."""
        if self._engines is not None:
            return self._engines.epoch_began()
        return (lambda: None) if self._nodes is None else self._nodes.end_unwanted

    def check_embedded(self) -> None:
        """Raise DDLPError if the epoch needs an engine of this process, and that can't start."""
        if self._engines is not None:
            self._engines.check_embedded()

    @staticmethod
    def user_code(work: Work, loader: DataLoader, base_seed: int) -> UserCodeHost:
        """Return what makes the host's part of an epoch of user code. Users without a pool import none of it."""
        return UserCodeHost(work, loader, base_seed)

    def attach(self, sources: Iterable[LeaseSource], sink: EpochSink) -> None:
        """Let the sources join the epoch, in threads of their own, and those that come while it runs."""
        known = []
        for source in sources:
            if isinstance(source, (EngineSource, UserCodeSource)):
                known.append(source.name)
            _start_attaching(source, sink)
        if self._members is not None:
            arguments = self._members, self._source_of, known, sink
            threading.Thread(target=_attach_newcomers, args=arguments, name="ddlp-pool", daemon=True).start()

    def _reached(self, config: LoaderConfig) -> EngineConnections:
        """Return the connections to the devices' engines."""
        if self.connections is None:
            spool = os.path.abspath(config.spool or default_spool())  # here, as the current directory may change any time
            options = EmbeddedOptions(spool=spool, quota_bytes=config.spool_bytes)
            pool = pool_of(config.pool)
            self.connections = EngineConnections(
                config.engine_devices, options, config.transfer, None if pool is None else pool.engines
            )
            when_dropped(self, self.connections.close)
        return self.connections

    def _nodes_of_pool(self, config: LoaderConfig) -> Nodes:
        if self._nodes is None:
            pool = nodes_of(pool_of(config.pool))
            assert pool is not None
            self._nodes = Nodes(pool)
            when_dropped(self, self._nodes.close)
        return self._nodes


def _start_attaching(source: LeaseSource, sink: EpochSink) -> None:
    threading.Thread(target=_attach, args=(source, sink), name=f"ddlp-attach-{source.name}", daemon=True).start()


def _attach_newcomers(
    members: Members, source_of: Callable[[str], LeaseSource], known: Iterable[str], sink: EpochSink
) -> None:
    """Attach each engine that comes to the pool while the epoch runs."""
    for name in _newcomers(members, known, sink):
        _start_attaching(source_of(name), sink)


def _attach(source: LeaseSource, sink: EpochSink) -> None:
    """Attach a source to an epoch. An error in its code ends the training; else the user would not see why it is missing."""
    try:
        source.attach(sink)
    except Exception as error:
        sink.lost(source.name, repr(error), error)


def _newcomers(members: Members, known: Iterable[str], sink: EpochSink) -> Iterator[str]:
    """Yield the name of each engine that comes after the epoch's beginning, until the epoch is over. The epoch expects it then.

    One that is not in the pool any more finishes what it has, and takes no more leases.

    Args:
        members: of the loader's pool.
        known: the names of engines that the epoch knows already.
        sink: the epoch.
    """
    seen, trouble = set(known), ""
    while not sink.over_within(LOOK_S):
        names = members.names
        for name in names:
            if name not in seen:
                seen.add(name)
                sink.expect(name)
                yield name
        for name in seen.difference(names):
            sink.retires(name, "it is not in the pool any more")
        if members.trouble != trouble:
            trouble = members.trouble
            if trouble:
                sink.warn(f"no engine can join now: {trouble}")
