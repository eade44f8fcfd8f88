"""A batch of files is made by few calls of some milliseconds. The bits are those of single samples, in every output type."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
from PIL import Image
from torchvision import transforms

from csd_engine.data.image_files import MAX_FILE_BYTES
from csd_engine.kernels.files import Files
from csd_engine.prepare import started_batch
from ddlp import DDLPLoader
from ddlp.transforms import Cutout
from tests.ddlp.dropin.small_sets import RANDOM, SAMPLES, by_target, check_samples, numbered, write_images

MASKED = transforms.Compose([*RANDOM.transforms, transforms.RandomErasing(0.7), Cutout(length=5)])
MIXED = transforms.Compose([transforms.RandomCrop(16, padding=2), transforms.ToTensor()])  # Python draws the borders


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> list[str]:
    return write_images(tmp_path_factory.mktemp("files"))


@pytest.fixture
def calls(monkeypatch, need_kernel) -> list[int]:
    """The number of samples of each call of the kernel in this process."""
    seen: list[int] = []
    make = Files.make

    def counted(self, first, *rest):
        stopped = make(self, first, *rest)
        seen.append(stopped.next - first)
        return stopped

    monkeypatch.setattr(Files, "make", counted)
    monkeypatch.setattr(started_batch, "ENOUGH_S", 30.0)  # so that it does not depend on this machine's speed
    return seen


def one_by_one(monkeypatch, loader: DDLPLoader) -> dict[int, torch.Tensor]:
    with monkeypatch.context() as patch:
        patch.setattr("csd_engine.prepare.batch_maker.file_calls", lambda *_: None)
        return by_target(list(loader))


@pytest.mark.parametrize("strategy", ["cpu", "csd", "wrr"])
def test_the_bits_of_each_sample_made_by_itself(paths, engine, strategy, calls, monkeypatch):
    data = numbered(paths, MASKED)
    expected = one_by_one(monkeypatch, DDLPLoader(data, batch_size=7, seed=3))
    assert not calls
    spool = None if strategy == "cpu" else engine
    loader = DDLPLoader(data, batch_size=7, shuffle=True, seed=3, strategy=strategy, spool=spool, audit=1, num_workers=2)
    check_samples(loader, strategy, expected)
    if strategy == "cpu":
        assert sum(calls) == SAMPLES and len(calls) == len(loader) + 2  # both workers make the first two, each a part of them


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("output", [torch.float32, torch.bfloat16, torch.uint8])
def test_every_type(paths, calls, monkeypatch, output, memory_format):
    loader = DDLPLoader(numbered(paths, RANDOM), batch_size=8, seed=3, output=output, memory_format=memory_format)
    expected = one_by_one(monkeypatch, loader)
    assert not calls
    loader.set_epoch(0)
    batches = list(loader)
    found = by_target(batches)
    assert sum(calls) == SAMPLES
    assert all(images.dtype == output and images.is_contiguous(memory_format=memory_format) for images, _ in batches)
    assert all(torch.equal(found[k], expected[k]) for k in expected)


def test_what_is_drawn_in_python_goes_one_by_one(paths, calls):
    assert sorted(by_target(list(DDLPLoader(numbered(paths, MIXED), batch_size=8)))) == list(range(SAMPLES))
    assert not calls


def test_a_file_that_the_kernel_refuses_does_not_stop_the_others(paths, calls, tmp_path, monkeypatch):
    odd = tmp_path / "odd.png"
    Image.open(paths[4]).save(odd)
    data = numbered([*paths[:4], str(odd), *paths[5:]], RANDOM)
    expected = one_by_one(monkeypatch, DDLPLoader(data, batch_size=SAMPLES, seed=3))
    found = by_target(list(DDLPLoader(data, batch_size=SAMPLES, seed=3)))
    assert all(torch.equal(found[k], expected[k]) for k in expected)
    assert calls == [4, SAMPLES - 5]  # it goes on after the refused file


def test_a_file_too_large_for_the_device_comes_from_the_host(paths, engine, tmp_path):
    large = shutil.copy(paths[12], tmp_path / "large.jpg")
    os.truncate(large, MAX_FILE_BYTES + 1)  # zeros after the image, which take no disk space
    expected = by_target(list(DDLPLoader(numbered(paths, RANDOM), batch_size=7, seed=3)))
    data = numbered([*paths[:12], str(large), *paths[13:]], RANDOM)
    loader = DDLPLoader(data, batch_size=7, seed=3, strategy="csd", spool=engine)
    found = by_target(list(loader))
    assert all(torch.equal(found[k], expected[k]) for k in range(SAMPLES))
    assert loader.report().batches_csd == len(loader)  # of its batch, the host makes that sample alone


def test_a_batch_that_is_not_wanted_any_more_is_left(paths, monkeypatch, need_kernel):
    """It is asked between calls. Here each call makes one sample."""
    from ddlp.sources.base import Unwanted
    from ddlp.sources.host.native import prepare_batch

    monkeypatch.setattr(started_batch, "ENOUGH_S", 1e-9)
    iterator = iter(DDLPLoader(numbered(paths, RANDOM), batch_size=20))
    resources = iterator.executor.resources
    iterator.executor.close()
    asked: list[bool] = []

    def wanted() -> bool:
        asked.append(True)
        return len(asked) < 5

    with pytest.raises(Unwanted):
        prepare_batch(resources, 0, wanted)
    assert len(asked) == 5


def test_fast_decoding_is_the_same_on_either_side(paths, engine):
    small = transforms.Compose([transforms.RandomResizedCrop(8), transforms.ToTensor()])

    def made(**options):
        loader = DDLPLoader(numbered(paths, small), 6, seed=11, spool=engine, **options)
        samples = by_target(list(loader))
        return samples, loader.report()

    exact, _ = made()
    fast, _ = made(decode="fast")
    theirs, report = made(decode="fast", strategy="csd")
    assert report.batches_csd > 0
    assert all(torch.equal(fast[k], theirs[k]) for k in fast)
    assert sum(not torch.equal(fast[k], exact[k]) for k in fast) > SAMPLES // 4
    assert max(float((fast[k] - exact[k]).abs().mean()) for k in fast) < 0.1
