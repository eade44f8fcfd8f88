"""The first batches of an epoch, made of objects before it begins: they are there at once, with the same bits."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from ddlp import Cache, DDLPLoader, ImageObjects
from tests.ddlp.dropin.small_sets import DETERMINISTIC, RANDOM
from tests.ddlp.epoch.test_turns import BATCH, ROOM, WORKERS, alone, at_work, compare, flat, ready, settle  # noqa: F401
from tests.engine_process import until
from tests.object_server import BUCKET, ObjectServer

pytestmark = pytest.mark.usefixtures("alone", "made_early")
TRAIN = f"s3://{BUCKET}/train/"


@pytest.fixture
def made_early(of_its_own_epoch, monkeypatch):
    monkeypatch.delenv("DDLP_EARLY_BATCHES")


def make(server: ObjectServer, transform: Any = RANDOM, **options: Any) -> DDLPLoader:
    dataset = ImageObjects(TRAIN, transform, config=server.config())
    return DDLPLoader(dataset, BATCH, **{"shuffle": True, "num_workers": WORKERS, **options})


def images_requested(server: ObjectServer) -> int:
    """How many were requested."""
    return sum(".jpg" in line for line in server.requests)


@pytest.mark.parametrize("transform", [RANDOM, DETERMINISTIC])
def test_the_same_bits_and_draws(server, monkeypatch, transform):
    assert compare(monkeypatch, lambda: make(server, transform)) == [(0, 0), (ROOM, 0), (ROOM, 0), (ROOM, 0)]


def test_they_come_while_the_storage_does_not_answer(server):
    loader = make(server, seed=3)
    torch.manual_seed(1)
    list(loader)
    assert ready(loader) == ROOM
    server.hanging = set(server.objects)
    iterator = iter(loader)
    found = [flat(next(iterator)) for _ in range(ROOM)]
    server.hanging = set()
    del iterator
    gc.collect()

    again = make(server, seed=3)
    torch.manual_seed(1)
    list(again)
    for ours, theirs in zip(found, again, strict=False):
        assert all(map(torch.equal, ours, flat(theirs)))


def test_a_loader_that_is_dropped_while_they_are_requested_leaves_no_thread(server):
    server.latency_s = 0.2
    loader = make(server)
    list(loader)
    server.hanging = set(server.objects)
    until(at_work)
    del loader
    gc.collect()
    settle()


def test_objects_that_are_listed_anew_are_not_taken_for_the_old_ones(server, images):
    loader = make(server, DETERMINISTIC)
    list(loader)
    assert ready(loader) == ROOM
    keys = sorted(key for key in server.objects if key.endswith(".jpg"))
    for key, other in zip(keys, keys[1:] + keys[:1], strict=True):
        server.objects[key] = images[other]
    vars(loader.dataset).update(vars(ImageObjects(TRAIN, DETERMINISTIC, config=server.config())))
    vars(loader.dataset).pop("reader")
    found = sum(batch.sum() for batch, _ in loader)
    assert loader.report().early == 0
    assert found == pytest.approx(sum(batch.sum() for batch, _ in make(server, DETERMINISTIC)))


@pytest.mark.parametrize("keeps", ["files", "pixels"])
def test_with_a_cache_nothing_is_requested_twice(server, tmp_path, keeps):
    loader = make(server, cache=Cache(tmp_path / "cache", "1G", keeps=keeps))
    found = []
    for _ in range(4):
        list(loader)
        settle()
        found.append((loader.report().early, loader.report().cache.hits, loader.report().cache.misses))
    assert found == [(0, 0, 41), (ROOM, 41, 0), (ROOM, 41, 0), (ROOM, 41, 0)]
    assert images_requested(server) == 41


def test_with_a_cache_that_has_room_for_a_part(server, tmp_path):
    """Once nothing more can be kept, what is missing is requested early, and once."""
    half = sum(len(body) for key, body in server.objects.items() if key.endswith(".jpg")) // 2
    loader = make(server, shuffle=False, cache=Cache(tmp_path / "cache", half, keeps="files"))
    for _ in range(4):
        before = images_requested(server)
        list(loader)
        settle()
    report = loader.report()
    assert report.early == ROOM and report.cache.hits + report.cache.misses == 41 and 0 < report.cache.hits < 41
    assert images_requested(server) - before == report.cache.misses
