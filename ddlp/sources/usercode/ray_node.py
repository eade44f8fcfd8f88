"""User code in an actor of Ray, and the relay between it and the training process. No torch is imported for the relay.

The actor's Python needs ddlp, torch and what the user's code imports. Ray carries the user's code, the tasks and the answers by
its own pickles, between the actor and the relay's process alone: whoever may join a Ray cluster may run code in both.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import socket
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["MAKE", "UserCodeOnNode", "relay"]

MAKE = "make"  # the actor's concurrency group of one thread, in which the user's code runs
_LOOK_S = 0.2


class UserCodeOnNode:
    """What runs in the actor's process. Several loaders may use it: each connection has work of its own."""

    def __init__(self) -> None:
        self._connections: dict[str, Any] = {}
        self._over = threading.Event()

    def start(self) -> dict[str, str]:
        """Import what every work needs; return the ``node``'s name."""
        import ddlp.sources.usercode.wire  # noqa: F401

        return {"node": socket.gethostname()}

    def ended(self) -> str:
        """Wait until `finish` has ended; return why the actor is of no more use."""
        self._over.wait()
        return "it was told to end"

    def finish(self) -> None:
        """Wait until no loader has a connection."""
        while self._connections:
            time.sleep(_LOOK_S)
        self._over.set()

    def connect(self, connection: str) -> None:
        """Note a loader's connection."""
        from ddlp.sources.usercode.work import Answers

        self._connections[connection] = Answers()

    def answer(self, connection: str, message: bytes) -> list[Any]:
        """Return the answer to a message as frames. Ray passes arrays on without a copy."""
        from ddlp.sources.usercode.wire import frames

        return list(frames(self._connections[connection](message)))

    def disconnect(self, connection: str) -> None:
        """Forget a connection and its work."""
        self._connections.pop(connection, None)


def relay(ray: Any, actor: Any, wire: Connection) -> None:
    """Pass on what comes from a loader to an actor, and its answers back, until either is gone. It closes ``wire``."""
    connection = secrets.token_hex(8)
    asked: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask(method: Any, *arguments: Any) -> Any:
        return method.options(concurrency_group=MAKE).remote(connection, *arguments)

    def read() -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                asked.put(ask(actor.answer, wire.recv_bytes()))
        asked.put(None)

    ask(actor.connect)
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with contextlib.suppress(OSError):  # the loader is gone
        try:
            while (answer := asked.get()) is not None:
                for frame in ray.get(answer):
                    wire.send_bytes(frame)
        except ray.exceptions.RayError as error:
            why = f"Ray: {' '.join(str(error).split())[:300]}"
            wire.send_bytes(json.dumps({"task": 0, "kind": "gone", "text": why, "busy_s": 0.0, "sizes": []}).encode("ascii"))
            wire.send_bytes(b"")
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(wire.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)  # it ends the reader
    reader.join()
    wire.close()
    ask(actor.disconnect)
