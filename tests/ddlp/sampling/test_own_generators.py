"""Transforms with their own generators are found wherever code holds or names them."""

from __future__ import annotations

import functools
import sys
import threading

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset
from torchvision import transforms

from ddlp import DDLPLoader
from ddlp.sampling.own_generators import own_generators

albumentations = pytest.importorskip("albumentations")
GLOBAL = albumentations.Compose([albumentations.GaussNoise(p=1)])
PIXELS = np.full((6, 5, 3), 100, np.uint8)


class Pictures(Dataset):
    def __init__(self, transform=None):
        self.transform, self.paths = transform, ["a path"] * 100_000

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.from_numpy(self.transform(PIXELS) if self.transform else self.augmented()), index

    def augmented(self):
        return GLOBAL(image=PIXELS)["image"]


class Slots:
    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = inner


def closure(augment):
    def outer(image):
        return inner(image)

    def inner(image):
        return augment(image=image)["image"]

    return outer


def with_default(image, augment=GLOBAL):
    return augment(image=image)["image"]


def places(augment):
    return {
        "attribute": Pictures(augment),
        "subset": Subset(Pictures(augment), [0]),
        "list": [1, "two", {"three": (augment,)}],
        "closure": closure(augment),
        "partial": functools.partial(print, augment),
        "bound method": Pictures(augment).augmented,
        "slots": Slots(augment),
        "torchvision's": transforms.Compose([transforms.Lambda(closure(augment))]),
    }


@pytest.mark.parametrize("place", places(None))
def test_found(place):
    augment = albumentations.Compose([albumentations.OneOf([albumentations.GaussNoise(p=1)])])
    assert any(one is augment for one in own_generators(places(augment)[place]))


def test_found_by_name():
    for code in (Pictures(), with_default, lambda image: GLOBAL(image=image)):
        assert [one for one in own_generators(code) if one is GLOBAL] == [GLOBAL]
    assert own_generators(Slots(None)) == [] == own_generators([torch.nn.Linear(2, 2), np.zeros(3)])


def test_a_data_set_that_opens_its_files_meanwhile():
    data = Pictures(GLOBAL)
    data.open_files, data.names, ends = {}, set(), threading.Event()

    def open_and_close():
        number = 0
        while not ends.is_set():
            number += 1
            data.open_files[number % 50] = data.names.add(number % 50)
            data.open_files.pop((number + 25) % 50, None)
            data.names.discard((number + 25) % 50)

    switches = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    opening = threading.Thread(target=open_and_close)
    opening.start()
    try:
        for _ in range(1000):
            assert GLOBAL in own_generators(data)
    finally:
        ends.set()
        opening.join()
        sys.setswitchinterval(switches)


@pytest.mark.parametrize("data", [Pictures(), Pictures(closure(GLOBAL))], ids=["global", "closure"])
def test_draws_of_a_data_set_of_ones_own_follow_from_the_seed(data):
    found = [
        torch.cat([images for images, _ in DDLPLoader(data, 4, seed=5, num_workers=workers)]) for workers in (0, 1, 2)
    ]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert len(found[0].unique(dim=0)) == 12
