"""Evaluation beside training: a thread evaluates a copy of the model while training goes on.

The thread takes what training leaves: its loader's workers have a lower priority, and a GPU runs its kernels on a stream of
their own. i.data interleaves training and evaluation in the same way, in its data service.
"""

from __future__ import annotations

import contextlib
import copy
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from ddlp.errors import DDLPError
from ddlp.loader import DDLPLoader
from ddlp.process.finalizers import when_dropped

__all__ = ["Evaluated", "Evaluation"]

Result = TypeVar("Result")

_AVERAGED = ("ModelEma", "ModelEmaV2", "ModelEmaV3")  # timm's, which need not be imported for this


class Evaluated(NamedTuple, Generic[Result]):
    """What one evaluation gave.

    Attributes:
        epoch: the number that `Evaluation.start` was given.
        result: what ``evaluate`` returned.
        seconds: how long it took.
    """

    epoch: int
    result: Result
    seconds: float


class Evaluation(Generic[Result]):
    """Evaluates a copy of the model while training goes on.

    ::

        def evaluate(model, loader):
            return sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)

        with ddlp.Evaluation(model, val_loader, evaluate) as side:
            for epoch in range(epochs):
                train_one_epoch(model, train_loader)
                side.start(epoch)                      # copies the weights, and returns
                for one in side.done():
                    print(one.epoch, one.result)
            for one in side.finish():                  # waits for the last one
                print(one.epoch, one.result)

    ``evaluate`` gets the copy in evaluation mode, and runs in a thread of its own, in inference mode. torch keeps autocast and
    other modes for each thread, so they must be entered inside it. One evaluation runs at a time. The results are those of an
    evaluation between two epochs: the copy has the weights and buffers of the moment of `start`.

    Args:
        model: the module to evaluate: the bare one, or one in DistributedDataParallel, DataParallel, torch.compile or
            AveragedModel (the average is evaluated). Each rank evaluates by itself, without collectives.
        loader: gives the batches. If it has no generator it gets one, so that it draws no number from training's.
        evaluate: is called as ``evaluate(copy, loader)``. It should draw no random numbers: torch has one generator for all
            threads.
        niceness: by how much lower the priority of the thread, of its loader's threads and of its worker processes is, 0 to 19.
            Only on Linux.

    Raises:
        ValueError: ``model`` is sharded over ranks (FSDP), so no rank has all of its weights; or ``loader`` would change the
            numbers that training draws, since it runs the data set's own code in this process; or ``niceness`` is not allowed.
    """

    def __init__(
        self, model: nn.Module, loader: Any, evaluate: Callable[[nn.Module, Any], Result], *, niceness: int = 10
    ) -> None:
        if not 0 <= niceness <= 19:
            raise ValueError(f"niceness={niceness!r}: a number from 0 to 19")
        if isinstance(loader, DDLPLoader) and loader.runs_own_code_here():
            raise ValueError(
                "the evaluation's loader runs the data set's own code in this process, and there it seeds the generators from "
                "which training draws: give it num_workers=1 or more"
            )
        self._model = _bare(model)
        self._copy: nn.Module | None = None
        _give_generators(loader)
        self._shared: _Shared[Result] = _Shared(loader, evaluate, niceness)
        self._finalizer = when_dropped(self, self._shared.end)

    def start(self, epoch: int) -> None:
        """Copy the model's weights and buffers, and begin to evaluate the copy. Returns at once, unless one is running.

        If one is running it waits for its end.

        Args:
            epoch: a number by which the result is told from others.

        Raises:
            DDLPError: an evaluation before failed; the cause is chained. Or the model can't be copied.
            RuntimeError: this `Evaluation` is closed.
        """
        if self._shared.ended.is_set():
            raise RuntimeError("this Evaluation is closed")
        self._wait()
        self._raise_failure()
        self._copy = _copied(self._model, self._copy)
        self._shared.idle.clear()
        self._shared.orders.put(_Order(epoch, self._copy, _moment(self._copy)))
        self._shared.begin()

    def done(self) -> list[Evaluated[Result]]:
        """Return the results that have come since the last call, the oldest first. Waits for nothing.

        Raises:
            DDLPError: an evaluation failed; the cause is chained. Each failure is raised once.
        """
        self._raise_failure()
        return self._shared.take()

    def finish(self) -> list[Evaluated[Result]]:
        """Wait for the running evaluation, and return the results that have come since the last call.

        Raises:
            DDLPError: an evaluation failed; the cause is chained. Each failure is raised once.
        """
        self._wait()
        return self.done()

    def close(self) -> None:
        """End the thread. A running evaluation ends with its current batch, and its result is lost."""
        self._finalizer.detach()
        self._shared.end()

    def __enter__(self) -> Evaluation[Result]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _wait(self) -> None:
        while not (self._shared.idle.wait(0.2) or self._shared.ended.is_set()):  # in turns: Ctrl-C is heard on every system
            pass

    def _raise_failure(self) -> None:
        failure, self._shared.failure = self._shared.failure, None
        if failure is not None:
            epoch, error = failure
            raise DDLPError(f"the evaluation of epoch {epoch} failed: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class _Order:
    """What the thread is to evaluate. ``copied`` is the moment in the GPU's work from which on the copy is whole."""

    epoch: int
    model: nn.Module
    copied: torch.cuda.Event | None


class _Stopped(BaseException):
    """Ends an evaluation between two batches."""


class _Interruptible:
    """The loader, as ``evaluate`` sees it: iterating ends when the evaluation is to end."""

    def __init__(self, loader: Any, ended: threading.Event) -> None:
        self._loader, self._ended = loader, ended

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            if self._ended.is_set():
                raise _Stopped
            yield batch

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


@dataclass
class _Shared(Generic[Result]):
    """What both threads use. The thread does not hold the `Evaluation`, so that one that is dropped can end it.

    Attributes:
        idle: no evaluation runs or is to run.
    """

    loader: Any
    evaluate: Callable[[nn.Module, Any], Result]
    niceness: int
    orders: queue.SimpleQueue[_Order | None] = field(default_factory=queue.SimpleQueue)
    results: queue.SimpleQueue[Evaluated[Result]] = field(default_factory=queue.SimpleQueue)
    failure: tuple[int, BaseException] | None = None
    idle: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self.idle.set()

    def begin(self) -> None:
        """Start the thread, if there is none."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, name="ddlp-evaluation", daemon=True)
            self.thread.start()

    def end(self) -> None:
        """Tell the thread to end, and wait for it."""
        self.ended.set()
        self.orders.put(None)
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join()

    def take(self) -> list[Evaluated[Result]]:
        return [self.results.get() for _ in range(self.results.qsize())]  # one thread takes, so none of them is missing

    def _work(self) -> None:
        if sys.platform == "linux":  # there a thread has a priority, which those that it starts inherit
            os.setpriority(os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + self.niceness))
        while (order := self.orders.get()) is not None and not self.ended.is_set():
            try:
                began = time.monotonic()
                result = self._evaluate(order)
                self.results.put(Evaluated(order.epoch, result, time.monotonic() - began))
            except _Stopped:
                return
            except BaseException as error:  # also sys.exit() in ``evaluate``: the thread goes on, since another order may come
                self.failure = order.epoch, error
            finally:
                self.idle.set()

    def _evaluate(self, order: _Order) -> Result:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if order.copied is not None:
                stream = torch.cuda.Stream(_device(order.model), priority=0)  # the lowest that CUDA has, and the usual one
                stack.enter_context(torch.cuda.stream(stream))
                stack.callback(stream.synchronize)  # the next `start` writes over the copy
                stream.wait_event(order.copied)
            return self.evaluate(order.model, _Interruptible(self.loader, self.ended))


# -- the copy ------------------------------------------------------------------------------------------------------------


def _bare(model: nn.Module) -> nn.Module:
    """The module without what torch and timm put around one. Raises ValueError if it is sharded."""
    inner: Any = model
    while inner is not None:  # torch.compile's module has the other one as _orig_mod
        around = isinstance(model, (DistributedDataParallel, DataParallel, AveragedModel)) or type(model).__name__ in _AVERAGED
        inner = model.module if around else getattr(model, "_orig_mod", None)
        model = model if inner is None else inner
    sharded = [type(module).__name__ for module in model.modules() if type(module).__name__ == "FullyShardedDataParallel"]
    if sharded or any(type(parameter).__name__ == "DTensor" for parameter in model.parameters()):
        raise ValueError(
            "the model is sharded over ranks (FSDP), and Evaluation copies whole weights: evaluate it between two epochs, on "
            "all ranks"
        )
    return model


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@torch.no_grad()
def _copied(model: nn.Module, before: nn.Module | None) -> nn.Module:
    """A copy with the model's weights and buffers as they are: ``before``, if its tensors are alike."""
    ours = _tensors(model)
    theirs = {} if before is None else _tensors(before)
    if before is None or {name: (tensor.shape, tensor.dtype, tensor.device) for name, tensor in ours.items()} != {
        name: (tensor.shape, tensor.dtype, tensor.device) for name, tensor in theirs.items()
    }:
        try:
            return copy.deepcopy(model).requires_grad_(False).eval()
        except Exception as error:
            raise DDLPError(f"the model can't be copied to be evaluated: {type(error).__name__}: {error}") from error
    for name, tensor in theirs.items():
        tensor.copy_(ours[name])
    return before


def _device(model: nn.Module) -> torch.device | None:
    """The GPU that has the model; None if none does."""
    return next((tensor.device for tensor in _tensors(model).values() if tensor.is_cuda), None)


def _moment(model: nn.Module) -> torch.cuda.Event | None:
    """This moment in the work of the model's GPU."""
    device = _device(model)
    return None if device is None else torch.cuda.current_stream(device).record_event()


def _give_generators(loader: Any) -> None:
    """Give a generator to a loader and its sampler that have none, and would draw from torch's: so does training."""
    batches = getattr(loader, "batch_sampler", None)
    drawing: list[Any] = [loader, getattr(loader, "sampler", None), getattr(batches, "sampler", None)]
    for part in drawing:
        if getattr(part, "generator", loader) is None:
            part.generator = torch.Generator()
