"""Workers pass batches in blocks of shared memory: a batch equals DataLoader's, stays unchanged, and leaves nothing behind."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.multiprocessing import reductions
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torchvision import tv_tensors

from ddlp import DDLPLoader
from ddlp.sources.workers import hand_over
from tests.engine_process import until
from tests.open_files import open_files, opened_since

Pair = collections.namedtuple("Pair", "first second")
LARGE = 10_000  # elements of 4 bytes: too many for the pipe


@dataclasses.dataclass
class Named:
    values: torch.Tensor
    name: str


def large(number: int, *shape: int) -> torch.Tensor:
    return torch.arange(number, number + LARGE, dtype=torch.float32).reshape(*(shape or (LARGE,)))


def strided(number: int) -> tuple[torch.Tensor, ...]:
    whole = large(number, 10, 1000)
    return whole.t(), whole, whole[3:7], whole[:, :1].expand(10, 500), torch.ones(9)[::2]


KINDS: dict[str, Any] = {
    "large": lambda number: large(number),
    "small": lambda number: torch.tensor([number, 2]),
    "no dimension": lambda number: torch.tensor(number),
    "empty": lambda number: torch.empty(0, 3),
    "nest": lambda number: {"a": [large(number), {"b": (torch.ones(3), "text", number, None)}], 5: Pair(large(1), 2.5)},
    "object": lambda number: Named(large(number), "one"),
    "dtypes": lambda number: [
        large(number).to(dtype)
        for dtype in (torch.bfloat16, torch.float16, torch.bool, torch.complex64, torch.uint8, torch.int64, torch.float64)
    ],
    "strided": strided,
    "one storage": lambda number: (lambda whole: (whole, whole.view(-1), whole[0]))(large(number, 10, 1000)),
    "the same twice": lambda number: [large(number)] * 2,
    "channels last": lambda number: large(number, 1, 10, 10, 100).to(memory_format=torch.channels_last),
    "sparse": lambda number: torch.sparse_coo_tensor(torch.tensor([[0, number]]), torch.ones(2), (LARGE,)),
    "nested": lambda number: torch.nested.nested_tensor([torch.ones(2), torch.ones(number + 1)]),
    "conjugate": lambda number: large(number).to(torch.complex64).conj(),
    "negative view": lambda number: large(number).to(torch.complex64).conj().imag,
    "gradient": lambda number: large(number).requires_grad_(),
    "parameter": lambda number: torch.nn.Parameter(large(number)),
    "tv_tensor": lambda number: tv_tensors.Image(large(number, 1, 10, 1000)),
    "shared": lambda number: large(number).share_memory_(),
    "numpy": lambda number: [np.full(LARGE, number), np.float32(number)],
    "text": lambda number: ["one", b"two" * number, {number}],
}


class Kind(Dataset):
    def __init__(self, kind: str, count: int = 6) -> None:
        self.kind, self.count = kind, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return KINDS[self.kind](index)


def first(samples: list[Any]) -> Any:
    return samples[0]


def described(thing: Any) -> Any:
    """Everything that can be said about an object, as plain data."""
    if isinstance(thing, torch.Tensor):
        if thing.is_nested:
            return [described(one) for one in thing.unbind()]
        dense = thing.to_dense() if thing.layout is not torch.strided else thing
        stride = thing.stride() if thing.layout is torch.strided else None
        return type(thing), thing.dtype, thing.size(), stride, thing.requires_grad, dense.detach().resolve_conj().tolist()
    if isinstance(thing, dict):
        return {key: described(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return type(thing), [described(one) for one in thing]
    if dataclasses.is_dataclass(thing):
        return type(thing), described(list(vars(thing).values()))
    return (type(thing), thing.tolist()) if isinstance(thing, (np.ndarray, np.generic)) else thing


def blocks_of(iterator: Any) -> int:
    return len(iterator._blocks.memory)


def mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:ddlp-batch")


@pytest.fixture(autouse=True)
def leaves_nothing() -> Any:
    gc.collect()
    files, shared, maps, leases = open_files(), set(os.listdir("/dev/shm")), mapped(), set(hand_over._leases)
    yield
    gc.collect()
    with contextlib.suppress(AssertionError):  # torch doesn't wait for ending workers and queues: threads close pipes later
        until(lambda: not multiprocessing.active_children() and not opened_since(files))
    assert (opened_since(files), set(hand_over._leases) - leases) == ([], set())
    assert mapped() <= maps
    assert {one for one in set(os.listdir("/dev/shm")) - shared if one.startswith(f"torch_{os.getpid()}_")} == set()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.some(5)
def test_any_batch_comes_as_from_dataloader(kind):
    if kind in ("sparse", "nested") and not hasattr(reductions, f"reduce_{kind}_tensor"):
        pytest.skip(f"this torch sends no {kind} tensor to another process")
    given: Any = {"batch_size": None, "num_workers": 1}
    for _ in range(2):
        ours, theirs = (list(loader(Kind(kind), **given)) for loader in (DDLPLoader, DataLoader))
        assert [described(one) for one in ours] == [described(one) for one in theirs]
        given = {"batch_size": 1, "collate_fn": first, "num_workers": 1}


def test_tensors_over_one_storage_stay_so():
    for whole, flat, row in DDLPLoader(Kind("one storage"), None, num_workers=1):
        flat[5], row[6] = -1, -2
        assert (whole[0, 5], whole[0, 6]) == (-1, -2)
    for one, other in DDLPLoader(Kind("the same twice"), None, num_workers=1):
        assert one is other


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_kept_stays_as_it_is(workers):
    rows = torch.arange(64 * LARGE, dtype=torch.float32).reshape(64, LARGE)
    loader = DDLPLoader(TensorDataset(rows), 2, num_workers=workers)
    kept = [batch for (batch,) in loader]
    views = [batch[1, 7:] for (batch,) in loader]
    gc.collect()
    assert torch.equal(torch.cat(kept), rows)
    assert all(torch.equal(view, rows[2 * number + 1, 7:]) for number, view in enumerate(views))


def test_blocks_are_used_again():
    loader = DDLPLoader(TensorDataset(torch.ones(120, LARGE), torch.arange(120)), 2, num_workers=1)
    iterator = iter(loader)
    labels = []
    for images, label in iterator:
        images.zero_()
        labels.append(label)
        del images
    assert blocks_of(iterator) <= 5  # those that wait, the one in use, and the one that is being filled
    assert torch.equal(torch.cat(labels), torch.arange(120))  # the labels are kept, but keep no block


def test_blocks_of_other_sizes_are_given_up():
    class Growing(Kind):
        def __getitem__(self, index: int) -> Any:
            return torch.full((LARGE + 2_000 * index,), float(index))

    iterator = iter(DDLPLoader(Growing("", 300), None, num_workers=1))
    most = 0
    for number, one in enumerate(iterator):
        assert one.size(0) == LARGE + 2_000 * number and one[0] == one[-1] == number
        most = max(most, blocks_of(iterator))
    assert most < 150


def test_what_a_worker_keeps_is_not_written_over():
    class Keeps(Kind):
        kept: Any = None

        def __getitem__(self, index: int) -> Any:
            new = torch.utils.data.default_collate([large(index), large(index)])
            if index == 5:  # only the first batch's memory is torch's
                self.kept = new
            return self.kept, new

    before = None
    for number, (kept, new) in enumerate(DDLPLoader(Keeps("", 40), None, num_workers=1)):
        assert torch.equal(new[1], large(number))
        assert kept is None if number < 5 else torch.equal(kept[1], large(5))
        assert before is None or torch.equal(before[0], large(5))
        before = kept if number % 3 else None


def test_a_forked_child_keeps_what_it_has():
    rows = torch.arange(60 * LARGE, dtype=torch.float32).reshape(60, LARGE)
    iterator = iter(DDLPLoader(TensorDataset(rows), 2, num_workers=1))
    batch = [next(iterator) for _ in range(4)][-1]  # only the first batch's memory is torch's
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"1")
        os.read(go[0], 1)
        os._exit(not torch.equal(batch[0], rows[6:8]))
    os.read(ready[0], 1)
    del batch
    assert sum(1 for _ in iterator) == 26
    os.write(go[1], b"1")
    assert os.waitpid(child, 0)[1] == 0
    for end in (*ready, *go):
        os.close(end)


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return (large(number) for number in range(20))


def test_streams_and_persistent_workers():
    for given in ({}, {"persistent_workers": True}):
        loader = DDLPLoader(Stream(), 2, num_workers=1, **given)
        for _ in range(3):
            assert torch.equal(torch.cat(list(loader)), torch.stack([large(number) for number in range(20)]))
    rows = torch.arange(40 * LARGE, dtype=torch.float32).reshape(40, LARGE)
    loader = DDLPLoader(TensorDataset(rows), 2, num_workers=2, persistent_workers=True)
    next(iter(loader))  # this epoch ends early
    for _ in range(3):
        assert torch.equal(torch.cat([batch for (batch,) in loader]), rows)


def test_what_can_not_be_pickled_is_told_of():
    class Locals(Kind):
        def __getitem__(self, index: int) -> Any:
            return lambda: index

    with pytest.raises((AttributeError, TypeError), match="(?i)pickle"):  # with DataLoader it hangs
        next(iter(DDLPLoader(Locals(""), None, num_workers=1)))


KILLED = """
import gc, os, signal, time, torch
from torch.utils.data import TensorDataset
from ddlp import DDLPLoader
rows = torch.arange(600_000.).reshape(60, 10_000)
iterator = iter(DDLPLoader(TensorDataset(rows), 2, num_workers=1))
(batch,) = [next(iterator) for _ in range(4)][-1]
told = None
try:
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    for _ in range(30):
        next(iterator)
        time.sleep(0.05)
except (RuntimeError, EOFError, OSError) as error:  # torch raises the first in a signal's handler, so anywhere
    told = type(error)  # its traceback would keep the iterator
assert told
del iterator
assert torch.equal(batch, rows[6:8])
del batch
gc.collect()
assert "memfd:ddlp-batch" not in open("/proc/self/maps").read()
"""


def test_a_killed_worker_leaves_what_it_had_handed_over(forks):
    done = forks.run(code=KILLED, environment=os.environ)
    assert done.returncode == 0, done.stderr


def test_loaders_made_and_dropped():
    dataset, before = TensorDataset(torch.ones(8, LARGE)), set(hand_over._blocks)  # a thread of another test may have some
    for number in range(40):
        iterator = iter(DDLPLoader(dataset, 2, num_workers=1))
        if number % 2:
            next(iterator)
    del iterator
    gc.collect()
    assert set(hand_over._blocks) <= before


def test_what_was_delivered_can_be_shared():
    rows = torch.arange(8 * LARGE, dtype=torch.float32).reshape(8, LARGE)
    for number, (batch,) in enumerate(DDLPLoader(TensorDataset(rows), 2, num_workers=1)):
        assert torch.equal(batch.share_memory_(), rows[2 * number : 2 * number + 2]) and batch.is_shared()
