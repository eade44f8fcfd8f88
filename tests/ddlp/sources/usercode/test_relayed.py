"""A node behind a socket, whose other side may say that it is gone."""

from __future__ import annotations

import socket
import threading
from multiprocessing.connection import Connection

import pytest

from ddlp.sources.usercode.tree import Encoded
from ddlp.sources.usercode.wire import NodeGone, NodeUnfit, WireNode, frames
from ddlp.sources.usercode.work import FAILED, GONE, MADE, Answer, Answers, Work, pickled
from ddlp.sources.workers.keyed_samples import KeyedBatch
from tests.ddlp.pools.user_code import Raises, make_loader


class OtherSide:
    """Answers in a thread, as an actor does."""

    def __init__(self) -> None:
        self.ours, theirs = socket.socketpair()
        self.wire = Connection(theirs.detach())
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        answers = Answers()
        while True:
            try:
                self.say(answers(self.wire.recv_bytes()))
            except EOFError:
                return

    def say(self, answer: Answer) -> None:
        for frame in frames(answer):
            self.wire.send_bytes(frame)


def test_a_node_answers_refuses_and_is_gone():
    side = OtherSide()
    node = WireNode(lambda: side.ours, "it has hung up")
    with pytest.raises(NodeUnfit, match="UnpicklingError"):
        node.begin(Work("bad", b"no pickle"))
    node.begin(pickled(make_loader(Raises(20, 0.0), None)))
    for task, index in ((7, 1), (8, 17)):
        node.submit(task, KeyedBatch([index], None, 3, 0))
    made, failed = node.result(), node.result()
    assert (made.task, made.kind, failed.task, failed.kind) == (7, MADE, 8, FAILED) and "record 17" in failed.text
    side.say(Answer(0, GONE, "Ray: the actor is dead", Encoded(b"", []), 0.0))
    with pytest.raises(NodeGone, match="Ray: the actor is dead"):
        node.result()
    node.close()
    side.thread.join(20)
    assert not side.thread.is_alive()  # it has seen the end


def test_closing_ends_a_call_that_waits_though_a_fork_has_the_socket_too():
    side = OtherSide()
    node = WireNode(lambda: side.ours, "it has hung up")
    node.begin(pickled(make_loader(Raises(20, 0.0), None)))
    held = side.ours.dup()  # as a fork would
    said: list[str] = []

    def wait() -> None:
        try:
            node.result()
        except NodeGone as gone:
            said.append(str(gone))

    waits = threading.Thread(target=wait, daemon=True)
    waits.start()
    node.close()
    waits.join(20)
    assert said == ["it has hung up"]
    held.close()
    with pytest.raises(NodeGone):
        WireNode(gone).begin(Work("any", b""))


def gone() -> socket.socket:
    raise NodeGone("it has ended")
