"""The engine's socket: CURVE, and a ZAP handler (RFC 27) that admits only listed hosts. It has no thread of its own."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import List, Optional, Sequence, Tuple

import zmq
from zmq.utils import z85

from csd_engine.errors import BadMessage, EngineError
from csd_engine.protocol.codec import MAX_HOST_FRAME_BYTES, Message, Payload, Refused, decode, encode, shorten
from csd_engine.protocol.keys import AllowList, HostRoots, KeyPair, load_pair, open_clients
from csd_engine.service.connections import Connections

__all__ = ["AuthSocket"]

_LOG = logging.getLogger("csd_engine")
_DOMAIN = b"ddlp"
_LINGER_MS = 200
_HANDSHAKE_S = 10.0  # a small board under load takes a second or two
_WAITING_MESSAGES = 16  # of one connection; it is read no further then, until the engine has taken some
_GONE_S = 120  # the system ends a connection whose host has vanished after about so long


class AuthSocket:
    """A bound ROUTER socket, and the ZAP socket that decides who may connect. The service polls both.

    Args:
        listen: where it listens, ipc:///path or tcp://HOST:PORT.
        keys: the engine's key directory; its clients/ lists the hosts.
        pair: the engine's keys; None: those in its key directory.
        handshake_s: a connection that does not finish its handshake in this time is ended.
        memory_bytes: what the computer has, of which each host may take a part; 0: ask it.

    Raises:
        EngineError: there are no keys, or the address cannot be bound.
    """

    def __init__(
        self,
        listen: str,
        keys: str,
        handshake_s: float = _HANDSHAKE_S,
        memory_bytes: int = 0,
        pair: Optional[KeyPair] = None,
    ) -> None:
        self._keys = keys
        with contextlib.suppress(OSError):  # it may be made later
            open_clients(keys).close()
        self._allowed = AllowList(keys)
        pair = pair or load_pair(f"{keys}/server.key_secret")
        self._context = zmq.Context()
        self.gate = self._context.socket(zmq.REP)
        self.gate.linger = 0
        self.gate.bind("inproc://zeromq.zap.01")  # before the ROUTER: without a handler, everybody may connect
        self.router = self._context.socket(zmq.ROUTER)
        self.router.linger = _LINGER_MS
        self.router.sndhwm = 0  # no limit: a ROUTER drops messages above its high-water mark. `connections` counts bytes
        self.router.rcvhwm = _WAITING_MESSAGES
        self.router.maxmsgsize = MAX_HOST_FRAME_BYTES
        self.router.handshake_ivl = int(handshake_s * 1000)
        self.router.tcp_keepalive = 1
        self.router.tcp_keepalive_idle = self.router.tcp_keepalive_intvl = _GONE_S // 6
        self.router.tcp_keepalive_cnt = 5
        self.router.curve_server = True
        self.router.curve_secretkey = pair.secret
        self.router.curve_publickey = pair.public
        self.router.zap_domain = _DOMAIN
        if listen.startswith("tcp://") and "[" in listen:
            self.router.ipv6 = True
        self.endpoint = ""
        try:
            self.router.bind(listen)
        except zmq.ZMQError as error:
            self.close()
            raise EngineError(
                f"cannot listen on {listen}: {error}. Use ipc:///path/to/socket (at most 107 bytes) or tcp://HOST:PORT "
                "with a free port and an address of this computer."
            ) from None
        self.endpoint = bytes(self.router.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()
        self.connections = Connections(self.endpoint, memory_bytes)

    def look_after(self, at_once: bool = False) -> List[bytes]:
        """End connections that take what others need, and those of hosts whose key was withdrawn. Return the latter.

        Call it in each round; it looks a few times a second, or `at_once`.
        """
        if not self.connections.relieve(at_once):
            return []
        self._allowed.refresh()
        withdrawn = self.connections.without(self._allowed)
        for peer in withdrawn:
            _LOG.warning("a connection is ended: its host's key is no longer in %s/clients", self._keys)
            self.connections.end(peer)
        return withdrawn

    def roots_of(self, peer: bytes) -> Optional[HostRoots]:
        """Return the directories that a connection's host was deployed with; None: all that the engine may read."""
        return self._allowed.roots(self.connections.key_of(peer).encode())

    def answer_gate(self) -> None:
        """Answer one ZAP request: yes to a public key in the allow-list. The list is looked at each time: it may change."""
        frames = self.gate.recv_multipart()
        version, request, domain, address, _, mechanism = frames[:6]
        key = z85.encode(frames[6]) if len(frames) > 6 and len(frames[6]) == 32 else b""
        self._allowed.refresh()
        allowed = domain == _DOMAIN and mechanism == b"CURVE" and key in self._allowed
        if not allowed:
            _LOG.warning("refused %s: its key %s is not in %s/clients", address.decode(), key.decode(), self._keys)
        status = (b"200", b"OK", key) if allowed else (b"400", b"key not allowed", b"")
        self.gate.send_multipart([version, request, *status, b""])

    def receive(self) -> Optional[Tuple[bytes, List[Payload]]]:
        """Return the next message as it came, and the connection that it is from; None if none waits."""
        while True:
            try:
                frames = self.router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            peer = bytes(frames[0].buffer)
            if not self.connections.has_ended(peer):
                self.connections.received(peer, frames)
                return peer, [frame.buffer for frame in frames[1:]]

    def decode(self, peer: bytes, frames: Sequence[Payload]) -> Optional[Tuple[Message, Payload]]:
        """Return a message and its payload; None if it can't be decoded: the host then has its answer already."""
        try:
            return decode(frames)
        except BadMessage as error:
            _LOG.warning("message not understood: %s", error)
            self.send(peer, Refused("", shorten(str(error))))
            return None

    def send(self, peer: bytes, message: Message, payload: Optional[bytes] = None) -> None:
        """Send a message to a host. A host that is gone is no error. If the message can't be encoded, Refused is sent."""
        try:
            frames = encode(message, payload)
        except BadMessage as error:  # for example an odd number from this computer's sensors; all jobs must go on
            _LOG.error("message to a host not sent: %s", error)
            frames = encode(Refused(getattr(message, "job", ""), shorten(str(error))))
        try:
            self.router.send_multipart([peer, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            _LOG.warning("message to a host lost: %s", error)
            return
        self.connections.sent(peer, frames)

    def close(self) -> None:
        """Close both sockets, and remove an ipc socket's file."""
        if self.endpoint:
            self.connections.close()
        self.router.close()
        self.gate.close()
        self._context.term()
        if self.endpoint.startswith("ipc:///"):  # libzmq leaves the file
            try:
                os.unlink(self.endpoint[len("ipc://") :])
            except OSError:
                pass
