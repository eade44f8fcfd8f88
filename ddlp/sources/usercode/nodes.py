"""The nodes of a loader. They are kept between epochs, and end with the loader."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping

from ddlp.errors import DDLPError
from ddlp.sources.usercode.wire import NodeGone, Starter, WireNode

__all__ = ["Nodes"]


class Nodes:
    """The nodes of a loader's pool, by name. Any thread may call the methods.

    A node works for one epoch at a time. If several epochs of the loader run at once, each has nodes of its own.

    Args:
        pool: returns what starts each node of the pool of this moment, by the node's name.
    """

    def __init__(self, pool: Callable[[], Mapping[str, Starter]]) -> None:
        self.pid = os.getpid()
        self.trouble = ""  # why the pool can't tell its nodes now
        self.proved: dict[WireNode, str] = {}  # the digest of the work for which a node has made the host's samples
        self._pool = pool
        self._known: Mapping[str, Starter] = {}
        self._changed = threading.Condition(threading.RLock())  # reentrant: a finalizer may call `close` in any thread
        self._idle: dict[str, WireNode] = {}
        self._busy: set[WireNode] = set()
        self._ending: dict[WireNode, str] = {}  # busy ones that are idle soon
        self._told: set[str] = set()
        self._closed = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the pool's nodes of this moment. If the pool can't tell, the last ones hold."""
        try:
            self._known, self.trouble = self._pool(), ""
        except DDLPError as error:
            self.trouble = str(error)
        return tuple(self._known)

    def left(self, name: str) -> bool:
        """Return whether a node is not in the pool now. It may be there again later."""
        return name not in self._known

    def take(self, name: str) -> WireNode:
        """Return a node of this name, which is the caller's until `give_back` or `drop`.

        Raises:
            NodeGone: it has left the pool, or the loader is gone.
        """
        with self._changed:
            while name in self._ending.values():
                self._changed.wait()
            if self._closed or name not in self._known:
                raise NodeGone("it has left the pool")
            node = self._idle.pop(name, None) or self._known[name]()
            self._busy.add(node)
            return node

    def ends_soon(self, name: str, node: WireNode) -> None:
        """Note that a taken node finishes what it has, and is given back then."""
        with self._changed:
            if node in self._busy:
                self._ending[node] = name

    def give_back(self, name: str, node: WireNode) -> None:
        """Note that a node is idle."""
        with self._changed:
            kept = node in self._busy and name in self._known and name not in self._idle and not self._closed
            if kept:
                self._idle[name] = node
                self._forget(node)
        if not kept:
            self.drop(node)

    def drop(self, node: WireNode) -> None:
        """End a node."""
        node.close()
        with self._changed:
            self._forget(node)
            self.proved.pop(node, None)

    def _forget(self, node: WireNode) -> None:
        self._busy.discard(node)
        self._ending.pop(node, None)
        self._changed.notify_all()

    def end_unwanted(self) -> None:
        """End the idle nodes that are not in the pool any more."""
        wanted = self.names
        with self._changed:
            over = [self._idle.pop(name) for name in set(self._idle).difference(wanted)]
        for node in over:
            self.drop(node)

    def tell(self, text: str) -> bool:
        """Return whether a text is to be told to the user, which is so once a loader."""
        with self._changed:
            new = text not in self._told
            self._told.add(text)
            return new

    def close(self) -> None:
        """End all nodes."""
        if os.getpid() != self.pid:
            return  # in a forked child: the nodes are the parent's
        with self._changed:
            self._closed = True
            nodes = [*self._idle.values(), *self._busy]
            self._idle.clear()
        for node in nodes:
            node.close()
