"""Nothing that peers do to the engine's socket ends it: silent connections, very many of them, hosts with withdrawn keys."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from csd_engine.protocol import codec as say
from csd_engine.protocol.keys import make_keys
from csd_engine.service.auth_socket import AuthSocket
from tests.engine_process import EngineProcess, Recipe, until
from tests.hostile_client import HostileClient, closed_by_the_engine, list_client, silent_connections, withdraw_client

LIMIT = 150
TCP = "tcp://127.0.0.1:0"


def few(descriptors: int) -> tuple[str, ...]:
    """A command prefix that limits the open files of the command after it, as soft and hard limit."""
    return ("sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "few")


def opened(engine: EngineProcess) -> int:
    return len(os.listdir(f"/proc/{engine.process.pid}/fd"))


def opening(recipe: Recipe) -> tuple[object, ...]:
    return recipe.pipeline.to_data(), recipe.dataset.to_data(), recipe.layout.to_data(), [recipe.manifest.read_bytes()]


def test_the_last_descriptor_ends_no_engine(recipe: Recipe, start: Callable[..., EngineProcess]) -> None:
    engine = start("--root", str(recipe.root), listen=TCP, within=few(LIMIT))
    with contextlib.ExitStack() as held:

        def full() -> bool:
            held.enter_context(silent_connections(engine.address, LIMIT - opened(engine)))
            return opened(engine) >= LIMIT - 1

        for _ in range(3):
            until(full)
            with HostileClient(engine.address, engine.keys) as client:
                assert isinstance(client.open_job("j", *opening(recipe)), (say.JobOpen, say.Refused))
    until(lambda: opened(engine) < LIMIT // 2)
    with HostileClient(engine.address, engine.keys) as client:
        assert isinstance(client.open_job("j", *opening(recipe)), say.JobOpen)
    assert engine.process.poll() is None


def test_a_host_with_very_many_connections_does_not_shut_out_the_others(
    recipe: Recipe, start: Callable[..., EngineProcess]
) -> None:
    engine = start("--root", str(recipe.root), listen=TCP, within=few(200))
    pair = list_client(engine.keys, "second")
    with contextlib.ExitStack() as held:
        for _ in range(220):
            client = held.enter_context(HostileClient(engine.address, engine.keys, greet=False))
            client.send(say.Hello(say.PROTOCOL, "one of many"))
        held.enter_context(HostileClient(engine.address, engine.keys, pair)).ping()


def test_the_connections_of_a_key_are_limited(recipe: Recipe, start: Callable[..., EngineProcess]) -> None:
    engine = start("--root", str(recipe.root), listen=TCP)
    pair = list_client(engine.keys, "second")
    with contextlib.ExitStack() as held:
        for _ in range(256):
            held.enter_context(HostileClient(engine.address, engine.keys))
        with HostileClient(engine.address, engine.keys, greet=False) as further:
            further.send(say.Hello(say.PROTOCOL, "one too many"))
            assert "this key has 257 connections, and may have 256" in further.wait_for(say.Refused).reason
        held.enter_context(HostileClient(engine.address, engine.keys, pair)).ping()


def test_the_engine_may_open_what_its_user_lets_it(start: Callable[..., EngineProcess], recipe: Recipe) -> None:
    engine = start("--root", str(recipe.root), within=("sh", "-c", 'ulimit -Sn 200; ulimit -Hn 700; exec "$@"', "few"))
    assert resource.prlimit(engine.process.pid, resource.RLIMIT_NOFILE) == (700, 700)


class Door:
    """An `AuthSocket`, and a thread that answers as the service's loop does."""

    def __init__(self, keys: Path, listen: str, **options: float) -> None:
        self.socket = AuthSocket(listen, str(keys), **options)
        self.keys = keys
        self.address = self.socket.endpoint
        self.withdrawn: list[bytes] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            if self.socket.gate.poll(5):
                self.socket.answer_gate()
            self.withdrawn += self.socket.look_after()
            heard = self.socket.receive()
            if heard is not None and (decoded := self.socket.decode(*heard)) is not None:
                if isinstance(decoded[0], say.Hello):
                    self.socket.send(heard[0], say.Welcome({}, 1, 1, "/", 1))
                elif isinstance(decoded[0], say.Ping):
                    self.socket.send(heard[0], say.Pong((), ""))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.socket.close()


@pytest.fixture
def door(home: Path) -> Iterator[Callable[..., Door]]:
    made: list[Door] = []

    def make(listen: str = TCP, **options: float) -> Door:
        made.append(Door(make_keys(home / "keys"), listen, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_handshake_that_does_not_end_is_ended(door: Callable[..., Door]) -> None:
    one = door(handshake_s=0.3)
    with HostileClient(one.address, one.keys) as host, silent_connections(one.address, 5) as held:
        for connection in held[:2]:
            connection.setblocking(True)
            connection.sendall(b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01CURVE" + bytes(47))  # a greeting, and then silence
        until(lambda: all(map(closed_by_the_engine, held)))
        host.ping()


@pytest.mark.parametrize("listen", [TCP, "tcp://[::]:0", "ipc"])
def test_a_withdrawn_key_ends_its_connection(door: Callable[..., Door], home: Path, listen: str) -> None:
    if "[::]" in listen and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this computer has no IPv6")
    one = door(f"ipc://{home}/s" if listen == "ipc" else listen)
    one.address = one.address.replace("[::]", "127.0.0.1")
    pair = list_client(one.keys, "second")
    with HostileClient(one.address, one.keys) as stays, HostileClient(one.address, one.keys, pair) as goes:
        goes.ping()
        withdraw_client(one.keys, "second")
        until(lambda: one.withdrawn)
        goes.send(say.Ping(()))  # libzmq connects again, and the engine refuses it
        assert not goes.hears(0.3)
        list_client(one.keys, "third")
        stays.ping()
    assert len(one.withdrawn) == 1


def test_a_withdrawn_hosts_jobs_end(recipe: Recipe, start: Callable[..., EngineProcess]) -> None:
    engine = start("--root", str(recipe.root), listen=TCP)
    pair = list_client(engine.keys, "second")
    with HostileClient(engine.address, engine.keys, pair) as host:
        assert isinstance(host.open_job("j", *opening(recipe)), say.JobOpen)
        assert list(engine.spool.glob("job-*"))
        withdraw_client(engine.keys, "second")
        until(lambda: not list(engine.spool.glob("job-*")))


WITH_MISTAKES = """
import sys
from csd_engine.__main__ import main
from csd_engine.service.file_chunks import FileChunks
from csd_engine.service.job_service import JobService
def fail(*_): raise RuntimeError("a mistake of ours")
serve, left = FileChunks.serve, [3]
def fail_three_times(self):
    left[0] -= 1
    fail() if 0 <= left[0] else serve(self)
JobService.lease, FileChunks.serve = fail, fail_three_times
sys.exit(main(sys.argv[4:]))
"""


def test_a_mistake_of_ours_is_one_hosts_trouble(recipe: Recipe, home: Path) -> None:
    engine = EngineProcess(home, "--root", str(recipe.root), within=(sys.executable, "-c", WITH_MISTAKES))
    try:
        with HostileClient(engine.address, engine.keys) as host:
            assert isinstance(host.open_job("j", *opening(recipe)), say.JobOpen)
            host.send(say.Lease("j", 1, "0" * 32, 1, 1, ((0, 0),)))
            refused = host.wait_for(say.Refused)
            assert refused.job == "j" and "a mistake of ours" in refused.reason
            host.ping()
        assert "RuntimeError: a mistake of ours" in engine.log
    finally:
        assert engine.end() == 0
