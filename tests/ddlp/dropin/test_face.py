"""DDLPLoader from outside: signature, checks, attributes, pickles. Constructing one has no side effects."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import threading
import types
import warnings

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler
from torchvision import transforms as T

from ddlp import DDLPError, DDLPLoader, Goal, LocalPool, Prices
from ddlp.config import LoaderConfig
from ddlp.devices.device import Device
from tests.ddlp.dropin.small_sets import RANDOM, Draws, Stream, by_target, numbered


class Ten(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index


def test_the_signature_is_dataloaders_with_ours_behind():
    theirs = list(inspect.signature(DataLoader).parameters.values())
    ours = list(inspect.signature(DDLPLoader).parameters.values())
    for their, our in zip(theirs, ours, strict=False):
        assert (our.name, our.kind, our.default) == (their.name, their.kind, their.default)
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in ours[len(theirs) :])
    assert not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in ours)


@pytest.mark.parametrize(
    "arguments",
    [
        dict(num_workers=-1),
        dict(timeout=-1),
        dict(prefetch_factor=2),
        dict(num_workers=1, prefetch_factor=-1),
        dict(persistent_workers=True),
        dict(shuffle=True, sampler=SequentialSampler(Ten())),
        dict(batch_sampler=BatchSampler(SequentialSampler(Ten()), 2, False), batch_size=3),
        dict(batch_size=None, drop_last=True),
        dict(batch_size=0),
        dict(batch_size=2.5),
        dict(multiprocessing_context="fork"),
        dict(num_workers=1, multiprocessing_context="sideways"),
        dict(num_workers=1, multiprocessing_context=3),
        dict(dataset=Stream(), shuffle=True),
        dict(dataset=Stream(), sampler=SequentialSampler(Ten())),
        dict(dataset=[], shuffle=True),
    ],
)
def test_contradictions_raise_as_in_dataloader(arguments):
    arguments = {"dataset": Ten(), **arguments}
    caught = []
    for kind in (DataLoader, DDLPLoader):
        try:
            kind(**arguments)
            caught.append(None)
        except Exception as error:
            caught.append((type(error), str(error)))
    assert caught[0] == caught[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(strategy="both"), "strategy='both'"),
        (dict(ratio=0.5), "ratio=0.5"),
        (dict(strategy="mte", ratio=1.5), "ratio=1.5"),
        (dict(audit=0), "audit=0"),
        (dict(seed="x"), "seed='x'"),
        (dict(spool_bytes=0), "spool_bytes=0"),
        (dict(transfer="pinned"), "transfer='pinned'"),
        (dict(transfer="pinned", device="cpu"), "transfer='pinned'"),
        (dict(output=torch.int64), "output=torch.int64"),
        (dict(memory_format=torch.preserve_format), "memory_format="),
        (dict(decode="sloppy"), "decode='sloppy'"),
        (dict(csd="csd0"), "csd='csd0'"),
        (dict(csd=Device("ipc:///nowhere", "keys"), strategy="cpu"), "strategy='cpu'"),
        (dict(pool=2, strategy="cpu"), "pool= with strategy='cpu'"),
        (dict(pool=0), "pool=0"),
        (dict(pool=True), "pool=True"),
        (dict(pool=2.5), "pool=2.5"),
        (dict(pool=LocalPool(2), strategy="auto", goal=Goal(prices=Prices(1.0, 1.0))), "with prices or watts in goal="),
    ],
)
def test_our_own_contradictions_name_the_value(paths, arguments, words):
    with pytest.raises(ValueError, match="=") as caught:
        DDLPLoader(numbered(paths), **arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize("device", [0, 1, "cuda", "cuda:0", torch.device("cuda", 0)], ids=str)
def test_a_gpu_may_be_given_by_its_number(paths, device):
    loader = DDLPLoader(numbered(paths), 4, device=device, transfer="pinned")
    target = LoaderConfig.of(loader).target
    assert loader.device is device and target == torch.device(device) and target.type == "cuda"
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: its own tests use it")
    with pytest.raises(DDLPError, match="finds no GPU here"):
        iter(loader)


@pytest.mark.parametrize("steps", [[T.ToTensor(), T.RandomErasing(p=1.0)], [T.PILToTensor()]], ids=["masks", "bytes"])
def test_another_default_device_changes_no_values(paths, steps):
    loader = DDLPLoader(numbered(paths, T.Compose([T.Resize((8, 8)), *steps])), 4)
    expected = loader._travel.now(loader, LoaderConfig.of(loader))
    images = torch.randint(256, (2, *expected.shape), dtype=torch.uint8)
    boxes = torch.tensor([[[1, 2, 4, 5]]] * 2, dtype=torch.int32) if expected.pipeline.boxes else None
    with torch.device("meta"):
        found = loader._travel.now(loader, LoaderConfig.of(loader))
        values = found.epilogue(images, boxes)
    assert torch.equal(values, expected.epilogue(images, boxes))


def test_the_sampler_that_accelerate_asks_for(paths):
    dataset, inner = numbered(paths), SequentialSampler(Ten())
    for given in (dict(batch_size=4, sampler=inner), dict(batch_sampler=BatchSampler(inner, 4, False)),
                  dict(batch_size=None, sampler=inner), dict(batch_size=None, sampler=BatchSampler(inner, 4, False))):
        assert DDLPLoader(dataset, **given).get_sampler() is inner
    assert DDLPLoader(Stream(), 4).get_sampler() is not None


def test_locked_attributes(paths):
    loader = DDLPLoader(numbered(paths))
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after DDLPLoader is initialized"):
            setattr(loader, name, None)


def test_what_all_epochs_share_is_locked_once_it_was_made(paths, engine, tmp_path):
    loader = DDLPLoader(numbered(paths), 4, spool=str(tmp_path / "none"))
    list(loader)
    loader.spool, loader.spool_bytes, loader.transfer, loader.strategy = engine, 1 << 24, "shared", "csd"
    assert len(list(loader)) == loader.report().batches_csd == 11
    for name in ("csd", "pool", "transfer", "spool", "spool_bytes"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after DDLPLoader has begun an epoch with it"):
            setattr(loader, name, None)
    loader.strategy, loader.device = "cpu", "cpu"
    assert len(list(loader)) == 11 and loader.report().batches_csd == 0
    again = pickle.loads(pickle.dumps(loader))
    again.spool = None
    assert again.spool is None and len(list(again)) == 11


def test_every_argument_is_an_attribute_with_the_value_given(paths):
    values = dict(
        strategy="mte", csd=[Device("ipc:///nowhere", "keys")], pool=2, device="cpu", seed=7, ratio=0.25, spool="/somewhere",
        spool_bytes=1 << 20, audit=5, output="float16", memory_format=torch.channels_last, batch_transform=print, decode="fast",
        as_pil=True, allow_different_bits=True, batch_size=3, num_workers=2, collate_fn=None, pin_memory=True, drop_last=True,
        on_error="replace", max_replaced=0.25,
        timeout=5, worker_init_fn=print, generator=torch.Generator(), prefetch_factor=3, persistent_workers=True,
        pin_memory_device="", in_order=False,
    )
    loader = DDLPLoader(numbered(paths), **values)
    for name, value in values.items():
        if name != "collate_fn":
            assert getattr(loader, name) is value, name
    names = set(inspect.signature(DDLPLoader).parameters) - {"shuffle"}
    assert all(hasattr(loader, name) for name in names)


def test_it_is_generic_and_a_dataloader():
    assert isinstance(DDLPLoader[int], types.GenericAlias)
    assert issubclass(DDLPLoader, DataLoader)

    class Mine(DDLPLoader):
        pass

    assert list(Mine(Ten(), batch_size=4))[2].tolist() == [8, 9]


def _handles() -> tuple[set, int, list[str]]:
    tasks = sorted(os.listdir("/proc/self/task"))
    files = {f: os.readlink(f"/proc/self/fd/{f}") for f in os.listdir("/proc/self/fd") if
             os.path.exists(f"/proc/self/fd/{f}")}
    children = [c for t in tasks for c in open(f"/proc/self/task/{t}/children").read().split()]
    return set(files.items()), threading.active_count(), children


@pytest.mark.parametrize("strategy", ["cpu", "csd", "wrr"])
def test_construction_has_no_side_effects(paths, tmp_path, strategy):
    before, state = _handles(), torch.get_rng_state()
    loaders = [
        DDLPLoader(numbered(paths), batch_size=4, shuffle=True, num_workers=2, strategy=strategy, spool=str(tmp_path))
        for _ in range(3)
    ]
    files, threads, children = _handles()  # what tests before had may end meanwhile
    assert files <= before[0] and threads <= before[1] and set(children) <= set(before[2])
    assert os.listdir(tmp_path) == []
    assert torch.equal(torch.get_rng_state(), state)
    assert len(loaders[0]) == 11


def test_pickles_also_after_an_epoch(paths, engine):
    loader = DDLPLoader(
        numbered(paths, RANDOM), batch_size=4, num_workers=2, seed=3, strategy="wrr", spool=engine,
        multiprocessing_context="spawn",
    )
    for _ in range(2):
        loader.set_epoch(0)
        expected = by_target(list(loader))
        copy = pickle.loads(pickle.dumps(loader))
        copy.set_epoch(0)
        found = by_target(list(copy))
        assert all(torch.equal(found[k], expected[k]) for k in expected)
    assert copy.seed == 3 and copy.strategy == "wrr"
    with pytest.raises(ValueError, match="should not be set"):
        copy.batch_size = 2


def _digest(loader: DDLPLoader, results: multiprocessing.SimpleQueue) -> None:
    results.put({k: v.sum().item() for k, v in by_target(list(loader)).items()})


def test_works_in_a_process_that_is_not_forked(paths, not_forked):
    loader = DDLPLoader(numbered(paths, RANDOM), batch_size=4, num_workers=2, seed=3)
    context = multiprocessing.get_context(not_forked)
    results = context.SimpleQueue()
    process = context.Process(target=_digest, args=(loader, results))
    process.start()
    found = results.get()
    process.join()
    assert found == {k: v.sum().item() for k, v in by_target(list(loader)).items()}


def test_what_frameworks_touch_is_there(paths):
    loader = DDLPLoader(numbered(paths), batch_size=4, num_workers=2)
    assert loader._iterator is None and loader._auto_collation and loader._index_sampler is loader.batch_sampler
    iterator = loader._get_iterator()
    assert next(iterator)[1].tolist() == [0, 1, 2, 3]
    assert len(iterator) == 11 and iterator._workers == [] and iterator._pin_memory_thread is None
    assert iter(iterator) is iterator
    iterator._shutdown_workers()
    user = DDLPLoader(Draws(), batch_size=4, num_workers=2)
    iterator = iter(user)
    assert len(iterator._workers) == 2
    assert next(user._get_iterator())[1].tolist() == [0, 1, 2, 3]
    iterator._shutdown_workers()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("own", [False, True])
def test_pin_memory_without_an_accelerator_warns_at_the_users_line(paths, own, workers):
    if not hasattr(torch, "accelerator"):
        pytest.skip("this torch warns of nothing")
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    dataset = [(torch.ones(2), 1)] * 20 if own else numbered(paths)
    for kind in (DataLoader, DDLPLoader):
        with pytest.warns(UserWarning, match="no accelerator is found") as caught:
            batches = list(kind(dataset, batch_size=20, num_workers=workers, pin_memory=True))
        assert len(caught) == 1
        assert not batches[0][0].is_pinned()
    assert caught[0].filename == __file__  # DDLPLoader's is at the user's line


@pytest.mark.parametrize("shuffle", [False, True])
def test_default_strategies(paths, shuffle):
    device = Device("ipc:///nowhere", "keys")

    def chosen(**arguments):
        loader = DDLPLoader(numbered(paths), **{"shuffle": shuffle, **arguments})
        return LoaderConfig.of(loader).chosen.name

    assert chosen() == "cpu"
    assert chosen(in_order=False) == "cpu"
    assert chosen(csd=device) == ("auto" if shuffle else "ordered")
    assert chosen(csd=device, in_order=False) == "auto"
    assert chosen(csd=device, strategy="mte") == "mte"
    dataset = numbered(paths)
    for order, random in (
        (torch.utils.data.WeightedRandomSampler([1.0] * 41, 41), True),
        (torch.utils.data.SubsetRandomSampler(range(5)), True),
        (torch.utils.data.DistributedSampler(dataset, 2, 0, shuffle=True), True),
        (torch.utils.data.DistributedSampler(dataset, 2, 0, shuffle=False), False),
        ([0, 1, 2], False),
    ):
        assert chosen(csd=device, shuffle=None, sampler=order) == ("auto" if random else "ordered")
    torch.use_deterministic_algorithms(True)
    try:
        assert chosen(csd=device) == "ordered"
        assert chosen(csd=device, in_order=False) == "ordered"
    finally:
        torch.use_deterministic_algorithms(False)


def test_no_warning_where_nothing_is_lost(paths):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(DDLPLoader(numbered(paths), batch_size=4, num_workers=2))
        list(DDLPLoader(Ten(), batch_size=4, num_workers=2))


WITHOUT_DEVICES = """
import sys
import torch
from torchvision import transforms as T
import ddlp

loader = ddlp.DDLPLoader(ddlp.ImageFiles(sys.argv[1:], range(6), T.Compose([T.RandomCrop(8), T.ToTensor()])), 2, num_workers=1)
own = ddlp.DDLPLoader([torch.ones(2)] * 4, 2, num_workers=1)
print(sum(len(batch) for kind in (loader, own) for _ in range(2) for batch in kind))
loader.state_dict(), loader.report(), loader.live()
rooms = ("ddlp.pools", "ddlp.deploy", "ddlp.sources.engine", "ddlp.sources.usercode", "csd_engine.service", "zmq", "ray")
print([name for name in sys.modules if name.startswith(rooms)])
"""


def test_a_user_without_devices_loads_nothing_that_serves_them(paths, forks):
    done = forks.run(code=WITHOUT_DEVICES, arguments=paths[:6], environment=os.environ)
    assert done.stdout == "20\n[]\n", done.stderr
