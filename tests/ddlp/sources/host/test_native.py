"""The host's batches: the same bits however they are finished, and nothing left behind by a batch that breaks off."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.transforms as T
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader

from csd_engine.data.base import Places
from csd_engine.data.image_files import MAX_FILE_BYTES
from csd_engine.prepare import batch_maker, started_batch
from csd_engine.prepare import sample as samples
from ddlp import DDLPLoader, ImageArrays, ImageFiles
from ddlp.sampling.epoch_plan import EpochPlan
from ddlp.sources.base import Epoch, Resources, Unwanted
from ddlp.sources.host import native
from ddlp.sources.host.native import NativeHost, prepare_batch
from ddlp.transfer.memory_pool import MemoryPool
from ddlp.transforms import Cutout
from ddlp.translate.datasets import translate_dataset
from ddlp.translate.portable import portable
from tests.open_files import open_files, opened_since

COUNT, BATCH = 12, 4
CROP = (T.RandomResizedCrop((32, 24)), T.RandomHorizontalFlip())
VALUES = (T.ToTensor(), T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))
OUTPUTS = list(itertools.product((torch.float32, torch.bfloat16, torch.uint8), (torch.contiguous_format, torch.channels_last)))


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    home = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(4)
    for k in range(COUNT):
        small = random.integers(0, 256, (9, 11, 3), dtype=np.uint8)
        Image.fromarray(small).resize((70 + 9 * k, 60 + 5 * k), 2).save(home / f"{k}.jpg")
    return [str(home / f"{k}.jpg") for k in range(COUNT)]


@pytest.fixture(autouse=True, params=["kernel", "pillow"])
def way(request, monkeypatch):
    if request.param == "pillow":
        for module in (samples, batch_maker):
            monkeypatch.setattr(module, "kernel", lambda: None)
    else:
        request.getfixturevalue("need_kernel")


def resources(data, dtype=torch.float32, memory_format=torch.contiguous_format):
    loader = DataLoader(data, BATCH)
    found = portable(loader, dtype, memory_format)
    plan = EpochPlan(loader.batch_sampler, found.dataset, whole=True, batched=True)
    return Resources(Epoch(found, seed=3, number=1), plan, found.dataset.reader(), MemoryPool(4))


def files(paths, *masks):
    return ImageFiles(paths, range(len(paths)), T.Compose([*CROP, *VALUES, *masks]))


def arrays(*masks):
    images = np.random.default_rng(1).integers(0, 256, (COUNT, 40, 36, 3), dtype=np.uint8)
    return ImageArrays(images, range(COUNT), T.Compose([T.RandomCrop((32, 24), 4), *VALUES, *masks]))


@pytest.mark.parametrize("dtype, memory_format", OUTPUTS)
@pytest.mark.parametrize("masks", [(), (Cutout(2, 9),)])
@pytest.mark.parametrize("kind", ["files", "arrays"])
def test_sample_by_sample_is_the_batch_through_the_epilogue(paths, dtype, memory_format, masks, kind):
    if dtype == torch.uint8 and masks:
        pytest.skip("the mask's fill is no byte's value")
    made = resources(files(paths, *masks) if kind == "files" else arrays(*masks), dtype, memory_format)
    for_another = replace(made, epoch=replace(made.epoch, target=torch.device("meta")))
    for position in range(COUNT // BATCH):
        raw = prepare_batch(for_another, position, lambda: True)
        assert raw.images.dtype == torch.uint8 and (raw.boxes is not None) == bool(masks)
        finished = prepare_batch(made, position, lambda: True)
        assert finished.boxes is None and finished.images.is_contiguous(memory_format=memory_format)
        assert torch.equal(finished.images, made.epoch.portable.epilogue(raw.images, raw.boxes))


def test_memory_is_used_again_but_not_while_a_batch_is_held(paths):
    made = resources(files(paths))
    first = prepare_batch(made, 0, lambda: True).images
    kept, place = first[1, 2], first.data_ptr()
    before = kept.clone()
    del first
    others = [prepare_batch(made, 1, lambda: True).images for _ in range(3)]
    assert torch.equal(kept, before) and place not in [other.data_ptr() for other in others]
    del kept
    assert prepare_batch(made, 1, lambda: True).images.data_ptr() == place
    made.pool.close()
    assert torch.equal(others[0], others[2])


def test_where_the_files_of_a_batch_lie(paths):
    one, of_paths, rows = files(paths), files([Path(path) for path in paths]), arrays()
    reader = {name: translate_dataset(ConcatDataset(sets)).reader() for name, sets in
              {"one": [of_paths], "two": [one, of_paths], "mixed": [one, rows]}.items()}  # fmt: skip
    assert reader["one"].places([3, 0, 3]) == Places([paths[3], paths[0], paths[3]])
    assert reader["two"].places([COUNT + 2, 1]) == Places([paths[2], paths[1]])
    assert reader["mixed"].places([1]) == Places([paths[1]]) and reader["mixed"].places([1, COUNT]) is None
    assert translate_dataset(rows).reader().places([0]) is None


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_file_too_large_to_be_read_whole_is_read_in_parts(paths, tmp_path):
    large = shutil.copy(paths[1], tmp_path / "large.jpg")
    os.truncate(large, MAX_FILE_BYTES + 1)  # zeros after the image, which take no disk space
    expected = prepare_batch(resources(files(paths)), 0, lambda: True).images
    before, read = open_files(), bytes_read()
    found = prepare_batch(resources(files([paths[0], str(large), *paths[2:]])), 0, lambda: True).images
    assert torch.equal(found, expected)
    assert bytes_read() - read < 16 << 20 and opened_since(before) == []


def test_a_batch_broken_off_leaves_no_file_open(paths, tmp_path, monkeypatch):
    monkeypatch.setattr(started_batch, "ENOUGH_S", 1e-9)  # so that each call of the kernel makes one sample
    made = resources(files(paths))
    prepare_batch(made, 0, lambda: True)
    before = open_files()
    answers = iter([True, True, False])
    with pytest.raises(Unwanted):
        prepare_batch(made, 0, lambda: next(answers))
    with pytest.raises(FileNotFoundError, match="gone"):
        prepare_batch(resources(files([*paths[:2], str(tmp_path / "gone.jpg"), *paths[3:]])), 0, lambda: True)
    assert opened_since(before) == []


def test_a_host_is_ready_before_there_are_threads(paths):
    """If a process is forked while a thread imports for the first batch, the child would wait for ever."""
    made = resources(files(paths))
    assert "maker" not in vars(made)
    NativeHost(made, 2)
    assert "maker" in vars(made) and ".jpg" in Image.EXTENSION


def damaged(paths, home, *numbers):
    """The files, of which these are cut off."""
    copies = [shutil.copy(path, home) for path in paths]
    for number in numbers:
        os.truncate(copies[number], 200)
    return copies


def test_all_workers_make_the_first_batches_together(paths, monkeypatch):
    together, lock, parts = threading.Barrier(2, timeout=300), threading.Lock(), []
    make = native._make

    def watched(spec, sources, *rest):
        with lock:
            parts.append(sources.tolist())
            number = len(parts)
        if number <= 2:
            together.wait()
        return make(spec, sources, *rest)

    monkeypatch.setattr(native, "_make", watched)
    batches = list(DDLPLoader(files(paths), BATCH, num_workers=2, seed=1))
    assert sorted(parts[0] + parts[1]) == list(range(BATCH)), parts
    assert sorted(sum(parts, [])) == list(range(COUNT))
    monkeypatch.undo()
    for (images, targets), (expected, numbers) in zip(batches, DDLPLoader(files(paths), BATCH, seed=1), strict=True):
        assert torch.equal(images, expected) and torch.equal(targets, numbers)


def test_of_two_bad_samples_the_first_ones_error_is_raised(paths, tmp_path, monkeypatch):
    """Also where another worker comes to the second one before."""
    second_failed, make = threading.Event(), native._make

    def in_this_order(spec, sources, *rest):
        if 1 in sources:
            assert second_failed.wait(300)
        try:
            return make(spec, sources, *rest)
        finally:
            if 3 in sources:
                second_failed.set()

    monkeypatch.setattr(native, "_make", in_this_order)
    loader = DDLPLoader(files(damaged(paths, tmp_path, 1, 3)), BATCH, num_workers=2)
    iterator = iter(loader)
    with pytest.raises(OSError, match=r"/1\.jpg"):
        next(iterator)
    assert [targets.tolist() for _, targets in iterator] == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_bad_samples_of_the_first_batches_are_replaced_alike_by_any_number_of_workers(paths, tmp_path):
    data = files(damaged(paths, tmp_path, 1, 3, 6))

    def epoch(workers):
        loader = DDLPLoader(data, BATCH, num_workers=workers, seed=1, on_error="replace", max_replaced=1)
        return list(loader), loader.report()

    (batches, report), (expected, by_itself) = epoch(3), epoch(0)
    for (images, targets), (same, numbers) in zip(batches, expected, strict=True):
        assert torch.equal(images, same) and torch.equal(targets, numbers)
    assert report.replaced == by_itself.replaced == 3 and report.replaced_samples == by_itself.replaced_samples
