"""`RelayedNode`: a node that is elsewhere. A process of this machine passes on what they say (`ray_node`)."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection

from ddlp.sources.usercode.wire import WireNode

__all__ = ["RelayedNode"]


class RelayedNode(WireNode):
    """A node behind a socket. It takes this side's end for the end of the work, and may go on for others.

    ``reach``: returns the socket, or raises NodeGone.
    """

    def __init__(self, reach: Callable[[], socket.socket]) -> None:
        super().__init__()
        self._reach = reach
        self._socket: socket.socket | None = None

    def close(self) -> None:
        """End the connection, for forks that have it open too."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _start(self) -> None:
        self._socket = self._reach()
        self._wire = Connection(os.dup(self._socket.fileno()))

    def _why(self) -> str:
        return "the process that speaks to Ray has ended its connection"
