"""`ddlp.ImageObjects` in loaders: the bits of an ImageFolder with the same files, faults, and nothing left behind."""

from __future__ import annotations

import gc
import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Lambda

from ddlp import DDLPLoader, ImageObjects, TarImages, TarObjects
from tests.ddlp.dropin.beside import equal
from tests.ddlp.dropin.small_sets import DETERMINISTIC, RANDOM, SAMPLES, numbered, write_images
from tests.ddlp.dropin.test_data_sets import compare
from tests.ddlp.dropin.test_tars import write_shards
from tests.object_server import BUCKET, ObjectServer, files_below, index_of

pytest.importorskip("obstore")


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """The same files as in `served`, below a directory. Two are no JPEGs."""
    root = tmp_path_factory.mktemp("files")
    for path in write_images(root)[5:7]:
        out = io.BytesIO()
        Image.open(path).save(out, "PNG")
        Path(path).write_bytes(out.getvalue())
    return root


@pytest.fixture
def served(root) -> Iterator[ObjectServer]:
    files = files_below(root)
    with ObjectServer({**files, "index.txt": index_of(files)}) as one:
        yield one


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()
    until = time.monotonic() + 5
    while left := [thread.name for thread in threading.enumerate() if thread.name.startswith("ddlp-objects")]:
        assert time.monotonic() < until, left
        time.sleep(0.01)


def objects(server: ObjectServer, transform: Any = RANDOM, **options: Any) -> ImageObjects:
    return ImageObjects(f"s3://{BUCKET}/", transform, config=server.config(), **options)


def batches(dataset: Any, **options: Any) -> list[Any]:
    return list(DDLPLoader(dataset, 4, shuffle=True, seed=3, generator=torch.Generator().manual_seed(1), **options))


def content(batch: list[torch.Tensor]) -> tuple[list[int], bytes]:
    return batch[1].tolist(), batch[0].numpy().tobytes()


def test_the_samples_are_an_image_folders(served, root):
    compare(objects(served, DETERMINISTIC))
    theirs = ImageFolder(str(root), RANDOM)
    for dataset in (objects(served), ImageObjects(f"{served.url}/{BUCKET}", RANDOM)):
        assert dataset.classes == theirs.classes and dataset.class_to_idx == theirs.class_to_idx
        equal(batches(dataset, num_workers=2), batches(theirs))
        equal(batches(dataset), batches(theirs))


@pytest.mark.parametrize("strategy", ["csd", "wrr"])
def test_an_engine_gets_the_bytes_from_the_host(served, root, engine, strategy):
    loader = DDLPLoader(objects(served), 4, strategy=strategy, spool=engine, seed=3)
    theirs = list(DDLPLoader(ImageFolder(str(root), RANDOM), 4, seed=3))
    equal(sorted(loader, key=content), sorted(theirs, key=content))  # wrr's order is its own
    assert strategy != "csd" or loader.report().batches_csd == len(loader)


@pytest.mark.parametrize("strategy", ["csd", "wrr"])
def test_an_engine_gets_the_bytes_of_members_of_shards(tmp_path, engine, strategy):
    """All else of ``ddlp.TarObjects`` is in tests/ddlp/data/objects."""
    shards = write_shards(tmp_path)
    expected = list(DDLPLoader(TarImages(shards, RANDOM), 4, seed=3))
    with ObjectServer({Path(path).name: Path(path).read_bytes() for path in shards}) as server:
        dataset = TarObjects(f"s3://{BUCKET}/train-{{000..002}}.tar", RANDOM, config=server.config(), index_dir=tmp_path)
        loader = DDLPLoader(dataset, 4, strategy=strategy, spool=engine, seed=3)
        equal(sorted(loader, key=content), sorted(expected, key=content))
        assert strategy != "csd" or loader.report().batches_csd == len(loader)


def test_own_steps_and_other_parts(served, root, tmp_path):
    ours, theirs = objects(served), ImageFolder(str(root), RANDOM)
    own = Compose([RANDOM, Lambda(lambda image: image * 2)])
    equal(batches(objects(served, own), num_workers=1), batches(ImageFolder(str(root), own), num_workers=1))
    more = numbered(write_images(tmp_path / "more", 9), RANDOM)
    equal(batches(ConcatDataset([more, ours]), num_workers=2), batches(ConcatDataset([more, theirs])))


def test_user_code_gets_a_batch_at_once(served, root):
    dataset = objects(served, lambda image: torch.tensor(image.size))
    served.requests.clear()
    served.latency_s = 0.02
    found = list(DataLoader(dataset, 20))
    equal(found, list(DataLoader(ImageFolder(str(root), dataset.transform), 20)))
    assert served.most >= 8 and len(served.requests) == SAMPLES


def test_a_subclass_makes_its_samples_itself(served):
    class Mine(ImageObjects):
        def __getitem__(self, index):
            return index, -1

    dataset = Mine(f"s3://{BUCKET}/", config=served.config())
    assert [batch[1].tolist() for batch in DataLoader(dataset, 40)][1] == [-1]


def test_the_requests_go_ahead_of_the_batches(served):
    served.latency_s = 0.05
    dataset = objects(served, DETERMINISTIC)
    assert len(list(DDLPLoader(dataset, 2, num_workers=1))) == 21
    assert served.most > 4  # more than those of a batch at once


def test_bad_objects_are_errors_in_their_place(served):
    dataset = objects(served, DETERMINISTIC)
    first, last = "class0/000.jpg", "class2/035.jpg"
    served.objects[first] = served.objects[first][:-1] + b"!"
    del served.objects[last]
    it = iter(DDLPLoader(dataset, 4, num_workers=1))
    with pytest.raises(OSError, match=r"s3://bucket/class0/000.jpg.*its ETag was"):
        next(it)
    assert len([next(it) for _ in range(8)]) == 8
    with pytest.raises(FileNotFoundError, match=r"s3://bucket/class2/035.jpg"):
        next(it)
    loader = DDLPLoader(dataset, 4, num_workers=1, on_error="replace", max_replaced=0.1)
    assert len(list(loader)) == 11
    report = loader.report()
    assert report.replaced == 2 and all(f"s3://bucket/{key}" in str(report.replaced_samples) for key in (first, last))


def test_nothing_shows_the_credentials(served, engine, caplog, capfd):
    caplog.set_level(0)
    dataset = objects(served, DETERMINISTIC)
    loader = DDLPLoader(dataset, 4, strategy="wrr", spool=engine)
    told = [str(loader.explain())]
    assert len(list(loader)) == 11
    told += [str(loader.report()), repr(loader.dataset), repr(loader.state_dict()), caplog.text, *capfd.readouterr()]
    for text in told:
        assert "not to be seen" not in text and "AKIAFORTHETEST" not in text


SCRIPT = """
import os, signal, threading
from ddlp import DDLPLoader, ImageObjects, TarImages, TarObjects
from tests.ddlp.dropin.small_sets import RANDOM
dataset = ImageObjects(os.environ["URL"], RANDOM)
it = iter(DDLPLoader(dataset, 2, num_workers=1))
assert len(next(it)[1]) == 2
"""
TIMER = "threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()"
ENDS = {
    "the script's end": ("", 0, []),
    "Ctrl-C": (f"{TIMER}\nlist(it)", -signal.SIGINT, ["KeyboardInterrupt"]),
    "Ctrl-C in user code": (f"{TIMER}\ndataset[9]", -signal.SIGINT, ["KeyboardInterrupt"]),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.some(2)
def test_the_interpreter_ends_though_requests_hang(served, forks, how, hard_limit):
    code, status, last = ENDS[how]
    served.hanging = set(sorted(served.objects)[8:41])
    environment = {**os.environ, "URL": f"{served.url}/{BUCKET}", "PYTHONWARNINGS": "ignore"}
    ended = forks.run(code=SCRIPT + code, environment=environment)
    assert ended.returncode == status and ended.stderr.strip().splitlines()[-1:] == last, ended.stderr
    assert ended.stderr.count("Traceback") == len(last), ended.stderr
    assert any("class0/024" in one for one in served.requests)  # some were in flight


@pytest.mark.slow
def test_a_spawned_worker_reads_with_its_environments_credentials(served, root, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    dataset = objects(served, DETERMINISTIC)
    found = list(DataLoader(dataset, 4, num_workers=1, multiprocessing_context="spawn"))
    equal(found, list(DataLoader(ImageFolder(str(root), DETERMINISTIC), 4)))
