"""Engines that request the objects of a storage themselves: the same bits, by their own settings, and only where they may."""

from __future__ import annotations

import gc
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset
from torchvision.datasets import ImageFolder

from ddlp import DDLPLoader, Device, ImageObjects, TarImages, TarObjects
from tests.csd_engine.service.test_engine_cache import until_flushed
from tests.ddlp.dropin.small_sets import DETERMINISTIC, RANDOM, numbered, write_images
from tests.engine_process import EngineProcess, until
from tests.object_server import BUCKET, ObjectServer, index_of

TRAIN = f"s3://{BUCKET}/train/"


@pytest.fixture
def theirs(images) -> Iterator[ObjectServer]:
    """The same objects, for the engine alone."""
    with ObjectServer(images) as one:
        one.objects["train/index.txt"] = index_of({key.removeprefix("train/"): body for key, body in images.items()})
        yield one


@pytest.fixture
def root(images, tmp_path) -> Path:
    """The same images as files."""
    for key, body in images.items():
        path = tmp_path / "files" / key.removeprefix("train/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return tmp_path / "files"


@pytest.fixture
def start(theirs, tmp_path, monkeypatch) -> Iterator[Callable[..., EngineProcess]]:
    """Start an engine whose environment leads to its own server."""
    for name, value in theirs.config().items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    started: list[EngineProcess] = []

    def run(*arguments: str) -> EngineProcess:
        home = tmp_path / f"engine{len(started)}"
        home.mkdir()
        started.append(EngineProcess(home, *arguments))
        return started[-1]

    yield run
    gc.collect()
    for one in started:
        one.end()


def loader_of(dataset: Any, engine: EngineProcess, strategy: str = "csd", batch: int = 4, **options: Any) -> DDLPLoader:
    device = Device(engine.address, str(engine.keys))
    return DDLPLoader(dataset, batch, shuffle=True, seed=3, strategy=strategy, csd=device, **options)


def objects(server: ObjectServer, transform: Any = RANDOM) -> ImageObjects:
    return ImageObjects(TRAIN, transform, config=server.config())


def content(batch: list[torch.Tensor]) -> tuple[list[int], bytes]:
    return batch[1].tolist(), batch[0].numpy().tobytes()


def check(loader: DDLPLoader, dataset: Any, epochs: int = 2) -> None:
    plain = DDLPLoader(dataset, 4, shuffle=True, seed=3)
    for _ in range(epochs):
        torch.manual_seed(1)
        found = list(loader)
        torch.manual_seed(1)
        expected = list(plain)
        assert sorted(map(content, found)) == sorted(map(content, expected))


def keys(server: ObjectServer) -> list[str]:
    """Of the images that were asked for."""
    return [line.split()[1].partition("train/")[2] for line in server.requests if ".jpg" in line.lower()]


@pytest.mark.parametrize("transfer", [None, "stream"])
@pytest.mark.some(1)
def test_the_engine_asks_its_own_server(server, theirs, start, root, transfer):
    engine = start("--root", TRAIN)
    loader = loader_of(objects(server), engine, transfer=transfer)
    check(loader, ImageFolder(str(root), RANDOM))
    assert loader.report().batches_csd == len(loader)
    assert len(set(keys(theirs))) == 41 and len(keys(theirs)) >= 2 * 41
    assert len(keys(server)) < 41  # the probes' samples alone


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.some(1)
def test_the_next_lease_is_requested_while_one_is_at_work(server, theirs, start, root, workers):
    engine = start("--root", TRAIN, "--workers", str(workers))
    theirs.latency_s = 0.1
    loader = loader_of(objects(server), engine)
    check(loader, ImageFolder(str(root), RANDOM))
    assert loader.report().batches_csd == len(loader)
    assert theirs.most >= 7 * workers  # 4 of each lease, and the last one has a sample
    assert len(keys(theirs)) <= 2 * (41 + 6 + 4 * (workers - 1))  # 6 are probed; both workers may request the last lease


def test_the_host_requests_the_next_leases_of_an_engine_that_may_not(server, start, root):
    server.latency_s = 0.1
    loader = loader_of(objects(server), start("--root", str(root)))
    check(loader, ImageFolder(str(root), RANDOM))
    assert loader.report().batches_csd == len(loader)
    assert server.most >= 7  # 4 of each lease, and the last one has a sample
    assert len(keys(server)) == 2 * (41 + 2 * 4)  # 4 are probed, here and there


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.some(1)
def test_small_leases_are_requested_several_ahead(server, theirs, start, root, allowed):
    """By the engine, or by the host for it."""
    engine = start("--root", TRAIN if allowed else str(root))
    asked = theirs if allowed else server
    loader = loader_of(objects(server), engine, batch=1)
    asked.latency_s = 0.1
    assert sorted(label for _, labels in loader for label in labels.tolist()) == sorted(ImageFolder(str(root)).targets)
    assert loader.report().batches_csd == 41
    assert asked.most >= 6  # of 8 at first; one lease ahead would be 2
    assert len(keys(asked)) <= 41 + 10  # and the probes'


@pytest.mark.parametrize("transform", [RANDOM, DETERMINISTIC])
@pytest.mark.some(1)
def test_what_an_engine_keeps_is_not_requested_again(server, theirs, start, root, tmp_path, transform):
    """Objects of a random pipeline, pixels of another one; also by a later run, of another engine."""
    cache = tmp_path / "cache"
    cached = "--root", TRAIN, "--cache", f"{cache}:1G"
    engine = start(*cached, "--workers", "2")
    check(loader_of(objects(server, transform), engine), ImageFolder(str(root), transform), epochs=1)
    until_flushed(cache)
    first = len(keys(theirs))
    assert first >= 41

    loader = loader_of(objects(server, transform), engine)
    check(loader, ImageFolder(str(root), transform))
    assert loader.report().batches_csd == len(loader) and len(keys(theirs)) == first
    engine.end()
    engine = start(*cached)
    check(loader_of(objects(server, transform), engine), ImageFolder(str(root), transform), epochs=1)
    assert len(keys(theirs)) == first


def test_a_new_version_of_an_object_is_requested_and_the_old_one_is_not_used(server, theirs, start, root, tmp_path):
    cache = tmp_path / "cache"
    engine = start("--root", TRAIN, "--cache", f"{cache}:1G")
    check(loader_of(objects(server), engine), ImageFolder(str(root), RANDOM), epochs=1)
    until_flushed(cache)
    key = "train/class0/006.jpg"
    body = (root / "class1/007.jpg").read_bytes()
    for one in (server, theirs):
        one.objects[key] = body
    (root / "class0/006.jpg").write_bytes(body)
    theirs.requests.clear()
    check(loader_of(objects(server), engine), ImageFolder(str(root), RANDOM), epochs=1)
    assert set(keys(theirs)) == {"class0/006.jpg"}


def test_objects_without_versions_are_not_kept(theirs, start, root, tmp_path):
    engine = start("--root", f"{theirs.url}/{BUCKET}/", "--cache", f"{tmp_path / 'cache'}:1G")
    check(loader_of(ImageObjects(f"{theirs.url}/{BUCKET}/train", RANDOM), engine), ImageFolder(str(root), RANDOM))
    assert len(keys(theirs)) >= 2 * 41 and not list((tmp_path / "cache").rglob("*.safetensors"))


@pytest.mark.parametrize("allowed", ["s3://bucket/tr/", "s3://bucket/train/class0/", "s3://other/train/", "/"])
@pytest.mark.some(1)
def test_other_objects_come_from_the_host(server, theirs, start, root, allowed):
    engine = start("--root", allowed)
    loader = loader_of(objects(server), engine)
    check(loader, ImageFolder(str(root), RANDOM))
    assert loader.report().batches_csd == len(loader) and not theirs.requests


def test_data_that_shall_be_carried_is(server, theirs, start, root):
    engine = start("--root", TRAIN)
    device = Device(engine.address, str(engine.keys), data="carried")
    loader = DDLPLoader(objects(server), 4, shuffle=True, seed=3, strategy="csd", csd=device)
    check(loader, ImageFolder(str(root), RANDOM))
    assert loader.report().batches_csd == len(loader) and not theirs.requests


def test_shards_and_web_servers(server, theirs, start, root, tmp_path):
    shard = tmp_path / "train-0.tar"
    with tarfile.open(shard, "w") as tar:
        for number, path in enumerate(sorted(root.rglob("*.jpg"))):
            tar.add(path, f"{number:04}.jpg")
            target = tmp_path / "1.cls"
            target.write_text(str(number % 10))
            tar.add(target, f"{number:04}.cls")
    for one in (server, theirs):
        one.objects["train/shards/train-0.tar"] = shard.read_bytes()
    engine = start("--root", TRAIN, "--root", f"{theirs.url}/{BUCKET}/")
    ours = TarObjects(f"{TRAIN}shards/train-0.tar", RANDOM, config=server.config(), index_dir=tmp_path)
    loader = loader_of(ours, engine)
    check(loader, TarImages([str(shard)], RANDOM))
    assert loader.report().batches_csd == len(loader)
    assert "bytes=" in "".join(theirs.requests).lower()

    web = ImageObjects(f"{theirs.url}/{BUCKET}/train", RANDOM)
    theirs.requests.clear()
    loader = loader_of(web, engine)
    check(loader, ImageFolder(str(root), RANDOM))
    assert loader.report().batches_csd == len(loader) and len(keys(theirs)) >= 2 * 41


def test_objects_and_files_in_one_data_set(server, theirs, start, root, tmp_path):
    more = numbered(write_images(tmp_path / "more", 9), RANDOM)
    engine = start("--root", TRAIN, "--root", str(tmp_path / "more"))
    loader = loader_of(ConcatDataset([more, objects(server)]), engine)
    check(loader, ConcatDataset([more, ImageFolder(str(root), RANDOM)]))
    assert loader.report().batches_csd == len(loader) and len(set(keys(theirs))) == 41


def test_another_object_there_is_not_used(server, theirs, start, root):
    """The engine's storage has other objects of the same names: of the same size, larger, and one is missing."""
    engine = start("--root", TRAIN)
    changed = sorted(key for key in theirs.objects if key.endswith(".jpg"))[:8]
    for key in changed[:6]:
        body = bytearray(theirs.objects[key])
        body[len(body) // 2] ^= 0x55  # other pixels
        theirs.objects[key] = bytes(body)
    theirs.objects[changed[6]] += b"!"
    del theirs.objects[changed[7]]
    for options in ({}, {"on_error": "replace", "max_replaced": 0.0}):
        loader = loader_of(objects(server), engine, **options)
        check(loader, ImageFolder(str(root), RANDOM), epochs=1)
        assert not loader.report().replaced


def test_an_epoch_that_is_broken_off_while_requests_hang(server, theirs, start):
    """The engine drops the leases, and does the next epoch's."""
    engine = start("--root", TRAIN)
    dataset = objects(server, DETERMINISTIC)
    theirs.hanging = set(sorted(theirs.objects)[8:])
    iterator = iter(loader_of(dataset, engine, "wrr"))
    until(lambda: theirs._now > 0, 30, "a request that hangs")
    next(iterator)
    del iterator
    gc.collect()
    until(lambda: not list(engine.spool.glob("job-*")), 30, "an empty spool")
    theirs.hanging = set()
    loader = loader_of(dataset, engine)
    assert len(list(loader)) == loader.report().batches_csd == 11
