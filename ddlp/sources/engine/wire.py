"""One encrypted connection to an engine: the socket, its monitor and the handshake. One thread uses it, and others wake it."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

import csd_engine
from csd_engine.errors import EngineGone, EngineRefused, EngineUnreachable
from csd_engine.protocol import codec as say
from csd_engine.protocol.fields import MAX_TEXT
from csd_engine.protocol.printable import printable

__all__ = ["ClientKeys", "Wakeup", "Wire"]

_IN, _OUT = int(zmq.POLLIN), int(zmq.POLLOUT)  # plain ints: an enum's operators run Python code
_MONITORED = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
# What an engine may make this process keep. libzmq bounds the messages and their frames, but not the frames of a message.
_MOST_FRAME_BYTES = 2 << 20  # a part of a batch has 1 MiB, and the longest text less
_MOST_MESSAGES = 64  # each way, that wait for their reader
_MOST_UNFINISHED_BYTES = 16 << 20  # of a message whose last frame has not come
_SIGNATURE = (b"\xff", b"\x7f")  # the first and the tenth byte of ZMTP's greeting
_SIGNATURE_BYTES = 10
_RECEIVED_AT = 128  # of tcpi_bytes_received in Linux's struct tcp_info

# Texts of an engine's that people read, in a terminal or a page.
_FOR_PEOPLE: dict[type[say.Message], tuple[str, ...]] = {
    say.Welcome: ("versions",), say.Refused: ("reason",), say.ProbeDone: ("digests",), say.Failed: ("reason",),
    say.NoPart: ("reason",), say.NoStream: ("reason",), say.Pong: ("note",), say.Status: ("versions", "jobs", "note"),
    say.Sensors: ("readings",),
}  # fmt: skip


class Wakeup:
    """Wakes a thread that waits for sockets, by a pipe, which is written to only while it rests. Any thread rings.

    The resting thread calls `rest`, looks whether there is work already, waits for `descriptor` to become readable, and then
    calls `awake`. A thread that adds work first and rings afterwards is therefore never overlooked. While the resting thread is
    at work, a ring costs no system call.
    """

    def __init__(self) -> None:
        self.descriptor, self._rope = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._rope, False)
        self._lock = threading.Lock()  # once the pipe is closed, its descriptor's number may be another file's
        self._resting = True

    def ring(self) -> None:
        """Wake the thread, or have it look again. Does nothing after `close`."""
        if not self._resting:
            return
        with self._lock:
            self._resting = False  # one ring is enough
            if self._rope >= 0:
                with contextlib.suppress(BlockingIOError):  # full: it is awake already
                    os.write(self._rope, b"\0")

    def rest(self) -> None:
        """From now on a ring writes to the pipe."""
        self._resting = True

    def awake(self, rung: bool) -> None:
        """Rings cost nothing from now on. ``rung``: `descriptor` was readable."""
        self._resting = False
        if rung:
            with contextlib.suppress(BlockingIOError):
                while os.read(self.descriptor, 4096):
                    pass

    def close(self) -> None:
        """Free the pipe. May be called again."""
        with self._lock:
            if self._rope >= 0:
                os.close(self.descriptor)
                os.close(self._rope)
                self.descriptor = self._rope = -1


class ClientKeys(NamedTuple):
    """CURVE keys, 40 Z85 characters each: the engine's public key, this host's pair."""

    server_public: bytes
    public: bytes
    secret: bytes


class Wire:
    """A DEALER with CURVE. `wake` is a file descriptor that interrupts `wait`.

    Raises:
        EngineUnreachable: the address is not valid.
    """

    def __init__(self, address: str, keys: ClientKeys, wake: int) -> None:
        self.address = address
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 500
        self._socket.sndhwm = self._socket.rcvhwm = _MOST_MESSAGES
        self._socket.maxmsgsize = _MOST_FRAME_BYTES
        self._socket.curve_serverkey = keys.server_public
        self._socket.curve_publickey = keys.public
        self._socket.curve_secretkey = keys.secret
        self._socket.reconnect_ivl = 100
        if "[" in address:
            self._socket.ipv6 = True
        self._monitor = self._socket.get_monitor_socket(_MONITORED)
        self._monitor.linger = 0
        self._wake = wake
        self._poller = zmq.Poller()
        for watched in (self._socket, self._monitor, wake):
            self._poller.register(watched, zmq.POLLIN)
        self._connected = self._has_events = False
        self.full = False  #: the last message could not be sent: the engine has not read those before it; `wait` clears it
        self._descriptor = -1  # of the connection
        self._whole = True  # a message has come since the last look at the bytes received
        self._received = 0  # bytes, by the last look after a whole message
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close(0)
            raise EngineUnreachable(
                f"{address!r} is not an engine's address: {error}. Write tcp://HOST:PORT or ipc:///path/to/socket."
            ) from None

    def wait(self, timeout_s: float) -> bool:
        """Return when something has come or can be sent again, `wake` is readable, or the time is over.

        True where `wake` is readable.
        """
        if self.full:
            self._poller.modify(self._socket, zmq.POLLIN | zmq.POLLOUT)
        ready = dict(self._poller.poll(max(0, math.ceil(timeout_s * 1000))))
        if self.full:
            self._poller.modify(self._socket, zmq.POLLIN)
            self.full = not int(ready.get(self._socket, 0)) & _OUT
        self._has_events = self._monitor in ready
        return self._wake in ready

    def _events(self) -> Iterable[int]:
        """Yield the monitor's events of the connection, if the last `wait` found any."""
        while self._has_events and self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())
            if event["event"] == zmq.EVENT_CONNECTED:
                self._descriptor = event["value"]
                self._received = 0
            else:
                yield event["event"]

    def greet(self, timeout_s: float, stopped: Callable[[], bool]) -> say.Welcome:
        """Connect and say Hello; return the engine's Welcome.

        Raises:
            EngineRefused: wrong key, not on the allow-list, or another protocol.
            EngineUnreachable: no answer in time, or ``stopped`` says that nobody waits for one any more.
            EngineGone: the answer is none.
            BadMessage: the answer is no message.
        """
        until = time.monotonic() + timeout_s
        dropped = 0
        while time.monotonic() < until and not stopped():
            self.wait(min(0.1, until - time.monotonic()))
            for event in self._events():
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._connected = True
                    self._socket.send_multipart(say.encode(say.Hello(say.PROTOCOL, csd_engine.__version__)))
                elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    raise EngineRefused(
                        f"the engine at {self.address} does not know this host's key. Put the host's public .key "
                        f"file into "
                        "the clients directory of the engine's keys."
                    )
                elif self._connected:  # libzmq itself breaks off where a frame is too long, and does not connect again
                    raise EngineGone(f"the connection to the engine at {self.address} was broken off at its first answer.")
                else:
                    dropped += 1  # libzmq tries again; an engine that is just starting may close the first connection
            if dropped >= 3:
                if not _greets(self.address):  # a relay without an engine behind it
                    dropped = 0
                    continue
                raise EngineRefused(
                    f"the engine at {self.address} broke off the encrypted handshake: the server key is not its own. "
                    "Copy server.key from the engine's key directory to this host."
                )
            for message, _ in self.messages():
                if isinstance(message, say.Welcome):
                    return message
                if isinstance(message, say.Refused):
                    raise EngineRefused(f"the engine at {self.address} refused: {message.reason}")
                raise EngineGone(f"the engine at {self.address} answered the first message with {message!r:.200}.")
            if self.hoards():
                raise EngineGone(f"the engine at {self.address} answered the first message with one that has no end.")
        raise EngineUnreachable(
            f"no engine answered at {self.address} within {timeout_s:g} s. Check that it runs, its --listen "
            f"address, and that no firewall lies between."
        )

    def broken(self) -> bool:
        """Whether the connection has been lost since the last call."""
        return any(event == zmq.EVENT_DISCONNECTED for event in self._events())

    def messages(self) -> Iterable[tuple[say.Message, say.Payload]]:
        """Yield the messages that have come, with texts that are fit for a terminal. Raises BadMessage.

        Their payloads stay in libzmq's memory, not copied.
        """
        while int(self._socket.getsockopt(zmq.EVENTS)) & _IN:
            self._whole = True
            message, payload = say.decode([frame.buffer for frame in self._socket.recv_multipart(copy=False)])
            if (texts := _FOR_PEOPLE.get(type(message))) is not None:
                message = replace(message, **{name: _printable(getattr(message, name)) for name in texts})
            yield message, payload

    def hoards(self) -> bool:
        """Whether the engine sends more frames of one message than any message has. To be called now and then.

        libzmq hands a message out when its last frame has come, and keeps all frames until then. So what comes while no message
        is whole is one message.
        """
        received = _bytes_received(self._descriptor)
        if self._whole:
            self._whole, self._received = False, received
        return received - self._received > _MOST_UNFINISHED_BYTES

    def send(self, frames: list[say.Payload]) -> bool:
        """Queue a message; never blocks. False if the engine has not read those before: `wait` tells when to try again."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self.full = True
        else:
            self.full = False
        return not self.full

    def close(self, linger_ms: int = 500) -> None:
        """Close, giving the last messages a moment."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)
        self._context.term()


def _printable(value: Any) -> Any:
    """Escape the control characters in all texts of a message's field."""
    if isinstance(value, str):
        return printable(value, MAX_TEXT)
    if isinstance(value, dict):
        return {_printable(key): _printable(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return getattr(value, "_make", tuple)(map(_printable, value))
    return value


def _bytes_received(descriptor: int) -> int:
    """Return how many bytes a TCP connection has received; 0 where that can't be known: on an ipc socket, not on Linux."""
    if sys.platform != "linux" or descriptor < 0:
        return 0
    try:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
    except OSError:  # it is closed already
        return 0
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + 8)
        return int(struct.unpack_from("=Q", info, _RECEIVED_AT)[0]) if len(info) == _RECEIVED_AT + 8 else 0
    except OSError:
        return 0
    finally:
        connection.detach()


def _greets(address: str, timeout_s: float = 1.0) -> bool:
    """Connect, and see whether ZMTP's greeting comes (rfc.zeromq.org/spec/23, its signature).

    A relay (a tunnel, a proxy) takes connections whether or not an engine runs behind it, and closes them without a greeting if
    none does. To libzmq that looks as an engine does that refuses a wrong server key.

    Args:
        address: tcp://HOST:PORT or ipc:///path.
    """
    kind, _, place = address.partition("://")
    try:
        if kind == "ipc":
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(timeout_s)
                connection.connect(place)
                return _greeted(connection)
        host, _, port = place.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as connection:
            return _greeted(connection)
    except (OSError, ValueError):
        return False


def _greeted(connection: socket.socket) -> bool:
    greeting = b""
    while len(greeting) < _SIGNATURE_BYTES:
        piece = connection.recv(_SIGNATURE_BYTES - len(greeting))
        if not piece:
            return False
        greeting += piece
    return (greeting[:1], greeting[-1:]) == _SIGNATURE
