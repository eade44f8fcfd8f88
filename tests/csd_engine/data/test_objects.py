"""Descriptions of objects that an engine reads itself, hostile ones included, and which URLs it may read."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csd_engine.batchfile.reader import Layout
from csd_engine.data.arrays import ArraySet
from csd_engine.data.base import fingerprint, open_reader
from csd_engine.data.files import FileSet
from csd_engine.data.image_files import content
from csd_engine.data.kinds import parse_dataset
from csd_engine.data.manifest import write_manifest
from csd_engine.data.objects.dataset import ObjectSet, pack_objects
from csd_engine.data.objects.own_hosts import only_own_hosts
from csd_engine.data.objects.store import ObjectStore
from csd_engine.data.objects.stored import Part, Stored, mark_of
from csd_engine.data.objects.urls import below
from csd_engine.data.parts import pack_parts
from csd_engine.data.roots import Roots
from csd_engine.errors import DatasetError, EngineError, RootNotAllowed, SampleError, StorageRefused
from csd_engine.machine.directory import Directory
from csd_engine.prepare.large_image_lock import LargeImageLock
from csd_engine.service.channel import LineBuffer, WorkerChannel
from csd_engine.service.worker import Worker
from tests.engine_process import pipeline
from tests.object_server import BUCKET, ObjectServer
from tests.open_files import open_files, opened_since

pytest.importorskip("obstore")

URL = "s3://bucket/train/"
OBJECTS = [Stored("cat/1.jpg", 100, '"a"'), Stored("cat/b/2.jpg", 0, ""), Stored("dog/3.jpg", 7, 'W/"c"')]


class Scene:
    """Writes what a host sends."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def array(self, rows: np.ndarray) -> ArraySet:
        name = self.home / f"{len(os.listdir(self.home))}.npy"
        np.save(name, rows)
        return ArraySet(str(name), f"{len(os.listdir(self.home)):032x}", rows.shape)

    def names(self, keys: list[str], root: str = "/") -> FileSet:
        digest = write_manifest(self.home / "m", keys)
        os.replace(self.home / "m", self.home / digest)
        return FileSet(root, digest, len(keys))

    def made(self, objects: list[Stored] = OBJECTS, parts: Any = None, url: str = URL) -> ObjectSet:
        table = None if parts is None else self.array(pack_parts(*map(np.array, zip(*parts, strict=True))))
        return ObjectSet(url, self.names([one.key for one in objects]), self.array(pack_objects(objects)), table)

    def listed(self, dataset: ObjectSet) -> Any:
        return open_reader(dataset, str, lambda digest: self.home / digest)._listing  # type: ignore[attr-defined]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


CLOUDS = [("s3://b/", "amazonaws.com"), ("gs://b/", "googleapis.com"), ("az://b/", "azure.com")]


@pytest.mark.parametrize(("url", "domain"), CLOUDS)
def test_the_case_of_a_scheme_changes_no_cloud(url, domain, monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    options = only_own_hosts(url, {}, {})
    assert domain in options["proxy_excludes"].split(",")
    assert only_own_hosts(url.upper(), {}, {}) == options


def test_the_description_goes_round(scene):
    for parts in (None, [(0, 10, 20), (2, 0, 7)]):
        made = scene.made(parts=parts)
        assert parse_dataset(made.to_data()) == made and len(made) == (3 if parts is None else 2)
        assert made.urls() == [URL] and not made.carried and URL not in made.content() and len(fingerprint(made)) == 32
        assert len(made.host_paths("/a")) == (1 if parts is None else 2)  # the tables; the names are no files
        assert [kind for kind, _ in made.uploads("/a")] == ["manifest"]


def test_the_objects_are_the_hosts(scene):
    scene.listed(scene.made()).close()  # obstore has some descriptors of its own from now on
    before = open_files()
    listed = scene.listed(scene.made())
    assert [listed[k] for k in range(3)] == [
        Stored("cat/1.jpg", 100, "", mark_of('"a"')), Stored("cat/b/2.jpg", 0, ""), Stored("dog/3.jpg", 7, "", mark_of('"c"')),
    ]  # fmt: skip
    assert listed.where(2) == "dog/3.jpg" and "9" in listed.where(9)
    listed.close()
    parts = scene.listed(scene.made(parts=[(0, 10, 20), (2, 0, 7)]))
    assert parts[0] == Part(Stored("cat/1.jpg", 100, "", mark_of('"a"')), 10, 20)
    assert "cat/1.jpg, 20 bytes from 10" in parts.where(0)
    with pytest.raises(IndexError):
        parts[2]
    parts.close()
    assert opened_since(before) == []


def test_names_that_have_one_directory(scene):
    dataset = ObjectSet(URL, scene.names(["1.jpg"], "/cat/b"), scene.array(pack_objects(OBJECTS[:1])))
    assert scene.listed(dataset)[0].key == "cat/b/1.jpg"


WRONG: dict[str, Callable[[Scene], ObjectSet]] = {
    "an object of other sizes": lambda scene: scene.made([Stored("a", -1, "")]),
    "an object too large": lambda scene: scene.made([Stored("a", 1 << 40, "")]),
    "a part of no object": lambda scene: scene.made(parts=[(3, 0, 1)]),
    "a part before the object": lambda scene: scene.made(parts=[(0, -1, 1)]),
    "a part behind the object": lambda scene: scene.made(parts=[(0, 90, 11)]),
    "a part of negative size": lambda scene: scene.made(parts=[(0, 0, -1)]),
    "a part that goes round": lambda scene: scene.made(parts=[(0, (1 << 63) - 1, 100)]),
}


@pytest.mark.parametrize("what", WRONG)
def test_numbers_that_can_not_be(scene, what):
    listed = scene.listed(WRONG[what](scene))
    with pytest.raises(DatasetError, match="Describe the data set again"):
        listed[0]
    listed.close()


def test_more_or_fewer_names_than_told(scene):
    made = scene.made()
    fewer = ObjectSet(URL, FileSet("/", made.names.manifest, 2), scene.array(pack_objects(OBJECTS[:2])))
    with pytest.raises(DatasetError, match="names 3 objects"):
        scene.listed(fewer)


def test_fields_are_checked(scene):
    data = scene.made(parts=[(0, 10, 20)]).to_data()
    arrays = data["table"], data["parts"]
    for wrong in (
        {"url": 7}, {"url": "s3://bucket/\n"}, {"url": "file:///etc/"}, {"url": "https://me:pass@server/"}, {"url": "/etc"},
        {"url": "s3://[bucket/"},
        {"names": arrays[0]}, {"table": data["names"]}, {"parts": data}, {"names": None}, {"table": None},
        {"table": {**arrays[0], "shape": [2, 1, 16]}}, {"parts": {**arrays[1], "shape": [1, 1, 16]}}, {"more": 1},
    ):  # fmt: skip
        with pytest.raises(DatasetError):
            parse_dataset({**data, **wrong})


def test_urls_below_the_roots():
    roots = ("s3://bucket/train/", "https://server:8443/")
    for url in ("s3://bucket/train", "s3://bucket/train/", "s3://bucket/train/a b/c/", "https://server:8443/x"):
        assert below(url, roots), url
    for url in (
        "s3://bucket/trainer/", "s3://bucket/", "s3://other/train/", "gs://bucket/train/", "https://server/", "https://server:84431/",
        "s3://bucket/train/../secret/", "s3://bucket/train/./", "s3://bucket/train//x/", "s3://bucket/train/%2e%2e/x/",
        "s3://bucket/train/a?b=c", "s3://bucket/train/a#b", "s3://bucket/train/..\\x/", "s3://bucket/train/\u2025/",
    ):  # fmt: skip
        assert not below(url, roots), url


class _Web:
    """A web server that serves the same byte everywhere, and notes what it was asked for. It ends with `with`.

    Its first answers have the statuses `first`.
    """

    def __init__(self, *first: int) -> None:
        self.asked: list[str] = []
        asked, statuses = self.asked, list(first)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # noqa: N802 (http.server's name)
                asked.append(self.path)
                self.send_response(statuses.pop(0) if statuses else 200)
                self.send_header("Content-Length", "1")
                self.send_header("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT")
                self.end_headers()
                self.wfile.write(b"x")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/train/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))  # seconds until it ends

    def __enter__(self) -> _Web:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


BELOW = ("", "a b/", "~x/y", "cat/", "x /")
NOT_BELOW = (
    ".. /", ".. ", "..", "../secret/", "..\\", "x\\..\\..\\", "%2e%2e/", "%2E./", ".%2e /", "%252e%252e/", "..%20/", "..%2f",
    "..%5c", "..;/", "..;a=b/", ".;/", "./", "\uff0e\uff0e/", "\u2025/", "..\xa0/", "..\u200b/", "..%00/", "..%09/", "\t../",
    ".\t./", ".\n./", "x/.. /.. /", "a//b/", "?x=/", "a?b", "#", "?", " x/",
)  # fmt: skip


@pytest.mark.parametrize("tail", [*BELOW, *NOT_BELOW])
def test_what_is_requested_of_a_server_lies_below_its_root(tail):
    with _Web() as web:
        roots = Roots.parse([web.url])
        try:
            storage = ObjectStore(roots.resolve(web.url + tail))
            storage.get_ready()
            storage.read(Stored("1.jpg", 1, ""))
            assert tail in BELOW
        except (RootNotAllowed, StorageRefused):
            assert tail in NOT_BELOW
        assert all(path.startswith("/train/") for path in web.asked), web.asked
        assert bool(web.asked) is (tail in BELOW)


@pytest.mark.parametrize(
    "key",
    ["..%2fs/1", "%2e%2e/s", "%252e%252e/s", "..\\s", "a\\..\\..\\s", "..;/s", ".. /s", " ../s", "\uff0e\uff0e/s", "..\xa0/s"],
)
def test_no_key_leads_a_server_elsewhere(scene, key):
    with _Web() as web:
        reader = open_reader(
            scene.made([Stored(key, 1, ""), Stored("b", 1, "")], url=web.url), str, lambda digest: scene.home / digest
        )
        with closing(reader):
            with pytest.raises(DatasetError, match="could read it as another path"):
                reader.open(0)
            assert content(reader.open(1)) == b"x"
        assert web.asked == ["/train/b"]


def outcome(scene: Scene, key: str, *first: int) -> tuple[type, list[str]]:
    """What it comes to to read an object from a server whose first answers have these statuses, and what was asked for."""
    with _Web(*first) as web:
        dataset = scene.made([Stored(key, 1, "")], url=web.url)
        with closing(open_reader(dataset, str, lambda digest: scene.home / digest)) as reader:
            try:
                return type(content(reader.open(0))), web.asked
            except SampleError as error:
                return type(error.__cause__), web.asked


@pytest.mark.parametrize("key", ["a\tb/1", "\x01", "\x7f"])
def test_a_key_that_is_none_is_no_lost_connection(scene, key):
    assert outcome(scene, key) == (OSError, [])


@pytest.mark.parametrize("status", [400, 410, 414, 431])
def test_what_a_server_will_never_grant_is_asked_for_once(scene, status):
    assert outcome(scene, "1", status) == (OSError, ["/train/1"])


@pytest.mark.parametrize("status", [429, 408])
def test_what_it_may_grant_later_is_asked_for_again(scene, status):
    assert outcome(scene, "1", status) == (bytes, ["/train/1"] * 2)


def test_a_probe_has_one_deadline(scene):
    """The worker's loop runs in a thread here. Its storage takes connections, and answers nothing."""
    to_worker, from_worker = os.pipe(), os.pipe()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/train/"
        dataset = scene.made([Stored(f"{number}.jpg", 100, "") for number in range(3)], url=url)
        place = Directory(str(scene.home)).place
        probe = {"do": "probe", "job": "j", "seed": 1, "epoch": 1, "parcel": None}
        worker = Worker(WorkerChannel(to_worker[0], from_worker[1]), 1.0, LargeImageLock("", 0, 1 << 30))
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            for command in (
                {"do": "job", "job": "j", "pipeline": pipeline().to_data(), "dataset": dataset.to_data(),
                 "layout": Layout(8, 32, 32, 3, 0).to_data(), "directory": str(scene.home), "place": place,
                 "roots": {**Roots((), trust=True).to_data(), "urls": [url]}, "operators": None, "manifests": str(scene.home),
                 "most_pixels": None},
                {**probe, "items": [[0, 0], [1, 0], [2, 0]], "left_s": 1.0},
                {**probe, "items": [[1, 0], [2, 0]], "left_s": -0.1},
            ):  # fmt: skip
                os.write(to_worker[1], json.dumps(command).encode() + b"\n")
            buffer, reports = LineBuffer(), []
            while len(reports) < 3:
                reports += buffer.feed(os.read(from_worker[0], 1 << 16))
        finally:
            os.close(to_worker[1])
            thread.join(60)
            for descriptor in (to_worker[0], *from_worker):
                os.close(descriptor)
    _, first, second = (report.get("digests") for report in reports)
    # All its samples together have a second; what the job's opening takes counts.
    assert re.search(r"its storage has not answered for 0\.\d+ s|the probe took too long", first[0]) and len(first) in (1, 3)
    assert second == ["error: the probe took too long"] * 2


def test_other_servers_and_buckets_are_not_below():
    roots = ("http://server:8000/train/", "http://[::1]:8000/train/", "https://plain/", "az://c/train/", "gs://b/train/")
    for url in (
        "http://SERVER:8000/train/x", "http://[0:0::1]:8000/train/x", "https://plain:443/x", "azure://c/train/x", "gs://b/train/x/",
        "adl://c/train/",
    ):  # fmt: skip
        assert below(url, roots), url
    for url in (
        "http://server.:8000/train/", "http://server/train/", "http://server:8000@other/train/", "http://other\\@server:8000/train/",
        "http://server:8000/Train/", "https://server:8000/train/", "http://server:8000\\.other/train/", "https://plain.other/",
        "https://plain:444/", "az://C/train/", "az://c/train/../x", "az://c/x", "abfss://c@any.dfs.core.windows.net/../train/",
        "gs://b/trainer/", "gs://b.c/train/", "s3://b/train/", "gs://b/train/.. /", "gs://b/train/%2e%2e/", "az://c/train/..%2f",
    ):  # fmt: skip
        assert not below(url, roots), url


def test_roots_with_urls(tmp_path, monkeypatch):
    roots = Roots.parse(["s3://bucket/train", str(tmp_path)])
    assert roots.urls == (URL,) and roots.resolve(URL + "x/") == URL + "x/" and roots.resolve(f"{tmp_path}/a")
    assert Roots.from_data(roots.to_data()) == roots and roots.of_host(None) == roots
    assert roots.of_host(((str(tmp_path), str(tmp_path)),)).urls == ()
    assert roots.of_host(((URL, URL),)).urls == (URL,) and roots.of_host(((URL, URL),)).pairs == ()
    assert roots.with_files("/a", "/b").urls == (URL,)
    with pytest.raises(RootNotAllowed, match=r"below none of the URLs.*\(s3://bucket/train/\)"):
        roots.resolve("s3://bucket/")
    with pytest.raises(RootNotAllowed, match="none"):
        Roots((), trust=True).resolve(URL)
    with pytest.raises(EngineError, match="--root: .*no URL of objects"):
        Roots.parse(["file:///etc"])
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StorageRefused, match="pip install obstore"):
        Roots.parse([URL])


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (f"s3://{BUCKET}/train", f"s3://{BUCKET}/train/ answers: cat/1.jpg is there"),
        (f"s3://{BUCKET}/none/", "answers: nothing is there"),
        (f"HTTP/{BUCKET}/train", "answers: it has no index.txt"),
        (f"HTTP/{BUCKET}", "answers: index.txt has 9 bytes"),
        ("s3://forbidden/", "can't be listed: .*403 Forbidden"),
        ("HTTP/forbidden/", "can't be read: .*403 Forbidden"),
        ("http://127.0.0.1:1/", "can't be read: .*--environment FILE"),
    ],
)
def test_whether_a_storage_answers(url: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ObjectServer({"train/cat/1.jpg": b"image", "index.txt": b"5 a/1.jpg"}) as server:
        for name, value in server.config(region="eu-north-1").items():
            monkeypatch.setenv(f"AWS_{name.upper()}", value)
        store = ObjectStore(url.replace("HTTP", server.url))
        if "answers" in told:
            assert store.reach().endswith(told)
        else:
            with pytest.raises(StorageRefused, match=told) as caught:
                store.reach()
            assert "not to be seen" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "own", "others"), [("s3", "AWS_ENDPOINT_URL", "GOOGLE_BASE_URL"), ("gs", "GOOGLE_BASE_URL", "AWS_ENDPOINT_URL")]
)
def test_a_server_of_another_cloud_is_none_of_its(scheme: str, own: str, others: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ObjectServer({"train/cat/1.jpg": b"image"}) as server:
        settings = {own: server.url, others: "https://127.0.0.1:1", "AWS_REGION": "eu-north-1"}
        for name, value in {**settings, "AWS_SKIP_SIGNATURE": "true", "GOOGLE_SKIP_SIGNATURE": "true"}.items():
            monkeypatch.setenv(name, value)
        assert ObjectStore(f"{scheme}://{BUCKET}/train").reach().endswith("cat/1.jpg is there")
