"""The checker proves a correct epoch of each strategy, and finds each planted fault. The faults are planted in the
loader's own functions."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, RandomSampler, Subset
from torchvision import transforms

import ddlp.sources.host.native
from csd_engine.batchfile.reader import BatchReceiver
from ddlp import DDLPError, DDLPLoader, ImageArrays
from ddlp.epoch.delivery import Delivery
from ddlp.epoch.devices import Devices
from ddlp.observe import Refuted, checked
from ddlp.observe.verdict import BITS, COMPLETE, LABELS, ONCE, ORDER, UNCHANGED
from ddlp.sampling.epoch_plan import EpochPlan
from ddlp.schedule.strategies import Ordered
from ddlp.sources.base import BatchState, PreparedBatch
from ddlp.sources.engine import fetch as fetching
from ddlp.transfer.memory_pool import MemoryPool
from ddlp.translate.datasets import PortableSet

ALL = [ONCE, ORDER, BITS, LABELS, COMPLETE, UNCHANGED]


def verdict_on(data: Any, strategy: str = "cpu", batch: int = 4, **options: Any) -> Any:
    """Run an epoch like a training loop; returns the verdict."""
    loader = DDLPLoader(data, batch, strategy=strategy, seed=3, **options)
    watched = checked(loader, every=1, rows=None, say=None)
    for _batch in watched:  # held until the next one comes, as in any loop
        time.sleep(0.002)
    assert watched.verdict.over
    return watched.verdict


def refuted(verdict: Any) -> list[str]:
    return [name for name in ALL if verdict.claims[name].against]


# -- honest epochs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["cpu", "csd", "mte", "wrr", "ordered"])
def test_an_honest_epoch_is_proved(data, strategy, capsys):
    verdict = verdict_on(data, strategy, shuffle=True, **({"ratio": 0.5} if strategy == "mte" else {}))
    assert not verdict.refuted, str(verdict)
    states = {name: verdict.claims[name].state for name in ALL}
    assert states == {name: "not checked" if (name, strategy) == (ORDER, "wrr") else "proved" for name in ALL}
    assert verdict.claims[ONCE].looked_at == verdict.claims[BITS].looked_at == verdict.claims[LABELS].looked_at == 80
    assert verdict.claims[COMPLETE].looked_at == 20 and verdict.claims[UNCHANGED].looked_at >= 30
    assert "REFUTED" not in str(verdict) and capsys.readouterr().out == ""


def test_an_honest_epoch_of_more_samples_than_there_are_is_proved(data, monkeypatch):
    """The epoch's order is drawn block by block, and forgotten after use."""
    monkeypatch.setattr("ddlp.sampling.epoch_plan._BLOCK", 8)
    verdict = verdict_on(data, sampler=RandomSampler(data, num_samples=2 * len(data) + 3))
    assert not verdict.refuted and verdict.claims[ONCE].state == "proved" and verdict.claims[ONCE].looked_at == 163


@pytest.mark.parametrize(
    "options",
    [
        {"output": "uint8", "memory_format": torch.channels_last},
        {"output": "bfloat16", "drop_last": True, "batch": 7},
        {"batch_size": None},
        {"batch_transform": lambda batch: [batch[0] * 2, batch[1]]},
        {"num_workers": 2, "decode": "fast"},
    ],
    ids=["uint8", "bfloat16", "unbatched", "batch_transform", "fast"],
)
def test_honest_with_other_outputs(data, options):
    if "batch_size" in options:
        options = {"batch": None}
    verdict = verdict_on(data, **options)
    assert not verdict.refuted, str(verdict)
    assert verdict.claims[BITS].looked_at and verdict.claims[LABELS].looked_at


def test_honest_with_parts_targets_and_a_resume(data):
    images = np.random.default_rng(1).integers(0, 256, (12, 8, 8, 3), np.uint8)
    kinds = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor()])
    whole = ConcatDataset([ImageArrays(images, range(12), kinds), ImageArrays(images, [0] * 12, kinds)])
    assert not verdict_on(Subset(whole, [3, 5, 23, 5]), batch=2).refuted
    loader = DDLPLoader(data, 4, seed=3, shuffle=True)
    iterator = iter(loader)
    for _ in range(7):
        next(iterator)
    state = loader.state_dict()
    del iterator
    rest = DDLPLoader(data, 4, seed=3, shuffle=True)
    rest.load_state_dict(state)
    watched = checked(rest, say=None)
    assert len(list(watched)) == 13 and not watched.verdict.refuted, str(watched.verdict)


def test_its_draws_leave_training_alone(data):
    torch.manual_seed(5)
    for _ in DDLPLoader(data, 4, seed=3):
        pass
    expected = torch.rand(3)
    torch.manual_seed(5)
    for _ in checked(DDLPLoader(data, 4, seed=3), every=1, say=None):
        pass
    assert torch.equal(torch.rand(3), expected)


def test_a_sample_that_can_not_be_read_is_no_finding(data, tmp_path):
    data = type(data)([*data.paths[:5], str(tmp_path / "gone.jpg")], list(range(6)), data.transform)
    watched = checked(DDLPLoader(data, 2, seed=3), every=1, say=None)
    iterator = iter(watched)
    next(iterator), next(iterator)
    with pytest.raises(FileNotFoundError):
        next(iterator)
    assert list(iterator) == [] and watched.verdict.over and not watched.verdict.refuted


def test_what_the_caller_changes_is_his(data):
    watched = checked(DDLPLoader(data, 4, seed=3), every=1, say=None)
    for images, labels in watched:
        images.mul_(0.5)
        labels[0] = 7
    assert not watched.verdict.refuted and watched.verdict.claims[UNCHANGED].looked_at <= 2


def test_where_it_can_not_look(data):
    user_code = type(data)(data.paths, data.targets, lambda image: torch.zeros(1))
    watched = checked(DDLPLoader(user_code, 4))
    with pytest.raises(DDLPError, match="explain"):
        iter(watched)
    with pytest.raises(DDLPError, match="no epoch"):
        _ = watched.verdict
    with pytest.raises(ValueError, match="every"):
        checked(DDLPLoader(data, 4), every=0)


# -- planted faults ----------------------------------------------------------------------------------------------------


def test_a_batch_that_comes_twice(data, monkeypatch):
    honest, last = Delivery.next_batch, []

    def repeats(self, timeout_s=0.0):
        delivered = honest(self, timeout_s)
        last.append(delivered)
        return last[3] if len(last) == 6 else delivered

    monkeypatch.setattr(Delivery, "next_batch", repeats)
    verdict = verdict_on(data)
    assert ONCE in refuted(verdict)
    assert "batch 3 came twice" in str(verdict.claims[ONCE].against) and "never came: 5" in str(verdict.claims[ONCE].against)


def test_a_batch_that_is_lost(data, monkeypatch):
    honest = Delivery.next_batch

    def loses(self, timeout_s=0.0):
        delivered = honest(self, timeout_s)
        return honest(self, timeout_s) if delivered is not None and delivered[0] == 19 else delivered

    monkeypatch.setattr(Delivery, "next_batch", loses)
    assert refuted(verdict_on(data)) == [ONCE]


def repeats(indices):
    indices[10] = indices[3]


def reverses(indices):
    indices[:] = indices[::-1].copy()


@pytest.mark.parametrize(("change", "shuffle", "claim"), [(repeats, True, ONCE), (reverses, False, ORDER)])
def test_other_samples_than_the_samplers(data, monkeypatch, change, shuffle, claim):
    honest = EpochPlan._read_whole

    def dishonest(self, *others):
        honest(self, *others)
        change(self._blocks[0].indices)

    monkeypatch.setattr(EpochPlan, "_read_whole", dishonest)
    assert refuted(verdict_on(data, shuffle=shuffle)) == [claim]


def test_another_order(data, monkeypatch):
    def backwards(self):
        last = self.ledger.delivered.last_missing(self.ledger.length)
        return honest(self) if len(self.ledger.delivered) < 5 else last if last >= 0 else None

    honest = Ordered.turn
    monkeypatch.setattr(Ordered, "turn", backwards)
    assert refuted(verdict_on(data, "ordered")) == [ORDER]


@pytest.mark.parametrize("what", ["value", "swap"])
def test_other_bits(data, monkeypatch, what):
    honest = ddlp.sources.host.native.prepare_batch

    def other(spec, position, *others):
        made = honest(spec, position, *others)
        if position == 9:
            if what == "value":
                made.images[2, 1, 5, 5] += 0.25
            else:
                made.images[:2] = made.images[:2].flip(0)
        return made

    monkeypatch.setattr(ddlp.sources.host.native, "prepare_batch", other)
    verdict = verdict_on(data)
    assert refuted(verdict) == [BITS] and "batch 9" in verdict.claims[BITS].against[0]


def test_swapped_labels(data, monkeypatch):
    honest = PortableSet.targets
    monkeypatch.setattr(PortableSet, "targets", lambda self, sources: honest(self, sources[::-1]))
    assert refuted(verdict_on(data)) == [LABELS]


def test_labels_that_the_data_set_does_not_give(data, monkeypatch):
    """Both ways to look up a label give the same wrong one. The data set's own answer decides."""
    honest = PortableSet.part
    parts = []

    def other(self, source):
        part, index = honest(self, source)
        parts.append(part)
        return dataclasses.replace(part, targets=lambda those: [target + 1 for target in part.targets(those)]), index

    monkeypatch.setattr(PortableSet, "part", other)
    monkeypatch.setattr(PortableSet, "targets", lambda self, sources: [self.target(s) for s in sources.tolist()])
    assert refuted(verdict_on(data)) == [LABELS]


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.some(1)
def test_a_file_that_is_not_verified(data, monkeypatch, mapped):
    """A byte is damaged on the way, and the checksum is not compared."""
    read, map_ = BatchReceiver.batch, fetching.map_batch

    def unverified(self):
        self._images.reshape(-1)[5000] ^= 255
        self._promised = self._checksum.hexdigest()
        return read(self)

    def unverified_map(*arguments):
        batch = map_(*arguments)
        batch.images.reshape(-1)[5000] ^= 255
        return batch

    monkeypatch.setattr(BatchReceiver, "batch", unverified)
    monkeypatch.setattr(fetching, "map_batch", unverified_map if mapped else lambda *_: None)
    monkeypatch.setattr("ddlp.sources.engine.embedded.may_map", lambda _: True)
    assert refuted(verdict_on(data, "csd")) == [BITS, COMPLETE]


def test_a_batch_used_before_it_was_read(data, monkeypatch):
    """A published batch counts as made, though nobody fetches it."""
    def at_once(self, device, lease, path, busy_s):
        monitor, ledger = self._monitor, self._monitor.ledger
        with monitor.lock:
            position = ledger.devices[device].outstanding.get(lease)
            if position is not None and ledger.published(device, lease):
                ledger.fetch(position)
                monitor.ready[position] = PreparedBatch(torch.zeros((4, 3, 32, 32)), None, BatchState.TENSORS)
                ledger.verified(lease)
            monitor.act()

    monkeypatch.setattr(Devices, "published", at_once)
    verdict = verdict_on(data, "csd")
    assert refuted(verdict) == [BITS, COMPLETE] and "before it was fetched" in verdict.claims[COMPLETE].against[0]


def test_a_batch_delivered_before_its_worker_is_done(data, monkeypatch):
    honest = Delivery.next_batch

    def early(self, timeout_s=0.0):
        delivered = honest(self, timeout_s)
        if delivered is not None and delivered[0] == 2:
            # Position 15 is not made yet: the host works on at most five batches.
            delivered = (15, *delivered[1:])
        return delivered

    monkeypatch.setattr(Delivery, "next_batch", early)
    assert COMPLETE in refuted(verdict_on(data))


@pytest.mark.parametrize("strategy", ["cpu", "csd"])
def test_memory_that_is_used_again(data, monkeypatch, strategy):
    """The pool lends a block that is still in use.

    The sixth batch after a block's own gets the block. Its own was delivered by then, since the sides are at most three
    ahead, and the epoch has not ended. All batches are compared until the end: on a busy machine no side is ahead.
    """
    monkeypatch.setattr("ddlp.observe.check.KEPT", 1000)
    lent: dict[int, list[np.ndarray]] = {}
    honest = MemoryPool._used

    def too_soon(self, size):
        blocks = lent.setdefault(size, [])
        block = honest(self, size)
        if block is None and len(blocks) >= 6:
            block = blocks.pop(0)
        if block is not None:
            blocks.append(block)
            return block
        import ddlp.transfer.memory_pool as pool

        blocks.append(pool.fresh(size))
        return blocks[-1]

    monkeypatch.setattr(MemoryPool, "_used", too_soon)
    loader = DDLPLoader(data, 4, strategy=strategy, seed=3)
    watched, held = checked(loader, every=1, say=None), []
    for batch in watched:
        held.append(batch)
    assert UNCHANGED in refuted(watched.verdict)
    assert "changed after delivery" in str(watched.verdict)


# -- the verdict -------------------------------------------------------------------------------------------------------


def test_it_raises_at_the_first_finding_and_says_so(data, monkeypatch, capsys):
    honest = PortableSet.targets
    monkeypatch.setattr(PortableSet, "targets", lambda self, sources: honest(self, sources[::-1]))
    iterator = iter(checked(DDLPLoader(data, 4, seed=3), raises=True))
    with pytest.raises(Refuted, match="labels: batch 0"):
        next(iterator)
    del iterator
    watched = checked(DDLPLoader(data, 4, seed=3))
    assert len(list(watched)) == len(watched) == 20
    said = capsys.readouterr().out
    assert "REFUTED" in said and "refuted     labels: batch 0 came with other labels" in said and "and 19 more" in said


def test_by_default_it_looks_closely_at_some_batches_of_each_side(data):
    watched = checked(DDLPLoader(data, 4, seed=3), rows=3, say=None)
    for _batch in watched:
        pass
    claims = watched.verdict.claims
    assert claims[BITS].looked_at == 3 * 3 and claims[LABELS].looked_at == 80  # batches 0, 1 and 10


def test_broken_off_it_tells_as_far_as_it_went(data):
    watched = checked(DDLPLoader(data, 4, seed=3), say=None)
    for _ in watched:
        break
    assert not watched.verdict.over and "as far as it went" in str(watched.verdict)
    assert watched.verdict.claims[ONCE].looked_at == 4
