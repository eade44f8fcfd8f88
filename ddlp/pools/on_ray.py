"""`RayPool`: engines in actors of a Ray cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from csd_engine.data.objects.urls import is_url
from csd_engine.errors import EngineError
from csd_engine.service.worker_process import child_environment
from ddlp.caching.settings import Cache
from ddlp.devices.device import Data, check_data
from ddlp.errors import DDLPError
from ddlp.pools.base import check_range, check_wanted
from ddlp.pools.ray_keeper import Settings
from ddlp.process.forks import no_forks
from ddlp.process.pauses import next_pause_s
from ddlp.process.user_warnings import warn_user
from ddlp.sources.engine.connections import EngineAt
from ddlp.sources.engine.device_link import CardedEngine, own_pair
from ddlp.sources.engine.embedded import EmbeddedOptions
from ddlp.sources.usercode.wire import NodeGone, Starter, WireNode

__all__ = ["RayPool"]

_END_TIMEOUT_S = 5.0
_ENDED = "the process that speaks to Ray has ended its connection"


class RayPool:
    """Engines in actors of a Ray cluster, for ``DDLPLoader(pool=)``: Ray says on which nodes, ddlp carries the batches.

    Engines start with the first epoch, and each joins the epoch under way. An epoch never waits for them: while the cluster
    has no room, the host works alone. One that dies, or whose node does, is replaced after a pause of 1 s, then 2 s, up to
    30 s. They end with the last loader that uses the pool, or with this process, however that ends. Each process has engines of
    its own, so each rank of a job has ``max`` of them. `want` says how many there should be; before its first call that is
    ``max``.

    The nodes need numpy, Pillow and pyzmq beside Ray, and no ddlp. For the same bits they need this host's version of Pillow.
    Without a token, Ray runs the code of anybody who can reach it (docs/pools.md).

    Args:
        min, max: the least and the largest number of engines, 0 or more. ``strategy="auto"`` finds the number between them.
        address: of a Ray cluster that runs, as for ``ray.init``; "auto": $RAY_ADDRESS, else the one on this machine.
        num_cpus: CPUs of each engine, for Ray's placement. Each has as many worker processes, at least one.
        roots: the directories that the engines may read: a path of this host, or "/PATH HERE=/PATH THERE". Default: all that
            Ray's user may read, by the paths that they have here. Also URLs of object storages, such as "s3://bucket/train/",
            which the engines read with obstore and the credentials of their nodes (docs/objects.md).
        resources: further resources of each engine for Ray's placement, such as ``{"storage": 1}``.
        runtime_env: Ray's runtime environment of the actors, such as ``{"pip": ["pillow", "pyzmq"]}``.
        data: "there": the engines see the data set's files, below ``roots``. "carried": this host sends the files of each
            batch, as for `ddlp.Device`, and the engines may read no others.
        cache: a directory of each node, below none of ``roots``, where its engines keep what is the same in every epoch, for
            later ones and later runs. ``keeps`` does not count: an engine chooses itself (docs/cache.md). None: they keep
            nothing.
        user_code: if the samples can't travel, since only your own data set, transform or collate_fn can make them, actors run
            that code (docs/pools.md): instead of each engine, one with one CPU for each of its CPUs, all of this process's
            loaders'. Their Python needs ddlp, torch and what your code imports.

    Raises:
        DDLPError: Ray is not installed.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        min: int = 0,
        max: int = 16,
        address: str = "auto",
        num_cpus: float = 2,
        *,
        roots: str | Sequence[str] = "/",
        resources: Mapping[str, float] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        data: Data = "there",
        cache: Cache | None = None,
        user_code: bool = False,
    ) -> None:
        check_data(data)
        if importlib.util.find_spec("ray") is None:
            raise DDLPError("RayPool needs Ray, which is not installed here: pip install ddlp[ray]")
        check_range(min, max)
        if isinstance(num_cpus, bool) or not isinstance(num_cpus, (int, float)) or not num_cpus > 0:
            raise ValueError(f"num_cpus={num_cpus!r}: the CPUs of each engine, more than 0")
        if not address or not isinstance(address, str) or address == "local":
            raise ValueError(f'address={address!r}: that of a Ray cluster that runs, or "auto". On one machine use pool=4')
        self.min, self.max, self.address, self.user_code = min, max, address, user_code
        self._cpus, self._data = num_cpus, data
        self._roots = (roots,) if isinstance(roots, str) else tuple(roots)
        sides = [side for root in self._roots if not is_url(root) for side in root.split("=", 1)]
        if not self._roots or not all(side.startswith("/") for side in sides):
            raise ValueError(f'roots={roots!r}: directories such as "/data" or "/data=/mnt/data", or URLs such as "s3://bucket/"')
        self._cache = "" if cache is None else _place(cache, self._roots, data)
        self._more = {"resources": dict(resources or {}), "runtime_env": dict(runtime_env or {})}
        try:
            json.dumps(self._more)
        except TypeError as error:
            raise ValueError(f"resources= or runtime_env=: {error}; give numbers, strings, lists and dicts") from None
        self._wanted = max
        self._lock = threading.Lock()
        self._links: dict[bool, _Link] = {}  # by whether their actors run user code
        _warn_of_strangers(address)

    def want(self, engines: int) -> None:
        """Set the number of engines. Further ones join the epoch under way. Those too many finish what they have, and end.

        Raises:
            ValueError: if it is less than ``min`` or more than ``max``.
        """
        check_wanted(engines, self.min, self.max)
        with self._lock:
            self._wanted = engines
            for link in self._links.values():
                link.want(engines)

    def engines(self) -> Mapping[str, EngineAt]:
        """Return the engines that serve now, by their names. The first call lets them start, and waits for none.

        Raises:
            DDLPError: Ray can't be reached, or no engine starts there; says why.
        """
        link, engines = self._link_and_engines(user_code=False)
        return {
            name: CardedEngine(engine["address"], engine["key"].encode("ascii"), link.pair, self._data)
            for name, engine in engines.items()
        }

    def nodes(self) -> Mapping[str, Starter]:
        """Return what reaches the actors that can run user code now, by their names. The first call lets them start.

        Raises:
            DDLPError: Ray can't be reached, or no actor starts there; says why.
        """
        link, actors = self._link_and_engines(user_code=True)
        return {name: partial(WireNode, partial(link.reach, name), _ENDED) for name in actors}

    def close(self) -> None:
        """End the engines now. If a loader uses the pool later, they start again."""
        with self._lock:
            links, self._links = self._links, {}
        for link in links.values():
            link.end()

    def _link_and_engines(self, user_code: bool) -> tuple[_Link, dict[str, Any]]:
        with self._lock:
            link = self._links.get(user_code)
            if link is None or link.pid != os.getpid():  # after a fork it is the parent's
                pair = _pair()
                link = self._links[user_code] = _Link(self._settings(pair, user_code), self._wanted, pair)
                weakref.finalize(self, link.end)
        state = link.state
        if state["trouble"] and not state["engines"]:
            raise DDLPError(f"{state['trouble']}. ddlp tries again, after 30 s at most")
        return link, state["engines"]

    def _settings(self, pair: Path, user_code: bool) -> Settings:
        workers = int(self._cpus) or 1
        if user_code:
            return Settings(self.address, {"num_cpus": min(self._cpus, 1), **self._more}, "", [], workers)
        options = EmbeddedOptions(workers=workers).resolved()
        arguments = ["--workers", str(options.workers), "--slowdown", repr(options.slowdown)]
        for root in self._roots if self._data == "there" else ():
            arguments += ["--root", root]
        if self._cache:
            arguments += ["--cache", self._cache]
        return Settings(self.address, {"num_cpus": self._cpus, **self._more}, pair.with_suffix(".key").read_text(), arguments)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None, "_links": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def __repr__(self) -> str:
        more = ", also for user code" if self.user_code else ""
        return f"{self.min} to {self.max} engines of {self._cpus:g} CPUs on the Ray cluster at {self.address}{more}"


class _Link:
    """The keeper's process and what it has told. A thread starts it, reads it, and starts it again when it has ended.

    ``told``: the last message. ``pair``: the file of this host's keys, whose secret one stays in this process.
    """

    def __init__(self, settings: Settings, wanted: int, pair: Path) -> None:
        self.pid = os.getpid()
        self.pair = pair
        self.state: dict[str, Any] = {"engines": {}, "trouble": ""}
        self._settings, self._wanted = settings, wanted
        self._lock = threading.RLock()  # the pool may be collected, and this ended, in the thread that holds it
        self._process: subprocess.Popen[str] | None = None
        self._door: socket.socket | None = None  # to the process, for sockets to actors that run user code
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ddlp-ray", daemon=True)
        self._thread.start()

    def want(self, engines: int) -> None:
        """Tell the keeper how many engines there should be."""
        with self._lock:
            self._wanted = engines
            if self._process is not None:
                assert self._process.stdin is not None
                with contextlib.suppress(OSError):  # it has ended, and the next one is told
                    self._process.stdin.write(f"{engines}\n")
                    self._process.stdin.flush()

    def reach(self, name: str) -> socket.socket:
        """Return a socket whose messages the actor of this name answers. Raises NodeGone if that can't be asked for."""
        with self._lock, no_forks():
            ours, far_end = socket.socketpair()
            with far_end:
                try:
                    if self._door is None:
                        raise OSError("it has ended")
                    socket.send_fds(self._door, [name.encode()], [far_end.fileno()])
                except OSError as error:
                    ours.close()
                    raise NodeGone(f"the process that speaks to Ray does not answer: {error}") from None
        return ours

    def _run(self) -> None:
        pause_s = 0.0
        while not self._over.is_set():
            began = time.monotonic()
            trouble = self._follow()
            self.state = {"engines": {}, "trouble": self.state["trouble"] or trouble}
            pause_s = next_pause_s(pause_s, time.monotonic() - began)
            self._over.wait(pause_s)

    def _follow(self) -> str:
        """Start the keeper and read what it tells, until it ends; return its last words."""
        with tempfile.TemporaryFile() as log:
            with self._lock:
                if self._over.is_set():
                    return ""
                door, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with far_end, no_forks():
                    try:
                        process = self._process = subprocess.Popen(
                            [sys.executable, "-m", "ddlp.pools.ray_keeper", str(far_end.fileno())], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=log, text=True, env=child_environment(), start_new_session=True,
                            pass_fds=(far_end.fileno(),),
                        )  # fmt: skip
                    except OSError as error:
                        door.close()
                        return f"no process for Ray can be started: {error}"
                self._door = door
                assert process.stdin is not None and process.stdout is not None
                with contextlib.suppress(OSError):
                    process.stdin.write(f"{json.dumps(asdict(self._settings))}\n{self._wanted}\n")
                    process.stdin.flush()
                    if self._over.is_set():
                        process.stdin.close()
            for line in process.stdout:
                with contextlib.suppress(ValueError):
                    self.state = json.loads(line)
            with self._lock, door:
                self._process = self._door = None
                with contextlib.suppress(OSError):
                    process.stdin.close()
            process.stdout.close()
            process.wait()
            lines = os.pread(log.fileno(), 1 << 16, max(0, os.fstat(log.fileno()).st_size - (1 << 16)))
            last = lines.decode(errors="replace").strip().splitlines()[-1:]
            return f"the process that speaks to Ray ended with status {process.returncode} ({''.join(last)})"

    def end(self) -> None:
        """End the keeper, and with it the engines. In a forked child nothing happens."""
        if os.getpid() != self.pid:
            return
        self._over.set()
        with self._lock:
            process = self._process
            if process is not None:
                assert process.stdin is not None
                with contextlib.suppress(OSError):
                    process.stdin.write("end\n")  # a fork, such as a worker of a DataLoader, may have the pipe open too
                    process.stdin.close()
        if process is not None:
            try:
                process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
        if threading.current_thread() is not self._thread:
            self._thread.join(_END_TIMEOUT_S)


def _place(cache: Cache, roots: Sequence[str], data: Data) -> str:
    """Return an engine's ``--cache``. Raises ValueError where it would refuse that, or keep nothing."""
    directory = os.fspath(cache.directory)
    if data == "carried":
        raise ValueError("cache= with data='carried': an engine keeps nothing of what this host sends. Leave out one of them")
    if not os.path.isabs(directory):
        raise ValueError(f"cache={cache!r}: give a directory of the nodes that begins with /")
    for root in (entry.rpartition("=")[2] for entry in roots if not is_url(entry)):
        if os.path.commonpath((root, directory)) == os.path.normpath(root):
            raise ValueError(f"cache={cache!r} lies below the root {root}, which hosts may read: give roots= without it")
    return f"{directory}:{cache.bytes}"


def _pair() -> Path:
    try:
        return own_pair()
    except (EngineError, OSError) as error:
        raise DDLPError(f"this host's keys for pools can't be made: {error}. $DDLP_HOME says where they go.") from None


def _warn_of_strangers(address: str) -> None:
    """Warn if the cluster is on a network, where Ray without a token runs the code of anybody who can reach it."""
    where = os.environ.get("RAY_ADDRESS", "") if address == "auto" else address
    host = where.rpartition("://")[2].rpartition(":")[0].strip("[]")
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host in ("", "localhost")
    if not local and os.environ.get("RAY_AUTH_MODE") != "token":
        warn_user(
            f"ddlp: Ray at {where} without a token runs the code of anybody who can reach it. Set RAY_AUTH_MODE=token on all "
            "of its nodes, or let nobody else into its network."
        )
