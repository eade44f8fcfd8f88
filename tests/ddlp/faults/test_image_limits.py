"""Pillow's limits and warnings mean what they mean under DataLoader, whoever prepares a sample: the host or an engine."""

from __future__ import annotations

import io
import os
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from ddlp import Cache, DDLPLoader
from tests.csd_engine.kernels.test_exif_warnings import camera
from tests.ddlp.faults.scene import device

BATCH = 4
WAYS: dict[str, dict[str, Any]] = {
    "0 workers": {"strategy": "cpu"}, "2 workers": {"strategy": "cpu", "num_workers": 2}, "a device": {"strategy": "csd"},
    "both": {"strategy": "ordered", "num_workers": 1},
}  # fmt: skip
TRANSFORM = T.Compose([T.Resize(40), T.CenterCrop(32), T.ToTensor()])


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))


def palette(path: Path) -> None:
    """A PNG whose colours have a transparency each: Pillow warns when it is converted to RGB."""
    colours = photograph(100, 80).quantize(16)
    colours.save(path, transparency=bytes(range(16)))


def damaged_exif(path: Path) -> None:
    photograph(100, 80).save(path, exif=camera("<")[:-30])


def cut_off(path: Path) -> None:
    whole = io.BytesIO()
    photograph(100, 80).save(whole, "JPEG")
    path.write_bytes(whole.getvalue()[:3000])


ODD: dict[int, Callable[[Path], None]] = {
    5: lambda path: photograph(220, 160).save(path), 9: palette, 10: damaged_exif,
    14: lambda path: photograph(400, 300).save(path), 18: cut_off, 21: lambda path: photograph(220, 160).save(path, "PNG"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 images, six of them above the test's limit, odd or cut off."""
    root = tmp_path_factory.mktemp("odd images")
    (root / "class").mkdir()
    for number in range(24):
        path = root / "class" / f"{number:02d}.{'png' if number in (9, 21) else 'jpg'}"
        ODD.get(number, lambda path: photograph(100, 80, 1).save(path))(path)
        os.utime(path, (1e9, 1e9))  # a cache keeps nothing of files that may still change
    return root


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 25_000)


def outcome(loader: DataLoader, action: str) -> tuple[list[Any], list[tuple[str, str]]]:
    """What each batch is, images or an error's type, and what Pillow warned of, in any order."""
    batches: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings(action, module=r"PIL\.")
        iterator: Iterator[Any] = iter(loader)
        while True:
            try:
                batches.append(next(iterator)[0].clone())
            except StopIteration:
                break
            except Exception as error:
                batches.append(type(error))
    found = sorted((one.category.__name__, str(one.message)) for one in caught if "/PIL/" in one.filename)
    return batches, found


def assert_warned(way: str, found: list[tuple[str, str]], expected: list[tuple[str, str]]) -> None:
    """Assert that Pillow has warned of the same. Where host and device make a batch at once, a warning may come twice."""
    assert set(found) == set(expected) if way == "both" else found == expected


@pytest.mark.parametrize("action", ["always", "error"])
@pytest.mark.parametrize("way", WAYS)
def test_as_under_dataloader(folder, way, action):
    data = ImageFolder(str(folder), TRANSFORM)
    expected, expected_warnings = outcome(DataLoader(data, BATCH), action)
    kinds = [batch for batch in expected if isinstance(batch, type)]
    if action == "always":
        assert kinds == [Image.DecompressionBombError, OSError] and len(expected_warnings) == 4
    else:
        assert Image.DecompressionBombWarning in kinds and UserWarning in kinds and len(kinds) == 5
    loader = DDLPLoader(data, BATCH, **WAYS[way])
    batches, found = outcome(loader, action)
    if way == "a device":
        report = loader.report()
        assert report.batches_csd == 6 and ("samples to this host" in str(report)) == (action == "always"), str(report)
    for batch, other in zip(batches, expected, strict=True):
        assert torch.equal(batch, other) if isinstance(other, torch.Tensor) else batch is other, (batches, expected)
    assert_warned(way, found, expected_warnings)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.some(2)
def test_cut_off_images_that_are_wanted(folder, monkeypatch, way):
    """With LOAD_TRUNCATED_IMAGES, an image's missing part is grey; an engine leaves that to the host."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200_000)
    data = ImageFolder(str(folder), TRANSFORM)
    expected, _ = outcome(DataLoader(data, BATCH), "ignore")
    batches, _ = outcome(DDLPLoader(data, BATCH, **WAYS[way]), "ignore")
    assert all(torch.equal(*pair) for pair in zip(batches, expected, strict=True))


@pytest.mark.parametrize("crop", [T.CenterCrop(32), T.RandomCrop(32)], ids=["fixed", "random"])
def test_a_cache_keeps_no_image_above_the_limit(folder, tmp_path, monkeypatch, crop):
    """Whoever fills it: the next run may have other filters, or another limit."""
    data = torch.utils.data.Subset(ImageFolder(str(folder), T.Compose([T.Resize((40, 40)), crop, T.ToTensor()])), range(4, 8))
    for limit, action in ((None, "always"), (25_000, "ignore"), (25_000, "always"), (25_000, "error"), (200_000, "error")):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        expected, expected_warnings = outcome(DataLoader(data, BATCH), action)
        loader = DDLPLoader(data, BATCH, strategy="cpu", cache=Cache(tmp_path / "cache", "1G", keeps="pixels"))
        for _ in range(2):
            batches, found = outcome(loader, action)
            assert [type(one) for one in batches] == [type(one) for one in expected] and found == expected_warnings
        assert loader.report().cache is not None
        del loader


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.some(2)
def test_a_crop_above_the_limit(folder, monkeypatch, way):
    """Pillow judges crops, too."""
    for size, action in ((90, "error"), (90, "always"), (140, "always")):
        transform = T.Compose([T.Resize(150), T.CenterCrop(size), T.ToTensor()])
        data = torch.utils.data.Subset(ImageFolder(str(folder), transform), [0, 1, 2, 3])
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8_050)
        expected = outcome(DataLoader(data, BATCH), action)
        found = outcome(DDLPLoader(data, BATCH, **WAYS[way]), action)
        assert [one if isinstance(one, type) else type(one) for one in found[0]] == [
            one if isinstance(one, type) else type(one) for one in expected[0]
        ]
        assert_warned(way, found[1], expected[1])
        assert (expected[0][0] is Image.DecompressionBombWarning) == (action == "error")
        assert (expected[0][0] is Image.DecompressionBombError) == (size == 140)


def test_a_loader_leaves_the_users_filters_alone(forks, folder):
    """A data set of one's own that opens images warns as before, while a loader is at work and after it."""
    program = f"""
        import warnings
        from PIL import Image
        from torchvision.datasets import ImageFolder
        from torchvision import transforms as T
        from ddlp import DDLPLoader
        if __name__ == "__main__":
            Image.MAX_IMAGE_PIXELS = 25_000
            before = list(warnings.filters)
            data = ImageFolder({str(folder)!r}, T.Compose([T.Resize((32, 32)), T.ToTensor()]))
            for workers, strategy in ((0, "cpu"), (2, "cpu"), (0, "csd")):
                loader = iter(DDLPLoader(data, 4, num_workers=workers, strategy=strategy, on_error="replace", max_replaced=1))
                for _ in loader:
                    assert list(warnings.filters) == before
            assert list(warnings.filters) == before
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            try:
                Image.open({str(folder / "class" / "05.jpg")!r})
            except Image.DecompressionBombWarning:
                print("it warns")
    """
    run = forks.run(code=textwrap.dedent(program), environment=os.environ)
    assert run.stdout == "it warns\n", run.stderr
    assert "DecompressionBombWarning: Image size (35200 pixels)" in run.stderr  # by Python's own filters


def many_scans(path: Path) -> None:
    """A progressive JPEG of half a megapixel with one of its scans over and over, each of which Pillow decodes."""
    whole = io.BytesIO()
    photograph(20, 20).resize((1024, 512)).save(whole, "JPEG", progressive=True)
    content = whole.getvalue()
    last = content.rindex(b"\xff\xda")
    path.write_bytes(content[:-2] + content[last:-2] * 40 + content[-2:])


def test_an_image_that_takes_too_long(tmp_path, engines, monkeypatch):
    """An engine leaves it to its host, which has no limit, and makes the others."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1 << 20)
    (tmp_path / "class").mkdir()
    for number in range(12):
        path = tmp_path / "class" / f"{number:02d}.jpg"
        many_scans(path) if number == 6 else photograph(100, 80, number).save(path)
    data = ImageFolder(str(tmp_path), TRANSFORM)
    expected, _ = outcome(DataLoader(data, BATCH), "ignore")
    engine = engines("--root", str(tmp_path), "--sample-timeout", "0.02")
    loader = DDLPLoader(data, BATCH, strategy="csd", csd=device(engine))
    batches, _ = outcome(loader, "ignore")
    assert all(torch.equal(*pair) for pair in zip(batches, expected, strict=True))
    report = loader.report()
    assert report.batches_csd == 3 and report.leases_lost == 0
    assert f"it left 1 samples to this host, the last one {tmp_path}/class/06.jpg" in str(report)
