"""Hostile peers of an engine: a listed client that breaks the protocol's rules or takes what others need, and strangers."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import zmq

from csd_engine.protocol import codec as say
from csd_engine.protocol.aead import ciphers
from csd_engine.protocol.keys import load_pair, load_public, make_pair
from csd_engine.protocol.sealed import HEAD_BYTES, TICKET_BYTES


class HostileClient:
    """A listed client of the engine at `address`. It sends what a test tells it to, also what ddlp would never send.

    Use it in a `with` statement. `keys` is the engine's key directory, `pair` a `.key_secret` file (default: the host's, as
    `make_keys` has made it). `send`, `send_json` and `send_frames` send at once and do not wait.
    """

    def __init__(self, address: str, keys: Path, pair: Path | None = None, greet: bool = True, unread: int = 0) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndhwm = 0
        self.socket.rcvhwm = unread  # how many messages libzmq takes for a client that reads none; 0: no limit
        if unread:
            self.socket.rcvbuf = 1 << 14
        self.socket.curve_serverkey = load_public(keys / "server.key")
        self.socket.curve_publickey, self.socket.curve_secretkey = load_pair(pair or keys / "host.key_secret")
        self.socket.connect(address)
        if greet:
            self.hello()

    def __enter__(self) -> HostileClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.context.destroy(linger=0)

    # -- to the engine

    def send_frames(self, *frames: Any) -> None:
        """Send one message of these frames, whatever they contain."""
        self.socket.send_multipart(frames, zmq.NOBLOCK)

    def send(self, message: say.Message, payload: say.Payload | None = None) -> None:
        """Send a message that passes the protocol's own checks."""
        self.send_frames(*say.encode(message, payload))

    def send_json(self, say_what: str, *payload: bytes, **fields: Any) -> None:
        """Send a message with these fields, unchecked."""
        self.send_frames(json.dumps({"say": say_what, **fields}, separators=(",", ":")).encode(), *payload)

    # -- from the engine

    def receive(self, timeout_s: float = 10.0) -> tuple[say.Message, say.Payload]:
        """Return the next message. AssertionError if none comes."""
        assert self.socket.poll(int(timeout_s * 1000)), f"the engine said nothing for {timeout_s:g} s"
        return say.decode(self.socket.recv_multipart())

    def wait_for(self, kind: type[Any] | tuple[type[Any], ...], timeout_s: float = 10.0) -> Any:
        """Return the next message of that kind, and drop those before it."""
        until = time.monotonic() + timeout_s
        while True:
            message, _ = self.receive(max(0.0, until - time.monotonic()))
            if isinstance(message, kind):
                return message

    def hears(self, timeout_s: float) -> bool:
        """Whether a message comes within that time. It stays in the queue."""
        return bool(self.socket.poll(int(timeout_s * 1000)))

    # -- what an honest host does first

    def hello(self) -> say.Welcome:
        """Greet the engine, and return its answer."""
        for _ in range(9):  # as ddlp does: a connection may break, and lose its first message
            self.send(say.Hello(say.PROTOCOL, "hostile"))
            if self.hears(1.0):
                break
        welcome = self.wait_for(say.Welcome)
        assert isinstance(welcome, say.Welcome)
        return welcome

    def ping(self, timeout_s: float = 10.0) -> say.Pong:
        """Wait for the engine's answer to a ping. Then it has handled everything that was sent before."""
        self.send(say.Ping(()))
        pong = self.wait_for(say.Pong, timeout_s)
        assert isinstance(pong, say.Pong)
        return pong

    def open_job(self, job: str, pipeline: Any, dataset: Any, layout: Any, files: Sequence[bytes] = ()) -> say.Message:
        """Open a job from plain data. Send each file that the engine asks for, from the offset that it asks for.

        `files` are whole files, in the order in which the engine asks for them. Returns JobOpen or Refused.
        """
        self.send_json(
            "OpenJob", job=job, pipeline=pipeline, dataset=dataset, layout=layout, run="", rank=0, after_lower=False,
            most_pixels=None,
        )  # fmt: skip
        left, sent = list(files), ""
        while True:
            answer = self.wait_for((say.JobOpen, say.Refused, say.NeedFile))
            if not isinstance(answer, say.NeedFile):
                return answer
            if answer.fingerprint != sent:
                content, sent = left.pop(0), answer.fingerprint
            self.send_part(answer, content)

    def send_part(self, wanted: say.NeedFile, content: bytes) -> None:
        """Send the part of `content` that the engine wants. A manifest is packed as ddlp does it."""
        from csd_engine.service.uploads import pack

        part = content[wanted.offset : wanted.offset + say.MAX_PART_BYTES]
        message = say.FilePart(wanted.kind, wanted.fingerprint, wanted.offset, len(content))
        self.send(message, bytes(pack(wanted.kind, part)))


def list_client(keys: Path, name: str) -> Path:
    """Make another client's key pair beside `keys`, add it to the engine's allow-list, and return its `.key_secret` file."""
    public = make_pair(keys.parent / f"pair-{name}", name)
    listed = keys / "clients" / f"{name}.key"
    (keys / f"{name}.new").write_bytes(public.read_bytes())
    os.replace(keys / f"{name}.new", listed)  # all at once, like an operator's `mv`
    return public.with_suffix(".key_secret")


def withdraw_client(keys: Path, name: str) -> None:
    """Remove a client from the engine's allow-list."""
    (keys / "clients" / f"{name}.key").unlink()


@contextlib.contextmanager
def silent_connections(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Hold TCP connections to the engine that send nothing. A stranger needs no key for that.

    When they are yielded, the engine may not have accepted all of them yet.
    """
    host, _, port = address[len("tcp://") :].rpartition(":")
    held: list[socket.socket] = []
    try:
        for _ in range(count):
            held.append(socket.socket())
            held[-1].setblocking(False)
            held[-1].connect_ex((host, int(port)))
        yield held
    finally:
        for one in held:
            one.close()


def closed_by_the_engine(connection: socket.socket) -> bool:
    """Whether the engine has ended a connection. Skips the engine's greeting."""
    connection.setblocking(False)
    try:
        while True:
            if not connection.recv(4096):
                return True
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.setblocking(True)


@contextlib.contextmanager
def sealed_stream(client: HostileClient) -> Iterator[socket.socket]:
    """A connection for sealed parts, when it is ready."""
    ticket = secrets.token_bytes(TICKET_BYTES)
    client.send(say.AskStream(ciphers()[0]), ticket)
    port = client.wait_for(say.StreamOpen, 60).port
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.sendall(ticket)
        assert len(stream.recv(HEAD_BYTES, socket.MSG_WAITALL)) == HEAD_BYTES
        yield stream
