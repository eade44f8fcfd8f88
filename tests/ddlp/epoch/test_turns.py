"""Batches that are made before their epoch begins: the same bits and draws as without, no wait, and nothing left behind."""

from __future__ import annotations

import gc
import io
import os
import random
import shutil
import tarfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms

from ddlp import DDLPLoader, ImageArrays, ImageFiles, TarImages, load_operators
from ddlp.epoch import early_batches, turns
from ddlp.epoch.executor import EpochExecutor
from ddlp.planning.controller import Controller
from ddlp.schedule.slots import host_slots
from ddlp.sources.host import native
from tests.ddlp.dropin.small_sets import DETERMINISTIC, RANDOM, SAMPLES, numbered, write_images
from tests.engine_process import until

BATCH = 4
WORKERS = 2
ROOM = 2 * WORKERS + 1  # batches that the host may hold
MY_OPS = Path(__file__).parents[2] / "my_ops.py"
CROPS = transforms.Compose([transforms.RandomCrop(12), transforms.ToTensor()])


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No epoch of an earlier test is known: a failed one may keep its loaders."""
    monkeypatch.setattr(turns, "_process", turns._Process())
    yield
    gc.collect()
    settle()


def at_work() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ddlp-early")]


def settle() -> None:
    """Wait until nobody makes batches early."""
    until(lambda: not at_work())


def ready(loader: DDLPLoader) -> int:
    """How many batches are there for the next iter()."""
    settle()
    early = None if loader._turn is None else loader._turn.early
    return 0 if early is None else early.ready


def arrays(count: int = SAMPLES) -> ImageArrays:
    rows = np.random.default_rng(2).integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
    return ImageArrays(rows, list(range(count)), CROPS)


# -- the same with and without -------------------------------------------------------------------------------------------


def own(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shards(files: Any, **options: Any) -> DDLPLoader:
    return DDLPLoader(files, BATCH, sampler=DistributedSampler(files, 2, 1), num_workers=WORKERS, **options)


LOADERS: dict[str, Callable[[Any], DDLPLoader]] = {
    "shuffle": lambda files: DDLPLoader(files, BATCH, shuffle=True, num_workers=WORKERS),
    "without workers": lambda files: DDLPLoader(files, BATCH, shuffle=True),
    "in order": lambda files: DDLPLoader(files, BATCH, num_workers=WORKERS, drop_last=True),
    "generator": lambda files: DDLPLoader(files, BATCH, shuffle=True, num_workers=WORKERS, generator=own()),
    "generator, drop_last": lambda files: DDLPLoader(files, BATCH, True, drop_last=True, generator=own()),
    "persistent": lambda files: DDLPLoader(files, BATCH, True, num_workers=WORKERS, persistent_workers=True),
    "seed": lambda files: DDLPLoader(files, BATCH, True, num_workers=WORKERS, seed=3),
    "single samples": lambda files: DDLPLoader(files, None, shuffle=True, num_workers=WORKERS),
    "subset": lambda files: DDLPLoader(files, BATCH, sampler=SubsetRandomSampler(range(3, 40)), num_workers=WORKERS),
    "weighted": lambda files: DDLPLoader(
        files, BATCH, sampler=WeightedRandomSampler([1.0 + k for k in range(SAMPLES)], 37), num_workers=WORKERS
    ),
    "replacement": lambda files: DDLPLoader(files, BATCH, sampler=RandomSampler(files, True, 50), num_workers=WORKERS),
    "shards": shards,
}  # fmt: skip


def flat(batch: Any) -> list[torch.Tensor]:
    return [torch.as_tensor(part) for part in batch]


def epochs(loader: DDLPLoader, between: Callable[[int], Any] = lambda epoch: None, count: int = 4) -> Iterator[Any]:
    """Yield what each epoch gave, and the generators' states after it: at its end, and once nobody works early any more."""
    torch.manual_seed(11), np.random.seed(11), random.seed(11)
    for epoch in range(count):
        between(epoch)
        batches = [flat(batch) for batch in loader]
        at_end = torch.get_rng_state()
        settle()
        others = torch.tensor(random.getstate()[1]), torch.from_numpy(np.random.get_state()[1].astype(np.int64))
        states = [at_end, torch.get_rng_state(), *others]
        if loader.generator is not None:
            states.append(loader.generator.get_state())
        yield batches, states


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    return len(left) == len(right) and all(map(same, left, right))


def compare(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], DDLPLoader], between: Callable[[DDLPLoader, int], Any] | None = None
) -> list[tuple[int, int]]:
    """Check that all is the same with early batches as without. Returns (used, dropped) for each epoch."""
    found, counts = [], []
    for early in (False, True):
        with monkeypatch.context() as patch:
            if not early:
                patch.setenv("DDLP_EARLY_BATCHES", "off")
            loader, ended = make(), []
            for one in epochs(loader, lambda epoch, loader=loader: between and between(loader, epoch)):
                ended.append(one)
                if early:
                    counts.append((loader.report().early, loader.report().early_dropped))
                else:
                    assert loader.report().early == 0 and not at_work()
            found.append(ended)
    assert same(*found)
    return counts


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.some(3)
def test_the_same_bits_and_draws(paths, monkeypatch, name):
    counts = compare(monkeypatch, lambda: LOADERS[name](numbered(paths, RANDOM)))
    room = ROOM if "drop_last" not in name and name != "without workers" else 3
    if name == "shards":  # its number was never set
        assert counts == [(0, 0), (0, room), (room, 0), (room, 0)]
    else:
        assert counts == [(0, 0), (room, 0), (room, 0), (room, 0)]


def test_set_epoch_is_obeyed(paths, monkeypatch):
    usual = compare(monkeypatch, lambda: shards(numbered(paths, RANDOM)), lambda loader, epoch: loader.set_epoch(epoch))
    assert usual == [(0, 0), (ROOM, 0), (ROOM, 0), (ROOM, 0)]
    jumps = compare(monkeypatch, lambda: shards(numbered(paths, RANDOM)), lambda loader, epoch: loader.set_epoch(3 * epoch))
    assert jumps[:2] == [(0, 0), (0, ROOM)] and sum(used for used, _ in jumps) == 0
    by_the_sampler = compare(
        monkeypatch, lambda: shards(numbered(paths, RANDOM), seed=1), lambda loader, epoch: loader.sampler.set_epoch(3 * epoch)
    )
    assert by_the_sampler == [(0, 0), (0, ROOM), (ROOM, 0), (ROOM, 0)]  # the step is learned


def test_a_user_who_draws_between_epochs(paths, monkeypatch):
    make = LOADERS["shuffle"]
    counts = compare(monkeypatch, lambda: make(numbered(paths, RANDOM)), lambda loader, epoch: torch.rand(1))
    assert [used for used, _ in counts] == [0, 0, 0, 0]
    assert [dropped for _, dropped in counts] == [0, ROOM, ROOM, 0]  # after the second miss it rests
    free = compare(monkeypatch, lambda: make(numbered(paths)), lambda loader, epoch: torch.rand(1))
    assert [used for used, _ in free] == [0, 0, 0, 0]  # the order is another one
    in_order = compare(monkeypatch, lambda: LOADERS["in order"](numbered(paths)), lambda loader, epoch: torch.rand(1))
    assert in_order[1:] == [(ROOM, 0)] * 3  # samples that draw nothing are the same with any seed


def test_training_that_draws_in_each_step(paths, monkeypatch):
    """From the first miss on, the prediction is made at the epoch's end."""

    class Draws(DDLPLoader):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                torch.rand(3)
                yield batch

    counts = compare(monkeypatch, lambda: Draws(numbered(paths, RANDOM), BATCH, shuffle=True, num_workers=WORKERS))
    assert counts == [(0, 0), (0, ROOM), (ROOM, 0), (ROOM, 0)]


CHANGES: dict[str, Callable[[DDLPLoader], Any]] = {
    "transform": lambda loader: setattr(loader.dataset, "transform", DETERMINISTIC),
    "files": lambda loader: loader.dataset.paths.reverse(),
    "epoch": lambda loader: loader.set_epoch(7),
    "seed": lambda loader: setattr(loader, "seed", 9),
    "output": lambda loader: setattr(loader, "output", torch.uint8),
    "memory_format": lambda loader: setattr(loader, "memory_format", torch.channels_last),
    "manual_seed": lambda loader: torch.manual_seed(5),
    "user code": lambda loader: setattr(loader.dataset, "transform", transforms.Lambda(lambda image: image.width)),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore:ddlp")
@pytest.mark.some(3)
def test_what_the_user_changes_between_epochs_counts(paths, monkeypatch, name):
    def change(loader: DDLPLoader, epoch: int) -> None:
        if epoch == 1:
            CHANGES[name](loader)

    def make() -> DDLPLoader:
        return DDLPLoader(numbered(list(paths), RANDOM), BATCH, shuffle=True, num_workers=WORKERS)

    counts = compare(monkeypatch, make, change)
    assert counts[1] == (0, 0 if name == "user code" else ROOM)


def test_another_sampler(paths, monkeypatch):
    """DataLoader forbids to change the sampler; its own attributes may change."""

    def change(loader: DDLPLoader, epoch: int) -> None:
        loader.sampler.indices = list(range(epoch, SAMPLES))

    row = np.random.default_rng(4).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    alike = ImageArrays(np.stack([row] * SAMPLES), list(range(SAMPLES)), CROPS)  # samples differ by what is drawn alone
    for data in (numbered(paths, RANDOM), alike):
        sampler = partial(SubsetRandomSampler, range(3, 40))
        make = partial(DDLPLoader, data, BATCH, num_workers=WORKERS, seed=1)
        counts = compare(monkeypatch, lambda make=make, sampler=sampler: make(sampler=sampler()), change)
        assert [used for used, _ in counts] == [0, 0, 0, 0] and counts[1] == (0, ROOM)


def test_a_state_in_mid_epoch(paths):
    loader = LOADERS["shuffle"](numbered(paths, RANDOM))
    torch.manual_seed(2)
    for k, _ in enumerate(loader):
        if k == 4:
            state = loader.state_dict()
    left, settled = [flat(batch) for batch in loader], ready(loader)
    assert settled == ROOM and left
    loader.load_state_dict(state)
    rest = [flat(batch) for batch in loader]
    assert loader.report().early == 0 and len(rest) == len(loader) - 5
    fresh = LOADERS["shuffle"](numbered(paths, RANDOM))
    fresh.load_state_dict(state)
    assert same(rest, [flat(batch) for batch in fresh])
    assert loader.state_dict()["epoch"] == fresh.state_dict()["epoch"] == 1


def test_a_state_within_the_epoch_that_comes_next(paths):
    """Seed and order are those that were predicted, but the first batches are not wanted any more."""

    def made() -> DDLPLoader:
        torch.manual_seed(7)
        return DDLPLoader(files, BATCH, sampler=RandomSampler(files, True, 50), num_workers=WORKERS, seed=3)

    files = numbered(paths, RANDOM)
    saver = made()
    list(saver)
    for k, _ in enumerate(saver):
        if k == ROOM - 1:
            state = saver.state_dict()
    del saver
    loader = made()
    list(loader)
    assert ready(loader) == ROOM
    early = loader._turn.early
    loader.load_state_dict(state)
    iterator = iter(loader)
    assert early.ready == 0 and len(list(iterator)) == len(loader) - ROOM
    assert (loader.report().early, loader.report().early_dropped) == (0, ROOM)
    assert ready(loader) == ROOM  # for the epoch after that


def test_bad_samples_raise_in_their_epoch_and_replaced_ones_count_there(tmp_path):
    paths = write_images(tmp_path)
    os.truncate(paths[0], 200)
    loader = DDLPLoader(numbered(paths), BATCH, num_workers=WORKERS)
    for _ in range(3):
        iterator = iter(loader)
        with pytest.raises(OSError, match="000.jpg"):
            next(iterator)
        assert len(list(iterator)) == len(loader) - 1
        assert ready(loader) == ROOM - 1  # without the first one
    del loader, iterator
    replaces = DDLPLoader(numbered(paths), BATCH, num_workers=WORKERS, on_error="replace", max_replaced=0.5)
    for used in (0, ROOM):
        with pytest.warns(UserWarning, match="000.jpg"):
            list(replaces)
        settle()
        assert (replaces.report().early, replaces.report().replaced) == (used, 1)


def test_rows_and_files_that_change_between_epochs_are_read_anew(paths, tmp_path):
    data = arrays()
    loader = DDLPLoader(data, BATCH, num_workers=WORKERS)
    list(loader)
    assert ready(loader) == ROOM
    data.images[5] = 0
    images = torch.cat([images for images, _ in loader])
    assert not images[5].any() and loader.report().early == ROOM - 1  # one batch was made again

    del loader
    own = list(map(str, shutil.copytree(Path(paths[0]).parents[1], tmp_path / "own").rglob("*.jpg")))
    files = DDLPLoader(numbered(sorted(own)), BATCH, num_workers=WORKERS)
    list(files)
    assert ready(files) == ROOM
    Image.new("RGB", (30, 30)).save(sorted(own)[6])
    black = torch.cat([images for images, _ in files])[6]
    assert torch.equal(black, black[:, :1, :1].expand_as(black)) and files.report().early == ROOM - 1


def test_an_array_of_another_shape(monkeypatch):
    """Its rows have the same bytes, and its crops the same size."""
    rows = np.random.default_rng(5).integers(0, 256, (SAMPLES, 16, 24, 3), dtype=np.uint8)

    def make() -> DDLPLoader:
        return DDLPLoader(ImageArrays(rows, list(range(SAMPLES)), CROPS), BATCH, num_workers=WORKERS)

    def turn(loader: DDLPLoader, epoch: int) -> None:
        loader.dataset.images = rows.reshape(SAMPLES, 24, 16, 3) if epoch % 2 else rows

    assert compare(monkeypatch, make, turn)[1] == (0, ROOM)


def test_a_shard_that_is_replaced_while_it_is_open(paths, tmp_path):
    """What is made early comes from the shard that the last epoch has opened. The next epoch opens the new one."""
    images, black = (tmp_path / name for name in ("images.tar", "black.tar"))
    Image.new("RGB", (30, 30)).save(tmp_path / "black.jpg")
    for path, source in ((images, None), (black, tmp_path / "black.jpg")):
        with tarfile.open(path, "w") as tar:
            for name in paths:
                data = Path(source or name).read_bytes().ljust(8192, b"\0")  # the same places in both
                for kind, content in (("jpg", data), ("cls", b"1")):
                    member = tarfile.TarInfo(f"{Path(name).stem}.{kind}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    loader = DDLPLoader(TarImages(images, DETERMINISTIC), BATCH, num_workers=WORKERS)
    for k, _ in enumerate(loader):
        if k == 0:
            black.replace(images)
    assert ready(loader) == ROOM
    found = torch.cat([images for images, _ in loader])
    assert torch.equal(found, found[:, :, :1, :1].expand_as(found)) and loader.report().early == 0
    assert ready(loader) == ROOM
    assert torch.equal(torch.cat([images for images, _ in loader]), found) and loader.report().early == ROOM


# -- when, and how many --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["cpu", "wrr"])
def test_the_first_batches_are_ready_before_the_epoch_begins(paths, tmp_path, strategy):
    loader = DDLPLoader(
        numbered(paths, RANDOM), BATCH, shuffle=True, num_workers=WORKERS, strategy=strategy, spool=str(tmp_path)
    )
    list(loader)
    room = ROOM if strategy == "cpu" else ROOM - 1  # the devices' batches have room of their own
    assert ready(loader) == room
    iterator = iter(loader)
    until(lambda: 0 in iterator.executor._ready and iterator.executor.counts.early)  # before training asks
    list(iterator)
    report = loader.report()
    assert report.early_dropped == 0 and "early" in str(report)
    assert report.early == room and report.batches_cpu >= room


def test_the_last_batches_in_memory_leave_room_first(paths):
    """The next epoch's batches and those that training has not taken are no more than those of an epoch."""
    loader = DDLPLoader(numbered(paths, RANDOM), BATCH, num_workers=WORKERS)
    iterator = iter(loader)
    ledger, chunks = iterator.executor.ledger, iterator.executor._chunks
    begun = []
    for _ in range(len(loader)):
        until(lambda: ledger.host_in_work == 0 and (not ledger.free or ledger.free_host_slots < chunks.length))
        settle()
        begun.append(0 if loader._turn.early is None else loader._turn.early.begun)
        assert begun[-1] == 0 or not ledger.free
        assert begun[-1] + ledger._in_memory_host <= max(ROOM, ledger.host_slots)  # short batches have more room
        next(iterator)
    assert begun[0] == 0 and begun[-1] >= ROOM - 1 and begun == sorted(begun)
    assert ready(loader) == ROOM
    assert not list(iterator)


def test_an_epoch_that_is_broken_off_leaves_none(paths):
    loader = DDLPLoader(numbered(paths, RANDOM), BATCH, num_workers=WORKERS)
    for k, _ in enumerate(loader):
        if k == len(loader) - 3:
            until(lambda: loader._turn.early is not None)
            break
    until(lambda: loader._turn.early is None and not turns._process.at_work)
    assert len(list(loader)) == len(loader) and loader.report().early == 0


def test_training_and_evaluation_take_turns(paths):
    """Whose epoch follows is learned. At most one loader has early batches."""
    train = DDLPLoader(numbered(paths, RANDOM), BATCH, shuffle=True, num_workers=WORKERS)
    test = DDLPLoader(numbered(paths), 2 * BATCH, num_workers=WORKERS)
    used = []
    for _ in range(5):
        list(train)
        settle()
        assert test._turn is None or train._turn.early is None
        list(test)
        settle()
        assert test._turn.early is None and ready(train) == ROOM
        used.append((train.report().early, test.report().early))
    assert used == [(0, 0), (ROOM, 0), (ROOM, ROOM), (ROOM, ROOM), (ROOM, ROOM)]  # the first guess was that training goes on
    assert train.report().early_dropped == test.report().early_dropped == 0


def test_the_loader_before_is_gone(paths):
    """A loader that was used once, before training, is not waited for."""
    first, loader = (DDLPLoader(numbered(paths), BATCH, num_workers=WORKERS) for _ in range(2))
    list(first)
    iterator = iter(loader)
    del first
    gc.collect()
    list(iterator)
    assert ready(loader) == ROOM


def test_an_epoch_amid_another_one(paths):
    train = DDLPLoader(numbered(paths, RANDOM), BATCH, shuffle=True, num_workers=WORKERS)
    test = DDLPLoader(numbered(paths), BATCH, num_workers=WORKERS)
    for k, _ in enumerate(train):
        if k in (2, 5):
            list(test)
            assert ready(test) == ready(train) == 0
    assert ready(train) == ROOM


def test_what_makes_nothing_early(paths, tmp_path, monkeypatch):
    files = numbered(paths, RANDOM)
    steps = transforms.Compose([*RANDOM.transforms, transforms.Lambda(lambda image: image)])
    mine = transforms.Compose([transforms.RandomResizedCrop(16), load_operators(MY_OPS).invert(), transforms.ToTensor()])
    others = {
        "recorded": DDLPLoader(files, BATCH, num_workers=WORKERS, record=str(tmp_path / "record")),
        "a sampler of the user's": DDLPLoader(files, BATCH, sampler=list(range(20)), num_workers=WORKERS),
        "own steps": DDLPLoader(numbered(paths, steps), BATCH, num_workers=WORKERS, own_steps="threads"),
        "the user's operators": DDLPLoader(numbered(paths, mine), BATCH, num_workers=WORKERS),
        "off": DDLPLoader(files, BATCH, num_workers=WORKERS),
    }
    for name, loader in others.items():
        if name == "off":
            monkeypatch.setenv("DDLP_EARLY_BATCHES", "off")
        for _ in range(2):
            list(loader)
            assert ready(loader) == 0 and loader.report().early == 0, name
    monkeypatch.delenv("DDLP_EARLY_BATCHES")
    next(DDLPLoader(files, BATCH, num_workers=WORKERS).replay())
    assert not at_work()


# -- with a device -------------------------------------------------------------------------------------------------------

SHARED: dict[str, dict[str, Any]] = {
    "auto": {"strategy": "auto"},
    "wrr": {"strategy": "wrr"},
    "ordered": {"strategy": "ordered"},
    "mte": {"strategy": "mte"},
    "mte, 2 batches": {"strategy": "mte", "ratio": 0.06},
    "mte, none": {"strategy": "mte", "ratio": 0.0},
}


def slowly(make: Callable[..., Any], *arguments: Any) -> Any:
    time.sleep(0.02)
    return make(*arguments)


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.some(3)
def test_the_same_bits_with_a_device(paths, engine, monkeypatch, name):
    """Each sample comes once, with the bits of the host alone, and in its order where the strategy promises that."""
    files = [path for path in paths for _ in range(3)]
    make = partial(DDLPLoader, numbered(files, RANDOM), BATCH, True, num_workers=WORKERS)
    with monkeypatch.context() as patch:
        patch.setenv("DDLP_EARLY_BATCHES", "off")
        alone = [batches for batches, _ in epochs(make(strategy="cpu"))]
    slow = partial(slowly, native.prepare_batch)  # a host that is slow enough for a device to help
    monkeypatch.setattr(native, "prepare_batch", slow)
    monkeypatch.setattr(early_batches, "prepare_batch", slow)
    told, delivered = [], Controller.delivered
    monkeypatch.setattr(Controller, "delivered", lambda *given: told.append(given[-1]) or delivered(*given))
    loader, csd, used = make(**SHARED[name], spool=engine), 0, 0
    ordered = loader.strategy == "ordered"
    for number, (batches, _) in enumerate(epochs(loader)):
        report, wanted = loader.report(), alone[number]
        if name == "mte, 2 batches":  # the third one is the epoch's last
            assert same(batches[:3], [*wanted[:2], wanted[-1]])
        if not ordered:
            batches, wanted = (sorted(one, key=lambda batch: batch[1].tolist()) for one in (batches, wanted))
        assert same(batches, wanted)
        slots = host_slots(WORKERS, 2, True)
        room = {"mte, 2 batches": 2, "mte, none": 0}.get(name, slots) if number else 0
        # A copy of a late batch that nobody wants any more holds its slot until its worker stops.
        assert room - WORKERS <= report.early <= room and report.early_dropped == 0
        csd, used = csd + report.batches_csd, used + report.early
    if name == "auto":
        assert sum(told) == used  # batches that it does not measure
    else:
        assert csd > 0 and not told


def test_what_was_made_early_is_not_leased(paths, engine, monkeypatch):
    """Also if a device has joined before the host's workers have claimed anything."""
    slow = partial(slowly, native.prepare_batch)
    monkeypatch.setattr(native, "prepare_batch", slow)
    loader = DDLPLoader(numbered(paths * 3), BATCH, num_workers=WORKERS, strategy="ordered", spool=engine)
    list(loader)
    made, gate, claim = ready(loader), threading.Event(), EpochExecutor._next_chunk
    monkeypatch.setattr(EpochExecutor, "_next_chunk", lambda self, number: gate.wait(30) and claim(self, number))
    iterator = iter(loader)
    ledger = iterator.executor.ledger
    try:
        until(lambda: any(account.outstanding for account in ledger.devices.values()))
        assert min(entry.position for entry in list(ledger.leased())) >= made >= 2
    finally:
        gate.set()
    assert len(list(iterator)) == len(loader)
    assert (loader.report().early, loader.report().early_dropped) == (made, 0)


# -- the end -------------------------------------------------------------------------------------------------------------


class Gate:
    """Stops the threads that make batches early, before each batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.reached, make = threading.Event(), threading.Event(), early_batches.prepare_batch

        def prepare(spec: Any, position: int, wanted: Callable[[], bool], finished: bool) -> Any:
            self.reached.set()
            while wanted() and not self.open.wait(0.01):
                pass
            return make(spec, position, wanted, finished)

        monkeypatch.setattr(early_batches, "prepare_batch", prepare)


def test_a_dropped_loader_leaves_nothing(paths, monkeypatch):
    loader = DDLPLoader(numbered(paths, RANDOM), BATCH, num_workers=WORKERS)
    list(loader)
    assert ready(loader) == ROOM
    early = weakref.ref(loader._turn.early)
    del loader
    gc.collect()
    until(lambda: early() is None)

    gate = Gate(monkeypatch)
    loader = DDLPLoader(numbered(paths, RANDOM), BATCH, num_workers=WORKERS)
    list(loader)
    gate.reached.wait(10)
    assert at_work() and ready_now(loader) == 0
    early = weakref.ref(loader._turn.early)
    del loader
    gc.collect()
    settle()
    until(lambda: early() is None)


def ready_now(loader: DDLPLoader) -> int:
    return loader._turn.early.ready


def test_batches_in_work_are_waited_for_and_not_made_twice(paths, monkeypatch):
    gate = Gate(monkeypatch)
    loader = DDLPLoader(numbered(paths), BATCH, num_workers=WORKERS)
    first = list(loader)
    gate.reached.wait(10)
    until(lambda: loader._turn.early.begun == WORKERS)
    iterator = iter(loader)
    time.sleep(0.05)
    assert iterator.executor.counts.early == 0
    gate.open.set()
    assert same([flat(batch) for batch in first], [flat(batch) for batch in iterator])
    assert loader.report().early == WORKERS


def test_an_iterator_that_is_kept_begins_no_more_of_them(paths, monkeypatch):
    """What it would begin was not compared with the epoch that has begun."""
    gate = Gate(monkeypatch)
    loader = DDLPLoader(numbered(paths, RANDOM), BATCH, num_workers=WORKERS)
    kept = iter(loader)
    for _ in range(len(loader)):
        next(kept)
    until(lambda: loader._turn.early is not None and loader._turn.early.begun == WORKERS)
    early, iterator = loader._turn.early, iter(loader)
    with kept.executor._lock:
        kept.executor._make_early()
    gate.open.set()
    assert len(list(iterator)) == len(loader)
    assert early.begun == loader.report().early == WORKERS


def test_an_epoch_is_closed_while_it_waits_for_early_batches(paths, monkeypatch):
    gate = Gate(monkeypatch)
    loader = DDLPLoader(numbered(paths), BATCH, num_workers=WORKERS)
    list(loader)
    gate.reached.wait(10)
    iterator = iter(loader)
    iterator._shutdown_workers()
    settle()
    gate.open.set()
    assert len(list(loader)) == len(loader)


def test_in_a_forked_child(paths):
    """A child has its parent's loader without the early batches, and gets the same batches."""
    loader = DDLPLoader(numbered(paths, RANDOM), BATCH, shuffle=True, num_workers=WORKERS, generator=own())
    list(loader)
    assert ready(loader) == ROOM
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            batches = [flat(batch) for batch in loader]
            status = 0 if len(batches) == len(loader) and loader.report().early == 0 else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(list(loader)) == len(loader) and loader.report().early == ROOM


def test_targets_are_joined_by_the_epoch_that_has_begun(paths):
    files = ImageFiles(paths, list(range(SAMPLES)), DETERMINISTIC)
    loader = DDLPLoader(files, BATCH, num_workers=WORKERS)
    list(loader)
    assert ready(loader) == ROOM
    files.targets = [-k for k in range(SAMPLES)]
    assert torch.cat([targets for _, targets in loader]).tolist() == files.targets and loader.report().early == ROOM
