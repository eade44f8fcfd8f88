"""`Executor`: a node that runs the user's code, a process or an actor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ddlp.sources.usercode.work import Answer, Work
from ddlp.sources.workers.keyed_samples import KeyedBatch

__all__ = ["Executor", "NodeGone", "NodeUnfit", "Starter"]


class NodeGone(Exception):
    """The node does not start, has ended, or says what can't be understood. The text says why."""


class NodeUnfit(Exception):
    """The node can't make the host's samples. The text says why."""


class Executor(Protocol):
    """One node. One thread calls the methods; only `close` may come from another one, and it ends a call that blocks."""

    def begin(self, work: Work) -> None:
        """Make the node ready for tasks of this work. It blocks. No task is under way then.

        Raises:
            NodeGone: the node does not start.
            NodeUnfit: it can't load the work, for example since a module is not installed there.
        """

    def submit(self, task: int, batch: KeyedBatch) -> None:
        """Give the node a task. It makes tasks one after another.

        Raises:
            NodeGone: the node has ended.
        """

    def result(self) -> Answer:
        """Wait for the answer to the oldest task that is not answered.

        Raises:
            NodeGone: the node has ended, or its answer is damaged.
        """

    def close(self) -> None:
        """End the node. May be called twice."""


Starter = Callable[[], Executor]
"""Makes an executor, whose node starts with `Executor.begin`."""
