"""What a listed host can cost the engine in memory and time: large messages, endless ones, answers that it never reads."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from csd_engine.batchfile.reader import Layout
from csd_engine.protocol import codec as say
from tests.engine_process import EngineProcess, Recipe, until
from tests.hostile_client import HostileClient, list_client

TCP = "tcp://127.0.0.1:0"
LARGEST = 4 << 20  # bytes of a frame
BOARD = ("--memory", "512M")
ALLOWED_BYTES = 400 << 20  # 64 MiB a host, 64 more until the engine looks, and what arrives between two looks


@pytest.fixture
def engine(recipe: Recipe, start: Callable[..., EngineProcess]) -> EngineProcess:
    return start("--root", str(recipe.root), *BOARD, listen=TCP)


def peak(engine: EngineProcess) -> int:
    """The largest resident size of the service in bytes."""
    lines = Path(f"/proc/{engine.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


class Beside:
    """An honest host beside the hostile one, which gets its answers all the time."""

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine
        self._before = peak(engine)
        self._host = HostileClient(engine.address, engine.keys, list_client(engine.keys, "beside"))

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *_: object) -> None:
        self._host.ping()
        self._host.close()
        assert self._engine.process.poll() is None
        added = peak(self._engine) - self._before
        print(f"{added >> 20} MiB more")
        assert added < ALLOWED_BYTES, f"{added >> 20} MiB"

    def ping(self) -> None:
        self._host.ping()


def test_one_message_of_many_large_frames(engine: EngineProcess) -> None:
    frame = bytes(LARGEST - 100)
    with Beside(engine) as beside, HostileClient(engine.address, engine.keys) as hostile:
        hostile.socket.send_multipart([frame] * 200, copy=False)

        def over() -> bool:
            beside.ping()
            return "is ended" in engine.log or hostile.hears(0.01)

        until(over, 30)


def test_messages_that_are_costly_to_parse(engine: EngineProcess) -> None:
    empty = b'{"say":"OpenJob","pipeline":{"op":[%s]}}' % (b"[]," * 1_300_000 + b"[]")
    deep = b'{"say":"Lease","items":[%s]}' % (b"[[[[[[]]]]]]," * 300_000)
    with Beside(engine) as beside, HostileClient(engine.address, engine.keys) as hostile:
        for _ in range(20):
            hostile.send_frames(empty)
            hostile.send_frames(deep)
            beside.ping()
        assert isinstance(hostile.receive()[0], say.Refused)


def test_a_long_lease_that_will_be_refused_is_not_parsed(recipe: Recipe, engine: EngineProcess) -> None:
    def lease(job: bytes, items: bytes) -> bytes:
        return b'{"say":"Lease","job":"%s","lease":7,"items":[%s]}' % (job, items)  # cut, so that to parse it would fail

    garbage = b'["x"],' * 2000
    with HostileClient(engine.address, engine.keys, greet=False) as stranger:
        stranger.send_frames(lease(b"nobody", garbage))
        assert "send Hello first" in stranger.wait_for(say.Refused).reason
    with HostileClient(engine.address, engine.keys) as hostile:
        hostile.send_frames(lease(b"nobody", garbage))
        refused = hostile.wait_for(say.Refused)
        assert refused.job == "nobody" and "there is no open job nobody" in refused.reason
        parts = (recipe.pipeline.to_data(), recipe.dataset.to_data(), recipe.layout.to_data())
        assert isinstance(hostile.open_job("j", *parts, [recipe.manifest.read_bytes()]), say.JobOpen)
        hostile.send_frames(lease(b"j", b"[" * 300_000))
        failed = hostile.wait_for(say.Failed)
        assert failed.lease == 7 and "262144 samples are the most that may wait" in failed.reason
        hostile.send_frames(lease(b"j", garbage))
        assert "is not JSON" in hostile.wait_for(say.Refused).reason


def test_answers_that_are_not_read(recipe: Recipe, engine: EngineProcess) -> None:
    recipe.layout = Layout(1024, 32, 32, 3, 0)  # 3 MiB
    items = recipe.items(0)
    with Beside(engine) as beside, HostileClient(engine.address, engine.keys, unread=1) as hostile:
        parts = (recipe.pipeline.to_data(), recipe.dataset.to_data(), recipe.layout.to_data())
        assert isinstance(hostile.open_job("j", *parts, [recipe.manifest.read_bytes()]), say.JobOpen)
        hostile.send(say.Lease("j", 1, recipe.identity(items), 5, 3, tuple(items)))
        hostile.wait_for(say.Published)
        for number in range(600):
            hostile.send(say.Fetch(number, "j", 1, 0, 1 << 20))
            beside.ping()
        assert hostile.wait_for(say.Part).number == 0  # the answers that it asked for are still in the queue


def test_a_stranger_with_a_handshake_without_end(engine: EngineProcess) -> None:
    host, _, port = engine.address[len("tcp://") :].rpartition(":")
    greeting = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01CURVE" + bytes(47)
    announced = b"\x06" + (LARGEST - 1).to_bytes(8, "big")  # a long ZMTP command
    with Beside(engine) as beside:
        held = []
        for _ in range(200):
            held.append(socket.create_connection((host, int(port)), timeout=5))
            held[-1].sendall(greeting + announced)
            held[-1].setblocking(False)
        waiting = {one: LARGEST - 2 for one in held}

        def sent() -> bool:
            for one, left in list(waiting.items()):
                try:
                    waiting[one] -= one.send(bytes(min(left, 1 << 18)))
                except BlockingIOError:
                    continue
                except OSError:
                    waiting[one] = 0
                if waiting[one] <= 0:
                    del waiting[one]
            return not waiting

        until(sent)
        beside.ping()
        for one in held:
            one.close()
