"""`Cache(keeps="files")`: objects are kept as they are stored, requested once, and never taken for what they have become."""

from __future__ import annotations

import hashlib
import io
import itertools
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision import transforms

from csd_engine.cache.shelves import Shelves
from ddlp import Cache, DDLPLoader, ImageFiles, cli
from ddlp.caching import measuring
from tests.ddlp.data.objects.test_kept import Epochs, keys, loader, objects, same
from tests.ddlp.dropin.small_sets import DETERMINISTIC, RANDOM, SAMPLES, write_images
from tests.object_server import ObjectServer

ENTRY_BYTES = 56  # beside a file


def files(tmp_path: Path, size: int | str = "1G") -> Cache:
    return Cache(tmp_path / "cache", size, keeps="files")


def plain(server: ObjectServer, transform: Any = DETERMINISTIC) -> Epochs:
    return Epochs(server, loader(objects(server, transform)))


def png(mode: str) -> bytes:
    content = io.BytesIO()
    Image.effect_noise((40, 30), 90).convert(mode).save(content, "PNG")
    return content.getvalue()


@pytest.mark.parametrize(
    ("transform", "workers"), ((DETERMINISTIC, 0), (DETERMINISTIC, 2), (RANDOM, 2)),
    ids=("evaluation, no workers", "evaluation", "crops"),
)  # fmt: skip
def test_each_object_is_requested_once(
    server: ObjectServer, images: dict[str, bytes], tmp_path: Path, transform: Any, workers: int
) -> None:
    without = plain(server, transform)
    first, second = without(), without()
    kept = Epochs(server, loader(objects(server, transform), files(tmp_path), workers))
    assert same(kept(), first) and kept.asked == sorted(images) and kept.counted == (0, SAMPLES)
    assert same(kept(), second) and kept.asked == [] and kept.counted == (SAMPLES, 0)
    (segment,) = (tmp_path / "cache").rglob("*.safetensors")
    assert all(content in segment.read_bytes() for content in images.values())
    del kept
    other = transforms.Compose([transforms.Resize((20, 20)), transforms.ColorJitter(0.4), transforms.ToTensor()])
    again = Epochs(server, loader(objects(server, other), files(tmp_path), workers))  # another pipeline, as in the next run
    assert same(again(), plain(server, other)()) and again.counted == (SAMPLES, 0)
    assert "files as they are stored, in" in again.report


def test_images_that_the_kernel_leaves_to_pillow(server: ObjectServer, tmp_path: Path) -> None:
    one, other = sorted(server.objects)[:2]
    server.objects[one], server.objects[other] = png("RGB"), png("P")
    kept, without = Epochs(server, loader(objects(server), files(tmp_path))), plain(server)
    assert same(kept(), without())
    assert same(kept(), without()) and kept.asked == []


def test_a_quarter_of_the_room_gives_a_quarter_of_the_hits(
    server: ObjectServer, images: dict[str, bytes], tmp_path: Path
) -> None:
    quota = 4096 + sum(len(content) + ENTRY_BYTES for content in images.values()) // 4
    kept, without = Epochs(server, loader(objects(server, RANDOM), files(tmp_path, quota))), plain(server, RANDOM)
    assert same(kept(), without())
    assert same(kept(), without()) and SAMPLES // 4 - 2 <= kept.counted[0] <= SAMPLES // 4 + 2
    before = kept.asked
    assert len(before) == kept.counted[1] and same(kept(), without()) and kept.asked == before
    assert sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*.safetensors")) <= quota


def test_a_bad_image_is_replaced_as_without_a_cache(server: ObjectServer, images: dict[str, bytes], tmp_path: Path) -> None:
    bad, empty, gone = sorted(images)[3:6]
    server.objects[bad], server.objects[empty] = b"no image", b""
    of_both = [objects(server), objects(server)]
    options: dict[str, Any] = {"num_workers": 2, "seed": 3, "on_error": "replace", "max_replaced": 0.2}
    kept, without = (
        Epochs(server, DDLPLoader(dataset, 8, shuffle=True, cache=cache, **options))
        for dataset, cache in zip(of_both, (files(tmp_path), False), strict=True)
    )
    del server.objects[gone]
    for _ in range(2):
        assert same(kept(), without())
    assert {empty, gone} <= set(kept.asked) and bad not in kept.asked and kept.counted == (SAMPLES - 2, 2)


def test_filled_listed_verified_forgotten(
    server: ObjectServer, images: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = sorted(images)[5]
    one = loader(objects(server), files(tmp_path))
    del server.objects[gone]
    server.requests.clear()
    filled = one.fill_cache(progress=False)
    assert (filled.kept, filled.made, filled.failed, filled.why) == (SAMPLES - 1, SAMPLES - 1, 1, "")
    assert set(keys(server)) == set(images)
    server.objects[gone] = images[gone]
    assert one.fill_cache(progress=False).made == 1
    kept = Epochs(server, one)
    assert same(kept(), plain(server)()) and kept.asked == []
    one.cache = False
    list(one)  # gives up the shelf
    where = ["--dir", str(tmp_path / "cache")]
    assert cli.main(["cache", "ls", *where]) == 0
    assert re.search(rf"ImageObjects +files as they are stored +{SAMPLES} of {SAMPLES} ", capsys.readouterr().out)
    assert cli.main(["cache", "verify", *where]) == 0 and "0 damaged files" in capsys.readouterr().out
    assert cli.main(["cache", "forget", "--all", *where]) == 0 and not list((tmp_path / "cache").rglob("*.safetensors"))


def test_what_is_not_kept(server: ObjectServer, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "files")
    local = loader(ImageFiles(paths, [0] * len(paths), DETERMINISTIC), files(tmp_path))
    assert "copy them to one of this computer" in local.explain()
    assert len(list(local)) and local.report().cache is None


@pytest.mark.parametrize(
    ("room", "epochs", "wanted"),
    ((2.0, None, "pixels after decoding"), (2.0, 10, "pixels after decoding"),
     (0.2, None, "files as they are stored"), (0.2, 10, "files as they are stored"),
     (0.2, 1, "nothing is kept: it would not save time in 1 epochs")),
)  # fmt: skip
@pytest.mark.some(3)
def test_what_is_chosen(server: ObjectServer, tmp_path: Path, room: float, epochs: int | None, wanted: str) -> None:
    """``room``: for this part of the decoded pixels. Where all fit, nothing is requested to measure it."""
    server.rate = 100.0
    paths = write_images(tmp_path / "images")
    pixel_bytes = sum(np.asarray(Image.open(path)).nbytes for path in paths)
    one = loader(objects(server, RANDOM), Cache(tmp_path / "cache", 4096 + int(room * pixel_bytes), epochs=epochs))
    assert "pixels after decoding, uint8, each image of its own size or files as they are stored, in" in one.explain()
    kept = Epochs(server, one)
    assert same(kept(), plain(server, RANDOM)())
    assert (len(kept.asked) == SAMPLES) is (room > 1 or epochs is None)
    assert wanted in str(one.report())


def test_a_rest_while_it_measures_changes_no_choice(
    server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a computer that other programs use: the third image takes a second longer, and no processor."""
    prepare, calls = measuring.prepare_sample, itertools.count(1)

    def rests(*given: Any) -> Any:
        if next(calls) == 8:
            time.sleep(1.0)
        return prepare(*given)

    monkeypatch.setattr(measuring, "prepare_sample", rests)
    test_what_is_chosen(server, tmp_path, 0.2, 10, "files as they are stored")


SCRIPT = """
import sys
from ddlp import Cache, DDLPLoader, ImageObjects
from tests.ddlp.dropin.small_sets import DETERMINISTIC
from tests.ddlp.data.objects.test_kept_files import digest
config = {"endpoint": sys.argv[1], "access_key_id": "none", "secret_access_key": "none"}
dataset = ImageObjects(f"s3://bucket/train/", DETERMINISTIC, config=config)
batches = []
for batch in DDLPLoader(dataset, 8, num_workers=1, cache=Cache(sys.argv[2], "1G", keeps="files")):
    batches.append(batch)
    print("batch", flush=True)
    if "wait" in sys.argv:
        sys.stdin.readline()
print(digest(batches), flush=True)
"""


def digest(batches: Any) -> str:
    """Of an epoch's images and labels."""
    parts = (tensor.numpy().tobytes() for images, labels in batches for tensor in (images, labels))
    return hashlib.blake2b(b"".join(parts)).hexdigest()


def started(server: ObjectServer, tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    """An epoch in its order in a process of its own."""
    command = [sys.executable, "-c", SCRIPT, server.url, str(tmp_path / "cache"), *options]
    return subprocess.Popen(
        command, cwd=Path(__file__).parents[4], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def in_order(server: ObjectServer, cache: Any = False) -> DDLPLoader:
    return DDLPLoader(objects(server), 8, num_workers=1, cache=cache)


@pytest.mark.slow
def test_two_processes_at_once_one_of_them_killed(server: ObjectServer, images: dict[str, bytes], tmp_path: Path) -> None:
    wanted = digest(in_order(server))
    killed = started(server, tmp_path, "wait")
    assert killed.stdout is not None and killed.stdout.readline() == "batch\n"
    assert list((tmp_path / "cache").rglob("*.part"))  # it is being filled
    other = started(server, tmp_path)
    assert other.stdout is not None and other.stdout.readline() == "batch\n"
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    told, _ = other.communicate(timeout=300)
    assert told.splitlines()[-1] == wanted
    server.requests.clear()
    mine = in_order(server, files(tmp_path))
    assert digest(mine) == wanted and keys(server) == []
    Shelves(tmp_path / "cache", 0).summaries()
    assert not list((tmp_path / "cache").rglob("*.part"))
