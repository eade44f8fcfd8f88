"""Several views of each sample: torch's form of batch, keyed draws of each view, either side, each sample once, resuming."""

import json
import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision import transforms as T

from csd_engine.arithmetic.keyed import Keyed
from ddlp import DDLPLoader, ImageFiles
from ddlp.errors import Untranslatable
from ddlp.observe import checked
from ddlp.transforms import Views
from ddlp.translate.transforms import obstacles_in, translate
from tests.ddlp.dropin.beside import equal

pytestmark = pytest.mark.usefixtures("hard_limit")


def view(*more, size=24):
    return T.Compose([T.RandomResizedCrop(size), T.RandomHorizontalFlip(), *more, T.ToTensor(), T.Normalize(0.4, 0.2)])


def fixed(*more, size=(24, 24)):
    return T.Compose([T.Resize(size), *more, T.ToTensor()])


def dino(small=13, number=3):
    """All steps of DINO's transform."""

    def crop(size, scale, *more):
        jitter = T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8)
        steps = [T.RandomResizedCrop(size, scale, interpolation=T.InterpolationMode.BICUBIC), T.RandomHorizontalFlip(), jitter]
        return T.Compose([*steps, T.RandomGrayscale(0.2), *more, T.ToTensor(), T.Normalize(0.4, 0.2)])

    blur = T.GaussianBlur(5)
    first, second = crop(24, (0.4, 1.0), blur), crop(24, (0.4, 1.0), T.RandomApply([blur], 0.1), T.RandomSolarize(128, 0.2))
    return MultiCrop(first, second, crop(small, (0.05, 0.4), T.RandomApply([blur], 0.5)), number)


class Listed:
    def __init__(self, base_transform):
        self.base_transform = base_transform

    def __call__(self, image):
        """A docstring, which must not matter."""
        q = self.base_transform(image)
        k = self.base_transform(image)
        return [q, k]


class Counted:
    def __init__(self, transform, n_views):
        self.transform, self.n_views = transform, n_views

    def __call__(self, x):
        return [self.transform(x) for _ in range(self.n_views)]


class Several:
    def __init__(self, *transforms):
        self.transforms = list(transforms)

    def __call__(self, image):
        return [transform(image) for transform in self.transforms]


class Unlike:
    def __init__(self, first, second):
        self.first, self.second = first, second

    def __call__(self, x):
        return self.first(x), self.second(x)


class Turned(Unlike):
    def __call__(self, x):
        return self.second(x), self.first(x)


class MultiCrop:
    """As DINO's repository writes it."""

    def __init__(self, first, second, small, number):
        self.global_transfo1, self.global_transfo2 = first, second
        self.local_transfo, self.local_crops_number = small, number

    def __call__(self, image):
        crops = []
        crops.append(self.global_transfo1(image))
        crops.append(self.global_transfo2(image))
        for _ in range(self.local_crops_number):
            crops.append(self.local_transfo(image))
        return crops


class Extended(MultiCrop):
    def __call__(self, image):
        crops = []
        crops.extend(self.global_transfo1(image))
        crops.extend(self.global_transfo2(image))
        for _ in range(self.local_crops_number):
            crops.extend(self.local_transfo(image))
        return crops


class NotQuite(Listed):
    def __call__(self, image):
        q = self.base_transform(image)
        k = self.base_transform(q)
        return [q, k]


class Twofold:
    """Each view is made by two transforms in turn, as DINOv2's repository writes it."""

    def __init__(self, geometry, *finish):
        self.geometry, self.finish = geometry, finish

    def __call__(self, image):
        first = self.finish[0](self.geometry(image))
        others = [finish(self.geometry(image)) for finish in self.finish[1:]]
        return [first, *others]


class Named:
    def __init__(self, **transforms):
        self.transforms, self.many = transforms, 2

    def __call__(self, image):
        made = {name: transform(image) for name, transform in self.transforms.items()}
        if self.many > 1:
            made["more"] = [self.transforms["first"](image) for _ in range(self.many)]
        made["offsets"], made["again"] = (), made["first"]
        return made


class Backwards(Unlike):
    def __call__(self, x):
        views = self.first(x), (self.second(x), 3)
        return list(reversed(views))


class Shared(Unlike):
    def __call__(self, x):
        both = self.first(x)
        return [self.second(both), self.second(both)]


class AsItIs(Listed):
    def __call__(self, x):
        return [x, self.base_transform(x)]


class Dropped(Listed):
    def __call__(self, x):
        self.base_transform(x)
        return [self.base_transform(x)]


class ByChance(Unlike):
    def __call__(self, x):
        return [self.first(x) if random.random() < 0.5 else self.second(x)]


class BySize(Unlike):
    def __call__(self, x):
        return [self.first(x) if x.width > 20 else self.second(x)]


class IfAny(Unlike):
    def __call__(self, x):
        return [self.first(x) if x else self.second(x)]


class InTurn(Unlike):
    turn = 0

    def __call__(self, x):
        self.turn += 1
        return [self.first(x), self.turn]


class Once(Unlike):
    def __init__(self, first, second):
        super().__init__(first, second)
        self.rest = [second]

    def __call__(self, x):
        return [self.first(x), *[self.rest.pop()(x) for _ in range(1)]]


class Forgiving(Listed):
    def __call__(self, x):
        try:
            return [x.width, self.base_transform(x)]
        except:  # noqa: E722
            return [self.base_transform(x)]


class Later(Listed):
    def __call__(self, x):
        yield self.base_transform(x)


class ByMethod(Listed):
    def view(self, x):
        return self.base_transform(x)

    def __call__(self, x):
        return [self.view(x)]


class Renamed(Listed):
    def __call__(self, x):
        return list(dict(one=self.base_transform(x), two=self.base_transform(x)))


def dict(**named):  # not Python's
    return [*named.values()][:1]


def files(paths, transform):
    return ImageFiles(paths, list(range(len(paths))), transform)


BOTH = [
    lambda: Views(fixed(), fixed(T.RandomSolarize(99, p=1.0)), fixed(T.Grayscale(3))),
    lambda: Views(fixed(), fixed()),
    lambda: Listed(fixed()),
    lambda: Counted(fixed(), 3),
    lambda: Several(fixed(), fixed(T.Grayscale(3)), fixed()),
    lambda: Unlike(fixed(), fixed(T.RandomInvert(p=1.0))),
    lambda: Turned(fixed(), fixed(T.RandomInvert(p=1.0))),
    lambda: MultiCrop(fixed(), fixed(T.RandomInvert(p=1.0)), fixed(size=(13, 15)), 3),
    lambda: MultiCrop(fixed(), fixed(), fixed(T.Grayscale(3)), 0),
    lambda: Unlike(fixed(size=(7, 9)), fixed()),
    lambda: Twofold(T.Resize((20, 24)), fixed(), fixed(T.RandomInvert(p=1.0)), fixed(T.Grayscale(3))),
]


@pytest.mark.parametrize("number", range(len(BOTH)))
@pytest.mark.parametrize("batch_size", [4, None])
def test_batches_are_data_loaders(paths, number, batch_size):
    data = files(paths[:10], BOTH[number]())
    loader = DDLPLoader(data, batch_size, seed=1)
    assert "views of each sample" in loader.explain()
    for (ours, numbers), (theirs, labels) in zip(loader, DataLoader(data, batch_size), strict=True):
        assert isinstance(ours, list) and len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert torch.equal(mine, other) and mine.is_contiguous()
        assert torch.equal(torch.as_tensor(numbers), torch.as_tensor(labels))


SIZES = {"one size": "3 views of each sample", "two sizes": "2 x (24, 24) and 3 x (13, 13)"}


@pytest.mark.parametrize("way", [
    {"strategy": "cpu"}, {"strategy": "csd"}, {"strategy": "mte"}, {"strategy": "wrr"}, {"strategy": "ordered"},
    {"strategy": "csd", "output": torch.uint8}, {"strategy": "cpu", "memory_format": torch.channels_last},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.some(7)
def test_each_view_draws_as_it_does_alone_on_either_side(paths, engine, kind, way):
    given = Views(view(), view(T.RandomGrayscale(0.5)), view())
    views = given.transforms if kind == "one size" else []
    if kind == "two sizes":
        given = dino()
        views = [given.global_transfo1, given.global_transfo2, *[given.local_transfo] * 3]
    loader = DDLPLoader(files(paths, given), 5, shuffle=True, seed=9, num_workers=1, audit=1,
                        spool=None if way["strategy"] == "cpu" else engine, **way)
    assert SIZES[kind] in loader.explain()
    each, seen = [translate(one) for one in views], []
    for made, numbers in checked(loader, every=1, rows=None, raises=True, say=None):
        assert type(made) is list and len(made) == len(each)
        for k, number in enumerate(numbers.tolist()):
            seen.append(number)
            for v, one in enumerate(each):
                out = np.empty(one.pipeline.output_shape(None), np.uint8)
                with Image.open(paths[number]) as image:
                    one.pipeline.run(image, Keyed(9, 0, number, v), out, None)
                epilogue = one.epilogue.with_output(way.get("output"), way.get("memory_format"))
                assert torch.equal(made[v][k], epilogue(torch.from_numpy(out[None]))[0])
        format_ = way.get("memory_format", torch.contiguous_format)
        assert all(one.is_contiguous(memory_format=format_) for one in made)
    assert sorted(seen) == list(range(len(paths)))


def test_an_epoch_goes_on_where_it_was(paths):
    def loader():
        return DDLPLoader(files(paths, Views(view(), view())), 4, sampler=[3, 1, 3, 2, 3, 0, 1, 5, 4, 3, 9, 8], seed=2)

    whole = [views for views, _ in loader()]
    first = loader()
    it = iter(first)
    begun = [next(it)[0] for _ in range(1)]
    state = json.loads(json.dumps(first.state_dict()))
    second = loader()
    second.load_state_dict(state)
    found = [*begun, *(views for views, _ in second)]
    assert len(found) == len(whole) == 3
    for ours, theirs in zip(found, whole, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    # The same sample three times: its six views differ.
    thrice = torch.cat([torch.stack([whole[0][v][0], whole[0][v][2], whole[1][v][0]]) for v in range(2)])
    assert len({one.numpy().tobytes() for one in thrice}) == 6


def test_a_folder_and_a_pickle(tmp_path, paths):
    (tmp_path / "a").mkdir()
    for number, path in enumerate(paths[:6]):
        (tmp_path / "a" / f"{number}.jpg").symlink_to(path)
    transform = pickle.loads(pickle.dumps(Views(view(), view())))
    views, labels = next(iter(DDLPLoader(datasets.ImageFolder(tmp_path, transform), 6, output=torch.float16)))
    assert [one.shape for one in views] == [(6, 3, 24, 24)] * 2 and views[0].dtype == torch.float16 and len(labels) == 6


@pytest.mark.parametrize("given", [
    Shared(view(), view()), AsItIs(view()), Dropped(view()), ByChance(view(), view()), BySize(view(), view()),
    IfAny(view(), view()), InTurn(view(), view()), Once(view(), view()), Forgiving(view()), Later(view()), ByMethod(view()),
    Renamed(view()), NotQuite(view()), Extended(view(), view(), view(), 2), Counted(view(), 65), Counted(view(), 0),
    Counted(view(), 2.0),
], ids=lambda given: type(given).__name__)  # fmt: skip
def test_a_transform_that_does_more_than_views_is_user_code(given):
    with pytest.raises(Untranslatable, match="not one of the operators"):
        translate(given)


@pytest.mark.parametrize("workers", [0, 1])
def test_views_in_a_dict_or_with_more_beside_them(paths, workers):
    small = fixed(size=(7, 9))
    for given in (Named(first=fixed(), second=small), Backwards(fixed(), small)):
        data = files(paths[:10], given)
        for way in ({"batch_size": 4}, {"batch_size": None}, {"batch_size": 4, "collate_fn": list}):
            loader = DDLPLoader(data, num_workers=workers, **way)
            assert "cut here" in loader.explain()
            equal(loader, DataLoader(data, **way))


def test_each_view_in_a_dict_has_its_own_draws(paths):
    data = files(paths[:10], Named(first=view(), second=view(size=12)))
    found = [list(DDLPLoader(data, 5, seed=4, num_workers=workers)) for workers in (0, 2)]
    equal(*found)
    for views, _ in found[0]:
        assert torch.equal(views["again"], views["first"]) and views["second"].shape == (5, 3, 12, 12)
        assert len({one.numpy().tobytes() for one in (views["first"], *views["more"])}) == 3


def test_what_cannot_be_views():
    with pytest.raises(Untranslatable, match="different values"):
        translate(Views(fixed(), fixed(T.Grayscale(), size=12)))
    with pytest.raises(Untranslatable, match="different values"):
        translate(Views(view(), fixed()))
    with pytest.raises(Untranslatable, match="the whole transform"):
        translate(T.Compose([T.Resize(30), Views(view(), view())]))
    with pytest.raises(Untranslatable, match="in a dict"):
        translate(Named(first=view()))
    assert [len(obstacles_in(given)) for given in (Views(view(), fixed()), Views(view(), view(size=12)))] == [1, 0]
    assert len(obstacles_in(Views(view(T.Lambda(abs)), view(T.Lambda(abs))))) == 2
    with pytest.raises(ValueError, match="no transform"):
        Views()
