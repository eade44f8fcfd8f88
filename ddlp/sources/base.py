"""What a source of batches is: one that prepares on this host, and one that takes leases and prepares elsewhere.

    HostSource    `prepare`, in threads of this process: `ddlp.sources.host.native`, `ddlp.sources.host.dali`
    LeaseSource   `attach` brings it into an epoch, which then gives it leases: `ddlp.sources.engine`

An epoch (`EpochSink`) decides which source makes which batch. A lease source may be slow to come, may be lost, and may come
back, all in mid-epoch: the epoch prepares elsewhere what it does not get. torch's own workers
(`ddlp.sources.host.torch_workers`) prepare whole epochs whose samples only the user's code can make; no epoch shares them with
a lease source.
"""

from __future__ import annotations

import enum
import functools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from PIL import Image

from csd_engine.data.base import Reader
from csd_engine.prepare.batch_maker import BatchMaker
from csd_engine.transforms import Pipeline
from ddlp.sampling.epoch_plan import EpochPlan
from ddlp.transfer.device_stream import StreamEvent
from ddlp.transfer.epilogue import Epilogue
from ddlp.transfer.gpu_transfer import GpuTransfer
from ddlp.transfer.memory_pool import MemoryPool
from ddlp.translate.datasets import PortableSet

__all__ = [
    "AttachedSource",
    "BatchState",
    "Capacity",
    "EpochSink",
    "EpochSpec",
    "HostSource",
    "LeaseSource",
    "PreparedBatch",
    "Unwanted",
    "is_lease_source",
]


@dataclass(frozen=True)
class EpochSpec:
    """All that a sample of this epoch depends on, and the batches to make of them."""

    dataset: PortableSet
    reader: Reader
    pipeline: Pipeline
    epilogue: Epilogue
    shape: tuple[int, int, int]  # (height, width, channels)
    seed: int
    epoch: int
    plan: EpochPlan
    pool: MemoryPool  # of batches' memory
    gpu_transfer: GpuTransfer | None = None  # brings batches into an accelerator's memory, where they are meant for one
    rank_after_rank: bool = False  # a source that several ranks share works for the lowest rank that has leases

    @functools.cached_property
    def maker(self) -> BatchMaker:
        """What makes the batches' samples."""
        return BatchMaker(self.reader, self.pipeline, self.shape, self.pipeline.boxes)

    def get_ready(self) -> None:
        """Have done what the first batch does once a process, imports above all: called before there is any other thread.

        Where a thread imports while this process is forked (a DataLoader starts its workers), the child waits for ever for that
        module's lock; and so it is with the locks of cached properties before Python 3.12.
        """
        Image.preinit()  # the common formats
        first = self.reader.paths([0]) if len(self.reader) else None
        if first is not None and os.path.splitext(first[0])[1].lower() not in Image.EXTENSION:
            Image.init()  # all that Pillow knows
        _ = self.maker  # and with it the kernel


class BatchState(enum.Enum):
    """What a `PreparedBatch` holds."""

    BYTES = "bytes"  # uint8 samples as both sides make them: the epilogue is still to come
    TENSORS = "tensors"  # what the epilogue made of them, in the memory of this host
    ON_DEVICE = "on device"  # the same in the memory of an accelerator
    FAILED = "failed"  # a sample could not be prepared


@dataclass(frozen=True)
class PreparedBatch:
    """A batch that is ready for the training thread.

    Attributes:
        images: (batch, height, width, channels) uint8 while it is `BatchState.BYTES`; then (batch, channels, height, width)
            in the epilogue's dtype. Empty where it failed.
        boxes: int32 (batch, masks, 4), which the epilogue fills; None: there are none, or it has.
        event: `BatchState.ON_DEVICE`: the images may be used after it.
        error: `BatchState.FAILED`: raised in the batch's place.
    """

    images: torch.Tensor
    boxes: torch.Tensor | None = None
    state: BatchState = BatchState.BYTES
    event: StreamEvent | None = None
    error: BaseException | None = None

    @classmethod
    def failed(cls, error: BaseException) -> PreparedBatch:
        """What stands in the place of a batch whose sample can't be prepared."""
        return cls(torch.empty(0), None, BatchState.FAILED, error=error)


class Unwanted(Exception):
    """The other side's copy was first. What is left of this one is not worth making."""


class HostSource(Protocol):
    """Prepares batches in the threads that ask it."""

    def begin(self, sink: EpochSink) -> None:
        """The epoch is about to ask for batches. The sink takes warnings and remarks."""

    def prepare(self, position: int, wanted: Callable[[], bool], finished: bool) -> PreparedBatch:
        """Make the batch at this position. Any number of threads may ask at once.

        Args:
            position: of the epoch's plan.
            wanted: is asked between samples.
            finished: give it as the epilogue makes it on the CPU, instead of bytes.

        Raises:
            Unwanted: ``wanted`` said no.
            Exception: the sample's own kind of error (OSError, ...), with its file's name, where one can't be prepared.
        """

    def close(self) -> None:
        """Nobody asks for batches any more."""


@dataclass(frozen=True)
class Capacity:
    """What a source can hold and do: batches published and not released, and workers at work at once."""

    batches: int
    workers: int = 1


class AttachedSource(Protocol):
    """A lease source that takes part in an epoch. None of these but `fetch` may block.

    `lease`, `cancel`, `release` and `waiting` are called under the epoch's lock: a source with a lock of its own must not hold
    it while it calls the sink.
    """

    @property
    def open(self) -> bool:
        """False once the source was lost, or after `close`."""

    def lease(self, lease: int, position: int) -> None:
        """Prepare the batch at this position, and tell the sink: `EpochSink.published` or `EpochSink.failed`."""

    def cancel(self, lease: int) -> None:
        """Stop working on this lease: nothing of it is wanted any more."""

    def release(self, lease: int) -> None:
        """The published batch of this lease is not needed any more: its place is free.

        It may come while the batch is fetched, where the host's copy was first. What is published after its lease was
        cancelled, or after a loss, is released as well: by the source that has joined last.
        """

    def waiting(self, waiting: bool) -> None:
        """Training waits for a batch (or does not any more)."""

    def fetch(self, lease: int, position: int, handle: Any) -> PreparedBatch:
        """The published batch, verified, in this process's memory. Called by several threads at once.

        Args:
            lease: under which it was made.
            position: of the epoch's plan.
            handle: what the source gave to `EpochSink.published`.

        Raises:
            Exception: it is not there, or not what it must be; the host prepares the batch then.
        """

    def close(self) -> None:
        """Nothing more is wanted. A `fetch` under way need not end."""


class EpochSink(Protocol):
    """What an epoch is to its lease sources. All methods may be called from any thread; ``name`` is the source's."""

    spec: EpochSpec

    def joined(self, name: str, source: AttachedSource, capacity: Capacity) -> None:
        """The source may be given leases from now on. It is the epoch's to close."""

    def published(self, name: str, lease: int, handle: Any, busy_s: float) -> None:
        """The batch of this lease is there, not yet verified; ``busy_s``: a worker's seconds on it.

        Each lease is answered once: by this, or by `failed`.
        """

    def failed(self, name: str, lease: int, reason: str, *, fatal: bool, told: bool) -> None:
        """The lease came to nothing. ``fatal``: all others would. ``told``: the user knows this reason."""

    def progressed(self, name: str, done: dict[int, int]) -> None:
        """Samples made of each lease that a worker is at."""

    def measured(self, name: str, batches: Iterable[tuple[int, float]]) -> None:
        """(samples, busy seconds) of batches that the source has made for other ranks."""

    def shared(self, name: str, ranks: int) -> None:
        """So many ranks share the source."""

    def lost(self, name: str, reason: str, error: BaseException | None = None, told: bool = False) -> None:
        """The source is gone. ``error`` ends the training; ``told``: the user knows it."""

    def absent(self, name: str, error: Exception, told: bool) -> bool:
        """A source that this process starts by itself does not start.

        Warns of it unless it was ``told`` before, and returns whether it is told now. It ends the training where nobody else
        may prepare a batch.
        """

    def note(self, name: str, text: str) -> None:
        """What the source says of itself (its spool is full, ...), in the report; "" takes it back."""

    def remark(self, name: str, text: str, about: str = "") -> None:
        """What the report says about the source, in place of an earlier remark ``about`` the same."""

    def warn(self, text: str) -> None:
        """Warn the user, once, from the training thread."""

    def lost_or_over(self, name: str) -> bool:
        """Wait until the source is lost, or the epoch is over for it. True where it was lost and may come back."""

    def over_within(self, seconds: float) -> bool:
        """Wait, but not longer than the epoch. True where it is over."""


class LeaseSource(Protocol):
    """A source that prepares elsewhere, for as long as its loader lives."""

    @property
    def name(self) -> str:
        """For messages and the report; no other source of the loader has it."""

    def attach(self, sink: EpochSink) -> None:
        """Take part in an epoch until it is over: call ``sink.joined``, and again after a loss.

        Runs in a thread of its own, so it may block. It returns once ``sink.over_within(0)`` is true. What it raises ends the
        training. Epochs of one loader may be under way at once.
        """


def is_lease_source(thing: Any) -> bool:
    """True for what a loader can attach to its epochs."""
    return isinstance(getattr(thing, "name", None), str) and callable(getattr(thing, "attach", None))
