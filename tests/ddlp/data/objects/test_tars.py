"""`ddlp.TarObjects`: the samples of a TarImages with the same shards, by ranges; the index; faults; nothing shown or left."""

from __future__ import annotations

import os
import pickle
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader

import ddlp.data.objects.shard_streams
import ddlp.data.tars
from ddlp import Cache, DDLPError, DDLPLoader, TarImages, TarObjects
from tests.at_once import at_once
from tests.ddlp.data.objects.test_kept import Epochs, same
from tests.ddlp.dropin.small_sets import DETERMINISTIC, RANDOM
from tests.ddlp.dropin.test_data_sets import compare
from tests.ddlp.dropin.test_tars import PER_SHARD, write_shards
from tests.object_server import BUCKET, ObjectServer

S3 = f"s3://{BUCKET}/shards/train-{{000..002}}.tar"
LAST = "shards/train-002.tar"
SAMPLES = 3 * PER_SHARD


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("shards"))


@pytest.fixture(autouse=True)
def own_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No index of another test is found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


@pytest.fixture
def served(server: ObjectServer, shards: list[str]) -> ObjectServer:
    server.objects = {f"shards/{Path(path).name}": Path(path).read_bytes() for path in shards}
    return server


def objects(server: ObjectServer, transform: Any = DETERMINISTIC, **options: Any) -> TarObjects:
    return TarObjects(S3, transform, config=server.config(), **options)


def epoch(dataset: Any, **options: Any) -> list[Any]:
    options = {"num_workers": 2, **options}
    return list(DDLPLoader(dataset, 4, shuffle=True, seed=3, generator=torch.Generator().manual_seed(1), **options))


def ranges(server: ObjectServer) -> list[tuple[str, int, int]]:
    """The shard, the first byte and the number of bytes of each request for bytes."""
    found = []
    for head in server.requests:
        asked = re.search(r"(?i)^range: bytes=(\d+)-(\d+)", head, re.MULTILINE)
        if head.startswith("GET"):
            assert asked, head  # no shard is asked for as a whole
            found.append((head.split(" ")[1].rpartition("/")[2], int(asked[1]), int(asked[2]) + 1 - int(asked[1])))
    return found


@pytest.mark.parametrize("target", ["cls", "txt", "meta.json", "__key__"])
def test_the_samples_are_those_of_the_files(served, shards, target):
    ours, theirs = objects(served, None, target=target), TarImages(shards, target=target)
    assert len(ours) == len(theirs) == SAMPLES
    for k in range(SAMPLES):
        assert ours[k] == theirs[k] and ours.key(k) == theirs.key(k)
    assert ours.where(20) == theirs.where(20).replace(str(Path(shards[0]).parent), f"s3://{BUCKET}/shards")
    assert ours.reader.where(20) == ours.where(20)


def test_loaders_have_the_same_bits(served, shards):
    compare(objects(served))
    theirs = TarImages(shards, RANDOM)
    web = TarObjects([f"{served.url}/{BUCKET}/{key}" for key in served.objects], RANDOM)
    for dataset in (objects(served, RANDOM), web, pickle.loads(pickle.dumps(web))):
        assert same(epoch(dataset), epoch(theirs)) and same(epoch(dataset, num_workers=0), epoch(theirs))
    assert same(epoch(ConcatDataset([theirs, web])), epoch(ConcatDataset([theirs, theirs])))
    assert "TarObjects (21 samples)" in DDLPLoader(web, 4).explain()


def test_a_sample_is_a_request_for_its_bytes(served):
    dataset = objects(served)
    index = dataset.index
    expected = [
        (f"train-00{int(shard)}.tar", int(offset), int(size))
        for shard, offset, size in zip(index.shards, index.offsets, index.sizes, strict=True)
    ]
    for read in (lambda: epoch(dataset), lambda: list(DataLoader(dataset, 8))):
        served.requests.clear()
        read()
        assert sorted(ranges(served)) == sorted(expected)
    assert all("if-match" in head.lower() for head in served.requests)


# -- the index


@pytest.mark.parametrize("piece", [8192, 10_000, 1 << 20])
def test_the_pass_over_the_shards_asks_for_each_piece_once(served, shards, monkeypatch, piece):
    monkeypatch.setattr(ddlp.data.objects.shard_streams, "PIECE_BYTES", piece)
    theirs = TarImages(shards).index
    served.latency_s = 0.005
    for memory_bytes in (256 << 20, 10 * piece):
        served.requests.clear()
        served.most = 0
        ours = objects(served, memory_bytes=memory_bytes).index
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
        sizes = [len(body) for body in served.objects.values()]
        found = sorted(ranges(served))
        assert len(set(found)) == sum(-(-size // piece) for size in sizes) and sum(one[2] for one in set(found)) == sum(sizes)
        assert len(found) - len(set(found)) <= 3  # the end of a shard may be looked at again
        assert 1 < served.most <= (16 if memory_bytes == 10 * piece else 256)
        for path in (Path(os.environ["XDG_CACHE_HOME"]) / "ddlp").iterdir():
            path.unlink()


def test_the_index_is_kept_until_a_shard_changes(served, tmp_path):
    first = objects(served)
    assert ranges(served)
    (kept,) = (tmp_path / "home" / "ddlp").iterdir()
    served.requests.clear()
    again = objects(served)
    assert not ranges(served) and len(served.requests) == 3 and isinstance(again.index.offsets, np.memmap)
    assert again.fingerprint == first.fingerprint and same(epoch(again), epoch(first))
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    assert len(objects(served)) == SAMPLES and kept.read_bytes() == whole
    objects(served, index_dir=tmp_path / "elsewhere")
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1
    served.requests.clear()
    with pytest.raises(OSError, match="home"):
        objects(served, index_dir=kept / "x")
    assert not ranges(served)  # that it can't be kept is told before the pass
    served.objects[LAST] = served.objects["shards/train-000.tar"]  # of another size
    changed = objects(served)
    assert changed.targets[14] == 0 and changed.fingerprint != first.fingerprint
    served.objects[LAST] = served.objects[LAST].replace(b"\n", b" ")  # of the same size
    served.requests.clear()
    assert objects(served).fingerprint != changed.fingerprint and ranges(served)


def test_one_of_many_makes_the_index(served, tmp_path):
    """The ranks of a computer begin at once."""
    served.latency_s = 0.3
    made = at_once(lambda _: objects(served), 3)
    assert len({dataset.fingerprint for dataset in made}) == 1
    assert len(ranges(served)) == 3 and len(list((tmp_path / "home" / "ddlp").iterdir())) == 1


def test_without_etags_no_index_is_kept(served, tmp_path):
    served.tags = False
    dataset = objects(served)
    assert not (tmp_path / "home").exists() and dataset.reader.versions([0]) is None
    assert epoch(dataset)
    assert "no ETags" in str(DDLPLoader(dataset, 4, cache=Cache(tmp_path / "cache", "1G")).explain())


def test_progress_is_told(served, monkeypatch, capsys):
    for module in (ddlp.data.tars, ddlp.data.objects.storage):
        monkeypatch.setattr(module, "_QUIET_S", -1)
    objects(served)
    said = capsys.readouterr().err
    assert "index of tar shards: 3 of 3, 21 samples" in said and "sizes of 3 of 3 objects" in said


# -- faults


def test_faults_of_the_storage_cost_no_error(served, shards, monkeypatch):
    monkeypatch.setattr(ddlp.data.objects.shard_streams, "PIECE_BYTES", 2000)
    served.busy, served.reset = 0.1, 0.1
    for _ in range(3):
        assert same(epoch(objects(served, RANDOM)), epoch(TarImages(shards, RANDOM)))


def other_content(body: bytes) -> bytes:
    return body[:-1] + b"!"


def shorter(body: bytes) -> bytes:
    return body[:600]


@pytest.mark.parametrize("obeyed", ["If-Match", "no If-Match", "no ETag"])
@pytest.mark.parametrize(("change", "why"), [(other_content, "ETag"), (shorter, "(shorter|ETag|bytes)"), (None, "")])
def test_a_shard_that_changed_is_an_error_in_its_place(served, obeyed, change, why):
    served.conditions, served.tags = obeyed == "If-Match", obeyed != "no ETag"
    dataset = objects(served)
    if change is None:
        del served.objects[LAST]
    elif why == "ETag" and obeyed == "no ETag":
        return  # nothing tells
    else:
        served.objects[LAST] = change(served.objects[LAST])
    first = 2 * PER_SHARD
    it = iter(DDLPLoader(dataset, 7, num_workers=1))
    assert [len(next(it)[0]) for _ in range(2)] == [7, 7]
    with pytest.raises(FileNotFoundError if change is None else OSError, match=f"train-002.tar, member some/.*{why}") as caught:
        next(it)
    assert change is None or "has changed" in str(caught.value)
    with pytest.raises(OSError, match="train-002.tar, member"):
        dataset[first]
    loader = DDLPLoader(dataset, SAMPLES, num_workers=1, on_error="replace", max_replaced=0.5)  # others of the batch come twice
    assert len(list(loader)) == 1 and loader.report().replaced == PER_SHARD


def test_a_shard_that_changes_while_the_index_is_made(served, monkeypatch):
    right = ddlp.data.objects.shard_streams.shard_streams

    def changing(*arguments: Any) -> Any:
        served.objects[LAST] = other_content(served.objects[LAST])
        return right(*arguments)

    monkeypatch.setattr("ddlp.data.objects.tars.shard_streams", changing)
    with pytest.raises(OSError, match=f"s3://{BUCKET}/{LAST}: .*has changed"):
        objects(served)


def test_a_sample_without_bytes_is_no_request(served, tmp_path):
    body = served.objects[LAST]
    at = body.rindex(b".JPG") // 512 * 512
    header = bytearray(body[at : at + 512])
    header[124:136] = b"%011o\0" % 0
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
    behind = at + 512 + -(-int(body[at + 124 : at + 135], 8) // 512) * 512
    served.objects[LAST] = body[:at] + bytes(header) + body[behind:]
    dataset = objects(served)
    assert int(dataset.index.sizes[-1]) == 0
    served.requests.clear()
    with pytest.raises(OSError, match="cannot identify"):
        dataset[-1]
    assert not served.requests


def test_what_is_wrong_is_told(served, shards):
    config = served.config()

    def refused(urls: Any, words: str, error: type[Exception] = DDLPError, **options: Any) -> None:
        with pytest.raises(error, match=words) as caught:
            TarObjects(urls, **{"config": config, **options})
        assert "secret" not in str(caught.value) and "\n" not in str(caught.value)

    refused(S3.replace("2}", "3}"), f"There is no s3://{BUCKET}/shards/train-003.tar. Check")
    refused("s3://forbidden/x.tar", "s3://forbidden/x.tar can't be read|may not be read")
    refused([f"s3://{BUCKET}/x-*.tar"], "not searched")
    refused([], "no shards")
    refused([S3, "s3://other/x.tar"], "not in one bucket")
    refused(shards, "no URL of objects.*ddlp.TarImages")
    refused(["https://server/a.tar", "https://server/b.tar?sig=secret"], "query")
    refused(S3, "target='npy' is none of", ValueError, target="npy")
    refused(S3, "has no mask.json, only", ValueError, target="mask.json")
    served.objects[LAST] = served.objects[LAST][:5000]
    refused(S3, f"s3://{BUCKET}/{LAST} is damaged at byte 4608", ValueError)
    served.objects[LAST] = b""
    refused(S3, f"s3://{BUCKET}/{LAST} can't be read as an uncompressed tar file: empty file", ValueError)
    served.ranges = False
    other = f"{served.url}/{BUCKET}/shards/train-001.tar"
    refused(other, f"{other}: .*no ranges of their bytes", OSError, config={})


def test_credentials_are_in_no_text_and_no_pickle(served):
    dataset = objects(served)
    told = repr(dataset), repr(vars(dataset)), pickle.dumps(dataset).decode("latin-1"), str(DDLPLoader(dataset).explain())
    for text in told:
        assert "not to be seen anywhere" not in text and "AKIAFORTHETEST" not in text


SCRIPT = """
import os, signal, threading
from ddlp import TarObjects
threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
TarObjects(os.environ["URL"])
"""


@pytest.mark.parametrize("hanging", ["the sizes", "the pass"])
@pytest.mark.some(1)
def test_ctrl_c_while_the_data_set_is_made(served, forks, monkeypatch, hard_limit, hanging):
    served.hanging = {LAST}
    code = SCRIPT
    if hanging == "the pass":
        code = "import ddlp.data.objects.storage as s\nfrom csd_engine.data.objects.stored import Stored\n" + (
            f"s.Storage.stored = lambda self, keys: [Stored(key, {len(served.objects[LAST])}, '') for key in keys]\n"
        ) + SCRIPT
    environment = {**os.environ, "URL": f"{served.url}/{BUCKET}/{LAST}", "PYTHONWARNINGS": "ignore"}
    ended = forks.run(code=code, environment=environment)
    assert ended.returncode == -signal.SIGINT and ended.stderr.count("Traceback") == 1, ended.stderr
    assert ended.stderr.strip().splitlines()[-1] == "KeyboardInterrupt"
    assert [head.split(" ")[0] for head in served.requests][:1] == [{"the sizes": "HEAD", "the pass": "GET"}[hanging]]


# -- kept


@pytest.mark.parametrize("keeps", ["auto", "files"])
def test_what_is_kept_is_not_requested_again(served, shards, tmp_path, keeps):
    def epochs(cache: Any) -> Epochs:
        return Epochs(served, DDLPLoader(objects(served), 7, shuffle=True, num_workers=2, seed=3, cache=cache))

    cache = Cache(tmp_path / "cache", "1G", keeps=keeps)
    first = epochs(cache)
    assert same(first(), epochs(False)()) and first.asked
    assert first() and first.asked == [] and first.counted == (SAMPLES, 0)
    again = epochs(cache)  # as in the next run
    assert same(again(), epochs(False)()) and again.counted == (SAMPLES, 0)
    served.objects[LAST] = other_content(served.objects[LAST])
    changed = epochs(cache)
    assert same(changed(), epochs(False)()) and changed.asked == [LAST] * PER_SHARD
    assert changed.counted == (SAMPLES - PER_SHARD, PER_SHARD)
