"""Each known data set in its own file format: the loader's samples equal those of its own __getitem__."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, default_convert
from torchvision import datasets, transforms

from ddlp import DDLPLoader, ImageArrays, ImageFiles, Untranslatable
from tests.ddlp.dropin.beside import equal
from tests.ddlp.dropin.small_sets import DETERMINISTIC, SAMPLES, numbered, write_images

GREY = transforms.Compose([transforms.Pad(2), transforms.ToTensor()])
def compare(dataset: Any, spool: str | None = None) -> None:
    """Compare the loader's samples with the data set's own, and check that they travelled."""
    strategy = "cpu" if spool is None else "csd"
    loader = DDLPLoader(dataset, 4, strategy=strategy, spool=spool)
    assert "travels    nothing:" not in loader.explain()
    equal(loader, DataLoader(dataset, 4))
    for k in (0, len(dataset) - 1):
        batch = next(iter(DDLPLoader(dataset, None, sampler=[k], strategy=strategy, spool=spool)))
        image, target = default_convert(dataset[k])
        assert torch.equal(batch[0], image) and repr(batch[1]) == repr(target)


def test_image_folder_and_dataset_folder(tmp_path, engine):
    write_images(tmp_path, 20)
    folder = datasets.ImageFolder(str(tmp_path), DETERMINISTIC, target_transform=lambda k: 10 - k)
    compare(folder, engine)
    compare(datasets.DatasetFolder(str(tmp_path), datasets.folder.default_loader, (".jpg",), DETERMINISTIC), engine)
    del folder.samples[:3]
    compare(folder, engine)
    folder.samples[0] = (folder.samples[1][0], 9)
    compare(folder, engine)


def test_ours(paths, engine):
    compare(numbered(paths), engine)
    compare(ImageFiles([Path(p) for p in paths], torch.arange(SAMPLES), DETERMINISTIC), engine)
    compare(ImageFiles(np.asarray(paths), np.arange(SAMPLES, dtype=np.int16), DETERMINISTIC), engine)
    drawn = np.random.default_rng(4)
    for shape in ((20, 28, 30, 3), (20, 28, 30)):
        compare(ImageArrays(drawn.integers(0, 256, shape, dtype=np.uint8), range(20), GREY), engine)


def test_images_of_all_modes(tmp_path, engine):
    from PIL import Image

    drawn = np.random.default_rng(5)
    files = []
    for mode, suffix in (("L", "jpg"), ("CMYK", "jpg"), ("RGBA", "png"), ("P", "png"), ("1", "png"), ("I;16", "png"),
                         ("LA", "png"), ("RGB", "bmp"), ("RGB", "webp"), ("P", "gif"), ("RGB", "tiff")):
        path = tmp_path / f"{mode.replace(';', '')}.{suffix}"
        pixels = drawn.integers(0, 256, (30, 40, 3), dtype=np.uint8)
        if mode == "I;16":
            Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 200).save(path)
        else:
            Image.fromarray(pixels).convert(mode).save(path)
        files.append(str(path))
    rotated = Image.fromarray(drawn.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    exif = rotated.getexif()
    exif[0x0112] = 6
    rotated.save(tmp_path / "turned.jpg", exif=exif)
    files.append(str(tmp_path / "turned.jpg"))
    compare(ImageFiles(files, range(len(files)), DETERMINISTIC), engine)


def test_subsets_and_concatenations(paths, engine):
    files = numbered(paths)
    inner = Subset(files, [5, 3, 8, 8, -1, 20, 7])
    compare(inner, engine)
    compare(Subset(inner, [6, 0, 2]), engine)
    compare(Subset(files, torch.tensor([4, 2])), engine)
    compare(Subset(files, np.array([4, 2])), engine)
    arrays = ImageArrays(np.random.default_rng(6).integers(0, 256, (9, 24, 24, 3), dtype=np.uint8), range(9), DETERMINISTIC)
    both = ConcatDataset([inner, arrays, files])
    compare(both, engine)
    compare(Subset(both, range(3, 20, 2)), engine)
    compare(ConcatDataset([Subset(files, [1]), Subset(files, [1, 2])]), engine)


class Described(Dataset):
    """A user's data set that describes itself."""

    def __init__(self, files: ImageFiles, description: Any) -> None:
        self.files = files
        self.description = description

    def __ddlp__(self) -> Any:
        return self.description

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.files[index]


def test_a_data_set_that_describes_itself(paths, engine):
    files = numbered(paths)
    compare(Described(files, files), engine)
    compare(Subset(Described(files, ConcatDataset([Subset(files, range(20)), Subset(files, range(20, 41))])), [1, 30]))
    with pytest.raises(Untranslatable, match="describes 2 samples, it has 41"):
        DDLPLoader(Described(files, Subset(files, [1, 2])), strategy="csd")
    with pytest.raises(Untranslatable, match="returns its own type"):
        DDLPLoader(Described(files, Described(files, files)), strategy="csd")
    with pytest.raises(Untranslatable, match="exactly one that ddlp knows"):
        DDLPLoader(Described(files, [1, 2]), strategy="csd")


class Brighter(Described):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0] + 1, index


class BrighterInBatches(Described):
    def __getitems__(self, indices: list[int]) -> Any:
        return [(self[index][0] + 1, index) for index in indices]


class Renamed(Described):
    """It inherits its samples."""


class BrighterStill(Brighter):
    """Its base class makes its own samples."""


class DescribedAnew(Brighter):
    def __ddlp__(self) -> Any:
        return self.files


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Brighter, "Brighter has a __getitem__ of its own"),
        (BrighterInBatches, "BrighterInBatches has a __getitems__ of its own"),
        (BrighterStill, "Brighter has a __getitem__ of its own"),
    ],
)
def test_what_a_subclass_makes_itself_is_not_described(paths, kind, words):
    files = numbered(paths)
    loader = DDLPLoader(kind(files, files), 4)
    said = loader.explain()
    assert "travels    nothing" in said and words in said
    ours = list(loader)
    equal(ours, DataLoader(kind(files, files), 4))
    assert torch.equal(ours[0][0][0], files[0][0] + 1)


def test_a_subclass_is_described_where_it_inherits_its_samples_or_describes_them(paths):
    files = numbered(paths)
    compare(Renamed(files, files))
    assert "travels    Resize" in DDLPLoader(DescribedAnew(files, files), 4).explain()


class Made(Described):
    """``make`` makes its samples from a file's, whatever its description says. It counts requests, and draws."""

    def __init__(self, files: ImageFiles, make: Any, description: Any = None) -> None:
        super().__init__(files, files if description is None else description)
        self.make = make
        self.asked: list[int] = []

    def __ddlp__(self) -> Any:
        return self.description

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        torch.rand(1), np.random.rand(), random.random()
        return self.make(*self.files[index])


class Pair(NamedTuple):
    image: Any
    label: Any


def raises(image: Any, label: Any) -> Any:
    raise NotImplementedError


OTHER = {
    "dict": (lambda image, label: {"image": image, "label": label}, "{'image': tensor of 3 dimensions, 'label': number}"),
    "one field more": (lambda image, label: (image, label, label), "(tensor of 3 dimensions, number, number)"),
    "no label": (lambda image, label: image, "tensor of 3 dimensions"),
    "named": (Pair, "Pair(tensor of 3 dimensions, number)"),
    "label in a row": (lambda image, label: (image, torch.tensor([label])), "(tensor of 3 dimensions, tensor of 1 dimensions)"),
    "two in one": (lambda image, label: ((image, image), label), "((tensor of 3 dimensions, tensor of 3 dimensions), number)"),
}


@pytest.mark.parametrize("name", OTHER)
def test_described_with_another_structure(paths, name, caplog):
    """Compared once, when an epoch begins. The data set's own code then makes all samples, and the generators are unchanged."""
    make, theirs = OTHER[name]
    files = numbered(paths)
    dataset = Made(files, make)
    for data in (dataset, Subset(dataset, [3, 2, 1]), ConcatDataset([files, dataset])):
        dataset.asked.clear()
        told = len(caplog.messages)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # it is advice, which ends no training
            loader = DDLPLoader(data, 4)
            assert not dataset.asked and len(caplog.messages) == told
            state = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
            said = loader.explain()
            assert dataset.asked == [0]
            assert torch.equal(torch.get_rng_state(), state[0]) and random.getstate() == state[2]
            assert np.random.get_state()[1].tolist() == state[1]
            if isinstance(data, ConcatDataset):
                continue  # samples of its parts can't be in one batch
            ours = [list(loader), list(loader)][1]
        equal(ours, DataLoader(data, 4))
        (text,) = caplog.messages  # once, though the second loader is of the same line
        for words in (text, said):
            assert f"another structure, (tensor of 3 dimensions, number), than its __getitem__ gives: {theirs}" in words
        assert "Ways out: have __getitem__ return what __ddlp__ describes" in text
        assert len(dataset.asked) == 1 + 3 * len(data)
        loader = DDLPLoader(data, 4, strategy="csd")
        with pytest.raises(Untranslatable, match="describes samples of another structure"):
            iter(loader)


@pytest.mark.parametrize(
    "make",
    [
        lambda image, label: [image.numpy()[:, :2], np.int32(label)],
        lambda image, label: (image.double(), torch.tensor(label)),
        raises,
    ],
)
def test_sizes_and_types_of_numbers_are_no_structure(paths, make):
    """A sample that cannot be made proves nothing either."""
    dataset = Made(numbered(paths), make)
    loader = DDLPLoader(dataset, 4)
    assert len(list(loader)) == len(list(loader)) == 11 and "travels    Resize" in loader.explain()
    assert dataset.asked == ([0, 1, 2] if make is raises else [0])


def test_what_a_data_set_opens_for_the_comparison_stays_out_of_it(paths):
    class Opens(Made):
        def __getitem__(self, index: int) -> Any:
            self.opened = True
            return {"image": self.files[index][0]}

        def __ddlp__(self) -> Any:
            return self.files

    dataset = Opens(numbered(paths), None)
    assert "another structure" in DDLPLoader(dataset, 4).explain() and not hasattr(dataset, "opened")


def test_what_stays_on_the_host(tmp_path):
    write_images(tmp_path, 12)
    root = str(tmp_path)

    def stays(dataset: Any, words: str) -> None:
        loader = DDLPLoader(dataset, 4)
        assert words in loader.explain() and "travels    nothing" in loader.explain()
        equal(loader, DataLoader(dataset, 4))

    parts = [datasets.ImageFolder(root, t) for t in (DETERMINISTIC, transforms.Compose(DETERMINISTIC.transforms[:3]))]
    stays(ConcatDataset(parts), "different transforms")
    stays(datasets.FakeData(8, (3, 8, 8), transform=transforms.ToTensor()), "FakeData")
    stays(torch.utils.data.TensorDataset(torch.arange(12)), "TensorDataset")
    sizes = datasets.ImageFolder(root, transforms.Compose([transforms.CenterCrop(8), transforms.ToTensor()]))
    assert "travels    CenterCrop" in DDLPLoader(sizes).explain()
    own = datasets.ImageFolder(root, transforms.ToTensor())
    assert "no common size" in DDLPLoader(own).explain()
    assert len(list(DDLPLoader(own, 1))) == 12
    torchvision.set_image_backend("accimage")
    try:
        assert "image backend is accimage" in DDLPLoader(datasets.ImageFolder(root, DETERMINISTIC)).explain()
    finally:
        torchvision.set_image_backend("PIL")


def test_a_plain_list_and_strings_as_keys():
    class Keys(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, key):
            return {"a": 1, "b": 2, "c": 3}[key]

    assert [b.tolist() for b in DDLPLoader([1, 2, 3], 2)] == [[1, 2], [3]]
    assert [b.tolist() for b in DDLPLoader(Keys(), 2, sampler=["b", "a", "c"])] == [[2, 1], [3]]
