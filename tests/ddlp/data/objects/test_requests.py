"""Requests in flight: bounds, faults, and what is left behind."""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing

import pytest

from csd_engine.data.base import Fetch
from csd_engine.data.image_files import content
from csd_engine.data.objects.requests import ObjectReader
from csd_engine.data.objects.window import MOST
from csd_engine.errors import SampleError
from ddlp import DDLPError, ImageObjects
from tests.object_server import BUCKET, ObjectServer
from tests.open_files import open_files, opened_since


def reader_of(server: ObjectServer, memory_bytes: int = 1 << 30) -> ObjectReader:
    return ImageObjects(f"s3://{BUCKET}/train/", config=server.config(), memory_bytes=memory_bytes).reader


def read(fetch: Fetch | None, indices: list[int]) -> list[bytes]:
    assert fetch is not None
    with closing(fetch):
        there = fetch.wait(lambda: True)
        assert there is not None
        return [content(there.open(index)) for index in indices]


def test_each_object_comes_once_with_its_bytes(server, images):
    reader, bodies = reader_of(server), list(images.values())
    by_class = sorted(images.items())
    before = len(server.requests)
    indices = [5, 3, 5, 40, 0]
    assert read(reader.fetch(indices), indices) == [by_class[k][1] for k in indices] and len(bodies) == 41
    assert len(server.requests) == before + 4
    assert content(reader.open(7)) == by_class[7][1]
    with pytest.raises(IndexError):
        reader.open(41)
    assert read(reader.fetch([]), []) == []


def test_the_bytes_lie_in_memory_that_is_given_back(server):
    reader = reader_of(server)
    before = open_files()
    fetch = reader.fetch([1, 2])
    assert fetch is not None
    with closing(fetch):
        there = fetch.wait(lambda: True)
        assert there is not None
        places = there.places([2, 1, 2])
        assert places is not None and places.parts is not None
        assert len(set(places.parts.descriptors.tolist())) == 1
        assert [path for path in opened_since(before) if "memfd" in path]
    assert not [path for path in opened_since(before) if "memfd" in path]
    fetch.close()  # may be called again


def test_a_sample_that_is_open_keeps_its_bytes(server, images):
    """Its memory is not given to the next fetch, as long as somebody may read from it."""
    reader, bodies = reader_of(server), [body for _, body in sorted(images.items())]
    with closing(reader.fetch([40])):  # some other samples are on their way all the time
        opened = [reader.open(index) for index in range(8)]
        for indices in ([10, 11], [20, 21]):
            assert read(reader.fetch(indices), indices) == [bodies[k] for k in indices]
        assert [content(one) for one in opened] == bodies[:8]


def test_faults_of_the_storage_cost_no_error(server, images):
    reader, by_class = reader_of(server), [body for _, body in sorted(images.items())]
    server.busy, server.reset = 0.1, 0.1
    indices = list(range(41))
    for _ in range(5):
        assert read(reader.fetch(indices), indices) == by_class


def test_a_bad_object_is_an_error_of_its_own(server):
    reader = reader_of(server)
    first, second, third = sorted(server.objects)[:3]
    server.objects[first] = server.objects[first][:-1] + b"!"
    server.objects[second] += b"!"
    del server.objects[third]
    fetch = reader.fetch(range(6))
    assert fetch is not None
    with closing(fetch):
        there = fetch.wait(lambda: True)
        assert there is not None
        for index, why in enumerate(["its ETag was", r"it had \d+ bytes and has \d+", "no such object"]):
            with pytest.raises(SampleError, match=rf"train/class0/.*{why}"):
                there.open(index)
        assert [there.open(index).size > 0 for index in (3, 4, 5)]  # type: ignore[union-attr]
        assert there.places(list(range(6))).parts.descriptors.tolist()[:4].count(-1) == 3  # type: ignore[union-attr]


def test_a_storage_that_is_gone_is_no_fault_of_the_object(images, monkeypatch):
    monkeypatch.setattr("csd_engine.data.objects.requests.PAUSES_S", (0.01,))
    with ObjectServer(images) as server:
        reader = reader_of(server)
    reader._storage._store = reader._storage._make({"max_retries": 0})
    with pytest.raises(SampleError, match="ConnectionError") as caught:
        reader.open(0)
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_requests_and_bytes_are_bounded(images):
    with ObjectServer({f"train/a/{k:04d}.jpg": bytes(1000) for k in range(2000)}, latency_s=0.2) as server:
        reader = reader_of(server)
        read(reader.fetch(range(1500)), [1499])
        assert MOST // 4 < server.most <= MOST
        bounded = reader_of(server, 10_500)
        held = [bounded.fetch(range(k, k + 4), ahead=True) for k in range(0, 40, 4)]
        assert [fetch is not None for fetch in held] == [True, True] + [False] * 8
        for fetch in held:
            if fetch is not None:
                fetch.close()
        begun = [reader.fetch(range(k, k + 100), ahead=True) for k in range(0, 2000, 100)]
        assert 2 <= sum(fetch is not None for fetch in begun) <= 2 * MOST // 100 + 1
        for fetch in begun:
            if fetch is not None:
                fetch.close()


def test_who_waits_comes_before_who_fetches_ahead():
    with ObjectServer({f"train/a/{k:04d}.jpg": bytes(10) for k in range(100)}, latency_s=0.02) as server:
        reader = reader_of(server)
        later, now = reader.fetch(range(90), ahead=True), reader.fetch([99])
        assert later is not None
        with closing(later):
            read(now, [99])
            asked = [one for one in server.requests if "train/a" in one]
            assert len(asked) < 60


def test_a_batch_that_is_waited_for_makes_room_for_the_next(images):
    with ObjectServer(images, latency_s=0.2) as server:
        reader = reader_of(server)
        first = reader.fetch(range(20), ahead=True)
        assert first is not None and reader.fetch(range(20, 40), ahead=True) is None
        first.hurry()
        second = reader.fetch(range(20, 40), ahead=True)
        first.close()
        assert second is not None
        second.close()


def test_who_closes_does_not_wait_for_what_hangs(images):
    with ObjectServer(images) as server:
        reader = reader_of(server)
        server.latency_s = 30.0
        fetch = reader.fetch(range(41))
        assert fetch is not None and fetch.wait(lambda: False) is None
        asked = len(server.requests)
        began = time.monotonic()
        fetch.close()
        assert time.monotonic() - began < 20
    until = time.monotonic() + 20  # the server is gone, so the requests at hand end; no other is made
    while any(thread.name == "ddlp-objects" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert len(server.requests) <= asked + 8


def test_a_fork_is_told_what_to_do(server):
    reader = reader_of(server)
    reader.open(0)
    child = os.fork()
    if not child:
        try:
            reader.open(0)
        except DDLPError as error:
            os._exit(0 if "forkserver" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
