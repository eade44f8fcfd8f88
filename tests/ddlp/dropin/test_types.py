"""What comes from a worker has DataLoader's types in every batch, by whichever way it comes."""

from __future__ import annotations

import collections
import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

from ddlp import DDLPLoader, ImageFiles
from ddlp.transforms import Views
from tests.ddlp.dropin.beside import epochs

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Label:
    number: int
    name: str


class Named(dict):
    """A dict of the user's own."""


class Text(str):
    """A string of the user's own."""


class Row(list):
    """A list of the user's own."""


class Marked(torch.Tensor):
    """A tensor of the user's own."""


TARGETS = {
    "str": str,
    "bytes": lambda k: str(k).encode(),
    "own str": Text,
    "float": float,
    "bool": lambda k: k % 2 == 0,
    "large int": lambda k: 2**70 + k,
    "numpy scalars": lambda k: (np.float32(k), np.int8(k), np.bool_(k % 2)),
    "array": lambda k: np.arange(3) + k,
    "nested": lambda k: ((k, (str(k), b"x")), [k, str(k)]),
    "named tuple": lambda k: Point(Point(k, str(k)), (str(k),)),
    "dict": lambda k: {"a": k, "b": str(k), "c": torch.full((2,), k)},
    "ordered dict": lambda k: collections.OrderedDict(a=k, b=str(k)),
    "own dict": lambda k: Named(a=k, b=str(k)),
    "own list": lambda k: Row([k, k]),
    "empty": lambda k: ("", (), {}),
    "bfloat16": lambda k: torch.tensor([k, k], dtype=torch.bfloat16),
    "complex": lambda k: torch.tensor([k + 1j]),
    "no numbers": lambda k: torch.zeros(0),
    "own tensor": lambda k: torch.full((2,), k).as_subclass(Marked),
    "boxes": lambda k: tv_tensors.BoundingBoxes(torch.tensor([[1, 2, 3, k]]), format="XYXY", canvas_size=(40, 40)),  # type: ignore[call-overload]
    "None": lambda k: None,
    "shapes that differ": lambda k: torch.zeros(k % 3 + 1),
}


def mixed(k: int) -> Any:
    """Return objects that torch's collate does not know."""
    return None, Label(k, "x"), {k}, np.float64(k), Point(k, b"y"), torch.tensor(k, dtype=torch.bfloat16)


COLLATES = {
    "list": list,
    "tuple": tuple,
    "columns": lambda samples: tuple(zip(*samples, strict=True)),
    "own dict": lambda samples: Named(x=torch.stack([one for one, _ in samples]), y=[other for _, other in samples]),
    "named tuple": lambda samples: Point(torch.stack([one for one, _ in samples]), tuple(other for _, other in samples)),
    "arrays": lambda samples: [torch.stack([one for one, _ in samples]), np.arange(len(samples)), np.array(["a", None])],
}
SIZED = (v1.Resize(20), v1.CenterCrop(16))
TRANSFORMS = {
    "known": v1.Compose([*SIZED, v1.ToTensor()]),
    "own steps": v1.Compose([*SIZED, v1.Lambda(lambda image: image.rotate(7)), v1.ToTensor()]),
    "user code": v1.Compose([v1.Lambda(lambda image: image.rotate(7)), *SIZED, v1.ToTensor()]),
}
IMAGES = {  # what the last own step gives in an image's place
    "named tuple": lambda image: Point(image, 2 * image),
    "tuple": lambda image: (image, image[:1]),
    "list": lambda image: [image, image],
    "with a string": lambda image: (image, "x"),
    "dict": lambda image: {"x": image},
    "bfloat16": lambda image: image.bfloat16(),
    "tv_tensors.Image": tv_tensors.Image,
    "a dtype that changes": lambda image: image.double() if image.mean() > 0.5 else image,
}


def check(dataset: Any, ways: list[dict[str, Any]], collate: Any = None) -> None:
    """Two epochs of a loader are DataLoader's with the same arguments, in each way."""
    more = {} if collate is None else {"collate_fn": collate}
    for way in ways:
        torchs = {name: value for name, value in way.items() if name != "own_steps"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = epochs(DataLoader(dataset, 3, **torchs, **more))
            assert epochs(DDLPLoader(dataset, 3, **way, **more)) == theirs, way


def files(paths: list[str], transform: Any, target: Any) -> ImageFiles:
    return ImageFiles(paths[:8], list(range(8)), transform, target_transform=target)


ONE = [{"num_workers": 1}]
ALL = [{"num_workers": 0}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True},
       {"num_workers": 2, "own_steps": "threads"}]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.some(3)
def test_targets_behind_own_steps(paths, target):
    check(files(paths, TRANSFORMS["own steps"], TARGETS[target]), ALL if target == "str" else ONE)


@pytest.mark.parametrize("transform", ["known", "user code"])
def test_targets(paths, transform):
    alone = ("str", "named tuple", "None", "large int", "shapes that differ", "complex")
    together = [make for name, make in TARGETS.items() if name not in alone]
    for target in (*map(TARGETS.get, alone), lambda k: tuple(make(k) for make in together)):
        check(files(paths, TRANSFORMS[transform], target), ONE)


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.some(3)
def test_images_of_own_steps(paths, image):
    check(files(paths, v1.Compose([*SIZED, v1.ToTensor(), v1.Lambda(IMAGES[image])]), str), ONE)


@pytest.mark.parametrize("collate", COLLATES)
@pytest.mark.some(2)
def test_own_collate(paths, collate):
    for transform in TRANSFORMS.values():
        check(files(paths, transform, mixed), ONE, COLLATES[collate])


@pytest.mark.parametrize("transform", [
    v2.Compose([v2.Resize((18, 20)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]),
    v2.Compose([v2.Resize((18, 20)), v2.ToImage(), v2.ToPureTensor()]),
    Views(v2.Compose([v2.Resize((18, 20)), v2.ToImage()]), v2.Compose([v2.Resize((16, 20)), v2.ToImage()])),
])  # fmt: skip
def test_a_sample_without_a_batch(paths, transform):
    """The image is what the transform gives: v2's is a tv_tensors.Image until a batch is made of it."""
    for arguments in ({"batch_size": None}, {"batch_size": None, "num_workers": 1}, {"batch_size": 3}):
        dataset = files(paths, transform, str)
        assert epochs(DDLPLoader(dataset, **arguments)) == epochs(DataLoader(dataset, **arguments)), arguments
