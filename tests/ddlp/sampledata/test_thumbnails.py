from __future__ import annotations

from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder

from ddlp.sampledata import CLASSES, SampleDataError, make_thumbnails


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_it_is_an_image_folder_of_all_classes(tmp_path: Path) -> None:
    root = make_thumbnails(tmp_path / "a", 23, 11, side=40)
    train, val = ImageFolder(root / "train"), ImageFolder(root / "val")
    assert (len(train), len(val)) == (23, 11)
    assert tuple(train.classes) == tuple(val.classes) == CLASSES
    assert all(image.width == 40 and 24 <= image.height <= 48 and image.mode == "RGB" for image, _ in train)
    assert len(set(content(root).values())) == 34  # no two alike


def test_the_same_arguments_give_the_same_files_and_what_is_there_stays(tmp_path: Path) -> None:
    one, two = make_thumbnails(tmp_path / "a", 10, 10), make_thumbnails(tmp_path / "b", 10, 10)
    before = content(one)
    assert before == content(two)
    next(iter((two / "train").rglob("*.jpg"))).unlink()
    make_thumbnails(two, 10, 10)
    assert content(two) == before
    assert content(make_thumbnails(tmp_path / "c", 10, 10, seed=1)) != before


def test_no_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SampleDataError, match="at least 1"):
        make_thumbnails(tmp_path, 0, 1)
