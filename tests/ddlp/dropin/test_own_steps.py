"""A transform of known operators, then the user's own: it is cut between them, and gives DataLoader's samples."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2

from ddlp import DDLPLoader, ImageArrays
from ddlp.epoch.iterator import EpochIterator
from ddlp.observe import checked, read_run
from ddlp.recording.events import HostBatch
from ddlp.transforms import Views
from tests.both_sides import until_both
from tests.ddlp.dropin.beside import cut, equal
from tests.ddlp.dropin.own_steps import (
    Album,
    Burn,
    Dies,
    Halve,
    Moody,
    Noise,
    Shift,
    Slow,
    Tagged,
    Worker,
    note_worker,
    tv_image,
)
from tests.ddlp.dropin.small_sets import SAMPLES, by_target, numbered
from tests.engine_process import until

KNOWN = (v1.RandomResizedCrop((20, 24)), v1.RandomHorizontalFlip())
WAYS = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "own_steps": "threads"}]
WORKERS = [{"num_workers": 0}, {"num_workers": 2}]


def stacked(crops):
    assert type(crops) is tuple and {type(crop) for crop in crops} == {Image.Image}
    return torch.stack([v1.functional.to_tensor(crop) for crop in crops])


SHIFTED = v1.Compose([v1.Resize((20, 24)), Shift(), v1.ToTensor()])
DETERMINISTIC = {
    "a PIL image": v1.Compose([v1.Resize((20, 24)), Shift(), v1.ToTensor()]),
    "nested": v1.Compose([v1.Compose([v1.Resize(30), v1.CenterCrop(20)]), v1.Compose([Shift(), v1.ToTensor()])]),
    "a lambda": v1.Compose([v1.Resize((20, 24)), v1.Lambda(lambda image: torch.from_numpy(np.array(image)))]),
    "grey": v1.Compose([v1.Resize((20, 24)), v1.Grayscale(), Shift("L"), v1.ToTensor()]),
    "a tensor": v1.Compose([v1.Resize((20, 24)), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3), Halve()]),
    "uint8 tensor": v1.Compose([v1.Resize((20, 24)), v1.PILToTensor(), Halve()]),
    "v2": v2.Compose([v2.Resize((20, 24)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), tv_image,
                      v2.Resize((10, 12))]),
    "views alike": Views(*[v1.Compose([v1.Resize((20, 24)), Shift(), v1.ToTensor()])] * 2),
    "views that differ": Views(
        v1.Compose([v1.Resize((20, 24)), Shift(), v1.ToTensor()]),
        v1.Compose([v1.Resize(30), v1.CenterCrop((20, 24)), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3), Halve()]),
        v1.Compose([v1.Resize((20, 24)), v1.Grayscale(3), v1.ToTensor()]),
    ),
    "views of tensors": Views(*[v1.Compose([v1.Resize((20, 24)), v1.ToTensor(), Halve()])] * 3),
    "views of many sizes": Views(v1.Compose([v1.Resize((20, 24)), Shift(), v1.Resize((8, 9)), v1.ToTensor()]), SHIFTED),
    "views of two sizes": Views(
        v1.Compose([v1.Resize((20, 24)), Shift(), v1.ToTensor()]),
        *[v1.Compose([v1.Resize((9, 7)), v1.Grayscale(3), Shift(), v1.ToTensor()])] * 2,
    ),
    "views of two sizes, tensors": Views(
        *(v1.Compose([v1.Resize((size, 9)), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3), Halve()]) for size in (12, 7))
    ),
    "five crops": v1.Compose([v1.Resize(20), v1.FiveCrop((13, 17)), v1.Lambda(stacked)]),
    "ten crops": v1.Compose([v1.Resize((20, 24)), v1.Grayscale(), v1.TenCrop(15, vertical_flip=True), v1.Lambda(stacked)]),
    "ten crops, v2": v2.Compose([v2.Resize(20), v2.TenCrop(12), stacked]),
    "half": v1.Compose([v1.Resize((20, 24)), v1.ToTensor(), v1.ConvertImageDtype(torch.bfloat16), Halve()]),
}


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", DETERMINISTIC)
@pytest.mark.some(12)
def test_the_samples_of_dataloader(paths, name, way):
    data = numbered(paths, DETERMINISTIC[name])
    equal(cut(DDLPLoader(data, 6, **way)), DataLoader(data, 6))


class TwoCrops:
    """As MoCo's users write it: it returns a pair."""

    def __init__(self, transform):
        self.transform = transform

    def __call__(self, image):
        return self.transform(image), self.transform(image)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.some(2)
def test_the_views_of_a_sample_are_held_as_the_transform_holds_them(paths, way):
    """Seen in samples that are not collated, and by a user's collate_fn."""
    for transform in (TwoCrops(SHIFTED), Views(SHIFTED, SHIFTED)):
        data = numbered(paths, transform)
        ours, theirs = list(cut(DDLPLoader(data, None, **way))), list(DataLoader(data, None))
        assert [type(sample[0]) for sample in ours] == [type(sample[0]) for sample in theirs]
        equal(ours, theirs)
        equal(cut(DDLPLoader(data, 6, collate_fn=list, **way)), DataLoader(data, 6, collate_fn=list))


def test_each_view_draws_for_itself_on_either_side(paths, engine):
    """Each view's known operators, on device and host, and the user's own steps after them."""
    data = numbered(paths, TwoCrops(v1.Compose([*KNOWN, Noise()])))
    found = []
    for strategy in ("cpu", "csd"):
        batches = list(cut(DDLPLoader(data, 4, seed=3, strategy=strategy, num_workers=2, spool=engine)))
        assert all(type(views) is list and len(views) == 2 for views, _ in batches)
        found.append(by_target([(torch.stack(views, 1), targets) for views, targets in batches]))
    assert sorted(found[0]) == sorted(found[1]) == list(range(SAMPLES))
    for k, views in found[0].items():
        assert torch.equal(views, found[1][k]) and not torch.equal(views[0], views[1])


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.some(2)
def test_every_form_of_a_batch(paths, way):
    transform = v1.Compose([v1.Resize((20, 24)), Shift(), v1.ToTensor()])
    data = numbered(paths, transform, target_transform=str)
    equal(cut(DDLPLoader(data, 6, **way)), DataLoader(data, 6))
    data = numbered(paths, transform)
    equal(cut(DDLPLoader(data, None, **way)), DataLoader(data, None))
    equal(cut(DDLPLoader(data, 6, collate_fn=Tagged(), **way)), DataLoader(data, 6, collate_fn=Tagged()))
    parts = ConcatDataset([Subset(numbered(paths, transform, target_transform=str), range(5, 15)),
                           numbered(paths[:7], transform, target_transform=lambda target: str(-target))])
    equal(cut(DDLPLoader(parts, 6, **way)), DataLoader(parts, 6))
    arrays = ImageArrays(np.random.default_rng(0).integers(0, 256, (20, 9, 8, 3), dtype=np.uint8), range(20),
                         v1.Compose([v1.CenterCrop(6), Shift(), v1.ToTensor()]))
    equal(cut(DDLPLoader(arrays, 6, **way)), DataLoader(arrays, 6))


def test_results_of_a_collate_fn_lie_in_memory_that_is_used_again(paths):
    """Also after epochs that were left while a worker made a batch. What is delivered stays as it is."""
    data = numbered(paths, v1.Compose([v1.Resize((40, 40)), v1.ToTensor()]))

    def collate(samples):
        return {"images": torch.stack([image for image, _ in samples]), "targets": [target for _, target in samples]}

    theirs = list(DataLoader(data, 3, collate_fn=collate))
    loader = DDLPLoader(data, 3, collate_fn=collate, num_workers=2, persistent_workers=True)
    delivered = []
    for _ in range(4):
        for batch in cut(loader):
            delivered.append(batch)
            break
        batches = list(cut(loader))
        assert not any(batch["images"].is_shared() for batch in batches)
        equal(batches, theirs)
    equal(delivered, [theirs[0]] * 4)


def album():
    A = pytest.importorskip("albumentations")
    return A.Compose([A.RandomBrightnessContrast(p=0.9), A.OneOf([A.GaussNoise(), A.CoarseDropout()]),
                      A.Normalize(), A.pytorch.ToTensorV2()])  # fmt: skip


def closed_over():
    transform = album()
    return lambda image: transform(image=np.array(image))["image"]


RANDOM = {
    "global generators": Noise, "albumentations": lambda: Album(album()), "albumentations in a lambda": closed_over,
}  # fmt: skip


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.some(2)
def test_draws_follow_from_the_seed_alone(paths, name):
    found = []
    ways = [{"num_workers": 0}, {"num_workers": 1}, {"num_workers": 3, "prefetch_factor": 1}]
    if name == "albumentations":
        ways.append({"num_workers": 3, "own_steps": "threads"})
    for way in ways:
        loader = DDLPLoader(numbered(paths, v1.Compose([*KNOWN, RANDOM[name]()])), 4, shuffle=True, seed=5, **way)
        before = torch.get_rng_state(), np.random.get_state()[1].tolist()
        torch.manual_seed(1)
        found.append([by_target(list(cut(loader))), by_target(list(cut(loader)))])
        torch.set_rng_state(before[0])
        assert np.random.get_state()[1].tolist() == before[1]
    for epochs in found[1:]:
        for ours, theirs in zip(epochs, found[0], strict=True):
            assert all(torch.equal(ours[k], theirs[k]) for k in range(SAMPLES))
    assert not any(torch.equal(found[0][0][k], found[0][1][k]) for k in range(SAMPLES))


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.some(1)
def test_a_device_and_the_host_give_the_same_samples_each_once(paths, engine, name):
    data = numbered(paths, v1.Compose([*KNOWN, RANDOM[name]()]))
    alone = by_target(list(DDLPLoader(data, 4, seed=5)))
    for batches in until_both(DDLPLoader(data, 4, seed=5, strategy="wrr", num_workers=1, spool=engine)):
        found = by_target(batches)
        assert sorted(found) == list(range(SAMPLES)) and all(torch.equal(found[k], alone[k]) for k in alone)
    every = checked(DDLPLoader(data, 4, seed=5, strategy="wrr", shuffle=True, num_workers=1, spool=engine))
    assert sum(len(targets) for _, targets in every) == SAMPLES and every.verdict.over


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_an_error_names_the_sample_and_keeps_the_users_traceback(paths, way):
    data = numbered(paths, v1.Compose([v1.Resize((20, 24)), Moody()]))
    dark = [k for k in range(SAMPLES) if int(np.asarray(v1.Resize((20, 24))(Image.open(paths[k])))[0, 0].sum()) < 300]
    assert 0 < len(dark) < SAMPLES
    iterator, failed, got = cut(DDLPLoader(data, 1, **way)), [], []
    while True:
        try:
            got.append(int(next(iterator)[1]))
        except StopIteration:
            break
        except ValueError as error:
            failed.append(error)
    assert got == [k for k in range(SAMPLES) if k not in dark]  # iteration goes on after each error
    for error, k in zip(failed, dark, strict=True):
        told = "".join([*traceback.format_exception(error), *getattr(error, "__notes__", ())])  # Python 3.10 prints no notes
        assert paths[k] in told and "too dark" in told and "in refuse" in told


def test_where_the_steps_run(paths):
    data = numbered(paths, v1.Compose([v1.Resize((20, 24)), Worker()]))
    rows = torch.cat([images for images, _ in DDLPLoader(data, 4, num_workers=2, worker_init_fn=note_worker)])
    assert set(rows[:, 0].tolist()) == {0, 1} and len(set(rows[:, 1].tolist()) - {os.getpid()}) == 2
    assert {(a, b) for a, b in rows[:, [0, 2]].tolist()} == {(0, 100), (1, 101)} and set(rows[:, 3].tolist()) == {SAMPLES}
    rows = torch.cat([images for images, _ in DDLPLoader(data, 4)])
    assert rows[:, [0, 1, 4]].unique(dim=0).tolist() == [[-1, os.getpid(), 1]]
    rows = torch.cat([images for images, _ in DDLPLoader(data, 4, num_workers=2, own_steps="threads")])
    assert rows[:, [0, 1, 4]].unique(dim=0).tolist() == [[-1, os.getpid(), 0]]


def test_processes_that_are_not_forked(paths, not_forked):
    data = numbered(paths, v1.Compose([v1.Resize((20, 24)), Shift(), v1.ToTensor()]))
    equal(cut(DDLPLoader(data, 6, num_workers=1, multiprocessing_context=not_forked)), DataLoader(data, 6))


class EndsWithinAnAnswer:
    """A step after which the process writes half of its answer and ends, as one that is killed there."""

    def __call__(self, image: Any) -> torch.Tensor:
        def half(connection: Any, data: Any) -> None:
            os.write(connection.fileno(), bytes(data)[: len(data) // 2])
            os._exit(7)

        Connection._send = half  # type: ignore[attr-defined]
        return torch.zeros(64 << 10)


def test_a_process_that_ends_within_an_answer_is_an_error(paths):
    data = numbered(paths, v1.Compose([v1.Resize((20, 24)), EndsWithinAnAnswer()]))
    with pytest.raises(RuntimeError, match="exited unexpectedly, with code 7"):
        next(iter(DDLPLoader(data, 4, num_workers=1)))


def test_a_process_that_ends_is_an_error(paths):
    data = numbered(paths, v1.Compose([v1.Resize((20, 24)), Dies()]))
    with pytest.raises(RuntimeError, match="exited unexpectedly, with code 3"):
        next(cut(DDLPLoader(data, 4, num_workers=1)))


def processes_of(iterator):
    epoch = iterator.executor.resources.own_steps.close.__self__
    return [one._process for one in epoch.workers.all]


def test_an_epoch_that_is_left_ends_its_processes(paths):
    data = numbered(paths, v1.Compose([v1.Resize((20, 24)), Worker()]))
    iterator = cut(DDLPLoader(data, 4, num_workers=2))
    started = set(processes_of(iterator))
    next(iterator)
    del iterator
    assert len(started) == 2 and not any(process.is_alive() for process in started)


PERSISTENT = {"num_workers": 2, "persistent_workers": True, "seed": 5}


def test_persistent_processes_serve_all_epochs(paths):
    """Also after epochs that ended early, while batches were being made."""
    noisy = numbered(paths, v1.Compose([*KNOWN, Noise(), Slow()]))
    loader, anew = DDLPLoader(noisy, 2, **PERSISTENT), DDLPLoader(noisy, 2, num_workers=2, seed=5)
    pids = []
    for epoch in range(4):
        for each in (loader, anew):
            each.set_epoch(epoch)
        iterator = cut(loader)
        pids.append([process.pid for process in processes_of(iterator)])
        if epoch % 2:
            next(iterator)
            del iterator
        else:
            equal(iterator, anew)
    assert len(set(map(tuple, pids))) == 1 and len(set(pids[0])) == 2
    started = [one._process for one in loader._parts.own_processes.all]
    del loader, each
    gc.collect()
    until(lambda: not any(process.is_alive() for process in started), 30, "the processes' end")


def test_persistent_processes_begin_anew_where_they_must(paths):
    loader = DDLPLoader(numbered(paths, v1.Compose([v1.Resize((20, 24)), Shift(), v1.ToTensor()])), 4, **PERSISTENT)
    truth = DataLoader(loader.dataset, 4)
    equal(cut(loader), truth)
    first, processes = loader._parts.own_processes, [one._process for one in loader._parts.own_processes.all]
    os.kill(processes[0].pid, signal.SIGKILL)
    processes[0].join()
    equal(cut(loader), truth)
    second = loader._parts.own_processes
    iterator = cut(loader)
    begun = [next(iterator)]
    equal(loader._get_iterator(), truth)  # an iterator beside the first one, which keeps its processes
    equal([*begun, *iterator], truth)
    assert loader._parts.own_processes is second is not first
    processes += [one._process for one in second.all]
    loader.dataset.transform = v1.Compose([v1.Resize((10, 12)), Shift(), v1.ToTensor()])
    equal(cut(loader), truth)
    assert loader._parts.own_processes is not second and not any(process.is_alive() for process in processes)
    equal(cut(pickle.loads(pickle.dumps(loader))), truth)


def test_what_was_delivered_stays_as_it_is(paths):
    """Blocks of shared memory are used again, except those that the caller still holds."""
    data = numbered(paths, v1.Compose([v1.Resize((20, 24)), Shift(), v1.ToTensor()]))
    loader = DDLPLoader(data, 2, num_workers=1)
    kept, blocks = [], set()
    for number, (images, _) in enumerate(loader):
        blocks.add(images.data_ptr())
        if number % 5 == 0:
            kept.append((images, images.clone()))
    assert all(torch.equal(images, before) for images, before in kept)
    assert len(blocks) < len(loader)


@pytest.mark.parametrize("transform", [
    v1.Compose([Shift(), v1.Resize((20, 24)), v1.ToTensor()]),  # an unknown first operator
    v1.Compose([v1.Resize(20), Shift(), v1.CenterCrop(10), v1.ToTensor()]),  # images of many sizes
], ids=["first", "sizes"])  # fmt: skip
def test_what_is_not_cut(paths, transform):
    data = numbered(paths, transform)
    assert not isinstance(iter(DDLPLoader(data, 1)), EpochIterator)
    equal(DDLPLoader(data, 1), DataLoader(data, 1))


def test_types_and_values_alone_are_not_cut():
    def arrays(*steps):
        return ImageArrays(np.zeros((6, 9, 8, 3), np.uint8), range(6), v1.Compose([*steps, Halve()]))

    assert isinstance(iter(DDLPLoader(arrays(v1.CenterCrop(5), v1.ToTensor()))), EpochIterator)
    for steps in ((v1.ToTensor(),), (v1.ToTensor(), v1.Normalize(0.5, 0.5))):
        assert not isinstance(iter(DDLPLoader(arrays(*steps))), EpochIterator)


def test_the_setting(paths):
    data = numbered(paths, v1.Compose([v1.Resize((20, 24)), Shift(), v1.ToTensor()]))
    loader = DDLPLoader(data, 6, own_steps="off")
    assert not isinstance(iter(loader), EpochIterator) and "own steps" not in loader.explain()
    loader.own_steps = "processes"
    assert isinstance(iter(loader), EpochIterator)
    with pytest.raises(ValueError, match="own_steps='fork': expected one of processes, threads, off"):
        DDLPLoader(data, 6, own_steps="fork")
    with pytest.raises(ValueError, match="output=.*need a pipeline that ddlp runs itself"):
        DDLPLoader(data, 6, output=torch.uint8)


def test_explain_draws_the_line(paths):
    data = numbered(paths, v1.Compose([*KNOWN, Noise(), v1.Normalize(0.5, 0.5)]))
    lines = DDLPLoader(data, 6, num_workers=3).explain().splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("---------- cut here"))
    assert lines[at - 1].startswith("travels    RandomResizedCrop -> RandomHorizontalFlip")
    assert "Noise" in lines[at + 1] and "-> Normalize(mean=0.5, std=0.5), then default_collate" in lines[at + 1]
    assert "3 process(es)" in lines[at + 1]
    assert "the training thread" in DDLPLoader(data, 6).explain()
    assert "2 thread(s)" in DDLPLoader(data, 6, num_workers=2, own_steps="threads").explain()


def test_explain_shows_the_steps_of_views_and_crops(paths):
    first, second = (v1.Compose([*KNOWN, *own, v1.ToTensor()]) for own in ([Shift()], []))
    lines = DDLPLoader(numbered(paths, Views(first, second)), 6).explain()
    assert "2 views of each sample, RandomResizedCrop" in lines
    assert "own steps  Shift -> ToTensor() | ToTensor(), then" in lines
    crops = DDLPLoader(numbered(paths, v1.Compose([v1.Resize(20), v1.FiveCrop(12), v1.Lambda(stacked)])), 6).explain()
    assert "gets a tuple of 5 PIL images" in crops and "it gets several crops of each image, not one" in crops


@pytest.mark.parametrize("place", [
    v1.Compose([v1.PILToTensor(), v1.FiveCrop(12), stacked]), v1.Compose([v1.RandomApply([v1.FiveCrop(12)]), stacked]),
    v1.Compose([v1.FiveCrop(12), v1.ToTensor()]),
], ids=["after the tensor", "by chance", "no step that takes crops"])  # fmt: skip
def test_crops_that_are_left_to_torch(paths, place):
    whole = v1.Compose([v1.Resize((20, 24)), *place.transforms])
    lines = DDLPLoader(numbered(paths, whole), 6).explain()
    assert "FiveCrop" in lines.partition("own steps")[2] or "it gets several crops" in lines


def test_threads_take_no_steps_that_would_share_their_draws(paths):
    data = numbered(paths, v1.Compose([*KNOWN, Noise()]))
    with pytest.raises(RuntimeError, match="drew from the global generator of torch and numpy"):
        next(cut(DDLPLoader(data, 6, num_workers=2, own_steps="threads")))
    data = numbered(paths, v1.Compose([*KNOWN, closed_over()]))
    with pytest.raises(ValueError, match="a function of the transform uses Compose"):
        iter(DDLPLoader(data, 6, num_workers=2, own_steps="threads"))


@pytest.mark.parametrize("options", WAYS[1:], ids=["processes", "threads"])
def test_processor_time_of_the_steps_counts_wherever_they_run(options, tmp_path):
    steps = v1.Compose([v1.RandomHorizontalFlip(), v1.ToTensor(), Burn(0.02)])
    images = ImageArrays(np.zeros((12, 8, 8, 3), np.uint8), range(12), steps)
    loader = DDLPLoader(images, 4, record=tmp_path, **options)
    assert len(list(cut(loader))) == 3
    assert loader.report().host_cpu_s >= 12 * 0.02
    assert sum(batch.cpu_s for batch in read_run(tmp_path)[0].of(HostBatch)) >= 12 * 0.02
