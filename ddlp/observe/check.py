"""The logic checker: watches an epoch and proves or refutes what the loader promises.

    for images, labels in ddlp.observe.checked(loader):
        ...                                     # the verdict is printed at the epoch's end

It keeps its own books: what was delivered, in which order, and whether a device's batch was published. If the batch has a file,
the file's checksum must be that of the bytes that were read. Pillow's operators make a sample of batches again, for comparison.
Targets are looked up again. Delivered tensors are looked at again one step later.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from ddlp.epoch.iterator import EpochIterator
from ddlp.errors import DDLPError
from ddlp.loader import DDLPLoader
from ddlp.observe.reference import Header, checksum, digest, expected_images, expected_targets, own_target, read_header
from ddlp.observe.verdict import BITS, COMPLETE, LABELS, ONCE, ORDER, UNCHANGED, Claim, Refuted, Verdict
from ddlp.recording.events import Event, HostBatch, LeaseGiven, Published
from ddlp.recording.watch import Watch
from ddlp.sampling.torch_loader import collates, index_sampler_of
from ddlp.schedule.ledger import Side
from ddlp.schedule.ranges import RangeSet
from ddlp.schedule.strategies import Order, Strategy
from ddlp.sources.base import BatchState, PreparedBatch, Resources
from ddlp.translate.portable import Portable

__all__ = ["Checked", "Refuted", "Verdict", "checked"]

FIRST = 2  # so many first batches of each side are examined closely, later only every so many-th
KEPT = 8  # the last so many delivered tensors are looked at again: images and labels of four batches


class Checked:
    """A loader's batches, watched by the checker: iterate over it instead of the loader.

    Args:
        loader: its data set and transforms must be such that ddlp prepares them itself (``loader.explain()`` tells).
        every: the first batches of each side, and later every so many-th, are made again and looked at again. 1: all.
        rows: samples of such a batch that are made again; None: all.
        raises: raise `Refuted` at the first finding, in place of the batch; else iteration goes on.
        say: called with the verdict's text at the end of each epoch; None: not called.

    Attributes:
        verdicts: one for each epoch begun.

    Raises:
        DDLPError: at iter(), where torch's own workers prepare the batches.
    """

    def __init__(
        self, loader: DDLPLoader, *, every: int = 10, rows: int | None = 8, raises: bool = False,
        say: Callable[[str], object] | None = print,
    ) -> None:  # fmt: skip
        if every < 1 or (rows is not None and rows < 1):
            raise ValueError(f"every={every!r}, rows={rows!r}: 1 or more")
        self.loader = loader
        self.verdicts: list[Verdict] = []
        self._every, self._rows, self._raises, self._say = every, rows, raises, say

    @property
    def verdict(self) -> Verdict:
        """The verdict on the last epoch, or so far on the epoch under way. Raises DDLPError before the first."""
        if not self.verdicts:
            raise DDLPError("verdict: no epoch has begun; iterate over the loader first")
        return self.verdicts[-1]

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        check = EpochCheck(self.loader, self._every, self._rows)
        self.loader._hooks = check
        try:
            iterator = iter(self.loader)
        finally:
            self.loader._hooks = None
        if not isinstance(iterator, EpochIterator):
            raise DDLPError("checked(): torch's own workers prepare this loader's batches; loader.explain() says why")
        self.verdicts.append(check.verdict)
        return _CheckedIterator(iterator, check, self._raises, self._say)


checked = Checked
"""The name by which it is called."""


class _CheckedIterator:
    def __init__(
        self, inner: EpochIterator, check: EpochCheck, raises: bool, say: Callable[[str], object] | None
    ) -> None:
        self._inner, self._check, self._raises, self._say = inner, check, raises, say

    def __iter__(self) -> _CheckedIterator:
        return self

    def __next__(self) -> Any:
        check = self._check
        check.look_again()
        try:
            batch = next(self._inner)
        except StopIteration:
            if not check.verdict.over:
                check.over()
                if self._say is not None:
                    self._say(str(check.verdict))
            self._raise()
            raise
        except Exception:
            check.raised(self._inner.executor.delivered())
            raise
        self._raise()
        return batch

    def _raise(self) -> None:
        if self._raises:
            for claim in self._check.verdict.claims.values():
                if claim.against:
                    raise Refuted(f"{claim.name}: {claim.against[0]}")


class EpochCheck(Watch):
    """The checker's books on one epoch. Threads of the epoch write into sets of their own; the training thread judges."""

    wants_whole = True
    _order: Order  # that the strategy promises
    _resources: Resources
    _portable: Portable

    def __init__(self, loader: DDLPLoader, every: int, rows: int | None) -> None:
        super().__init__()
        self._dataset: Any = loader.dataset
        self._sampler, self._batched = index_sampler_of(loader), collates(loader)
        self._every, self._rows = every, rows
        self._dali, self._bits_may_differ = loader.backend != "native", loader.allow_different_bits
        of = {ONCE: "samples", ORDER: "batches", BITS: "samples made again", LABELS: "labels", COMPLETE: "batches",
              UNCHANGED: "tensors looked at again"}  # fmt: skip
        self.verdict = Verdict(0, "", {name: Claim(name, of=what) for name, what in of.items()})
        self._finished: set[int] = set()  # positions that a host worker has finished
        self._leased: dict[int, int] = {}  # lease -> position
        self._published: set[int] = set()  # leases
        self._headers: dict[int, Header | None] = {}
        self._verified: set[int] = set()  # positions of batches that were fetched and proved right
        self._delivered = RangeSet()
        self._before = 0  # batches delivered before a resume
        self._down = False  # for an order from both ends: the second part has begun
        self._steps = {Side.HOST: 0, Side.CSD: 0}
        self._kept: list[tuple[int, weakref.ref[torch.Tensor], int, str]] = []

    # -- what the epoch's threads do -----------------------------------------------------------------------------

    def began(self, resources: Resources, strategy: Strategy) -> None:
        """As `EpochHooks.began`."""
        super().began(resources, strategy)
        self._resources, self._portable = resources, resources.epoch.portable
        self._delivered = RangeSet(strategy.ledger.delivered.ranges())
        self._before = len(self._delivered)
        self.verdict.epoch, self.verdict.strategy = resources.epoch.number, strategy.name
        self._order = strategy.order

    def saw(self, event: Event) -> None:
        """As `Watch.saw`."""
        if isinstance(event, HostBatch) and event.outcome == "made":
            self._finished.add(event.position)
        elif isinstance(event, LeaseGiven):
            self._leased[event.lease] = event.position
        elif isinstance(event, Published):
            self._published.add(event.lease)

    def fetch_began(self, fetcher: int, device: str, lease: int, position: int, handle: Any) -> None:
        """As `EpochHooks.fetch_began`."""
        super().fetch_began(fetcher, device, lease, position, handle)
        if lease not in self._published:
            self._refute(COMPLETE, f"batch {position} was fetched before its source said that it is published")
        if self._leased.get(lease) != position:
            self._refute(COMPLETE, f"lease {lease} is of batch {self._leased.get(lease)}, and was fetched as batch {position}")
        if isinstance(handle, Path):  # else the source has no files
            self._headers[lease] = read_header(handle)

    def fetch_read(self, lease: int, position: int, batch: PreparedBatch) -> None:
        """As `EpochHooks.fetch_read`."""
        super().fetch_read(lease, position, batch)
        claim = self.verdict.claims[COMPLETE]
        has_file, header = lease in self._headers, self._headers.pop(lease, None)
        if not has_file:
            claim.leave_out("a source without files gives no checksum to compare")
        elif header is None:
            claim.leave_out("files that this host does not see were not summed up again")
        elif batch.state is not BatchState.BYTES and header.lease == lease and header.whole:
            claim.leave_out("what a device summed up was not summed up again")
        elif header.lease != lease or not header.whole:
            self._refute(COMPLETE, f"batch {position} was taken from a file that is not whole, or not of lease {lease}")
        elif batch.replaced:
            claim.leave_out("what this host put in the place of bad samples is not in the file's sum")
        elif header.checksum != checksum(batch, header.marks):
            self._refute(COMPLETE, f"batch {position} as it was read has another checksum than its file says")
        self._verified.add(position)

    # -- the training thread -------------------------------------------------------------------------------------

    def assembled(self, position: int, side: Side, prepared: PreparedBatch, batch: Any) -> None:
        """As `EpochHooks.assembled`."""
        self._arrived(position)
        claim = self.verdict.claims[COMPLETE]
        claim.looked_at += 1
        if position not in (self._finished if side is Side.HOST else self._verified):
            by = "a worker of the host had finished it" if side is Side.HOST else "it was fetched and verified"
            self._refute(COMPLETE, f"batch {position} was delivered before {by}")
        if self._portable.rest is not None:
            for name in (BITS, LABELS):
                self.verdict.claims[name].unseen = "the transform's own steps made them"
            return
        keys = self._portable.dataset.keys
        images, targets = (batch[0], batch[1]) if keys is None else keys.split(batch)
        several = self._portable.epilogue.sizes or self._resources.plan.views > 1
        views = [view if self._batched else view[None] for view in (images if several else [images])]
        if self._resources.plan.views > 1:  # each view has a row
            views = [torch.cat(views)]
        close = self._steps[side] < FIRST or sum(self._steps.values()) % self._every == 0
        self._steps[side] += 1
        sources = prepared.sources(self._resources.plan.sources(position)).tolist()
        self._check_labels(position, targets, sources, close)
        if close:
            self._check_bits(position, side, views, sources)
            self._keep(position, batch)

    def raised(self, delivered: list[tuple[int, int]]) -> None:
        """A batch raised its error in its place. ``delivered``: the spans of positions that are delivered by now."""
        for begin, end in delivered:
            for position in range(begin, end):
                if position not in self._delivered:
                    self._arrived(position)

    def look_again(self) -> None:
        """Check that delivered tensors are unchanged. Those that were freed, or changed through torch, are left out."""
        kept, self._kept = self._kept, []
        for position, reference, version, before in kept:
            tensor = reference()
            if tensor is None or tensor._version != version:
                continue
            self.verdict.claims[UNCHANGED].looked_at += 1
            if digest(tensor) != before:
                self._refute(UNCHANGED, f"a tensor of batch {position} was changed after delivery, not through torch")
            else:
                self._kept.append((position, reference, version, before))
        self._kept = self._kept[-KEPT:]

    def over(self) -> None:
        """The epoch has ended: check that no batch is missing, and check the sampler's indices."""
        self.verdict.over = True
        length = len(self._resources.plan)
        missing = [str(p) for p in range(length) if p not in self._delivered]
        if missing:
            self._refute(ONCE, f"{len(missing)} of {length} batches never came: {', '.join(missing[:8])}")
        self._check_sampler()

    # -- one promise each ----------------------------------------------------------------------------------------

    def _arrived(self, position: int) -> None:
        once = self.verdict.claims[ONCE]
        once.looked_at += self._resources.plan.size(position)
        if position in self._delivered:
            self._refute(ONCE, f"batch {position} came twice")
            return
        self._check_order(position)
        self._delivered.add(position)

    def _check_order(self, position: int) -> None:
        claim, strategy = self.verdict.claims[ORDER], self.verdict.strategy
        if self._order is Order.ANY:
            claim.leave_out(f"{strategy} promises none")
            return
        claim.looked_at += 1
        first, last = self._delivered.first_missing(), self._delivered.last_missing(len(self._resources.plan))
        if self._order is Order.FROM_BOTH_ENDS:
            self._down = self._down or (position == last and position != first)
            expected = last if self._down else first
        else:
            expected = first
        if position != expected:
            self._refute(ORDER, f"batch {position} came where {strategy} promises batch {expected}")

    def _check_sampler(self) -> None:
        """Check the plan's own indices, if the sampler gives each sample once."""
        outer: Any = self._sampler
        size, drop_last = 1, False
        if type(outer) is BatchSampler:
            outer, size, drop_last = outer.sampler, outer.batch_size, outer.drop_last
        random = type(outer) is RandomSampler and not outer.replacement
        if not (random or type(outer) is SequentialSampler):
            self.verdict.claims[ONCE].leave_out(f"{type(outer).__name__} says which samples come, and how often")
            return
        plan = self._resources.plan
        indices = np.array([i for p in range(len(plan)) for i in plan.indices(p)], dtype=np.int64)
        counts = np.bincount(indices, minlength=1)
        wanted = len(outer) - len(outer) % size if drop_last else len(outer)
        if counts.max() > -(-wanted // max(1, len(self._dataset))) or len(indices) != wanted:
            twice = [str(i) for i in np.flatnonzero(counts > 1)[:8]]
            self._refute(ONCE, f"the batches hold {len(indices)} samples of {wanted}; more than once: {', '.join(twice)}")
        elif not random and not np.array_equal(indices, np.arange(wanted)):
            self._refute(ORDER, f"{type(outer).__name__} counts up; the batches' indices do not")

    def _check_labels(self, position: int, targets: Any, sources: list[int], close: bool) -> None:
        claim = self.verdict.claims[LABELS]
        expected = expected_targets(self._resources, position, sources)
        claim.looked_at += len(expected)
        if not self._equal(targets, self._resources.epoch.collate(tuple(expected) if self._batched else expected[0])):
            self._refute(LABELS, f"batch {position} came with other labels than its samples have")
        in_place = sources[0] == self._resources.plan.sources(position)[0]
        if close and in_place and not self._portable.dataset.has_target_transform:
            index = self._resources.plan.indices(position)[0]
            try:
                own = own_target(self._dataset, index, self._portable.dataset.keys)
            except Exception:  # noqa: S110 - a sample that can't be read proves nothing
                return
            if not self._equal(self._resources.epoch.collate([own]), self._resources.epoch.collate([expected[0]])):
                self._refute(LABELS, f"the data set itself gives another label for index {index} (batch {position})")

    @staticmethod
    def _equal(a: Any, b: Any) -> bool:
        ours, theirs = tree_flatten(a)[0], tree_flatten(b)[0]
        return len(ours) == len(theirs) and all(
            torch.equal(x.cpu(), y.cpu()) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else bool(x == y)
            for x, y in zip(ours, theirs, strict=True)
        )

    def _check_bits(self, position: int, side: Side, views: list[torch.Tensor], sources: list[int]) -> None:
        """``views``: all images of the batch; or, if a row holds several views, those of each view."""
        claim = self.verdict.claims[BITS]
        if (self._dali and side is Side.HOST) or (self._bits_may_differ and side is Side.CSD):
            claim.leave_out("not of DALI's batches, nor of a device's that may make other pixels")
            return
        n = len(views[0])
        count = n if self._rows is None else min(self._rows, n)
        rows = sorted({(position + k * n // count) % n for k in range(count)})
        claim.looked_at += len(rows)
        references = expected_images(self._resources, position, rows, sources)
        for images, expected in zip(views, references, strict=True):
            self._compare(position, side, rows, images.detach().cpu()[rows], expected)

    def _compare(self, position: int, side: Side, rows: list[int], actual: torch.Tensor, expected: torch.Tensor) -> None:
        if actual.shape != expected.shape or actual.dtype != expected.dtype:
            what = f"{actual.dtype} {tuple(actual.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
            self._refute(BITS, f"batch {position} ({side.value}) is {what}")
            return
        for k, row in enumerate(rows):
            if not torch.equal(actual[k], expected[k]):
                values = int((actual[k] != expected[k]).sum())
                where = self._resources.reader.where(self._resources.plan.image_items(position)[row][0])
                self._refute(BITS, f"{where} (batch {position}, row {row}, by the {side.value}) differs in {values} values")

    def _keep(self, position: int, batch: Any) -> None:
        for tensor in tree_flatten(batch)[0]:
            if isinstance(tensor, torch.Tensor) and not tensor.is_inference():
                self._kept.append((position, weakref.ref(tensor), tensor._version, digest(tensor)))

    def _refute(self, name: str, text: str) -> None:
        self.verdict.claims[name].against.append(text)
