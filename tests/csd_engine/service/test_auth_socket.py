"""The engine's socket, with a host at the other end."""

from __future__ import annotations

from pathlib import Path

import zmq

from csd_engine.protocol import codec as say
from csd_engine.protocol.keys import load_pair, load_public, make_keys
from csd_engine.service.auth_socket import AuthSocket
from tests.engine_process import until


def test_a_message_that_can_not_be_is_refused_and_the_next_one_comes(home: Path) -> None:
    keys = make_keys(home / "keys")
    auth_socket = AuthSocket(f"ipc://{home}/s", str(keys))
    context = zmq.Context()
    host = context.socket(zmq.DEALER)
    host.linger = 0
    host.curve_serverkey = load_public(keys / "server.key")
    host.curve_publickey, host.curve_secretkey = load_pair(keys / "host.key_secret")

    def heard() -> object:
        if auth_socket.gate.poll(0):
            auth_socket.answer_gate()
        return auth_socket.receive()

    try:
        host.connect(auth_socket.endpoint)
        host.send_multipart(say.encode(say.Hello(say.PROTOCOL, "1")))
        peer, _ = until(heard)
        auth_socket.send(peer, say.Sensors((say.Reading("energy1", "gpu", -5.0, None),)))
        auth_socket.send(peer, say.Published("1-1", 3, "nowhere", 0.5))
        auth_socket.send(peer, say.JobClosed("1-1"))
        told = []
        for _ in range(3):
            assert host.poll(10_000)
            told.append(say.decode(host.recv_multipart())[0])
    finally:
        host.close()
        context.term()
        auth_socket.close()
    assert [(type(one), one.job) for one in told] == [(say.Refused, ""), (say.Refused, "1-1"), (say.JobClosed, "1-1")]
    assert "Sensors: readings is" in told[0].reason and "'nowhere'" in told[1].reason
