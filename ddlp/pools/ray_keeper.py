"""`python -m ddlp.pools.ray_keeper DESCRIPTOR`: the process of a `RayPool` that speaks to Ray, and keeps its actors.

It is a process of its own, so that training never waits for Ray nor shares a process with it: Ray ends processes that have lost
their cluster. It imports no torch. Ray ends the actors with it, and each engine ends with its actor.

Standard input: its settings as a line of JSON, then a number whenever another number of engines is wanted. It ends at the line
"end", or at the end of that. Standard output: lines with ``engines``, what the actor's ``start`` has told of each, by its name,
and ``trouble``. If the actors run user code, DESCRIPTOR is a socket: the name of one comes by it together with a socket, whose
messages that actor answers.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from csd_engine.kernels.build import LIBRARY
from csd_engine.kernels.report import MADE
from ddlp.deploy.place import archive
from ddlp.pools import ray_actor
from ddlp.process.pauses import next_pause_s
from ddlp.sources.usercode.ray_node import MAKE, UserCodeOnNode, relay

__all__ = ["Keeper", "Settings"]

_LOOK_S = 0.3
_LAST_S = 4.0  # for Ray to end the actors


@dataclass(frozen=True)
class Settings:
    """What a pool tells its keeper.

    Attributes:
        address: of the Ray cluster, as for ``ray.init``.
        actor: options of the actors: ``num_cpus``, ``resources``, ``runtime_env``.
        host_key: the text of the host's public .key file.
        arguments: of the engines' command line.
        user_code: instead of engines, so many actors run user code for each engine that is wanted. 0: engines.
    """

    address: str
    actor: dict[str, Any]
    host_key: str
    arguments: list[str]
    user_code: int = 0


class _Slot:
    """The place of one actor: the actor, or when the next one may be started."""

    def __init__(self) -> None:
        self.actor: Any = None
        self.waits: Any = None  # for: the engine's start, then its end
        self.engine: dict[str, str] | None = None  # once it serves
        self.began_s = self.not_before_s = self.pause_s = 0.0


class Keeper:
    """As many actors as are wanted. `step` does what is due. `ray.init` was called before."""

    def __init__(self, settings: Settings) -> None:
        import ray

        self._ray = ray
        self._settings = settings
        self.trouble = ""
        self._slots: dict[int, _Slot] = {}
        self._leaving: dict[Any, Any] = {}  # what tells of an engine's end -> its actor
        self._started = 0
        self._arguments: list[Any] = []
        if settings.user_code:
            self._class = ray.remote(concurrency_groups={MAKE: 1})(UserCodeOnNode)
        else:
            ray.cloudpickle.register_pickle_by_value(ray_actor)
            self._class = ray.remote(ray_actor.EngineOnNode)
            self._arguments += [ray.put(archive()), ray.put(_kernel()), settings.host_key, settings.arguments]

    @property
    def engines(self) -> dict[str, dict[str, str]]:
        """What is told of the engines that serve, by their names."""
        return {self._name(n): slot.engine for n, slot in sorted(self._slots.items()) if slot.engine is not None}

    def serve(self, door: socket.socket) -> None:
        """Relay between actors that run user code and the sockets that come by this one, until its end."""
        while True:
            name, descriptors, _, _ = socket.recv_fds(door, 256, 1)
            if not name:
                return
            with Connection(descriptors[0]) as wire:
                actors = {self._name(n): slot.actor for n, slot in list(self._slots.items()) if slot.engine is not None}
                if name.decode() in actors:
                    given = self._ray, actors[name.decode()], Connection(os.dup(wire.fileno()))
                    threading.Thread(target=relay, args=given, daemon=True).start()

    def _name(self, number: int) -> str:
        engine, place = divmod(number - 1, self._settings.user_code or 1)
        return f"ray engine {engine + 1}" + f".{place + 1}" * (self._settings.user_code > 1)

    def step(self, wanted: int) -> None:
        """Start what is missing, take away what is too much, and see what has happened. It waits a moment for that."""
        wanted *= self._settings.user_code or 1
        for number in range(1, wanted + 1):
            slot = self._slots.setdefault(number, _Slot())
            if slot.actor is None and time.monotonic() >= slot.not_before_s:
                self._start(number, slot)
        for number in [number for number in self._slots if number > wanted]:
            self._take_away(self._slots.pop(number))
        waited = {slot.waits: slot for slot in self._slots.values() if slot.waits is not None}
        refs = [*waited, *self._leaving]
        if not refs:
            time.sleep(_LOOK_S)
            return
        done, _ = self._ray.wait(refs, num_returns=1, timeout=_LOOK_S)
        for ref in done:
            if ref in waited:
                self._happened(waited[ref])
            else:
                self._ray.kill(self._leaving.pop(ref))

    def _start(self, number: int, slot: _Slot) -> None:
        self._started += 1
        slot.actor = self._class.options(
            scheduling_strategy="SPREAD", max_restarts=0, max_concurrency=4,
            name=f"engine {number} of {socket.gethostname()}-{os.getpid()}, start {self._started}", **self._settings.actor,
        ).remote(*self._arguments)  # fmt: skip
        slot.waits = slot.actor.start.remote()
        slot.began_s = time.monotonic()

    def _happened(self, slot: _Slot) -> None:
        try:
            result = self._ray.get(slot.waits)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            self._died(slot, _line(cause))
            return
        if slot.engine is None:
            slot.engine, self.trouble, slot.began_s = result, "", time.monotonic()
            slot.waits = slot.actor.ended.remote()
        else:
            self._died(slot, result)

    def _died(self, slot: _Slot, why: str) -> None:
        self._ray.kill(slot.actor)
        now = time.monotonic()
        if slot.engine is None:
            self.trouble = f"an engine does not start in a Ray actor: {why}"
            slot.began_s = now  # it has not lived, however long Ray took to place it
        slot.pause_s = next_pause_s(slot.pause_s, now - slot.began_s)
        slot.not_before_s = now + slot.pause_s
        slot.actor = slot.waits = slot.engine = None

    def _take_away(self, slot: _Slot) -> None:
        if slot.engine is None:  # it has no node yet, or is about to start, or is not there
            if slot.actor is not None:
                self._ray.kill(slot.actor)
            return
        slot.actor.finish.remote()
        self._leaving[slot.waits] = slot.actor


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300].rstrip(".")


def _kernel() -> dict[str, bytes]:
    """The kernel of this computer as files of the package; none where there is none."""
    library = Path(LIBRARY)
    files = (library, library.parent / MADE) if library.exists() else ()
    return {f"csd_engine/kernels/{path.name}": path.read_bytes() for path in files if path.exists()}


class _Parent:
    """What the pool wants, read in a thread. The process ends soon after the pool, whatever Ray does."""

    def __init__(self) -> None:
        self.wanted = 0
        self.over = threading.Event()
        self._pid = os.getppid()

    def follow(self) -> None:
        """Begin to read, and to watch the parent: a fork of it may hold the pipe open."""
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            if line == "end\n":
                break
            self.wanted = int(line)
        self.over.set()

    def _watch(self) -> None:
        while not self.over.wait(0.5):
            if os.getppid() != self._pid:
                self.over.set()
        time.sleep(_LAST_S)
        os._exit(0)


def main() -> int:
    """Keep the actors until the pool's end; return the exit status."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is no message
    settings = Settings(**json.loads(sys.stdin.readline()))
    parent = _Parent()
    parent.wanted = int(sys.stdin.readline())
    parent.follow()
    last_line = ""

    def tell(engines: dict[str, dict[str, str]], trouble: str) -> None:
        nonlocal last_line
        line = json.dumps({"engines": engines, "trouble": trouble})
        if line != last_line:
            output.write(line + "\n")
            output.flush()
            last_line = line

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    try:
        ray.init(settings.address, namespace="ddlp", log_to_driver=False, logging_level="error", configure_logging=True)
    except Exception as error:
        tell({}, f"Ray at {settings.address} can't be reached: {_line(error)}")
        return 1
    try:
        keeper = Keeper(settings)
        if settings.user_code:
            threading.Thread(target=keeper.serve, args=(socket.socket(fileno=int(sys.argv[1])),), daemon=True).start()
        while not parent.over.is_set():
            keeper.step(parent.wanted)
            tell(keeper.engines, keeper.trouble)
    except BrokenPipeError:
        pass  # the pool's process has gone
    finally:
        ray.shutdown()  # it ends the actors
    return 0


if __name__ == "__main__":
    sys.exit(main())
