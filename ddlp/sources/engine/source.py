"""A device's engine as a source of batches: takes an epoch's leases to it, and brings the batches back.

`EngineSource.attach` connects, describes the job, and compares a few samples' bits with the host's own. Only then may the epoch
give leases. The host works from the first moment, so a device that comes late costs nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import ImageFile

from csd_engine.batchfile import reader as batchfile
from csd_engine.batchfile.reader import Layout
from csd_engine.data.base import Dataset, fingerprint
from csd_engine.errors import DamagedBatch, EngineError, EngineGone, EngineRefused, SampleError, WrongPixels
from csd_engine.machine.versions import versions as own_versions
from csd_engine.prepare.operator_file import OperatorFile
from csd_engine.prepare.sample import sample_digest
from csd_engine.protocol import codec as say
from csd_engine.service.fair_queue import Quota
from csd_engine.transforms.pipeline import Pipeline
from ddlp.errors import DDLPError
from ddlp.process.pauses import next_pause_s
from ddlp.sources.base import BatchState, Capacity, EpochSink, PreparedBatch, Resources
from ddlp.sources.engine.connections import EngineConnection, EngineConnections
from ddlp.sources.engine.fetch import BatchFetcher, in_memory
from ddlp.sources.engine.link import JobHandle
from ddlp.sources.engine.parcels import MOST_AHEAD, carried
from ddlp.sources.engine.parity_bisect import Ask, first_difference
from ddlp.sources.host.native import as_raised_by_the_dataset, fresh_rows, prepare_item
from ddlp.sources.host.replacing import Put, make_left_out, replace_samples
from ddlp.stats.replaced import Replaced
from ddlp.stats.thread_cpu import ELSEWHERE
from ddlp.transfer.gpu_transfer import FileTransfer
from ddlp.translate.user_operators import by_name, operator_files, put_operators

PROBES = 4  # samples whose bits both sides compare before the first lease
MOST_WORKERS = 1024  # of a device: each has a lease of its own at a time, whatever the device says
_SAMPLES_AHEAD = 128  # of a slow storage, for each worker
_MOST_BUSY_S = 600.0  # of a batch for another rank, which this host has not seen being made
_MOST_REASONS = 4  # of failed leases that are told in an epoch; further ones are as good as known
_FAULTY = "Each of its operators makes the same pixels when the device is asked again, so the device may be faulty"
LOOK_S = 0.5  # between two looks at the pool


class DifferentBits(DDLPError):
    """The device does not make the same bits as the host."""


class EngineJob(JobHandle):
    """One epoch on one device's engine: a `ddlp.sources.base.AttachedSource`. A batch's handle is the path of its file.

    Args:
        sink: the epoch.
        source: the device, as a source of batches.
        place: the connection to it.
        dataset: its description for the engine.
        layout: of a full batch.
    """

    def __init__(
        self, sink: EpochSink, source: EngineSource, place: EngineConnection, dataset: Dataset, layout: Layout
    ) -> None:
        super().__init__(place.link, self._heard)
        self._sink, self._resources, self._source, self._audit = sink, sink.resources, source.name, source.audit
        self._layout = layout
        self._left_out = itertools.count(1)
        self._dataset = fingerprint(dataset)
        self._identities: dict[int, tuple[str, float]] = {}  # of each lease, and when it was given
        self._read = itertools.count(1)
        self._told: set[str] = set()  # reasons of failed leases that were told already
        self._note = ""  # the engine's, as told last
        mapped = place.engine is not None and place.engine.mapped
        to_gpu: FileTransfer | None = None
        if self._resources.gpu_transfer is not None and place.shared:
            assert place.link.spool is not None
            to_gpu = self._resources.gpu_transfer.open(place.link.spool, mapped)
        self._operators = operator_files(self._resources.epoch.portable.pipeline)
        self._fetching = BatchFetcher(
            self, place.shared, lambda text: sink.remark(source.name, text), mapped=mapped, wanted=self.holds,
            gpu_transfer=to_gpu,
        )  # fmt: skip

    def _heard(self, message: say.Message) -> None:
        """Tell the epoch what the engine says."""
        sink, name = self._sink, self._source
        if isinstance(message, say.Published):
            sink.published(name, message.lease, self.path(message), self._busy_s(message))
        elif isinstance(message, say.Failed):
            kind = message.reason.partition(":")[0]
            warned = kind in self._told or len(self._told) >= _MOST_REASONS
            sink.failed(name, message.lease, by_name(message.reason, self._operators), fatal=message.fatal, warned=warned)
            if not warned:
                self._told.add(kind)
        elif isinstance(message, say.Pong):
            if done := {lease: samples for job, lease, samples in message.progress if job == self.name}:
                sink.progressed(name, done)
            if message.note != self._note:
                self._note = message.note
                sink.note(name, message.note)
        elif isinstance(message, say.Measured):
            sink.measured(name, ((samples, min(busy_s, _MOST_BUSY_S)) for samples, busy_s in message.batches))
        elif isinstance(message, say.Retires):
            begun = frozenset(lease for job, lease in message.begun if job == self.name)
            sink.retires(name, "its engine was told to end", begun)
        elif isinstance(message, say.Refused):
            sink.lost(name, message.reason)

    def lease(self, lease: int, position: int) -> None:
        """Ask for a batch."""
        resources = self._resources
        items = resources.plan.image_items(position)
        epoch = resources.epoch
        identity = batchfile.identity(epoch.portable.pipeline.digest, self._dataset, epoch.seed, epoch.number, items)
        self._identities[lease] = identity, time.monotonic()
        self.send_lease(lease, identity, epoch.seed, epoch.number, items)

    def release(self, lease: int) -> None:
        """See `JobHandle.release`."""
        self._identities.pop(lease, None)
        super().release(lease)

    def holds(self, lease: int) -> bool:
        """Whether a lease was not released."""
        return lease in self._identities

    def _busy_s(self, published: say.Published) -> float:
        """A worker's seconds on a batch: as the engine tells them, but no more than have passed since the lease was given.

        The longer a device says that its batches take, the longer a stalled one is waited for.
        """
        _, given = self._identities.get(published.lease, ("", -math.inf))
        return min(published.busy_s, time.monotonic() - given)

    def fetch(self, lease: int, position: int, handle: Path) -> PreparedBatch:
        """Return the published batch, verified. One sample in every ``audit`` batches is made again here and compared.

        Blocks. Over the socket that ends with `close`; from the spool it lasts as long as the file system takes. Raises
        `csd_engine.errors.DamagedBatch`, `EngineGone`, `WrongPixels` or OSError.
        """
        resources, (identity, _) = self._resources, self._identities[lease]
        ELSEWHERE.seconds += self.parcel_cpu_s(lease)  # what the batch has cost this host before
        size = resources.plan.size(position) * resources.plan.views
        layout = self._layout if size == self._layout.batch else dataclasses.replace(self._layout, batch=size)
        sample: int | None = None  # the one to compare
        if self._audit is not None and next(self._read) % self._audit == 0:
            sample = random.Random(f"{resources.epoch.seed} {resources.epoch.number} {position}").randrange(size)

        def memory() -> np.ndarray:
            return fresh_rows(resources, size)[0]

        if resources.gpu_transfer is None:
            batch, bad_rows, back = in_memory(self._fetching.read(handle, identity, lease, layout, memory), sample)
        else:
            epilogue = resources.epoch.portable.epilogue
            batch, bad_rows, back = self._fetching.land(epilogue, handle, identity, lease, layout, sample, memory)
        bad = [] if bad_rows is None else np.flatnonzero(bad_rows).tolist()
        if len(bad) > layout.most_bad_rows:
            raise DamagedBatch(f"the device leaves {len(bad)} of its {size} samples to this host, which makes all of it")
        if sample is not None and back is not None and sample not in bad:  # a bad one this host makes anyway
            self._audited(position, sample, *back)
        if not bad:
            return batch
        make = self._make_on_device if batch.state is BatchState.ON_DEVICE else self._make_in_memory
        replaced, error = make(position, bad, batch)
        return dataclasses.replace(batch, replaced=replaced) if error is None else PreparedBatch.failed(error)

    def _make(self, position: int, left_out: list[int], put: Put) -> tuple[tuple[Replaced, ...], Exception | None]:
        """Make the rows that the device has left out, or others in the place of bad ones, if this host can't make them either.

        Returns which were replaced; and the error to raise in the batch's place, None: there is none.
        """
        resources = self._resources
        errors: dict[int, SampleError] = {}
        try:
            errors = make_left_out(resources, position, left_out, put)
            self._count(position, [row for row in left_out if row not in errors])
            if errors and resources.epoch.most_replaced is None:
                return (), as_raised_by_the_dataset(errors[min(errors)])
            return replace_samples(resources, position, errors, put), None
        except SampleError as error:
            raise DamagedBatch(f"samples of it can't be prepared, nor replaced: {error}") from error
        finally:
            errors.clear()  # their tracebacks hold this frame: the cycle would keep the loader

    def _count(self, position: int, rows: list[int]) -> None:
        """Have the report tell how many samples the device has left to this host, which could make them."""
        for number in list(itertools.islice(self._left_out, len(rows)))[-1:]:
            last, _ = self._resources.plan.image_items(position)[rows[-1]]
            where = self._resources.reader.where(last)
            self._sink.remark(
                self._source,
                f"it left {number} samples to this host, the last one {where}: they take more pixels, memory or time than it "
                "allows an image, it can't read them, or Pillow warns of them",
                "left out",
            )

    def _make_in_memory(
        self, position: int, left_out: list[int], batch: PreparedBatch
    ) -> tuple[tuple[Replaced, ...], Exception | None]:
        """Do the same for a batch of bytes in this process's memory: write the rows there."""
        images, boxes = batch.images.numpy(), None if batch.boxes is None else batch.boxes.numpy()

        def put(row: int, image: np.ndarray, its_boxes: np.ndarray | None) -> None:
            images[row] = image
            if boxes is not None:
                boxes[row] = its_boxes

        return self._make(position, left_out, put)

    def _make_on_device(
        self, position: int, left_out: list[int], batch: PreparedBatch
    ) -> tuple[tuple[Replaced, ...], Exception | None]:
        """Do the same for a batch that is finished on the GPU."""
        resources, transfer = self._resources, self._resources.gpu_transfer
        assert transfer is not None
        rows: dict[int, int] = {}  # where each row of the batch is in the memory for them
        images, boxes = fresh_rows(resources, len(left_out) * resources.plan.views)

        def put(row: int, image: np.ndarray, its_boxes: np.ndarray | None) -> None:
            k = rows.setdefault(row, len(rows))
            images[k] = image
            if boxes is not None:
                boxes[k] = its_boxes

        replaced, error = self._make(position, left_out, put)
        if error is None:
            made_boxes = None if boxes is None else torch.from_numpy(boxes[: len(rows)])
            pixels, epilogue = torch.from_numpy(images[: len(rows)]), resources.epoch.portable.epilogue
            transfer.put_rows(epilogue, batch, list(rows), pixels, made_boxes)
        return replaced, error

    def _audited(self, position: int, k: int, image: np.ndarray, boxes: np.ndarray | None) -> None:
        """Make one of the batch's samples again and compare."""
        item = self._resources.plan.image_items(position)[k]
        if host_digest(self._resources, item) != sample_digest(image, boxes):
            raise WrongPixels(
                f"audit: sample {self._resources.reader.where(item[0])} of batch {position} has other pixels than the host "
                "computes; batches that were not audited may be wrong as well. Take the device out of use"
            )


def host_digest(resources: Resources, item: tuple[int, int]) -> str:
    """The digest of one sample as the host makes it."""
    images, boxes = fresh_rows(resources, 1)
    prepare_item(resources, item, images[0], None if boxes is None else boxes[0])
    return sample_digest(images[0], None if boxes is None else boxes[0])


@dataclasses.dataclass(frozen=True)
class EngineSource:
    """An engine that takes leases: a `ddlp.sources.base.LeaseSource`.

    Attributes:
        name: of the device.
        connections: the loader's; the device is reached through them.
        audit: one sample in every so many batches is made again here and compared; None: none is.
        allow_different_bits: take an engine that makes other pixels than this host.
    """

    name: str
    connections: EngineConnections
    audit: int | None = None
    allow_different_bits: bool = False

    def attach(self, sink: EpochSink) -> None:
        """Bring the device into an epoch by `join`. After each loss try again, until the epoch is over.

        An engine that has left its pool is let go, and joins again once it is back in the pool.
        """
        pause_s = 0.0
        while True:
            began = time.monotonic()
            self.join(sink)
            if not sink.lost_or_over(self.name):
                return
            left = self.connections.left(self.name)  # it did not fail, so it need not wait once it is wanted again
            pause_s = 0.0 if left else next_pause_s(pause_s, time.monotonic() - began)
            while self.connections.left(self.name):
                if sink.over_within(LOOK_S):
                    return
            if sink.over_within(pause_s):
                return

    def join(self, sink: EpochSink) -> None:
        """Bring the device into an epoch, or tell the epoch that it is lost.

        A device that was never met and can't be reached, or makes other bits, is an error of the training run. If the device
        was met before, it is only a warning and a slower epoch. The same holds for a device that breaks off or answers without
        sense, for one of a pool that can't be reached, and, if the host may do without it, for an engine that this process
        starts and that does not start.
        """
        name, connections = self.name, self.connections
        job: EngineJob | None = None
        files = operator_files(sink.resources.epoch.portable.pipeline)
        try:
            place = connections.place(name)
            if sink.over_within(0):  # a script that takes one batch of each iterator leaves many such threads
                return
            job, capacity = self._open_job(sink, place, files)
            if job is None:  # the epoch is over
                return
            connections.met.add(name)
            sink.joined(name, job, capacity)
            job = None  # the epoch owns it from here on
        except EngineRefused as error:
            reason = by_name(str(error), files)
            sink.lost(name, reason, None if connections.may_be_missing(name) else EngineRefused(reason))
        except DifferentBits as error:
            sink.lost(name, str(error), None if name in connections.met else error)
        except (EngineError, DDLPError, OSError) as error:
            own = connections.is_own(name)
            if isinstance(error, EngineGone) and not own:
                connections.met.add(name)  # it was reached: what it does from here on costs speed, and never the training
            if connections.left(name):  # the pool has been made smaller while it was on its way
                sink.lost(name, str(error), warned=True)
            elif own and name not in connections.met:
                connections.told_absent = sink.absent(name, error, connections.told_absent)
            else:
                sink.lost(name, str(error), None if connections.may_be_missing(name) else error)
        except Exception as error:  # a fault of ours and not of the device: it must be seen
            sink.lost(name, repr(error), error)
        finally:
            if job is not None:
                job.close()

    def _open_job(
        self, sink: EpochSink, place: EngineConnection, files: Sequence[OperatorFile]
    ) -> tuple[EngineJob | None, Capacity]:
        """Describe the epoch to the engine and compare a few samples. Returns the job, None where the epoch is over."""
        name, resources, portable = self.name, sink.resources, sink.resources.epoch.portable
        nothing = None, Capacity(0)
        welcome = place.link.open()
        if place.engine is not None:  # else the files are there already because they came by SSH, or they are missing
            put_operators(files, place.engine.operators)
        urls = () if place.carried else welcome.versions.get("urls", "").split()
        dataset = place.upload.describe(portable.dataset, urls)
        if place.carried:
            dataset = carried(dataset)
        if sink.over_within(0):
            return nothing
        member, ranks = place.member(resources.epoch.rank_after_rank)
        sink.shared(name, ranks)
        source = portable.dataset.reader if dataset.carried else None

        def begin(job: JobHandle, pipeline: Pipeline, layout: Layout) -> None:
            job.begin(
                pipeline, dataset, layout, place.upload.manifest, array_part=place.upload.array_part, member=member,
                wanted=lambda: not sink.over_within(0), source=source,
            )  # fmt: skip

        layout = Layout(resources.plan.largest * resources.plan.views, *portable.shape, portable.pipeline.boxes, bad_rows=True)
        room = welcome.quota_bytes * 3 // 4 if dataset.carried else welcome.quota_bytes  # samples' bytes take the rest
        quota = Quota(max(1, welcome.quota_batches), max(1, room)).usable(layout.file_bytes)
        if quota < 1:
            raise DDLPError(
                f"the spool of {name} holds {welcome.quota_bytes} bytes, a batch file of this loader needs "
                f"{layout.file_bytes}. Give it a larger quota, or use smaller batches."
            )
        job = EngineJob(sink, self, place, dataset, layout)
        begin(job, portable.pipeline, layout)

        def ask(pipeline: Pipeline, item: tuple[int, int], shape: tuple[int, int, int]) -> str:
            job = JobHandle(place.link, lambda _: None)
            begin(job, pipeline, Layout(1, *shape, pipeline.boxes))
            try:
                return job.probe(resources.epoch.seed, resources.epoch.number, [item])[0].digest
            finally:
                job.close()

        try:
            sink.remark(name, place.remark)
            if sink.over_within(0):
                job.close()
                return nothing
            _compare_bits(sink, name, job, self.allow_different_bits, ask)
        except BaseException:
            job.close()
            raise
        workers = min(max(1, welcome.workers), MOST_WORKERS)
        # Who requests objects, a worker there or this host for it, begins with those of the next leases.
        slow = bool(dataset.urls()) or dataset.carried and resources.reader.slow
        ahead = workers * min(MOST_AHEAD, math.ceil(_SAMPLES_AHEAD / layout.batch)) if slow else 1
        return job, Capacity(
            max(1, quota // ranks), workers, "spool" if place.shared else "stream", place.node, dataset.carried, ahead
        )


def _compare_bits(sink: EpochSink, name: str, job: JobHandle, allow: bool, ask: Ask) -> None:
    """The parity probe: both sides make a few samples of the first batch. A difference is an error, or a remark if allowed."""
    resources, epoch, plan = sink.resources, sink.resources.epoch, sink.resources.plan
    if not len(plan):
        return
    first, size, views = plan.image_items(0), plan.size(0), plan.views
    of_each = max(1, PROBES // views)  # samples of each view
    items = [item for k in range(views) for item in first[k * size : (k + 1) * size][:of_each] if item[0] >= 0] or [(0, 0)]
    different: tuple[int, int] | None = None
    for item, theirs in zip(items, job.probe(epoch.seed, epoch.number, items), strict=True):
        if theirs.left:
            continue  # nor does this host make it now: Pillow would warn of it twice
        try:
            ours = host_digest(resources, item)
        except Exception:
            continue  # an unreadable sample says nothing about the device; its own batch raises the error
        if theirs.refused:
            raise EngineRefused(f"{name} can't run an operator, which this host can: {theirs.error}")
        if not theirs.digest:
            if ImageFile.LOAD_TRUNCATED_IMAGES:  # only this host obeys it
                continue
            sink.warn(f"{resources.reader.where(item[0])} can be read here, but not on {name}: {theirs.error}")
        elif ours != theirs.digest:
            different = different or item
    if different is None:
        return
    culprit = first_difference(resources, different, ask)
    what = f"makes other pixels of {resources.reader.where(different[0])} than this host. "
    what += f"What differs is {culprit}" if culprit else _FAULTY
    versions = _both_sides(job.versions)
    if allow:
        sink.remark(name, f"it {what} ({versions})", "pixels")
        return
    yours = ", ".join(operators.name for operators in operator_files(epoch.portable.pipeline))
    raise DifferentBits(
        f"{name} {what} (pipeline {epoch.portable.pipeline.to_data()}; {versions}). "
        + (f"See that {yours} draws from rng alone and remembers nothing between two calls. " if yours else "")
        + "Bring Pillow and numpy on both sides to one version, or allow the difference with allow_different_bits=True."
    )


def _both_sides(theirs: dict[str, str]) -> str:
    """The versions of the parts that decide about pixels, on both sides. An older engine does not tell all of them."""
    ours = own_versions()
    return ", ".join(f"{part} {theirs.get(part, '?')} there, {ours[part]} here" for part in ("pillow", "libjpeg", "numpy"))
