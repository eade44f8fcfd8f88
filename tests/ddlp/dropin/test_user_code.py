"""User code that can't travel: torch's own workers, all that DataLoader promises, and content that follows from the seed."""

from __future__ import annotations

import collections
import dataclasses
import random
import types
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, get_worker_info

from ddlp import DDLPLoader, ImageFiles, Untranslatable
from tests.ddlp.dropin.small_sets import (
    Draws,
    Invert,
    Seen,
    Stream,
    Told,
    by_target,
    numbered,
    order,
    pairs,
)

KINDS = (DataLoader, DDLPLoader)


def states() -> list:
    return [torch.get_rng_state().tolist(), [k.tolist() if hasattr(k, "tolist") else k for k in np.random.get_state()],
            random.getstate()]


def same(first: dict, second: dict) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_without_a_seed_torchs_decides():
    found = []
    for _ in range(2):
        torch.manual_seed(9)
        found.append(by_target(list(DDLPLoader(Draws(), 4, num_workers=2))))
    torch.manual_seed(10)
    other = by_target(list(DDLPLoader(Draws(), 4, num_workers=2)))
    assert same(*found) and not same(found[0], other)


def test_the_same_index_twice_draws_twice():
    loader = DDLPLoader(Draws(), 2, sampler=[3, 3, 3, 7], seed=1)
    numbers = torch.cat([batch[0] for batch in loader])
    assert len(numbers.unique()) == 12


class Named(Draws):
    """Takes a key that is no number, beside the numbers."""

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        return super().__getitem__(40 if index == "last" else index)


def test_a_key_that_is_no_number_changes_nothing_for_those_that_are():
    plain, mixed = (by_target(list(DDLPLoader(Named(), 1, sampler=s, seed=1))) for s in ([1, 2, 3], ["last", 1, 2, 3]))
    assert set(mixed) == {40, *plain} and all(torch.equal(plain[k], mixed[k]) for k in plain)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [3, None])
def test_iterable_data_sets(workers, batch_size):
    theirs, ours = (kind(Stream(), batch_size, num_workers=workers) for kind in KINDS)
    for _ in range(2):
        assert [torch.as_tensor(b).tolist() for b in ours] == [torch.as_tensor(b).tolist() for b in theirs]
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_is_told_its_epoch(workers):
    loader = DDLPLoader(Told(), 4, num_workers=workers)
    for epoch in (3, 1):
        loader.set_epoch(epoch)
        assert sorted(torch.cat(list(loader)).tolist()) == list(range(100 * epoch, 100 * epoch + 20))


def test_worker_info_and_worker_init_fn():
    begun = []

    def init(worker: int) -> None:
        info = get_worker_info()
        assert info.id == worker and type(info.dataset) is Seen
        info.dataset.count = 12
        begun.append(worker)

    samples = list(DDLPLoader(Seen(), 4, num_workers=2, worker_init_fn=init))
    assert all(bool(b[0].all()) and set(b[1]) == {"Seen"} for b in samples)
    assert begun == []  # only in the workers


def test_workers_that_are_not_forked(not_forked):
    loader = DDLPLoader(Draws(), 8, num_workers=1, multiprocessing_context=not_forked, seed=5)
    assert same(by_target(list(loader)), by_target(list(DDLPLoader(Draws(), 8, seed=5))))


def test_what_spawn_cant_take_is_named(paths):
    loader = DDLPLoader(
        numbered(paths, lambda image: torch.zeros(1)), 8, num_workers=1, multiprocessing_context="spawn"
    )
    with pytest.raises(Exception, match="lambda"):
        list(loader)


def test_persistent_workers_and_their_epochs():
    loader = DDLPLoader(Draws(), 4, num_workers=2, persistent_workers=True, seed=5)
    epochs = [by_target(list(loader)) for _ in range(3)]
    workers = [w.pid for w in loader._iterator._workers]
    plain = DDLPLoader(Draws(), 4, seed=5)
    assert all(same(epoch, by_target(list(plain))) for epoch in epochs)
    assert [w.pid for w in loader._iterator._workers] == workers
    loader.set_epoch(1)
    assert same(by_target(list(loader)), epochs[1])
    loader._iterator._shutdown_workers()


def test_results_in_any_order():
    loader = DDLPLoader(Draws(), 4, num_workers=2, in_order=False, seed=5)
    assert same(by_target(list(loader)), by_target(list(DDLPLoader(Draws(), 4, seed=5))))


class Fields(dict):
    """A dict with an attribute of its own."""

    note = "none"


class Graph:
    """A user's batch with its own `to`, which takes only a device."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: Any) -> Graph:
        return Graph(self.x.to(device))


@dataclasses.dataclass
class Plain:
    x: torch.Tensor


class Registered(Plain):
    """Registered with torch's pytree."""


Edge = collections.namedtuple("Edge", "fro to")
# torch before 2.2 names it differently.
register = getattr(torch.utils._pytree, "register_pytree_node", None) or torch.utils._pytree._register_pytree_node
register(Registered, lambda r: ([r.x], None), lambda parts, _: Registered(*parts))


def fields(x: torch.Tensor) -> Fields:
    made = Fields(x=x, name="a")
    made.note = "kept"
    return made


HELD = {  # what a collate_fn makes of a tensor, and how to get the tensor back
    "UserDict": (lambda x: collections.UserDict(x=x), lambda b: b["x"]),
    "dict subclass": (fields, lambda b: b["x"]),
    "read-only mapping": (lambda x: types.MappingProxyType({"x": x}), lambda b: b["x"]),
    "UserList": (lambda x: collections.UserList([1, x]), lambda b: b[1]),
    "deque": (lambda x: collections.deque([x]), lambda b: b[0]),
    "nested": (lambda x: {"a": [("b", fields(x), None)]}, lambda b: b["a"][0][1]["x"]),
    "named tuple": (lambda x: Edge(3, x), lambda b: b.to),
    "return type": (lambda x: torch.max(x, 0), lambda b: b.values),
    "to of its own": (lambda x: Graph(x), lambda b: b.x),
    "pytree's": (lambda x: Registered(x), lambda b: b.x),
    "PackedSequence": (lambda x: nn.utils.rnn.pack_sequence([x[:2], x[:1]]), lambda b: b.data),
}


@pytest.mark.parametrize("name", HELD)
def test_the_device_takes_batches_of_any_type(name):
    make, tensor = HELD[name]

    def collate(samples: list[Any]) -> Any:
        return make(torch.stack([x for x, _ in samples]))

    for batch in DDLPLoader(Draws(), 4, collate_fn=collate, drop_last=True, device="meta"):
        assert type(batch) is type(collate([(torch.zeros(3), 0)] * 4))
        assert tensor(batch).device.type == "meta"
        if name == "dict subclass":
            assert batch.note == "kept" and batch["name"] == "a"
        if name == "PackedSequence":
            assert batch.batch_sizes.tolist() == [2, 1]  # these stay on the CPU


def test_the_device_leaves_alone_what_nobody_can_move():
    given = Plain(torch.zeros(2)), np.zeros(2), "name", b"bytes"
    (batch,) = DDLPLoader([0], collate_fn=lambda _: given, device="meta")
    assert type(batch) is tuple and all(ours is theirs for ours, theirs in zip(batch, given, strict=True))


def test_persistent_workers_and_another_batch_transform():
    loader = DDLPLoader(Draws(), 4, num_workers=1, persistent_workers=True, batch_transform=lambda batch: "mixed")
    assert set(loader) == {"mixed"}
    loader.batch_transform = None  # as timm does it to stop MixUp
    assert order(list(loader)) == order(list(DataLoader(Draws(), 4)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda paths: (numbered(paths, lambda image: torch.zeros(1)), {}), "function"),
        (lambda paths: (numbered(paths, Invert()), {}), "Invert"),
        (lambda paths: (numbered(paths), dict(collate_fn=pairs, own_steps="off")), "collate_fn=pairs"),
        (lambda paths: (Draws(), {}), "Draws"),
        (lambda paths: (Stream(), {}), "Stream"),
    ],
)
def test_one_line_at_the_users_own_and_an_error_where_the_device_must_do_it(paths, engine, make, words, caplog):
    dataset, given = make(paths)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # advice ends no training
        loader = DDLPLoader(dataset, 4, **given)
        assert not caplog.records  # its transform may still be set
        list(loader), list(loader)
    told = [one for one in caplog.records if one.name == "ddlp"]
    if isinstance(dataset, ImageFiles):  # it could be faster even without a device
        (notice,) = told
        assert words in notice.message and "loader.explain()" in notice.message and notice.pathname == __file__
    else:
        assert not told
    with pytest.warns(UserWarning, match="the host prepares all batches") as caught:
        loader = DDLPLoader(dataset, 4, **given, strategy="wrr", spool=engine)
        for _ in range(2):
            list(loader)
    (warning,) = caught
    assert words in str(warning.message) and "Ways out:" in str(warning.message)
    assert warning.filename == __file__
    with pytest.raises(Untranslatable, match="Ways out:") as error:
        DDLPLoader(dataset, 4, **given, strategy="csd")
    assert words in str(error.value)
    assert words in loader.explain()


def test_output_needs_a_pipeline_of_ours(paths):
    with pytest.raises(ValueError, match="output="):
        DDLPLoader(numbered(paths, Invert()), output="uint8")
