"""`UserCodeSource`: the lease source over a node that runs the user's code."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from ddlp.errors import DDLPError
from ddlp.process.pauses import next_pause_s
from ddlp.sources.base import Capacity, EpochSink, PreparedBatch
from ddlp.sources.engine.source import LOOK_S
from ddlp.sources.usercode.host import UserCodeHost
from ddlp.sources.usercode.nodes import Nodes
from ddlp.sources.usercode.tree import Encoded, NotATree, decode
from ddlp.sources.usercode.wire import NodeGone, NodeUnfit, WireNode
from ddlp.sources.usercode.work import MADE, NO_TREE

__all__ = ["UserCodeSource"]

MEMORY_BYTES = 512 << 20  # of this host, for a node's batches that training has not taken yet
FEWEST, MOST = 4, 256  # such batches
AHEAD = 2  # tasks that a node has at once, so that it need not wait for the next one


class UserCodeSource:
    """One node of a pool, in the epochs of a loader. It takes leases once it has made one of the host's samples.

    ``name``: the node's.
    """

    def __init__(self, name: str, nodes: Nodes) -> None:
        self.name, self._nodes = name, nodes

    def attach(self, sink: EpochSink) -> None:
        """Take part in an epoch. A node that is lost is started again, after a pause, and once it is in the pool."""
        host: Any = sink.resources.own_steps
        assert isinstance(host, UserCodeHost)
        pause_s = 0.0
        while True:
            while self._nodes.left(self.name):
                if sink.over_within(LOOK_S):
                    return
            began, node = time.monotonic(), None
            try:
                node = self._nodes.take(self.name)
                node.begin(host.work)
                capacity = self._proved(sink, host, node)
                leases = _Leases(self.name, self._nodes, node, sink, host)
                leases.start()
                sink.joined(self.name, leases, capacity)
                again = sink.lost_or_over(self.name)
                leases.stop()
                if not again:
                    return
            except NodeUnfit as unfit:
                if node is not None:
                    self._nodes.give_back(self.name, node)
                self._stay_out(sink, str(unfit))
                return
            except NodeGone as gone:
                if node is not None:
                    self._nodes.drop(node)
                sink.absent(self.name, gone, warned=not self._nodes.tell(self.name))
            pause_s = next_pause_s(pause_s, time.monotonic() - began)
            if sink.over_within(pause_s):
                return

    def _proved(self, sink: EpochSink, host: UserCodeHost, node: WireNode) -> Capacity:
        """Return what the node may hold, after it has made the same of one sample as the host. Raises NodeUnfit if not."""
        resources = sink.resources
        try:
            expected = host.expected(resources)
        except NotATree as error:
            raise NodeUnfit(f"your code's batches can't be sent: {error}") from None
        except Exception as error:  # training meets it too, unless the epoch is over
            raise NodeUnfit(f"the host can't make the first sample: {type(error).__name__}") from None
        if self._nodes.proved.get(node) != host.work.digest:
            node.submit(0, host.probe(resources))
            answer = node.result()
            if answer.kind != MADE:
                raise NodeUnfit(f"the epoch's first sample does not come from there, though from the host: {answer.text}")
            if not answer.batch.same_as(expected):
                raise NodeUnfit(
                    "it makes another batch of the epoch's first sample than the host. What your code gives depends on its "
                    "process or machine: a time, a host's name, a version, a global variable that the script has set"
                )
            self._nodes.proved[node] = host.work.digest
        room = MEMORY_BYTES // max(1, expected.nbytes * resources.plan.largest)
        return Capacity(batches=max(FEWEST, min(MOST, room)))

    def _stay_out(self, sink: EpochSink, why: str) -> None:
        if self._nodes.tell(why):
            sink.warn(f"{self.name} takes no part, the host prepares its batches: {why.rstrip('.')}.")
        sink.absent(self.name, DDLPError(why), warned=True)
        sink.remark(self.name, f"it takes no part: {why}")


class _Leases:
    """What a node holds of one epoch: an `AttachedSource`. A thread of its own gives it tasks and takes its answers."""

    def __init__(self, name: str, nodes: Nodes, node: WireNode, sink: EpochSink, host: UserCodeHost) -> None:
        self._name, self._nodes, self._node, self._sink, self._host = name, nodes, node, sink, host
        self.open = True
        self._asked: deque[tuple[int, int]] = deque()  # leases and positions that the node does not have yet
        self._changed = threading.Condition()
        self._made: dict[int, Encoded] = {}

    def start(self) -> None:
        """Begin to work."""
        threading.Thread(target=self._work, name=f"ddlp-{self._name}", daemon=True).start()

    def stop(self) -> None:
        """Take no more leases, and give the node back once it has finished its tasks. What is published can be fetched."""
        with self._changed:
            self.open = False
            self._changed.notify()
        self._nodes.ends_soon(self._name, self._node)

    def holds(self, lease: int) -> bool:
        """Return whether anything is kept for a lease."""
        return lease in self._made or any(lease == asked for asked, _ in self._asked)

    def lease(self, lease: int, position: int) -> None:
        """Have the node make a batch."""
        with self._changed:
            self._asked.append((lease, position))
            self._changed.notify()

    def release(self, lease: int) -> None:
        """Drop a batch, or forget its lease if the node does not have that yet."""
        with self._changed:
            self._asked = deque(asked for asked in self._asked if asked[0] != lease)
        self._made.pop(lease, None)

    def waiting(self, waiting: bool) -> None:
        """Do nothing: the node works for one epoch only."""

    def fetch(self, lease: int, position: int, handle: Any) -> PreparedBatch:
        """Return the batch. Raises DamagedTree if it is none."""
        return PreparedBatch.made_whole(decode(self._made[lease]))

    def close(self) -> None:
        """End the part in the epoch."""
        self.stop()
        self._made.clear()

    def _next(self, wait: bool) -> tuple[int, int] | None:
        with self._changed:
            while wait and self.open and not self._asked:
                self._changed.wait()
            return self._asked.popleft() if self.open and self._asked else None

    def _work(self) -> None:
        given: deque[int] = deque()
        try:
            while True:
                while len(given) < AHEAD and (asked := self._next(not given)) is not None:
                    lease, position = asked
                    self._node.submit(lease, self._host.task(self._sink.resources, position))
                    given.append(lease)
                if not given:
                    break
                self._take(given.popleft())
        except NodeGone as gone:
            self.open = False
            self._nodes.drop(self._node)
            self._sink.lost(self._name, str(gone))
        else:
            self._nodes.give_back(self._name, self._node)

    def _take(self, lease: int) -> None:
        answer = self._node.result()
        if answer.task != lease:
            raise NodeGone(f"its answer is damaged: task {answer.task} instead of {lease}")
        if not self.open:
            return
        if answer.kind == MADE:
            self._made[lease] = answer.batch
            self._sink.published(self._name, lease, None, answer.busy_s)
        else:
            why = f"your code's batch can't be sent: {answer.text}" if answer.kind == NO_TREE else answer.text
            self._sink.failed(self._name, lease, why, fatal=False, warned=not self._nodes.tell(why))
