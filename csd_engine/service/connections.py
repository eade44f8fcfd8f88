"""The connections to the engine's socket, as the operating system sees them: how many, how much they hold, and their end.

libzmq tells nothing of a connection before its first whole message: not how many there are, and not how many bytes of an
unfinished message it keeps. It can't end one either. A connection's descriptor tells all that: Linux counts the bytes of a
TCP connection, and an end that is set from here (shutdown) is noticed by libzmq like one that comes from the network.
Unix sockets are not counted: their peers are processes of this computer, in a directory that its owner has opened to them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import stat
import struct
import time
from dataclasses import dataclass
from typing import Container, Dict, Iterable, Iterator, List, Optional, Sequence, Sized, Tuple

import zmq

from csd_engine.machine.computer import memory
from csd_engine.protocol.codec import Payload

__all__ = ["Connections"]

_LOG = logging.getLogger("csd_engine")
_LOOK_S = 0.1  # 40 us of work
_FEW = 0.5  # part of the descriptors that may be taken; the rest is for files and workers, and for a flood between two looks
_VERY_FEW = 0.75  # then connections end that may only be in their handshake
_SILENT_S = 1.0  # a handshake takes less
_GROWN_BYTES = 64 << 20  # of this process since it began: from there on the connections are looked at
_HOST_BYTES = (64 << 20, 256 << 20)  # of a host's connections: an eighth of the computer's memory, between these
_STRANGER_BYTES = 64 << 10  # a handshake takes 1 kB
_HOST_CONNECTIONS = 64  # a host that has more may lose some where descriptors are short
_REMEMBERED = 1024  # connections that were ended
_COUNTS = struct.Struct("=120xQQ")  # of struct tcp_info: bytes that the peer has acknowledged, bytes that have come from it
_FRAME_BYTES = 33  # that CURVE adds to a frame, and ZMTP 2 or 9 more

_Stranger = Tuple[int, int]  # descriptor, inode


def _wire_bytes(frames: Iterable[Sized]) -> int:
    """Return the bytes that a message's frames take in the connection."""
    total = 0
    for frame in frames:
        size = len(frame) + _FRAME_BYTES
        total += size + (2 if size <= 255 else 9)
    return total


@dataclass
class _Connection:
    """A connection from which a message has come."""

    descriptor: int
    inode: int  # tells whether the descriptor is still this connection's
    key: str  # the host's public one
    received: int = 0  # bytes of the messages that have been taken
    sent: int = 0  # bytes of the messages that libzmq was given


class Connections:
    """All connections to the socket that is bound to `endpoint`.

    Args:
        endpoint: where the socket listens, as libzmq tells it.
        memory_bytes: what the computer has; 0: ask it.
    """

    def __init__(self, endpoint: str, memory_bytes: int = 0) -> None:
        self._port = int(endpoint.rpartition(":")[2]) if endpoint.startswith("tcp://") else 0
        self._path = endpoint[len("ipc://") :]
        # An address is cut to the length that the family's have. IPv4's fit into IPv6's.
        self._family = socket.AF_INET6 if self._port else socket.AF_UNIX
        self._host_bytes = min(max((memory_bytes or memory().total) // 8, _HOST_BYTES[0]), _HOST_BYTES[1])
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._limit = limit if limit != resource.RLIM_INFINITY else 1 << 30
        self._known: Dict[bytes, _Connection] = {}
        self._ended: Dict[bytes, None] = {}  # the last ones
        self._keys: Dict[bytes, str] = {}  # of the last connections that are not known otherwise
        self._strangers: Dict[_Stranger, float] = {}  # when each was seen first
        self._looked_s = 0.0
        self._statm = -1
        try:
            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)  # stays open: later there may be none free
        except OSError:  # not Linux
            pass
        self._grown_bytes = self._resident() + _GROWN_BYTES

    # -- what the socket tells

    def received(self, peer: bytes, frames: Sequence[zmq.Frame]) -> None:
        """Count a message that has come."""
        known = self._known.get(peer)
        if known is None:
            known = self._meet(frames[-1])
            if known is None:
                self._keys[peer] = _property(frames[-1], "User-Id")
                while len(self._keys) > _REMEMBERED:
                    del self._keys[next(iter(self._keys))]
                return
            self._known[peer] = known
        known.received += _wire_bytes(frames[1:])

    def _meet(self, frame: zmq.Frame) -> Optional[_Connection]:
        address, key = _property(frame, "Peer-Address"), _property(frame, "User-Id")
        try:
            descriptor = int(frame.get(zmq.SRCFD))
            inode = os.fstat(descriptor).st_ino
            with _borrowed(descriptor, self._family) as sock:
                peer_name = sock.getpeername()
        except (OSError, zmq.ZMQError, TypeError, ValueError):
            return None
        # The connection may have ended since, and another one may have its descriptor now.
        other = self._port and peer_name[0] != address.partition("%")[0]  # a link-local address names its interface
        if other or any(connection.inode == inode for connection in self._known.values()):
            return None
        return _Connection(descriptor, inode, key)

    def sent(self, peer: bytes, frames: Sequence[Payload]) -> None:
        """Count a message that libzmq was given."""
        known = self._known.get(peer)
        if known is not None:
            known.sent += _wire_bytes(frames)

    def unread(self, peer: bytes) -> int:
        """Return how many bytes a host has not read of what was sent to it; 0 where that is not known."""
        known = self._known.get(peer)
        if known is None or not self._is_open(known.descriptor, known.inode):
            return 0
        counts = self._counts(known.descriptor)
        return max(0, known.sent - counts[0]) if counts else 0

    def key_of(self, peer: bytes) -> str:
        """Return the public key of a connection's host; empty if unknown. A host is a key, wherever it connects from."""
        known = self._known.get(peer)
        return self._keys.get(peer, "") if known is None else known.key

    def of_key(self, key: str) -> int:
        """Return how many connections have a key."""
        return sum(connection.key == key for connection in self._known.values())

    def without(self, keys: Container[bytes]) -> List[bytes]:
        """Return the connections of hosts that have none of these public keys."""
        return [peer for peer, connection in self._known.items() if connection.key.encode() not in keys]

    # -- their end

    def end(self, peer: bytes) -> None:
        """End a connection. The host notices, and may connect again if it is still allowed to."""
        known = self._known.pop(peer, None)
        if known is not None:
            self._ended[peer] = None
            while len(self._ended) > _REMEMBERED:
                del self._ended[next(iter(self._ended))]
            self._end(known.descriptor, known.inode)

    def has_ended(self, peer: bytes) -> bool:
        """Return whether `end` was called for it. Messages that it has sent before may still come."""
        return peer in self._ended

    def short(self) -> bool:
        """Return whether descriptors are short: connections that say nothing are ended then."""
        return self._taken() > _FEW

    def relieve(self, at_once: bool = False) -> bool:
        """End connections that take what others need: descriptors, or memory.

        Call it often: it looks a few times a second, or `at_once`. Return whether it has looked.
        """
        now = time.monotonic()
        if now - self._looked_s < _LOOK_S and not at_once:
            return False
        self._looked_s = now
        for peer, connection in list(self._known.items()):
            if not self._is_open(connection.descriptor, connection.inode):
                del self._known[peer]
        taken, large = self._taken(), self._resident() > self._grown_bytes
        if taken <= _FEW and not large:
            self._strangers = {}
            return True
        self._strangers = {stranger: self._strangers.get(stranger, now) for stranger in self._find_strangers()}
        if large:
            self._end_large()
        if taken > _FEW:
            self._end_idle(now, taken > _VERY_FEW)
        return True

    def _end_idle(self, now: float, very_few: bool) -> None:
        """Make room for descriptors."""
        by_age = sorted(self._strangers, key=self._strangers.__getitem__)
        silent = [stranger for stranger in by_age if now - self._strangers[stranger] >= _SILENT_S]
        ending = by_age[: max(len(silent), (len(by_age) + 1) // 2 if very_few else 0)]
        if not ending:
            by_host: Dict[str, List[bytes]] = {}
            for peer, connection in self._known.items():
                by_host.setdefault(connection.key, []).append(peer)
            most = max(by_host.values(), key=len, default=[])
            for peer in most[_HOST_CONNECTIONS:]:
                self.end(peer)
            if len(most) > _HOST_CONNECTIONS:
                _LOG.warning("descriptors are short: a host's connections beyond %d are ended", _HOST_CONNECTIONS)
            return
        for stranger in ending:
            self._end(*stranger)
        _LOG.warning("descriptors are short: %d connections that have said nothing yet are ended", len(ending))

    def _end_large(self) -> None:
        """Make room in memory."""
        for stranger in list(self._strangers):
            counts = self._counts(stranger[0])
            if counts and counts[1] > _STRANGER_BYTES:
                _LOG.warning("a connection whose first message has %d bytes and no end is ended", counts[1])
                self._end(*stranger)
                del self._strangers[stranger]
        by_host: Dict[str, List[Tuple[int, bytes]]] = {}
        for peer, known in self._known.items():
            counts = self._counts(known.descriptor)
            if counts:
                held = max(0, counts[1] - known.received) + max(0, known.sent - counts[0])
                by_host.setdefault(known.key, []).append((held, peer))
        for host, held_by in by_host.items():
            total = sum(held for held, _ in held_by)
            for held, peer in sorted(held_by, reverse=True):
                if total <= self._host_bytes:
                    break
                total -= held
                _LOG.warning("a connection of %s is ended: %d bytes of its messages wait in the engine", host, held)
                self.end(peer)

    # -- the system

    def _taken(self) -> float:
        """Return the part of the descriptors that is taken, 0 to 1. A new one gets the lowest free number."""
        try:
            lowest = os.dup(self._statm if self._statm >= 0 else 2)
        except OSError:
            return 1.0
        os.close(lowest)
        return lowest / self._limit

    def _resident(self) -> int:
        if self._statm < 0:
            return 0
        return int(os.pread(self._statm, 100, 0).split()[1]) * resource.getpagesize()

    def _find_strangers(self) -> List[_Stranger]:
        """Return all connections from which no message has come."""
        known = {connection.descriptor for connection in self._known.values()}
        try:
            numbers: Iterable[int] = [int(name) for name in os.listdir("/proc/self/fd")]
        except OSError:  # no descriptor is free for the listing
            numbers = range(min(self._limit, 1 << 16))
        strangers = []
        for descriptor in numbers:
            try:
                status = os.fstat(descriptor)
            except OSError:
                continue
            if stat.S_ISSOCK(status.st_mode) and descriptor not in known and self._is_ours(descriptor):
                strangers.append((descriptor, status.st_ino))
        return strangers

    def _is_ours(self, descriptor: int) -> bool:
        """Return whether it is a connection that the socket has accepted."""
        try:
            with _borrowed(descriptor, self._family) as sock:
                address = sock.getsockname()
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    return False
        except OSError:
            return False
        return address[1] == self._port if isinstance(address, tuple) and self._port else address == self._path

    @staticmethod
    def _is_open(descriptor: int, inode: int) -> bool:
        try:
            return os.fstat(descriptor).st_ino == inode
        except OSError:
            return False

    def _end(self, descriptor: int, inode: int) -> None:
        if self._is_open(descriptor, inode):
            try:
                with _borrowed(descriptor, self._family) as sock:
                    sock.shutdown(socket.SHUT_RDWR)
            except OSError:  # it has ended already
                pass

    def _counts(self, descriptor: int) -> Optional[Tuple[int, int]]:
        """Return how many bytes a TCP connection has delivered, and how many have come; None where nobody counts them."""
        if not self._port or self._statm < 0:
            return None
        try:
            with _borrowed(descriptor, self._family) as sock:
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size)
        except OSError:
            return None
        if len(info) != _COUNTS.size:  # Linux before 4.1
            return None
        delivered, come = _COUNTS.unpack(info)
        return delivered, come

    def close(self) -> None:
        """Give back the descriptor that it holds itself. It may be called again."""
        if self._statm >= 0:
            os.close(self._statm)
            self._statm = -1


@contextlib.contextmanager
def _borrowed(descriptor: int, family: int) -> Iterator[socket.socket]:
    """Yield a descriptor of libzmq's as a socket, for one call. It needs no further descriptor, and closes none."""
    sock = socket.socket(family, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        yield sock
    finally:
        sock.detach()


def _property(frame: zmq.Frame, name: str) -> str:
    """Return a property of the connection that a frame came from, or an empty text."""
    try:
        return str(frame.get(name))
    except zmq.ZMQError:  # it has none
        return ""
