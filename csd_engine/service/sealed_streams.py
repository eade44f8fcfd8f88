"""Sends batch files, sealed, over TCP connections of their own: CURVE takes most of the processor time of a batch's way.

A host asks for such a connection on its CURVE connection. It tells a random ticket there, and gets a port and a key. Whoever
connects without a ticket that the engine waits for is closed and told nothing; before the ticket has come, a connection holds
one descriptor and 32 bytes, for some seconds, and there are at most a few of them. A ticket counts once. It is no secret worth
a fight: who steals it gets sealed bytes alone, and the host gets its batches by CURVE. The host chooses it, so that an engine
can't have a host say words of its choice to some other port.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import socket
import time
from collections import deque
from typing import Callable, Deque, Dict, NamedTuple, Optional, Set, Tuple

from csd_engine.machine.directory import Entry
from csd_engine.protocol import sealed
from csd_engine.protocol.aead import KEY_BYTES, ciphers
from csd_engine.protocol.codec import AskStream, FetchSealed, Message, NoStream, Payload, StreamOpen, shorten
from csd_engine.protocol.sealed import HEAD_BYTES, MAX_REASON_BYTES, TICKET_BYTES, Place, Sealer, part_bytes
from csd_engine.service.connections import Connections
from csd_engine.service.file_chunks import part_of

__all__ = ["SealedStreams"]

_LOG = logging.getLogger("csd_engine")
PORT_STEP = 10000  # from the engine's port to the one that is tried first
_TICKET_S = 10.0
_MOST_STRANGERS = 16  # connections whose ticket has not come
_MOST_OF_HOST = 128  # tickets and connections of one host, which is a key
_MOST_ASKED = 8  # waiting fetches of a connection; ddlp has one
_PAUSE_S = 0.5  # after a connection that could not be accepted: descriptors are short
_OPTIONS: Tuple[Tuple[int, int], ...] = ()
if hasattr(select, "epoll"):  # the system ends a connection whose host has vanished after about two minutes
    _OPTIONS = ((socket.TCP_NODELAY, 1), (socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 20), (socket.TCP_KEEPCNT, 5))


class _Ticket(NamedTuple):
    peer: bytes
    host: str  # its key
    cipher: str
    key: bytes
    until_s: float


class _Stream:
    """A connection that has shown its ticket."""

    def __init__(self, connection: socket.socket, ticket: _Ticket) -> None:
        self.connection = connection
        self.peer, self.host = ticket.peer, ticket.host
        self.sealer = Sealer(ticket.cipher, ticket.key)
        self.asked: Deque[FetchSealed] = deque()
        self.offset = 0  # of the next part of the first fetch
        self.record = bytearray()  # lives as long as a fetch
        self.unsent = memoryview(b"")
        self.watched = select.EPOLLIN


class SealedStreams:
    """The listening socket, and the connections that it has brought. Its `descriptor` is readable when `serve` has work.

    Without a cipher, TCP or epoll there are none, and `offer` is empty.

    Args:
        endpoint: where the engine's own socket listens.
        connections: those to that socket.
        find: returns a published batch's file and its size in bytes, or None if the host has no such batch.
        send: sends a message with its payload to a host.
    """

    def __init__(
        self,
        endpoint: str,
        connections: Connections,
        find: Callable[[bytes, str, int], Optional[Tuple[Entry, int]]],
        send: Callable[[bytes, Message, Optional[bytes]], None],
    ) -> None:
        self._connections = connections
        self._find = find
        self._send = send
        self._tickets: Dict[bytes, _Ticket] = {}
        self._strangers: Dict[int, Tuple[socket.socket, bytearray, float]] = {}  # by descriptor, the oldest first
        self._streams: Dict[int, _Stream] = {}  # by descriptor
        self._by_peer: Dict[bytes, _Stream] = {}
        self._writable: Dict[str, Dict[_Stream, None]] = {}  # by key, in the order of turns
        self._paused_until = 0.0
        self._epoll: Optional[select.epoll] = None
        self._listener: Optional[socket.socket] = None
        if endpoint.startswith("tcp://") and hasattr(select, "epoll") and ciphers():
            host, _, port = endpoint[len("tcp://") :].rpartition(":")
            try:
                self._listener = _listen(host.strip("[]").partition("%")[0], int(port))
            except OSError as error:
                _LOG.warning("no port for sealed parts can be opened: %s; they go by CURVE", error)
                return
            self._port = self._listener.getsockname()[1]
            self._epoll = select.epoll()
            self._epoll.register(self._listener, select.EPOLLIN)

    @property
    def offer(self) -> Dict[str, str]:
        """What Welcome says of it."""
        return {"stream": " ".join(ciphers())} if self._epoll is not None else {}

    @property
    def descriptor(self) -> Optional[int]:
        """To be polled for reading; None where there are no such connections."""
        return None if self._epoll is None else self._epoll.fileno()

    # -- what hosts say on their CURVE connection

    def ask(self, peer: bytes, message: AskStream, payload: Payload) -> None:
        """Wait for a host's ticket. It replaces what the host's connection had before."""
        self.forget(peer)
        host, ticket = self._connections.key_of(peer), bytes(payload)
        hosts = [waiting.host for waiting in self._tickets.values()] + [stream.host for stream in self._streams.values()]
        taken = hosts.count(host)
        reason = ""
        if self._epoll is None or message.cipher not in ciphers():
            reason = f"this engine does not seal parts by {message.cipher}"
        elif taken >= _MOST_OF_HOST:
            reason = f"this host has {taken} connections for sealed parts, as many as one host may"
        elif len(ticket) != TICKET_BYTES or ticket in self._tickets:
            reason = f"a ticket has {TICKET_BYTES} random bytes"
        elif self._connections.short():
            reason = "the engine is short of descriptors"
        if reason:
            self._send(peer, NoStream(reason), None)
            return
        key = secrets.token_bytes(KEY_BYTES)
        self._tickets[ticket] = _Ticket(peer, host, message.cipher, key, time.monotonic() + _TICKET_S)
        self._send(peer, StreamOpen(self._port), key)

    def fetch(self, peer: bytes, message: FetchSealed, _: bytes) -> None:
        """Queue a fetch. A host without a connection for it notices by the end of the one that it had."""
        stream = self._by_peer.get(peer)
        if stream is None:
            return
        if len(stream.asked) >= _MOST_ASKED:
            self._end(stream, "it asks for too many batches at once")
            return
        stream.asked.append(message)
        self._watch(stream)

    def forget(self, peer: bytes) -> None:
        """End what a host's connection has here."""
        for ticket in [ticket for ticket, waiting in self._tickets.items() if waiting.peer == peer]:
            del self._tickets[ticket]
        if peer in self._by_peer:
            self._end(self._by_peer[peer])

    # -- the sockets

    def look(self) -> None:
        """Accept connections, hear what they say, and find those that parts can be sent to. Never waits."""
        if self._epoll is None or self._listener is None:
            return
        now = time.monotonic()
        self._expire(now)
        writable: Dict[_Stream, None] = {}
        for descriptor, events in self._epoll.poll(0):
            if descriptor == self._listener.fileno():
                self._accept(now)
            elif descriptor in self._strangers:
                self._listen_to(descriptor)
            elif descriptor in self._streams:
                stream = self._streams[descriptor]
                if events & ~select.EPOLLOUT:  # a host says nothing here: it is gone, or no host
                    self._end(stream)
                else:
                    writable[stream] = None
        before = [stream for streams in self._writable.values() for stream in streams]
        self._writable = {}
        for stream in (*filter(writable.__contains__, before), *writable):  # who has waited for longer comes first
            self._writable.setdefault(stream.host, {})[stream] = None

    def ready(self) -> Set[str]:
        """Return the keys that a part can be sent to."""
        return set(self._writable)

    @property
    def contended(self) -> bool:
        """Whether several keys have such connections."""
        return len({stream.host for stream in self._streams.values()}) > 1

    def serve(self, key: str) -> bool:
        """Send at most one part to a key, over the connection whose turn it is. Return whether there was one."""
        streams = self._writable.get(key)
        if not streams:
            return False
        stream = next(iter(streams))
        del streams[stream]
        if not streams:
            del self._writable[key]
        try:
            self._send_some(stream)
        except OSError as error:
            self._end(stream, error.strerror or str(error))
        return True

    def _expire(self, now: float) -> None:
        for ticket in [ticket for ticket, waiting in self._tickets.items() if waiting.until_s < now]:
            del self._tickets[ticket]
        for descriptor, (_, _, until_s) in list(self._strangers.items()):
            if until_s < now or not self._tickets:
                self._drop(descriptor)
        for stream in list(self._streams.values()):
            if self._connections.has_ended(stream.peer):
                self._end(stream)
        if self._paused_until and now >= self._paused_until and self._epoll is not None and self._listener is not None:
            self._paused_until = 0.0
            self._epoll.register(self._listener, select.EPOLLIN)

    def _accept(self, now: float) -> None:
        assert self._epoll is not None and self._listener is not None
        for _ in range(_MOST_STRANGERS):
            try:
                connection, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if not isinstance(error, ConnectionError):  # it stays readable, and would be asked again and again
                    self._epoll.unregister(self._listener)
                    self._paused_until = now + _PAUSE_S
                return
            if not self._tickets:
                connection.close()
                continue
            connection.setblocking(False)
            if len(self._strangers) >= _MOST_STRANGERS:
                self._drop(next(iter(self._strangers)))
            self._strangers[connection.fileno()] = (connection, bytearray(), now + _TICKET_S)
            self._epoll.register(connection, select.EPOLLIN)
            self._listen_to(connection.fileno())

    def _drop(self, descriptor: int) -> None:
        connection, _, _ = self._strangers.pop(descriptor)
        connection.close()  # epoll forgets it as well

    def _listen_to(self, descriptor: int) -> None:
        """Read a ticket, or the next bytes of one."""
        connection, buffer, _ = self._strangers[descriptor]
        try:
            come = connection.recv(TICKET_BYTES - len(buffer))
        except BlockingIOError:
            return
        except OSError:
            come = b""
        buffer += come
        if come and len(buffer) < TICKET_BYTES:
            return
        ticket = self._tickets.pop(bytes(buffer), None)
        if ticket is None:
            self._drop(descriptor)
            return
        del self._strangers[descriptor]
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _OPTIONS:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        stream = self._streams[descriptor] = self._by_peer[ticket.peer] = _Stream(connection, ticket)
        self._seal(stream, sealed.READY, sealed.NO_PLACE, bytearray(HEAD_BYTES), 0)
        self._watch(stream)

    def _watch(self, stream: _Stream) -> None:
        wanted = select.EPOLLIN | (select.EPOLLOUT if stream.asked or stream.unsent else 0)
        if wanted != stream.watched and self._epoll is not None:
            stream.watched = wanted
            self._epoll.modify(stream.connection, wanted)

    def _end(self, stream: _Stream, why: str = "") -> None:
        if why:
            _LOG.warning("a connection for sealed parts is ended: %s", why)
        descriptor = stream.connection.fileno()
        del self._streams[descriptor]
        self._writable.get(stream.host, {}).pop(stream, None)
        if self._by_peer.get(stream.peer) is stream:
            del self._by_peer[stream.peer]
        stream.connection.close()

    # -- parts

    def _send_some(self, stream: _Stream) -> None:
        """Send what the connection takes, of one record. Raises OSError if the connection is of no use any more."""
        if not stream.unsent and stream.asked:
            self._next_record(stream)
        if stream.unsent:
            try:
                stream.unsent = stream.unsent[stream.connection.send(stream.unsent) :]
            except BlockingIOError:
                pass
        if not stream.unsent and not stream.asked:
            stream.record = bytearray()
        self._watch(stream)

    def _next_record(self, stream: _Stream) -> None:
        message = stream.asked[0]
        place = Place(message.number, message.job, message.lease, stream.offset, message.size)
        length = part_bytes(place)
        if len(stream.record) < HEAD_BYTES + max(length, MAX_REASON_BYTES):
            stream.record = bytearray(HEAD_BYTES + max(length, MAX_REASON_BYTES))
        body = memoryview(stream.record)[HEAD_BYTES:]
        try:
            with part_of(self._find(stream.peer, message.job, message.lease), message.lease, stream.offset, length) as file:
                come = os.preadv(file, [body[:length]], stream.offset)
            if come != length:
                raise OSError(0, f"only {come} bytes can be read at {stream.offset}")
        except OSError as error:
            reason = shorten(error.strerror or str(error)).encode("utf-8", "replace")[:MAX_REASON_BYTES]
            body[: len(reason)] = reason
            self._fetched(stream)
            self._seal(stream, sealed.REASON, place, stream.record, len(reason))
            return
        stream.offset += length
        if stream.offset == message.size:
            self._fetched(stream)
        self._seal(stream, sealed.PART, place, stream.record, length)

    @staticmethod
    def _fetched(stream: _Stream) -> None:
        stream.asked.popleft()
        stream.offset = 0

    @staticmethod
    def _seal(stream: _Stream, kind: int, place: Place, record: bytearray, size: int) -> None:
        stream.sealer.seal(kind, place, record, size)
        stream.unsent = memoryview(record)[: HEAD_BYTES + size]

    def close(self) -> None:
        """Close all sockets. It may be called again."""
        for descriptor in list(self._strangers):
            self._drop(descriptor)
        for stream in list(self._streams.values()):
            self._end(stream)
        self._tickets.clear()
        if self._epoll is not None and self._listener is not None:
            self._epoll.close()
            self._listener.close()
            self._epoll = self._listener = None


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket at an engine's address: at its port and 10,000, or at any free port. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    error = OSError()
    for candidate in (port + PORT_STEP, 0):
        if candidate > 65535:
            continue
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((host, candidate))
            listener.listen(_MOST_STRANGERS)
            listener.setblocking(False)
            return listener
        except OSError as bind_error:
            listener.close()
            error = bind_error
    raise error
