"""User code that opens images with Pillow: decoding is postponed while it makes batches, and nowhere else."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper
from torchvision import transforms

from ddlp import DDLPLoader, decode
from tests.small_images import make_images


class Table(Dataset):
    """A CSV file's images and labels, as users write such a data set."""

    def __init__(self, table: Path, transform: Any) -> None:
        with table.open() as lines:
            self.rows = [(path, int(label)) for path, label in csv.reader(lines)]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        path, label = self.rows[index]
        with Image.open(path) as image:
            return self.transform(image.convert("RGB")), label


class Kinds(Table):
    """Says what kind of image `Image.open` gave: 1 is a postponed one."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.rows[index][0])
        return int("Postponed" in type(image).__name__), int(isinstance(image, Image.Image))


class Stream(IterableDataset):
    def __init__(self, table: Kinds) -> None:
        self.table = table

    def __iter__(self) -> Any:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return (self.table[index] for index in range(first, len(self.table), step))


def look(row: tuple[str, int]) -> tuple[int, int]:
    return int("Postponed" in type(Image.open(row[0])).__name__), 1


TRAIN = transforms.Compose([
    transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
    transforms.Normalize([0.5] * 3, [0.2] * 3),
])  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    path = folder / "labels.csv"
    path.write_text("".join(f"{image},{label % 3}\n" for label, image in enumerate(make_images(folder, 20))))
    return path


def epoch(loader: Any) -> list[torch.Tensor]:
    return [part for batch in loader for part in batch]


def test_the_batches_are_the_same_in_each_way(table, need_kernel):
    ways = [
        epoch(DDLPLoader(Table(table, TRAIN), 4, seed=3, num_workers=workers, postpone_decoding=postpone))
        for workers, postpone in ((0, True), (2, True), (2, False))
    ]
    for other in ways[1:]:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(ways[0], other, strict=True))


def kinds(loader: Any) -> set[tuple[int, int]]:
    firsts, seconds = (torch.cat([batch[part] for batch in loader]).tolist() for part in (0, 1))
    return set(zip(firsts, seconds, strict=True))


@pytest.mark.parametrize("make", [Kinds, lambda *given: Stream(Kinds(*given))], ids=["indices", "stream"])
def test_while_batches_are_made_only(table, make, need_kernel):
    dataset = make(table, None)
    assert kinds(DDLPLoader(dataset, 4, num_workers=2)) == {(1, 1)}
    here = DDLPLoader(dataset, 4)
    for ours, torchs in zip(here, DataLoader(dataset, 4), strict=True):  # between two batches this process is as it was
        assert (ours[0] == 1).all() and (torchs[0] == 0).all()
    assert kinds(here) == {(1, 1)} and not decode.installed()
    assert kinds(DataLoader(dataset, 4, num_workers=2)) == {(1, 1)}, "whoever has started the workers"
    assert kinds(DataLoader(dataset, 4, num_workers=1, worker_init_fn=decode.not_here)) == {(0, 1)}
    assert kinds(DDLPLoader(dataset, 4, postpone_decoding=False)) == {(0, 1)}
    assert kinds(DDLPLoader(dataset, 4, num_workers=1, postpone_decoding=False)) == {(0, 1)}


_FRESH = """
import pathlib, sys
from ddlp import DDLPLoader
from tests.ddlp.dropin.test_postponed import Kinds, kinds
print(kinds(DDLPLoader(Kinds(pathlib.Path(sys.argv[1]), None), 4, num_workers=2)))
"""


_ONE_WORD = """
import sys
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset
from ddlp import {name}

def postponed():
    return int("Postponed" in type(Image.open(sys.argv[1])).__name__)

class Rows(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return postponed()

class Stream(IterableDataset):
    def __iter__(self):
        yield postponed()

print([int(batch) for data in (Rows(), Stream()) for workers in (0, 1) for batch in DataLoader(data, num_workers=workers)])
"""


@pytest.mark.parametrize(("name", "streams"), [("DDLPLoader", 1), ("ImageFiles", 0)])
def test_in_a_librarys_loader_of_streams_once_ddlploader_is_imported(table, need_kernel, name, streams):
    """WebDataset's has workers of torch's DataLoader, by that name. DataLoader with another data set stays as it is."""
    (image, _), *_ = csv.reader(table.read_text().splitlines())
    done = subprocess.run(
        [sys.executable, "-c", _ONE_WORD.format(name=name), image], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout == f"[0, 0, 0, {streams}]\n"


def test_in_workers_of_a_process_that_has_no_kernel_yet(table, need_kernel):
    """They load it at their first JPEG, and loading it opens JPEGs."""
    done = subprocess.run([sys.executable, "-c", _FRESH, str(table)], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "{(1, 1)}\n"


def test_in_workers_that_are_not_forked(table, need_kernel, not_forked):
    assert kinds(DDLPLoader(Kinds(table, None), 4, num_workers=1, multiprocessing_context=not_forked)) == {(1, 1)}


def test_in_the_workers_of_data_pipes(table, need_kernel):
    pipe = IterableWrapper(Kinds(table, None).rows).map(look)
    assert kinds(DDLPLoader(pipe, 4, num_workers=1)) == {(1, 1)}


def test_images_may_be_what_is_delivered(table, need_kernel):
    """They arrive as ordinary images, as from DataLoader."""
    given: Any = {"batch_size": None, "num_workers": 1}
    crop = transforms.CenterCrop(20)
    ours, theirs = ([image for image, _ in kind(Table(table, crop), **given)] for kind in (DDLPLoader, DataLoader))
    assert {type(image) for image in ours} == {Image.Image}
    assert all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_file_that_breaks_off_ends_in_the_batch_as_with_dataloader(table, tmp_path, need_kernel):
    paths = make_images(tmp_path, 4)
    broken = Path(paths[2])
    broken.write_bytes(broken.read_bytes()[:-400])
    (tmp_path / "labels.csv").write_text("".join(f"{path},0\n" for path in paths))
    texts = []
    for kind in (DDLPLoader, DataLoader):
        batches = iter(kind(Table(tmp_path / "labels.csv", TRAIN), 1, num_workers=1))
        next(batches), next(batches)
        with pytest.raises(OSError, match="image file is truncated") as told:
            next(batches)
        texts.append([line for line in str(told.value).splitlines() if line.startswith("OSError")])
        assert len(list(batches)) == 1
    assert texts[0] == texts[1]


def test_explain_says_so(table, need_kernel, monkeypatch):
    def line(**given: Any) -> list[str]:
        found = DDLPLoader(Table(table, TRAIN), 4, **given).explain().splitlines()
        return [one for one in found if one.startswith("decoding")]

    for workers in (0, 1):
        assert [one[:50] for one in line(num_workers=workers)] == ["decoding   put off while your code makes a batch: "]
    off = "decoding   by Pillow at once: "
    assert line(num_workers=1, postpone_decoding=False) == [off + "postpone_decoding=False"]
    monkeypatch.setattr("csd_engine.kernels._outcome", (None, "there is none"))
    assert line(num_workers=1) == [off + "there is none"]
