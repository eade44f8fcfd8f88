"""An engine with the right key that lies: it stands between a host and a real engine, and changes the engine's messages."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from csd_engine.errors import BadMessage
from csd_engine.protocol import codec as say
from csd_engine.protocol.keys import load_pair, load_public
from ddlp import Device

Frames = list[Any]
Lie = Callable[[say.Message, Any], "Iterable[Frames] | None"]
"""What the host gets instead of (message, payload): the frames of any number of messages. None leaves the message unchanged."""


def honest(message: say.Message, payload: Any) -> None:
    """Change nothing."""


class LyingEngine:
    """Passes messages between hosts and the engine at ``address``. ``lie`` changes what hosts get.

    Attributes:
        lie: may be replaced while it is in use.
        peers: the number of connections that hosts have made.
    """

    def __init__(self, address: str, keys: Path, lie: Lie, listen: str = "tcp://127.0.0.1:*") -> None:
        self.keys, self._engine, self.lie = keys, address, lie
        self.peers = 0
        self._context = zmq.Context()
        self._front = self._context.socket(zmq.ROUTER)
        self._front.linger = 0
        self._front.sndhwm = 0
        server = load_pair(keys / "server.key_secret")
        self._front.curve_server = True
        self._front.curve_publickey, self._front.curve_secretkey = server
        self._front.bind(listen)
        self.address = self._front.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
        self._stop = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="liar")
        self._thread.start()

    def device(self, **options: Any) -> Device:
        return Device(self.address, self.keys, **options)

    def _to_engine(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.curve_publickey, socket.curve_secretkey = load_pair(self.keys / "host.key_secret")
        socket.curve_serverkey = load_public(self.keys / "server.key")
        socket.connect(self._engine)
        return socket

    def _run(self) -> None:
        back: dict[bytes, zmq.Socket[bytes]] = {}
        try:
            self._relay(back)
        except BaseException as error:  # of a lie: `close` raises it
            self._error = error
        finally:  # else `close` would wait for them for ever
            for socket in [*back.values(), self._front]:
                socket.close()

    def _relay(self, back: dict[bytes, zmq.Socket[bytes]]) -> None:
        poller = zmq.Poller()
        poller.register(self._front, zmq.POLLIN)
        while not self._stop:
            ready = dict(poller.poll(50))
            if self._front in ready:
                peer, *frames = self._front.recv_multipart()
                if peer not in back:
                    back[peer] = self._to_engine()
                    poller.register(back[peer], zmq.POLLIN)
                    self.peers += 1
                back[peer].send_multipart(frames)
            for peer, socket in back.items():
                if socket in ready:
                    self._tell(peer, socket.recv_multipart())

    def _tell(self, peer: bytes, frames: Frames) -> None:
        message, payload = say.decode(frames)
        told = self.lie(message, payload)
        for one in [frames] if told is None else told:
            try:
                self._front.send_multipart([peer, *one], zmq.NOBLOCK)
            except zmq.ZMQError:  # the host has disconnected, as it should
                return

    def close(self) -> None:
        self._stop = True
        self._thread.join()
        self._context.term()
        if self._error is not None:
            raise self._error


WELCOME = say.Welcome({}, 1 << 40, 1 << 60, "/no/such/spool", 1)
_MIB = bytes(1 << 20)


def _send(front: Any, peer: bytes, *frames: Any, times: int = 1) -> None:
    for _ in range(times):
        front.send_multipart([peer, *frames], copy=False)


def _frames(front: Any, peer: bytes, message: say.Message, piece: bytes, count: int) -> None:
    """Send one message of many frames."""
    if isinstance(message, say.Hello):
        _send(front, peer, *[piece] * count)


def _need_file(front: Any, peer: bytes, message: say.Message) -> None:
    """Ask for the manifest again and again, and read nothing of it."""
    if isinstance(message, say.Hello):
        _send(front, peer, *say.encode(WELCOME))
    elif isinstance(message, say.OpenJob):
        for number in range(1000):
            _send(front, peer, *say.encode(say.NeedFile("manifest", message.dataset["manifest"], number % 16 << 20)))
        sys.stdin.read()
        os._exit(0)


def _answers(front: Any, peer: bytes, message: say.Message) -> None:
    """Send a thousand answers of a MiB each that nobody asked for."""
    if isinstance(message, say.Hello):
        _send(front, peer, *say.encode(WELCOME))
    elif isinstance(message, say.OpenJob):
        _send(front, peer, *say.encode(say.JobOpen(message.job, "job-1")))
        _send(front, peer, *say.encode(say.ProbeDone(message.job, ("x" * 4096,) * 250)), times=1000)


def _parts(front: Any, peer: bytes, message: say.Message) -> None:
    """Send a thousand parts of batches that nobody asked for."""
    if isinstance(message, say.Hello):
        _send(front, peer, *say.encode(WELCOME))
        for number in range(1000):
            _send(front, peer, *say.encode(say.Part(number, 0), _MIB))


_FLOODS: dict[str, Callable[[Any, bytes, say.Message], None]] = {
    "large frames": partial(_frames, piece=bytes(8 << 20), count=200),
    "many frames": partial(_frames, piece=_MIB, count=3000),
    "files": _need_file,
    "answers": _answers,
    "parts": _parts,
}


@contextlib.contextmanager
def flooding(keys: Path, kind: str) -> Iterator[str]:
    """Run `flood` in another process; yields its address."""
    code = f"from pathlib import Path; from tests.hostile_engine import flood; flood(Path({str(keys)!r}), {kind!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
        process.stdout.close()


def flood(keys: Path, kind: str) -> None:
    """Answer each host's first message with a flood until standard input ends. The first line printed is the address."""
    lying = _FLOODS[kind]
    context = zmq.Context()
    front = context.socket(zmq.ROUTER)
    front.linger = 0
    server = load_pair(keys / "server.key_secret")
    front.curve_server = True
    front.curve_publickey, front.curve_secretkey = server
    front.bind("tcp://127.0.0.1:*")
    print(front.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode(), flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    while True:
        peer, *frames = front.recv_multipart()
        try:
            message, _ = say.decode(frames)
        except BadMessage:
            continue
        lying(front, peer, message)
