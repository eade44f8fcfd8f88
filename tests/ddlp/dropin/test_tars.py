"""Tar shards with WebDataset's naming: the samples are WebDataset's, whether host or engine reads them."""

from __future__ import annotations

import gc
import io
import json
import operator
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision import transforms

import ddlp.data.tars
from ddlp import DDLPLoader, TarImages
from tests.ddlp.dropin.small_sets import DETERMINISTIC, numbered, write_images
from tests.ddlp.dropin.test_data_sets import compare
from tests.open_files import open_files

PER_SHARD = 7


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def plus(target: int) -> int:
    return target + 1


def png(data: bytes) -> bytes:
    out = io.BytesIO()
    Image.open(io.BytesIO(data)).save(out, "PNG")
    return out.getvalue()


def write_shards(root: Path) -> list[str]:
    """Three shards of seven samples, with other members between them: long names, PNGs, and targets of three kinds."""
    files = write_images(root / "files", 3 * PER_SHARD)
    paths = [str(root / f"train-{number:03d}.tar") for number in range(3)]
    for number, path in enumerate(paths):
        kind = (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT)[number]
        with tarfile.open(path, "w", format=kind) as tar:
            add(tar, "__meta__", b"x")
            add(tar, "README", b"x")
            directory = tarfile.TarInfo("a.dir")
            directory.type = tarfile.DIRTYPE
            tar.addfile(directory)
            for k in range(PER_SHARD):
                n = number * PER_SHARD + k
                key = f"some/{'long' * (40 if number < 2 and k == 2 else 1)}/{n:04d}"
                data = Path(files[n]).read_bytes()
                add(tar, f"{key}.JPG", data) if k != 3 else add(tar, f"{key}.png", png(data))
                add(tar, f"{key}.cls", b"%d\n" % (n * 3))
                add(tar, f"{key}.txt", f"a dög {n}".encode())
                add(tar, f"{key}.meta.json", json.dumps({"n": n, "of": ["x", n / 2]}).encode())
    return paths


@pytest.fixture
def shards(tmp_path) -> list[str]:
    return write_shards(tmp_path)


def by_webdataset(shards: list[str], target: str) -> list[Any]:
    wds = pytest.importorskip("webdataset")
    stream = wds.WebDataset(shards, shardshuffle=False, empty_check=False).decode("pilrgb")
    return [(sample.get("jpg") or sample["png"], sample[target]) for sample in stream]


@pytest.mark.parametrize("target", ["cls", "txt", "meta.json", "__key__"])
def test_the_samples_are_webdatasets(shards, target):
    dataset, theirs = TarImages(shards, target=target), by_webdataset(shards, target)
    assert len(dataset) == len(theirs) == 3 * PER_SHARD
    for (image, found), (their_image, their_target) in zip([dataset[k] for k in range(len(dataset))], theirs, strict=True):
        assert image.mode == "RGB" and np.array_equal(np.asarray(image), np.asarray(their_image)) and found == their_target
    assert dataset[-1][1] == theirs[-1][1] and dataset.key(1) == theirs[1][1] if target == "__key__" else True
    with pytest.raises(IndexError):
        dataset[len(dataset)]


def test_a_loader_and_an_engine_read_them(shards, tmp_path, engine):
    dataset = TarImages(shards, DETERMINISTIC, plus)
    compare(dataset)
    gc.collect()
    assert not [path for path in open_files() if path in shards]  # shards stay open only while an epoch runs
    compare(dataset, engine)
    files = numbered(write_images(tmp_path / "more", 5))
    compare(ConcatDataset([Subset(dataset, [20, 3, 3, 0]), files, TarImages(shards[1], DETERMINISTIC)]), engine)
    said = DDLPLoader(dataset, 4).explain()
    assert "TarImages (21 samples)" in said
    user = DDLPLoader(dataset, 4, num_workers=2, collate_fn=list)
    assert [target for batch in user for _, target in batch] == [3 * k + 1 for k in range(21)]


@pytest.mark.parametrize("most", [0, 2])
def test_more_shards_than_stay_open(shards, monkeypatch, most):
    monkeypatch.setattr("csd_engine.data.parts.MOST_OPEN", most)
    compare(TarImages(shards, DETERMINISTIC))


def test_how_shards_are_named(shards, tmp_path):
    for paths in (str(tmp_path / "train-{000..002}.tar"), tmp_path / "train-*.tar", list(map(Path, shards)), tuple(shards)):
        assert TarImages(paths).paths == shards
    assert len(TarImages(shards[1])) == PER_SHARD
    with pytest.raises(ValueError, match="no shards at"):
        TarImages(str(tmp_path / "none-*.tar"))
    with pytest.raises(FileNotFoundError):
        TarImages(str(tmp_path / "none.tar"))
    with pytest.raises(ValueError, match=r"s3://bucket/x-0.tar is a URL.*ddlp.TarObjects"):
        TarImages("s3://bucket/x-{0..1}.tar")


def test_the_index_is_made_once_and_again_when_a_shard_changes(shards, tmp_path, monkeypatch, capsys):
    made, right = [], ddlp.data.tars._make
    monkeypatch.setattr(ddlp.data.tars, "_make", lambda *a: made.append(1) or right(*a))
    first = TarImages(shards)
    (kept,) = Path(shards[0]).parent.glob(".ddlp-*.index")
    assert len(made) == 1
    again = TarImages(shards)
    assert len(made) == 1 and isinstance(again.index.offsets, np.memmap)
    assert all(np.array_equal(a, b) for a, b in zip(first.index, again.index, strict=True))
    assert TarImages(shards, target="txt").targets[2] == "a dög 2" and len(made) == 2
    copy = pickle.loads(pickle.dumps(again))
    assert copy.targets[4] == 12 and np.array_equal(np.asarray(copy[4][0]), np.asarray(first[4][0]))
    os.utime(shards[1])
    TarImages(shards)
    assert len(made) == 3
    whole = kept.read_bytes()
    for damaged in (b"", whole[:40], b"{}\n", whole[: len(whole) // 2], b"\xff" * 99):
        kept.write_bytes(damaged)
        assert TarImages(shards)[5][1] == 15 and kept.read_bytes() == whole
    assert not list(kept.parent.glob("*.part"))
    TarImages(shards, index_dir=tmp_path / "elsewhere")
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1
    monkeypatch.setattr(ddlp.data.tars, "_QUIET_S", -1)
    kept.unlink()
    TarImages(shards)
    assert "index of tar shards: 3 of 3, 21 samples" in capsys.readouterr().err


def test_where_the_shards_cannot_be_written_beside(shards, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    right = ddlp.data.tars._write

    def refuse(path: Path, *arguments: Any) -> None:
        if path.parent == Path(shards[0]).parent:
            raise PermissionError(13, "no")
        right(path, *arguments)

    monkeypatch.setattr(ddlp.data.tars, "_write", refuse)
    TarImages(shards)
    assert len(list((tmp_path / "cache" / "ddlp").iterdir())) == 1
    monkeypatch.setattr(ddlp.data.tars, "_make", None)
    assert len(TarImages(shards)) == 21


def broken(path: str, change: Any) -> None:
    data = bytearray(Path(path).read_bytes())
    Path(path).write_bytes(bytes(change(data)))


def header(path: str, name: str) -> int:
    with tarfile.open(path) as tar:
        return next(info.offset for info in tar if info.name.endswith(name))


def test_damaged_shards_are_told_by_name(shards, tmp_path):
    second = shards[1]
    whole = Path(second).read_bytes()
    at, end = header(second, "0011.cls"), header(second, "0011.JPG")
    less = bytearray(whole[at : at + 512])
    less[124:136], less[148:156] = b"\xff" * 12, b" " * 8  # -1 byte
    less[148:156] = b"%06o\0 " % sum(less)
    negative = rf"(behind some/.*0011.JPG: .*0011.cls has -1|at byte {at}, behind some/.*0011.JPG)"  # by Python's version
    cases = [
        (whole[: at + 512 + 1], rf"{second} breaks off: its member some/.*/0011.cls"),
        (whole[: at + 100], rf"{second}.*(damaged at byte|behind some/)"),
        (whole[:at] + b"\xff" * 512 + whole[at + 512 :], rf"{second} is damaged at byte {at}, behind some/.*/0011.JPG"),
        (whole[:at] + bytes(less) + whole[at + 512 :], rf"{second} is damaged {negative}"),
        (b"no tar at all" * 99, rf"{second} can't be read as an uncompressed tar file"),
        (b"\x1f\x8b" + whole, rf"{second} can't be read as an uncompressed tar file"),
    ]
    for content, words in cases:
        Path(second).write_bytes(content)
        with pytest.raises(ValueError, match=words):
            TarImages(shards)
    Path(second).write_bytes(whole[:end])  # the two zero blocks at the end are missing: tar accepts that
    assert len(TarImages(shards)) == 3 * PER_SHARD - 3


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("a.cls", b"1")], "sample a needs one image .* it has none among cls"),
        ([("a.jpg", b"1"), ("a.png", b"1"), ("a.cls", b"1")], "it has jpg and png. Say in image="),
        ([("a.jpg", b"1"), ("a.txt", b"1")], "sample a has no cls, only jpg, txt. Say in target="),
        ([("a.jpg", b"1"), ("a.jpg", b"1"), ("a.cls", b"1")], "it has a.jpg twice"),
    ],
)
def test_samples_that_lack_something(tmp_path, members, words):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, data in members:
            add(tar, name, data)
    with pytest.raises(ValueError, match=f"{tmp_path}/x.tar: .*{words}"):
        TarImages(tmp_path / "x.tar")


def test_a_sample_that_is_damaged_is_told_by_shard_and_member(shards, engine):
    at = header(shards[2], "0016.JPG")
    size = os.path.getsize(shards[2])
    broken(shards[2], lambda data: data[: at + 512 + 20] + bytes(100) + data[at + 512 + 120 :])
    assert os.path.getsize(shards[2]) == size
    dataset = TarImages(shards, DETERMINISTIC)
    for spool in (None, engine):
        loader = DDLPLoader(dataset, None, strategy="cpu" if spool is None else "csd", spool=spool)
        seen = iter(loader)
        for k in range(16):
            assert torch.equal(next(seen)[0], dataset[k][0])
        with pytest.raises(Exception, match="0016.JPG"):
            next(seen)
        assert torch.equal(next(seen)[0], dataset[17][0])
    broken(shards[2], lambda data: data[: at + 40])
    for k, batch in zip(range(16), DDLPLoader(dataset, None), strict=False):
        assert torch.equal(batch[0], dataset[k][0])
    with pytest.raises(Exception, match=r"0016.JPG.*not in the file of"):
        list(DDLPLoader(Subset(dataset, [16]), 1))


def test_a_target_that_is_none(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        add(tar, "a.jpg", b"1")
        add(tar, "a.cls", b"cat")
    with pytest.raises(ValueError, match="x.tar, member a.jpg: its target is b'cat'"):
        _ = TarImages(tmp_path / "x.tar").targets[0]
    with pytest.raises(ValueError, match="target='npy' is none of"):
        TarImages(tmp_path / "x.tar", target="npy")


def shard(path: Path, extension: str, targets: list[bytes], image: bytes) -> str:
    with tarfile.open(path, "w") as tar:
        for k, target in enumerate(targets):
            add(tar, f"s{k}.jpg", image)
            add(tar, f"s{k}.{extension}", target)
    return str(path)


@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.parametrize("own_step", (False, True))
@pytest.mark.parametrize(
    "extension, targets, kind, what",
    [
        ("json", [b'{"label": 1}', b'{"other": 2}'], KeyError, "label"),
        ("cls", [b"1", b"12345678901234567890"], ValueError, "12345678901234567890.*Overflow when unpacking long long"),
        ("json", [b"1", b"null"], RuntimeError, "None.*Could not infer dtype of NoneType"),
        ("json", [b"1", b"[" * 100_000], ValueError, "recursion"),
        ("txt", [b"a", b"\xff"], ValueError, "utf-8"),
    ],
)
@pytest.mark.some(6)
def test_a_target_that_does_not_go_with_its_batch(tmp_path, paths, extension, targets, kind, what, own_step, workers):
    """The error has DataLoader's type and text, and names the shard and the member."""
    path = shard(tmp_path / "x.tar", extension, targets, Path(paths[0]).read_bytes())
    transform = transforms.Compose([DETERMINISTIC, transforms.Lambda(torch.clone)] if own_step else [DETERMINISTIC])
    dataset = TarImages(path, transform, target=extension)
    with pytest.raises(kind, match=f"(?s){path}, member s1.jpg.*{what}") as caught:
        next(iter(DDLPLoader(dataset, 2, num_workers=workers, strategy="cpu")))
    assert isinstance(caught.value, kind)


@pytest.mark.parametrize("workers", (0, 2))
def test_a_key_that_a_target_transform_misses(tmp_path, paths, workers):
    """The user's own error arrives as it is; its note names the shard and the member."""
    path = shard(tmp_path / "x.tar", "json", [b'{"label": 1}', b'{"other": 2}'], Path(paths[0]).read_bytes())
    dataset = TarImages(path, DETERMINISTIC, operator.itemgetter("label"), target="json")
    for data in (dataset, ConcatDataset([dataset, dataset])):
        with pytest.raises(KeyError) as caught:
            next(iter(DDLPLoader(data, 2, num_workers=workers, strategy="cpu")))
        assert caught.value.args == ("label",) and f"{path}, member s1.jpg" in " ".join(caught.value.__notes__)


def test_files_and_members_that_are_gone_or_broken(tmp_path, paths):
    """The loader's errors, and those of the data set itself, have DataLoader's type and name the member."""
    path = shard(tmp_path / "x.tar", "cls", [b"1", b"2"], Path(paths[0]).read_bytes()[:200])
    dataset = TarImages(path, DETERMINISTIC)
    plain = Plain(dataset)
    for made in (lambda: dataset[0], lambda: next(iter(DDLPLoader(dataset, 1))), lambda: next(iter(DDLPLoader(plain, 1)))):
        with pytest.raises(OSError, match=f"{path}, member s0.jpg.*"):
            made()
    os.unlink(path)
    for made in (lambda: dataset[1], lambda: next(iter(DDLPLoader(Subset(dataset, [1]), 1)))):
        with pytest.raises(FileNotFoundError, match="member s1.jpg") as caught:
            made()
        assert (caught.value.errno, caught.value.filename) == (2, path)


class Plain(torch.utils.data.Dataset):
    """A data set of the user's own, over another."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]
