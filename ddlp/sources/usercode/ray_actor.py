"""`RayNode`: an executor whose node is an actor of Ray.

The actor's Python needs ddlp, torch and what the user's code imports. Ray carries the user's code, the tasks and the answers by
its own pickles: whoever may join a Ray cluster may run code in it, and in the script that uses it.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import numpy as np
import torch

from ddlp.errors import DDLPError
from ddlp.sources.host.keyed_samples import KeyedBatch
from ddlp.sources.usercode.executor import NodeGone, NodeUnfit
from ddlp.sources.usercode.tree import Encoded
from ddlp.sources.usercode.work import Answer, Maker, Work

__all__ = ["RayNode"]


class _Actor:
    """What runs in the actor's process."""

    def begin(self, content: bytes) -> str:
        """Load the work. Returns why that is not possible; "" if it is."""
        try:
            self._maker = Maker(content)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def make(self, task: int, indices: Any, items: Any, seed: int, epoch: int) -> tuple[Any, ...]:
        """Return the fields of an answer, with arrays in the place of tensors: Ray passes arrays on without a copy."""
        made = self._maker.make(task, KeyedBatch(indices, items, seed, epoch))
        return made.kind, made.text, made.busy_s, made.batch.header, [buffer.numpy() for buffer in made.batch.buffers]


class RayNode:
    """An actor as a node. It ends with the script that has started it, as all actors do.

    Args:
        options: of the actor, as ``ray.remote`` takes them: ``num_cpus``, ``resources``, ``runtime_env``, ...

    Raises:
        DDLPError: ray is not installed, or no cluster is connected.
    """

    def __init__(self, **options: Any) -> None:
        try:
            import ray
        except ImportError:
            raise DDLPError('ray is not installed; pip install "ddlp[ray]"') from None
        if not ray.is_initialized():
            raise DDLPError("no Ray cluster is connected; call ray.init() first")
        self._ray: Any = ray
        # It is never restarted by Ray: a new actor would not have the work.
        self._options = {"num_cpus": 1, **options, "max_restarts": 0, "max_task_retries": 0}
        self._actor: Any = None
        self._has = ""  # the digest of the work that it has
        self._asked: deque[tuple[int, Any]] = deque()

    def begin(self, work: Work) -> None:
        """Start the actor, if need be, and send it the work. This waits until the cluster has room for the actor."""
        if self._actor is None:
            self._actor = self._ray.remote(**self._options)(_Actor).remote()
        if self._has != work.digest:
            why = self._get(self._actor.begin.remote(self._ray.put(work.content)))
            if why:
                raise NodeUnfit(f"it can't load the data set: {why}")
            self._has = work.digest

    def submit(self, task: int, batch: KeyedBatch) -> None:
        """Give the actor a task."""
        self._asked.append((task, self._actor.make.remote(task, *batch)))

    def result(self) -> Answer:
        """Wait for the next answer."""
        task, asked = self._asked.popleft()
        said = self._get(asked)
        try:
            kind, text, busy_s, header, arrays = said
            # The arrays lie in Ray's memory, which nobody may write to.
            buffers = [torch.from_numpy(np.array(array, dtype=np.uint8)) for array in arrays]
            if not (type(kind) is type(text) is str and type(busy_s) is float and type(header) is bytes):
                raise TypeError("fields of other types")
        except (TypeError, ValueError) as error:
            raise NodeGone(f"its answer is damaged: {error}") from None
        return Answer(task, kind, text, Encoded(header, buffers), busy_s)

    def close(self) -> None:
        """End the actor."""
        if self._actor is not None and self._ray.is_initialized():
            with contextlib.suppress(Exception):  # it may be dead, or the cluster
                self._ray.kill(self._actor)

    def _get(self, asked: Any) -> Any:
        try:
            return self._ray.get(asked)
        except self._ray.exceptions.RayError as error:
            raise NodeGone(f"Ray: {' '.join(str(error).split())[:300]}") from None
        except Exception as error:  # Ray is shut down, for example
            raise NodeGone(f"Ray: {type(error).__name__}: {error}"[:300]) from None
