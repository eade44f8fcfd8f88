"""The training loop without loading: one real batch, given again and again, so that a step's own speed can be measured.

FastFlow calls the rate that comes of it Gthp (Um et al., PVLDB 16(5), 2023). The batch is made aside, by a copy of the loader
with a generator of its own. No epoch lacks it, and no later epoch draws other numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ddlp.errors import DDLPError
from ddlp.sampling.keyed_generators import put_back, states
from ddlp.stats.live import Life
from ddlp.stats.waiting import Ceiling
from ddlp.transfer.to_device import each_tensor

__all__ = ["WARM_UP", "replay", "replayed"]

WARM_UP = 5  # steps in which memory is taken and kernels are chosen


def replay(aside: Any, steps: int, batch_transform: Callable[[Any], Any] | None, life: Life) -> Iterator[Any]:
    """Do what `DDLPLoader.replay` says. ``aside``: a copy of the loader, which gives the batch."""
    if steps < 2 * WARM_UP:
        raise ValueError(f"replay: steps={steps!r}; give at least {2 * WARM_UP}. The first {WARM_UP} are not measured")
    return replayed(_one_batch(aside), steps, batch_transform, life, _drain)


def replayed(
    batch: Any,
    steps: int,
    batch_transform: Callable[[Any], Any] | None,
    life: Life,
    drain: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Any]:
    """Yield the batch so many times, then put the ceiling into ``life``.

    The window goes from the first request after `WARM_UP` steps to the request after the last one. ``drain`` waits for an
    accelerator's work: at both ends of the window, since work from before must not count, and at no other time.
    """
    put_back, repeated, began_s = _generators(), _RepeatedBatch(batch), 0.0
    del batch
    for step in range(steps):
        if step == WARM_UP:
            drain()
            began_s = clock()
        batch = repeated.again()
        batch = batch if batch_transform is None else batch_transform(batch)
        yield batch
        del batch  # else two results of the batch_transform would be in memory
    drain()
    measured = steps - WARM_UP
    life.ceiling = Ceiling((clock() - began_s) / measured, measured)
    put_back()


class _RepeatedBatch:
    """A batch that is given again and again. If the loop changes its tensors in place, a fresh copy of them comes next."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self._copy: Any = None
        self._tensors: list[Tensor] = []  # of the copy that is given
        self._versions: list[int] = []

    def again(self) -> Any:
        """Return the batch in new containers, since a loop may take parts out of them, and as tensors without gradients."""
        if not self._tensors or self._versions != self._now():
            self._tensors.clear()
            self._copy = None  # its memory is free before the copy is made
            self._copy = each_tensor(self._batch, self._copied)
            self._versions = self._now()
        return each_tensor(self._copy, Tensor.detach)  # shares memory, and the version

    def _copied(self, tensor: Tensor) -> Tensor:
        copied, plain = tensor.detach().clone(), tensor.device.type == "cpu" and tensor.layout is torch.strided
        self._tensors.append(copied.pin_memory() if plain and tensor.is_pinned() else copied)
        return self._tensors[-1]

    def _now(self) -> list[int]:
        """The versions of the tensors: torch counts the changes in place. It does not for those made in inference_mode."""
        return [0 if tensor.is_inference() else tensor._version for tensor in self._tensors]


def _one_batch(aside: Any) -> Any:
    """Return a batch as an epoch would deliver it, but for the batch_transform."""
    iterator = iter(aside)
    try:
        for batch in iterator:
            return batch
    finally:
        getattr(iterator, "_shutdown_workers", lambda: None)()  # torch's iterator without workers has none to end
    raise DDLPError("replay: the loader's epoch has no batch that could be kept. Look at len(loader) and its sampler")


def _generators() -> Callable[[], None]:
    """Return a function that puts the global generators back into the states that they have now."""
    before = states()
    on_gpu = torch.cuda.get_rng_state() if _uses_gpu() else None  # of this rank's GPU; others' are left alone

    def back() -> None:
        put_back(before)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu)

    return back


def _uses_gpu() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _drain() -> None:
    """Wait until the GPU has done all its work, if this process uses one."""
    if _uses_gpu():
        torch.cuda.synchronize()
