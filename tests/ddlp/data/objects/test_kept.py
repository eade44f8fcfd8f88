"""`cache=` on objects: what is kept is not requested again, and never taken for an object that has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset

from ddlp import Cache, DDLPLoader, ImageFiles, ImageObjects
from tests.ddlp.dropin.small_sets import DETERMINISTIC, RANDOM, SAMPLES, write_images
from tests.object_server import BUCKET, ObjectServer


def objects(server: ObjectServer, transform: Any = DETERMINISTIC, **arguments: Any) -> ImageObjects:
    return ImageObjects(f"s3://{BUCKET}/train/", transform, config=server.config(), **arguments)


def loader(dataset: Any, cache: Any = False, workers: int = 2) -> DDLPLoader:
    return DDLPLoader(dataset, 8, shuffle=True, num_workers=workers, seed=3, cache=cache)


KEEPS = pytest.mark.parametrize("keeps", ["auto", "files"])


class Epochs:
    """A loader's epochs, with the keys that each requests. All loaders of one data set give the same ones.

    Attributes:
        asked: the keys of the last epoch, sorted.
        counted: hits and misses of the last epoch.
    """

    def __init__(self, server: ObjectServer, one: DDLPLoader) -> None:
        self._server, self._loader = server, one
        self._random = torch.Generator().manual_seed(5).get_state()

    def __call__(self) -> list[Any]:
        torch.set_rng_state(self._random)
        self._server.requests.clear()
        found = list(self._loader)
        self._random = torch.get_rng_state()
        self.asked = keys(self._server)
        return found

    @property
    def counted(self) -> tuple[int, int]:
        cache = self._loader.report().cache
        assert cache is not None
        return cache.hits, cache.misses

    @property
    def report(self) -> str:
        """The loader's, as text."""
        return str(self._loader.report())


def keys(server: ObjectServer) -> list[str]:
    """What was requested, without the listings."""
    targets = [head.split(" ", 2)[1] for head in server.requests]
    return sorted(target.partition(f"/{BUCKET}/")[2] for target in targets if "list-type" not in target)


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for pair in zip(one, other, strict=True) for a, b in zip(*pair))


@pytest.mark.parametrize(
    ("transform", "workers"), ((DETERMINISTIC, 0), (DETERMINISTIC, 2), (RANDOM, 2)),
    ids=("one size, no workers", "one size", "any size"),
)  # fmt: skip
def test_each_object_is_requested_once(
    server: ObjectServer, images: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transform: Any,
    workers: int,
) -> None:  # fmt: skip
    cache = Cache(tmp_path / "cache", "1G")
    plain = Epochs(server, loader(objects(server, transform), workers=workers))
    first, second = plain(), plain()
    kept = Epochs(server, loader(objects(server, transform), cache, workers))
    assert same(kept(), first) and kept.asked == sorted(images)
    assert same(kept(), second) and kept.asked == [] and kept.counted == (SAMPLES, 0)
    del kept
    monkeypatch.chdir("/")
    again = Epochs(server, loader(objects(server, transform), cache, workers))  # as in the next run, begun elsewhere
    assert same(again(), first) and again.asked == [] and again.counted == (SAMPLES, 0)


@KEEPS
def test_an_object_that_has_changed_is_requested(
    server: ObjectServer, images: dict[str, bytes], tmp_path: Path, keeps: str
) -> None:
    """Even if its size is the same, which is that of a file with some zeros behind its end."""
    cache, (one, other) = Cache(tmp_path / "cache", "1G", keeps), sorted(images)[:2]
    length = max(len(images[one]), len(images[other]))
    server.objects[one] = images[one].ljust(length, b"\0")
    Epochs(server, loader(objects(server), cache))()
    server.objects[one] = images[other].ljust(length, b"\0")
    kept = Epochs(server, loader(objects(server), cache))
    assert same(kept(), Epochs(server, loader(objects(server)))())
    assert kept.asked == [one] and kept.counted == (SAMPLES - 1, 1)


@KEEPS
def test_what_changed_after_the_listing_is_an_error_and_not_kept(
    server: ObjectServer, images: dict[str, bytes], tmp_path: Path, keeps: str
) -> None:
    cache, (one, other) = Cache(tmp_path / "cache", "1G", keeps), sorted(images)[:2]
    dataset = objects(server)
    server.objects[one] = images[other]
    with pytest.raises(OSError, match=one):
        Epochs(server, loader(dataset, cache))()
    server.objects[one] = images[one]
    kept = Epochs(server, loader(dataset, cache))
    assert same(kept(), Epochs(server, loader(objects(server)))()) and one in kept.asked


@KEEPS
def test_a_damaged_sample_is_requested_again(server: ObjectServer, tmp_path: Path, keeps: str) -> None:
    cache = Cache(tmp_path / "cache", "1G", keeps)
    Epochs(server, loader(objects(server), cache))()
    (segment,) = (tmp_path / "cache").rglob("*.safetensors")
    with segment.open("r+b") as file:
        file.seek(4096 + 1000)
        changed = file.read(1)[0] ^ 1
        file.seek(-1, 1)
        file.write(bytes([changed]))
    kept = Epochs(server, loader(objects(server), cache))
    with pytest.warns(UserWarning, match="had a damaged file"):
        found = kept()
    assert same(found, Epochs(server, loader(objects(server)))()) and kept.asked


@KEEPS
def test_two_listings_as_one_data_set(server: ObjectServer, tmp_path: Path, keeps: str) -> None:
    def both() -> ConcatDataset[Any]:
        return ConcatDataset([objects(server), objects(server)])

    kept, plain = (Epochs(server, loader(both(), cache)) for cache in (Cache(tmp_path / "cache", "1G", keeps), False))
    assert same(kept(), plain())
    assert same(kept(), plain()) and kept.asked == [] and kept.counted == (2 * SAMPLES, 0)


def test_what_tells_no_version_is_not_kept(server: ObjectServer, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", "1G")
    listed = loader(objects(server, index="index.txt"), cache)
    assert "nothing is kept: the objects have no ETags" in listed.explain()
    list(listed)
    assert listed.report().cache is None
    paths = write_images(tmp_path / "files")
    mixed = loader(ConcatDataset([objects(server), ImageFiles(paths, [0] * len(paths), DETERMINISTIC)]), cache)
    assert "nothing is kept: the objects have no ETags" in mixed.explain()
