"""The engine's socket: CURVE, and a ZAP handler that lets in listed hosts alone (RFC 27). No thread of its own."""

from __future__ import annotations

import hashlib
import logging
import os
from typing import NamedTuple, Optional

import zmq
from zmq.utils import z85

from csd_engine.errors import BadMessage, EngineError
from csd_engine.keys import allowed_clients, load_pair
from csd_engine.protocol import MAX_FRAME_BYTES, Message, Refused, decode, encode, shorten

__all__ = ["Door"]

_LOG = logging.getLogger("csd_engine")
_DOMAIN = b"ddlp"
_LINGER_MS = 200


class Heard(NamedTuple):
    """What came: `message` is None for nonsense, which was answered; `host` is the short name of the host's key."""

    peer: bytes
    message: Optional[Message]
    payload: bytes
    host: str


def _host_name(frame: zmq.Frame) -> str:
    """Return 8 hex digits of a hash of the key that the connection came in with (the ZAP reply's user id)."""
    try:
        key = str(frame.get("User-Id"))
    except zmq.ZMQError:  # a libzmq that keeps no metadata
        return ""
    return hashlib.blake2b(key.encode("ascii"), digest_size=4).hexdigest()


class Door:
    """A bound ROUTER socket and its gatekeeper; both sockets belong in the service's poller.

    Raises:
        EngineError: no keys, or the address cannot be bound.
    """

    def __init__(self, listen: str, keys: str) -> None:
        self._keys = keys
        pair = load_pair(f"{keys}/server.key_secret")
        self._context = zmq.Context()
        self.gate = self._context.socket(zmq.REP)
        self.gate.linger = 0
        self.gate.bind("inproc://zeromq.zap.01")  # before the ROUTER: without a handler everybody gets in
        self.router = self._context.socket(zmq.ROUTER)
        self.router.linger = _LINGER_MS
        self.router.sndhwm = 0  # a ROUTER drops what is above its mark
        self.router.maxmsgsize = MAX_FRAME_BYTES
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

    def answer_gate(self) -> None:
        """Answer one ZAP request: yes to the public keys in the allow-list, read anew so that it can be changed."""
        frames = self.gate.recv_multipart()
        version, request, domain, address, _, mechanism = frames[:6]
        key = z85.encode(frames[6]) if len(frames) > 6 and len(frames[6]) == 32 else b""
        allowed = domain == _DOMAIN and mechanism == b"CURVE" and key in allowed_clients(self._keys)
        if not allowed:
            _LOG.warning("refused %s: its key %s is not in %s/clients", address.decode(), key.decode(), self._keys)
        status = (b"200", b"OK", key) if allowed else (b"400", b"key not allowed", b"")
        self.gate.send_multipart([version, request, *status, b""])

    def receive(self) -> Optional[Heard]:
        """Return the next message; None when none waits."""
        try:
            frames = self.router.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        peer = frames[0].bytes
        try:
            message, payload = decode([frame.bytes for frame in frames[1:]])
        except BadMessage as error:
            _LOG.warning("message not understood: %s", error)
            self.send(peer, Refused("", shorten(str(error))))
            return Heard(peer, None, b"", "")
        return Heard(peer, message, payload, _host_name(frames[0]))

    def send(self, peer: bytes, message: Message) -> None:
        """Send to a host; one that is gone gets nothing and is no error."""
        try:
            self.router.send_multipart([peer, *encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            _LOG.warning("message to a host lost: %s", error)

    def close(self) -> None:
        """Close both sockets; an ipc socket's file goes with them."""
        self.router.close()
        self.gate.close()
        self._context.term()
        if self.endpoint.startswith("ipc:///"):  # libzmq leaves the file
            try:
                os.unlink(self.endpoint[len("ipc://") :])
            except OSError:
                pass
