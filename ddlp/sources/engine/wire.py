"""One encrypted connection to an engine: the socket, its monitor and the handshake. Used by one thread only."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import zmq
from zmq.utils.monitor import parse_monitor_message

import csd_engine
from csd_engine.errors import EngineRefused, EngineUnreachable
from csd_engine.protocol import codec as say
from ddlp.sources.engine.greeting import greets

__all__ = ["ClientKeys", "Wire"]

_IN = int(zmq.POLLIN)  # a plain int: an enum's operators run Python code
_MONITORED = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


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
        self._socket.sndhwm = 0  # leases and manifest parts are bounded by their own flow control
        self._socket.maxmsgsize = say.MAX_FRAME_BYTES
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
        for one in (self._socket, self._monitor, wake):
            self._poller.register(one, zmq.POLLIN)
        self._connected = self._told = False
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close(0)
            raise EngineUnreachable(
                f"{address!r} is not an engine's address: {error}. Write tcp://HOST:PORT or ipc:///path/to/socket."
            ) from None

    def wait(self, timeout_s: float) -> bool:
        """Return when something has come, `wake` is readable, or the time is over. True where `wake` is readable."""
        ready = [one for one, _ in self._poller.poll(max(0, math.ceil(timeout_s * 1000)))]
        self._told = self._monitor in ready
        return self._wake in ready

    def _events(self) -> Iterable[int]:
        """Yield the monitor's events of the connection, if the last `wait` found any."""
        while self._told and self._monitor.poll(0):
            yield parse_monitor_message(self._monitor.recv_multipart())["event"]

    def greet(self, timeout_s: float, stopped: Callable[[], bool]) -> say.Welcome:
        """Connect and say Hello; return the engine's Welcome.

        Raises:
            EngineRefused: wrong key, not on the allow-list, or another protocol.
            EngineUnreachable: no answer in time, or ``stopped`` says that nobody waits for one any more.
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
                else:
                    dropped += 1  # libzmq tries again; an engine that is just starting may close the first connection
            if dropped >= 3 and not self._connected:
                if not greets(self.address):  # a relay without an engine behind it
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
        raise EngineUnreachable(
            f"no engine answered at {self.address} within {timeout_s:g} s. Check that it runs, its --listen "
            f"address, and that no firewall lies between."
        )

    def broken(self) -> bool:
        """Whether the connection has been lost since the last call."""
        return any(event == zmq.EVENT_DISCONNECTED for event in self._events())

    def messages(self) -> Iterable[tuple[say.Message, say.Payload]]:
        """Yield the messages that have come. Their payloads stay in libzmq's memory, not copied. Raises BadMessage."""
        while int(self._socket.getsockopt(zmq.EVENTS)) & _IN:
            yield say.decode([frame.buffer for frame in self._socket.recv_multipart(copy=False)])

    def send(self, frames: list[say.Payload]) -> None:
        """Queue a message; never blocks."""
        self._socket.send_multipart(frames, zmq.NOBLOCK)

    def close(self, linger_ms: int = 500) -> None:
        """Close, giving the last messages a moment."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)
        self._context.term()
