"""What an epoch is, and the interfaces of sources: one prepares batches on this host, one takes leases and prepares elsewhere.

    HostSource    `prepare`, in threads of this process: `ddlp.sources.host.native`, `ddlp.sources.host.dali`
    LeaseSource   `attach` brings it into an epoch, which then gives it leases: `ddlp.sources.engine`, `ddlp.sources.usercode`

An epoch (`EpochSink`) decides which source makes which batch. In mid-epoch, a lease source may join late, may be lost, and may
come back: the epoch has the missing batches prepared elsewhere. If only the user's code can make the samples, torch's own
workers (`ddlp.sources.host.torch_workers`) prepare whole epochs, without any lease source, unless a pool runs user code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from csd_engine.data.base import Reader
from csd_engine.prepare.batch_maker import BatchMaker
from csd_engine.prepare.cached_batch import SampleCache
from ddlp.auto.measured import Transport
from ddlp.sampling.checkpoint import Resume
from ddlp.sampling.epoch_plan import EpochPlan
from ddlp.schedule.slots import FETCHERS
from ddlp.transfer.gpu_transfer import GpuTransfer
from ddlp.transfer.memory_pool import MemoryPool
from ddlp.transfer.prepared_batch import BatchState, PreparedBatch
from ddlp.translate.portable import Portable

__all__ = [
    "AttachedSource",
    "BatchState",
    "Capacity",
    "Epoch",
    "EpochSink",
    "HostSource",
    "LeaseSource",
    "PreparedBatch",
    "Resources",
    "StepRunner",
    "Unwanted",
    "is_lease_source",
]


@dataclass(frozen=True)
class Epoch:
    """What one epoch is: whose samples come, what is drawn for them, who makes them, and where they are delivered.

    It is made once, when the loader's base seed is drawn.

    Attributes:
        portable: the data set and the transform, in the form that both sides run.
        seed: of the draws within samples.
        number: with the seed, and a sample's index and occurrence, it gives the sample's draws.
        base_seed: the one that torch's DataLoader draws for its workers.
        resume: where the epoch goes on.
        batched: the sampler gives batches, which are collated; False: single samples.
        batch_size: of a full batch; 0: the sampler's batches differ.
        collate: joins a batch's targets.
        workers: the loader's ``num_workers``.
        prefetch_factor: batches that each of them prefetches.
        sources: the names of the sources that take leases.
        may_join: further ones may join while the epoch runs, see `EpochSink.expect`.
        rank_after_rank: a source that several ranks share works for the lowest rank that has leases.
        most_replaced: the share of the samples that may be replaced, if their images are bad; None: a bad image raises.
        target: where batches are delivered; None: as CPU tensors.
        pin: a kind of device, for which CPU tensors are copied to torch's page-locked memory; None: they are not.
        batch_transform: called with each finished batch.
    """

    portable: Portable
    seed: int
    number: int
    base_seed: int = 0
    resume: Resume = Resume()
    batched: bool = True
    batch_size: int = 0
    collate: Callable[[Any], Any] = torch.utils.data.default_collate
    workers: int = 0
    prefetch_factor: int = 2
    sources: tuple[str, ...] = ()
    may_join: bool = False
    rank_after_rank: bool = False
    most_replaced: float | None = None
    target: torch.device | None = None
    pin: str | None = None
    batch_transform: Callable[[Any], Any] | None = None

    @property
    def leases(self) -> bool:
        """Whether any source may take leases."""
        return self.may_join or bool(self.sources)

    @property
    def fetchers(self) -> int:
        """How many threads fetch devices' batches."""
        return FETCHERS if self.leases else 0

    @property
    def host_threads(self) -> int:
        """How many threads of this process make the host's batches: one prefetches without workers too."""
        return max(1, self.workers)


@dataclass(frozen=True)
class Resources:
    """What lives while an epoch runs: the batches to make, memory for them, and what reads, keeps and finishes samples.

    Attributes:
        epoch: what the epoch is.
        plan: its batches; it grows while a sampler of the user's own is read.
        reader: of the data set's samples.
        pool: the memory for batches.
        gpu_transfer: brings batches into an accelerator's memory, if they are delivered there.
        own_steps: runs the unknown steps of the transform; None: all steps are known.
        cache: has results of operators that do the same every time. The host uses and fills it. None: nothing is kept.
        error_of: returns the error that DataLoader gives for a request that `EpochPlan.wrong` returns.
    """

    epoch: Epoch
    plan: EpochPlan
    reader: Reader
    pool: MemoryPool
    gpu_transfer: GpuTransfer | None = None
    own_steps: StepRunner | None = None
    cache: SampleCache | None = None
    error_of: Callable[[Any], Exception] = IndexError

    @functools.cached_property
    def maker(self) -> BatchMaker:
        """Makes samples in this process, with the host's bits. It is made once an epoch, and takes a small batch's time."""
        portable = self.epoch.portable
        about = self.reader, portable.pipeline, portable.shape, portable.pipeline.boxes
        return BatchMaker(*about) if self.cache is None else self.cache.maker(*about)

    @property
    def device(self) -> torch.device | None:
        """Where batches are delivered. "cuda" without a number would mean another GPU after torch.cuda.set_device."""
        return self.epoch.target if self.gpu_transfer is None else self.gpu_transfer.stream.device

    @functools.cached_property
    def ends_on_cpu(self) -> bool:
        """Whether batches are finished in the CPU's memory, and the user's own steps do not follow."""
        target = self.epoch.target
        on_cpu = target is None or target.type == "cpu"
        return on_cpu and self.gpu_transfer is None and self.epoch.portable.rest is None

    def to_read(self, sources: np.ndarray) -> list[int]:
        """Return those of these samples, int64 (n,), that a slow storage must bring: the others are kept in the cache."""
        sources = sources[sources >= 0]
        return (sources if self.cache is None else self.cache.missing(self.reader, sources)).tolist()


class StepRunner(Protocol):
    """Runs the user's own steps after the known operators, and the collate_fn: see `ddlp.sources.host.own_steps`."""

    def finish(self, resources: Resources, position: int, batch: PreparedBatch) -> PreparedBatch:
        """Make a batch of bytes ready for the training thread. Any thread that has prepared or fetched one calls this.

        If a sample fails, the batch fails: `BatchState.FAILED`.
        """

    def whole(self, resources: Resources, position: int, batch: PreparedBatch) -> Any:
        """Return what the training loop gets for a batch from `finish`. The training thread calls this."""

    def close(self) -> None:
        """End the steps. Batches in work are dropped."""


class Unwanted(Exception):
    """The other side's copy was first, so the rest of this one need not be made."""


class HostSource(Protocol):
    """Prepares batches in the threads that call it."""

    def begin(self, sink: EpochSink) -> None:
        """Get ready: the epoch is about to ask for batches. ``sink`` takes warnings and remarks."""

    def prepare(self, position: int, wanted: Callable[[], bool]) -> PreparedBatch:
        """Make the batch at this position, as bytes or, if `Resources.ends_on_cpu`, as the epilogue's result. Any thread may.

        Args:
            position: the batch's position in the epoch's plan.
            wanted: called between samples; False: the batch is not wanted any more.

        Raises:
            Unwanted: if ``wanted`` returned False.
            Exception: if a sample can't be prepared: the sample's own kind of error (OSError, ...), with its file's name.
        """

    def close(self) -> None:
        """End: nobody asks for batches any more."""


@dataclass(frozen=True)
class Capacity:
    """How much a source can hold and do.

    Attributes:
        batches: published and not released at most.
        workers: that work at once.
        ahead: leases that wait there beside those at work, so that no worker waits for this host.
        transport: how its batches come: by a file system that this host sees, or over a socket.
        node: the computer that an engine of a pool runs on, for people; empty: it is no pool's.
        carried: this host sends it the samples' bytes.
    """

    batches: int
    workers: int = 1
    transport: Transport = "stream"
    node: str = ""
    carried: bool = False
    ahead: int = 1


class AttachedSource(Protocol):
    """A lease source that takes part in an epoch. Only `fetch` may block.

    `lease`, `release` and `waiting` are called under the epoch's lock. So a source with a lock of its own must not
    hold it while it calls the sink.
    """

    @property
    def open(self) -> bool:
        """False once the source was lost, or after `close`."""

    def lease(self, lease: int, position: int) -> None:
        """Prepare the batch at this position, and tell the sink: `EpochSink.published` or `EpochSink.failed`."""

    def release(self, lease: int) -> None:
        """Stop working on this lease, or free the place of its published batch: it is not needed any more.

        This may be called while the batch is fetched, if the host's copy was first. A batch that is published after its lease
        was released, or after a loss, is released again. The source that has joined last gets that call.
        """

    def waiting(self, waiting: bool) -> None:
        """Note that training waits for a batch, or that it does not wait any more."""

    def fetch(self, lease: int, position: int, handle: Any) -> PreparedBatch:
        """Return the published batch, verified, in this process's memory. Several threads may call this at once.

        Args:
            lease: the lease under which it was made.
            position: the batch's position in the epoch's plan.
            handle: the object that the source gave to `EpochSink.published`.

        Raises:
            Exception: if the batch is missing or damaged. The host prepares it then.
        """

    def close(self) -> None:
        """End the source's part. A running `fetch` need not finish its batch."""


class EpochSink(Protocol):
    """The epoch, as its lease sources see it. Any thread may call the methods. ``name`` is the source's name."""

    resources: Resources

    def expect(self, name: str) -> None:
        """Note that a source is about to join which the epoch did not know when it began, for example one of a pool."""

    def joined(self, name: str, source: AttachedSource, capacity: Capacity) -> None:
        """Give the source leases from now on. The epoch will close it."""

    def published(self, name: str, lease: int, handle: Any, busy_s: float) -> None:
        """Note that the batch of this lease is ready, and not yet verified. ``busy_s``: a worker's seconds on it.

        The source answers each lease once: by this, or by `failed`.
        """

    def failed(self, name: str, lease: int, reason: str, *, fatal: bool, warned: bool) -> None:
        """Note that the source can't make the batch of a lease. ``fatal``: nor any other. ``warned``: the user knows why."""

    def progressed(self, name: str, done: dict[int, int]) -> None:
        """Note how many samples are made of each lease that a worker works on."""

    def measured(self, name: str, batches: Iterable[tuple[int, float]]) -> None:
        """Note (samples, busy seconds) of batches that the source has made for other ranks."""

    def shared(self, name: str, ranks: int) -> None:
        """Note that ``ranks`` ranks share the source."""

    def retires(self, name: str, reason: str, begun: Collection[int] | None = None) -> None:
        """Note that the source is about to end: it finishes what it has, and gets no more leases. It may join again.

        ``begun``: the leases that it finishes, since it will not begin its others; None: it finishes all. Once nothing of it is
        left to make or to fetch, it counts as lost, without a warning.
        """

    def lost(self, name: str, reason: str, error: BaseException | None = None, warned: bool = False) -> None:
        """Note that the source is gone. ``error`` ends the training. ``warned``: the user knows of the loss."""

    def absent(self, name: str, error: Exception, warned: bool) -> bool:
        """Note that a source does not start that this process starts by itself.

        Warns of it unless it was ``warned`` before, and returns whether it is told now. It ends the training if nobody else may
        prepare a batch.
        """

    def note(self, name: str, text: str) -> None:
        """Set the report's note of what the source says about itself (its spool is full, ...). "" removes the note."""

    def remark(self, name: str, text: str, about: str = "") -> None:
        """Add a remark about the source to the report. It replaces an earlier remark ``about`` the same subject."""

    def warn(self, text: str) -> None:
        """Warn the user, once, from the training thread."""

    def for_host(self, most: int) -> list[int]:
        """Return the positions that the host makes next unless something changes, those in work first: at most ``most``."""

    def lost_or_over(self, name: str) -> bool:
        """Wait until the source is lost, or the epoch is over for it. True if it was lost and may come back."""

    def over_within(self, seconds: float) -> bool:
        """Wait for ``seconds``, but not beyond the epoch's end. True if the epoch is over."""


class LeaseSource(Protocol):
    """A source that prepares batches elsewhere. It lives as long as its loader."""

    @property
    def name(self) -> str:
        """Its name, for messages and the report. No other source of the loader has the same name."""

    def attach(self, sink: EpochSink) -> None:
        """Take part in an epoch until it is over: call ``sink.joined``, and call it again after a loss.

        It runs in a thread of its own, so it may block. It returns once ``sink.over_within(0)`` is true. An error that it
        raises ends the training. Several epochs of one loader may run at once.
        """


def is_lease_source(thing: Any) -> bool:
    """True for an object that a loader can attach to its epochs."""
    return isinstance(getattr(thing, "name", None), str) and callable(getattr(thing, "attach", None))
