"""The engine's socket: CURVE, and a ZAP handler (RFC 27) that admits only listed hosts. It has no thread of its own."""

from __future__ import annotations

import logging
import os
from typing import Dict, Optional, Tuple

import zmq
from zmq.utils import z85

from csd_engine.errors import BadMessage, EngineError
from csd_engine.protocol.codec import MAX_FRAME_BYTES, Hello, Message, Payload, Refused, decode, encode, shorten
from csd_engine.protocol.keys import allowed_clients, load_pair

__all__ = ["AuthSocket"]

_LOG = logging.getLogger("csd_engine")
_DOMAIN = b"ddlp"
_LINGER_MS = 200


class AuthSocket:
    """A bound ROUTER socket, and the ZAP socket that decides who may connect. The service polls both.

    Raises:
        EngineError: there are no keys, or the address cannot be bound.
    """

    def __init__(self, listen: str, keys: str) -> None:
        self._keys = keys
        pair = load_pair(f"{keys}/server.key_secret")
        self._context = zmq.Context()
        self.gate = self._context.socket(zmq.REP)
        self.gate.linger = 0
        self.gate.bind("inproc://zeromq.zap.01")  # before the ROUTER: without a handler, everybody may connect
        self.router = self._context.socket(zmq.ROUTER)
        self.router.linger = _LINGER_MS
        self.router.sndhwm = 0  # no limit: a ROUTER drops messages above its high-water mark
        self.router.maxmsgsize = MAX_FRAME_BYTES
        self.router.curve_server = True
        self.router.curve_secretkey = pair.secret
        self.router.curve_publickey = pair.public
        self.router.zap_domain = _DOMAIN
        if listen.startswith("tcp://") and "[" in listen:
            self.router.ipv6 = True
        self.endpoint = ""
        self._hosts: Dict[bytes, str] = {}
        try:
            self.router.bind(listen)
        except zmq.ZMQError as error:
            self.close()
            raise EngineError(
                f"cannot listen on {listen}: {error}. Use ipc:///path/to/socket (at most 107 bytes) or tcp://HOST:PORT "
                "with a free port and an address of this computer."
            ) from None
        self.endpoint = bytes(self.router.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()

    def answer_gate(self) -> None:
        """Answer one ZAP request: yes to a public key in the allow-list. The list is read each time: it may change."""
        frames = self.gate.recv_multipart()
        version, request, domain, address, _, mechanism = frames[:6]
        key = z85.encode(frames[6]) if len(frames) > 6 and len(frames[6]) == 32 else b""
        allowed = domain == _DOMAIN and mechanism == b"CURVE" and key in allowed_clients(self._keys)
        if not allowed:
            _LOG.warning("refused %s: its key %s is not in %s/clients", address.decode(), key.decode(), self._keys)
        status = (b"200", b"OK", key) if allowed else (b"400", b"key not allowed", b"")
        self.gate.send_multipart([version, request, *status, b""])

    def receive(self) -> Optional[Tuple[bytes, Optional[Message], Payload]]:
        """Return the next (host, message, payload), or None if no message waits.

        The message is None if it can't be decoded; the host then has its answer already.
        """
        try:
            frames = self.router.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        peer = bytes(frames[0].buffer)
        try:
            message, payload = decode([frame.buffer for frame in frames[1:]])
        except BadMessage as error:
            _LOG.warning("message not understood: %s", error)
            self.send(peer, Refused("", shorten(str(error))))
            return peer, None, b""
        if isinstance(message, Hello):
            self._hosts[peer] = _sender(frames[-1])
        return peer, message, payload

    def host_of(self, peer: bytes) -> str:
        """Return a name of the computer that a connection comes from, made of its key and address."""
        return self._hosts.get(peer, "")

    def forget(self, peer: bytes) -> None:
        """Forget a connection's computer."""
        self._hosts.pop(peer, None)

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

    def close(self) -> None:
        """Close both sockets, and remove an ipc socket's file."""
        self.router.close()
        self.gate.close()
        self._context.term()
        if self.endpoint.startswith("ipc:///"):  # libzmq leaves the file
            try:
                os.unlink(self.endpoint[len("ipc://") :])
            except OSError:
                pass


def _sender(frame: zmq.Frame) -> str:
    """Return a name of the frame's sender: the user id of the ZAP handler's answer, and the address."""
    address = _property(frame, "Peer-Address")
    # An ipc socket has no address, or one of a process: localhost:UID:GID:PID. All processes are on this computer.
    return f"{_property(frame, 'User-Id')} {'' if address.startswith('localhost:') else address}"


def _property(frame: zmq.Frame, name: str) -> str:
    try:
        return str(frame.get(name))
    except zmq.ZMQError:  # it has none
        return ""
