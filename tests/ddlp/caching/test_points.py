"""`ddlp.CachePoint()`: what stands before it is made once, code of the user's own included."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.transforms import v2

from ddlp import Cache, CachePoint, DDLPLoader, ImageArrays, ImageFiles
from tests.ddlp.caching.test_opening import COUNT, SIDE, counted, epoch, files, make, same

__all__ = ["files"]


class Sharpen:
    """A step of the user's own, which writes a line for each call: of all processes."""

    def __init__(self, calls: Path, by: int = 40) -> None:
        self.calls, self.by = str(calls), by

    def __call__(self, image: Any) -> Any:
        with open(self.calls, "a") as stream:
            stream.write("x")
        return Image.fromarray(np.asarray(image.resize((SIDE + 8, SIDE + 8))) // 2 + np.uint8(self.by))


class Noise:
    """A random step of the user's own."""

    def __call__(self, image: Any) -> Any:
        return Image.fromarray(np.asarray(image) ^ np.random.randint(0, 9, np.asarray(image).shape, np.uint8))


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    (tmp_path / "calls").touch()
    return tmp_path / "calls"


def number_of(calls: Path) -> int:
    return len(calls.read_text())


AFTER = (v2.RandomCrop(SIDE), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True))


def own(calls: Path, by: int = 40, point: CachePoint | None = None) -> Any:
    return v2.Compose([Sharpen(calls, by), point or CachePoint(key="sharpen"), *AFTER])


@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.parametrize("compose", (v1.Compose, v2.Compose))
@pytest.mark.some(2)
def test_own_code_runs_once(files: list[str], tmp_path: Path, calls: Path, workers: int, compose: Any) -> None:
    transform = compose([Sharpen(calls), CachePoint(key="sharpen"), *AFTER])
    cache = Cache(tmp_path / "cache", "1G")
    loader = make(files, transform, num_workers=workers, cache=cache)
    plain = make(files, transform, num_workers=workers, own_steps="off")
    first = epoch(loader)
    assert number_of(calls) == COUNT
    assert counted(loader) == (0, COUNT)
    assert same(first, epoch(plain))
    calls.write_text("")
    second = epoch(loader)
    assert number_of(calls) == 0
    assert counted(loader) == (COUNT, 0)
    assert same(second, epoch(plain))
    assert not same(first, second)  # the crops are other ones
    calls.write_text("")
    again = make(files, transform, num_workers=2 - workers, cache=cache)  # as in the next run
    assert same(epoch(again), first)
    assert number_of(calls) == 0
    assert f"CachePoint() after {type(transform.transforms[0]).__name__}"[:30] in str(loader.report())


ROTATED = {
    "array": lambda image: np.asarray(image.resize((SIDE, SIDE)), np.float32) / 3,
    "fortran": lambda image: np.asfortranarray(np.asarray(image.resize((SIDE, SIDE)))),
    "tensor": lambda image: torch.from_numpy(np.array(image.resize((SIDE, SIDE)))).permute(2, 0, 1),
    "half": lambda image: torch.from_numpy(np.array(image.resize((SIDE, SIDE)))).to(torch.bfloat16),
    "grey": lambda image: np.array(image.resize((SIDE, SIDE)).convert("L")),
}


class Reads:
    """Hands a value on, and remembers its memory's format."""

    def __call__(self, value: Any) -> Any:
        strides = value.strides if isinstance(value, np.ndarray) else value.stride()
        assert value.flags.writeable if isinstance(value, np.ndarray) else True
        return torch.as_tensor(value) * 2, torch.tensor(strides)


@pytest.mark.parametrize("kind", ROTATED)
def test_values_of_all_kinds(files: list[str], tmp_path: Path, kind: str) -> None:
    transform = v1.Compose([ROTATED[kind], CachePoint(key=kind), Reads()])
    loader = make(files, transform, num_workers=0, shuffle=False, cache=Cache(tmp_path / "cache", "1G"))
    plain = list(DataLoader(ImageFiles(files, range(COUNT), transform), 8))
    for _ in range(2):
        for (ours, _), (theirs, _) in zip(loader, plain, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
            assert ours[0].dtype == theirs[0].dtype
    assert counted(loader) == (COUNT, 0)


def test_what_can_not_be_kept_is_made_each_time(files: list[str], tmp_path: Path) -> None:
    transform = v1.Compose([lambda image: {"image": np.zeros(3)}, CachePoint(key="zeros")])
    loader = make(files, transform, num_workers=0, cache=Cache(tmp_path / "cache", "1G"))
    with pytest.warns(UserWarning, match="keeps no dict at CachePoint"):
        list(loader)
    list(loader)
    assert counted(loader) == (0, COUNT)


def test_a_changed_file_is_made_anew(files: list[str], tmp_path: Path, calls: Path) -> None:
    paths = []
    for number, file in enumerate(files[:6]):
        paths.append(str(tmp_path / f"{number}.jpg"))
        Path(paths[-1]).write_bytes(Path(file).read_bytes())
        os.utime(paths[-1], (1e9, 1e9))
    loader, plain = make(paths, own(calls), cache=Cache(tmp_path / "cache", "1G")), make(paths, own(calls), own_steps="off")
    epoch(loader), epoch(plain)
    Path(paths[3]).write_bytes(Path(files[9]).read_bytes())
    os.utime(paths[3], (1e9, 1e9 + 1))
    assert same(epoch(loader), epoch(plain))
    assert counted(loader) == (5, 1)


def test_changed_steps_have_another_shelf(files: list[str], tmp_path: Path, calls: Path) -> None:
    cache = Cache(tmp_path / "cache", "1G")

    def shelves(*steps: Any) -> int:
        loader = make(files, v2.Compose([*steps, v2.ToImage()]), num_workers=0, cache=cache)
        epoch(loader)
        return len(list((tmp_path / "cache").glob("shelf-*")))

    assert shelves(Sharpen(calls), CachePoint(key="a"), v2.RandomCrop(SIDE)) == 1
    assert shelves(Sharpen(calls), CachePoint(key="a")) == 1  # the same up to the point
    assert shelves(Sharpen(calls, by=41), CachePoint(key="a")) == 1  # the user says so
    assert shelves(Sharpen(calls, by=41), CachePoint(key="b")) == 2
    random = v2.RandomCrop(SIDE, pad_if_needed=True)
    assert shelves(random, CachePoint(frozen_epochs=9)) == 3
    assert shelves(random, CachePoint(frozen_epochs=9), v2.RandomHorizontalFlip()) == 3
    assert shelves(v2.RandomCrop(SIDE - 1, pad_if_needed=True), CachePoint(frozen_epochs=9)) == 4
    assert shelves(random, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), CachePoint(frozen_epochs=9)) == 5


def test_arrays(tmp_path: Path, calls: Path) -> None:
    images = np.random.default_rng(3).integers(0, 256, (20, 30, 30, 3), np.uint8)
    loader = DDLPLoader(ImageArrays(images, range(20), own(calls)), 4, seed=2, cache=Cache(tmp_path / "cache", "1G"))
    plain = DDLPLoader(ImageArrays(images, range(20), own(calls)), 4, seed=2, own_steps="off")
    for _ in range(2):
        assert same(epoch(loader), epoch(plain))
    assert counted(loader) == (20, 0)
    images[7] ^= 1
    assert same(epoch(loader), epoch(plain))
    assert counted(loader) == (19, 1)


def test_what_stands_behind_may_change(files: list[str], tmp_path: Path, calls: Path) -> None:
    loader = make(files, own(calls), num_workers=0, cache=Cache(tmp_path / "cache", "1G"))
    epoch(loader)
    loader.dataset.transform = v2.Compose([Sharpen(calls), CachePoint(key="sharpen"), v2.CenterCrop(9), v2.ToImage()])
    loader.dataset.target_transform = lambda label: label + 1000
    images = epoch(loader)
    assert counted(loader) == (COUNT, 0)
    assert {image.shape for image in images.values()} == {(3, 9, 9)}
    assert min(images) == 1000


# -- random steps ------------------------------------------------------------------------------------------------------


def test_a_known_random_operator_is_refused(files: list[str], tmp_path: Path) -> None:
    transform = v2.Compose([v2.RandomResizedCrop(SIDE), CachePoint(), v2.ToImage()])
    with pytest.raises(ValueError, match=r"stands behind RandomResizedCrop.*frozen_epochs=k"):
        make(files, transform, cache=Cache(tmp_path / "cache", "1G"))
    assert len(epoch(make(files, transform))) == COUNT  # without a cache it says nothing


@pytest.mark.parametrize("workers", (0, 1))
def test_random_code_is_refused(files: list[str], tmp_path: Path, workers: int) -> None:
    transform = v2.Compose([v2.Resize((SIDE, SIDE)), Noise(), CachePoint(key="noise"), v2.ToImage()])
    with pytest.raises(Exception, match=r"draws random numbers \(from numpy\)"):
        epoch(make(files, transform, num_workers=workers, cache=Cache(tmp_path / "cache", "1G")))


@pytest.mark.parametrize("persistent", (False, True))
def test_frozen_epochs(files: list[str], tmp_path: Path, persistent: bool, caplog: pytest.LogCaptureFixture) -> None:
    transform = v2.Compose([v2.RandomResizedCrop(SIDE), Noise(), CachePoint(frozen_epochs=2, key="noise"), v2.ToImage()])
    full, none = Cache(tmp_path / "cache", "1G"), Cache(tmp_path / "none", 0)
    loader = make(files, transform, persistent_workers=persistent, cache=full)
    epochs = [epoch(loader)]
    assert [text for text in caplog.messages if "2 epochs get the same" in text]
    epochs += [epoch(loader) for _ in range(3)]
    assert same(epochs[0], epochs[1])
    assert not same(epochs[1], epochs[2])
    assert same(epochs[2], epochs[3])
    without_room = make(files, transform, num_workers=0, cache=none)
    assert all(same(epoch(without_room), one) for one in epochs)
    if not persistent:
        assert len(list((tmp_path / "cache").glob("shelf-*"))) == 1  # the former epochs' is gone


def test_behind_a_frozen_point_each_epoch_draws(files: list[str], tmp_path: Path) -> None:
    def of(*behind: Any) -> Any:
        return v2.Compose([v2.RandomCrop(28, pad_if_needed=True), CachePoint(frozen_epochs=9), *behind, v2.ToImage()])

    loader = make(files, of(v2.RandomCrop(SIDE)), cache=Cache(tmp_path / "cache", "1G"))
    other = make(files, of(v2.RandomCrop(SIDE)), num_workers=0, cache=Cache(tmp_path / "none", 0))
    epochs = [epoch(loader) for _ in range(2)]
    assert not same(*epochs)
    assert [same(epoch(other), one) for one in epochs] == [True, True]


# -- known operators ---------------------------------------------------------------------------------------------------


def test_known_operators_are_cut_there(files: list[str], tmp_path: Path) -> None:
    transform = v2.Compose([v2.Resize(40), CachePoint(), v2.CenterCrop(SIDE), v2.ToTensor()])
    loader, plain = make(files, transform, cache=Cache(tmp_path / "cache", "1G")), make(files, transform)
    for _ in range(2):
        assert same(epoch(loader), epoch(plain))
    assert counted(loader) == (COUNT, 0)
    text = loader.explain()
    assert "pixels after Resize, uint8, each image of its own size, where CachePoint() stands, in" in text
    without = v2.Compose([v2.Resize(40), v2.CenterCrop(SIDE), v2.ToTensor()])
    assert "pixels after Resize -> CenterCrop" in make(files, without, cache=loader.cache).explain()
    assert same(epoch(make(files, without)), epoch(make(files, transform)))


def test_own_steps_behind_known_ones(files: list[str], tmp_path: Path, calls: Path) -> None:
    fixed = v2.Compose([v2.Resize((SIDE, SIDE)), CachePoint(), Sharpen(calls), v2.ToImage()])
    loader, plain = make(files, fixed, cache=Cache(tmp_path / "cache", "1G")), make(files, fixed)
    for _ in range(2):
        assert same(epoch(loader), epoch(plain))
    assert counted(loader) == (COUNT, 0)
    assert number_of(calls) == 4 * COUNT
    any_size = v2.Compose([v2.Resize(40), CachePoint(), Sharpen(calls), v2.ToImage()])
    loader, plain = make(files, any_size, cache=loader.cache), make(files, any_size, own_steps="off")
    for _ in range(2):
        assert same(epoch(loader), epoch(plain))
    assert counted(loader) == (COUNT, 0)


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_it_is_an_identity() -> None:
    image, target = object(), object()
    point = pickle.loads(pickle.dumps(CachePoint(3, "mine")))
    assert (point.frozen_epochs, point.key) == (3, "mine")
    assert point(image) is image
    assert point(image, target) == (image, target)
    assert torch.nn.Sequential(CachePoint())(7) == 7
    assert repr(point) == "CachePoint(frozen_epochs=3, key='mine')"
    for wrong in (0, True, 1.5):
        with pytest.raises(ValueError, match="frozen_epochs="):
            CachePoint(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="key="):
        CachePoint(key=3)  # type: ignore[arg-type]


def test_code_of_the_users_own_needs_a_key(files: list[str], tmp_path: Path, calls: Path) -> None:
    transform, cache = v2.Compose([Sharpen(calls), CachePoint(), v2.ToImage()]), Cache(tmp_path / "cache", "1G")
    with pytest.raises(ValueError, match=r"stands behind .*Sharpen.*Write CachePoint\(key='\.\.\.'\)"):
        make(files, transform, cache=cache)
    assert len(epoch(make(files, transform))) == COUNT  # without a cache it says nothing
    for key, hits in (("a", 0), ("a", COUNT), ("b", 0)):
        loader = make(files, own(calls, point=CachePoint(key=key)), num_workers=0, cache=cache)
        epoch(loader)
        assert counted(loader) == (hits, COUNT - hits)


def test_a_data_set_of_the_users_own_is_left_alone(files: list[str], tmp_path: Path, calls: Path) -> None:
    class Mine(torch.utils.data.Dataset[Any]):
        transform = own(calls)

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return self.transform(Image.open(files[index])), index

    loader = DDLPLoader(Mine(), 2, cache=Cache(tmp_path / "cache", "1G"))
    with pytest.warns(UserWarning, match="cache= keeps nothing"):
        assert len(epoch(loader)) == 4


def test_a_data_set_with_a_description_is_compared_once(files: list[str], tmp_path: Path, calls: Path) -> None:
    class Described(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.files = ImageFiles(files, range(COUNT), own(calls))

        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, index: int) -> Any:
            return self.files[index]

        def __ddlp__(self) -> ImageFiles:
            return self.files

    loader = DDLPLoader(Described(), 8, seed=1, cache=Cache(tmp_path / "cache", "1G"))
    for made in (COUNT + 2, 0, 0):  # one sample by its own code, and one as described, before the first epoch
        epoch(loader)
        assert number_of(calls) == made
        calls.write_text("")


def test_explain(files: list[str], tmp_path: Path, calls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = make(files, own(calls), cache=Cache(tmp_path, "1G")).explain()
    assert "obstacle 1 CachePoint(): the host keeps the results of" in text
    assert f"in {tmp_path}; then RandomCrop" in text
    assert "cache" not in make(files, own(calls)).explain()


@pytest.mark.parametrize("workers", (0, 2))
def test_filled_ahead(files: list[str], tmp_path: Path, calls: Path, workers: int) -> None:
    loader = make(files, own(calls), num_workers=workers, cache=Cache(tmp_path / "cache", "1G"))
    before = torch.get_rng_state()
    found = loader.fill_cache(progress=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert found[:4] == (COUNT, COUNT, COUNT, 0)
    assert number_of(calls) == COUNT
    assert loader.fill_cache(progress=False).made == 0
    assert same(epoch(loader), epoch(make(files, own(tmp_path / "others"), own_steps="off")))
    assert counted(loader) == (COUNT, 0)
    assert number_of(calls) == COUNT
