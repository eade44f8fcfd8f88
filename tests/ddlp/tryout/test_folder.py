"""Finding the user's images in any layout, and saying in one sentence what is wrong with a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddlp import DDLPError
from ddlp.sampledata import make_thumbnails
from ddlp.tryout.folder import find_images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """train/ and val/ with ten classes each."""
    return make_thumbnails(tmp_path / "set", 20, 10, side=16)


def test_class_directories_of_any_depth(folder: Path) -> None:
    images = find_images(folder, 100)
    assert len(images.paths) == len(images.classes) == 30
    assert len(set(images.classes)) == 20 and images.passed_over == ""
    for path, number in zip(images.paths, images.classes):
        same = {other for other, its in zip(images.paths, images.classes) if its == number}
        assert {os.path.dirname(other) for other in same} == {os.path.dirname(path)}
    assert str(images).startswith("30 images of ") and str(images).endswith(" from 20 directories")


def test_a_flat_folder(folder: Path) -> None:
    flat = folder / "train" / os.listdir(folder / "train")[0]
    images = find_images(flat, 100)
    assert sorted(images.paths) == sorted(str(path) for path in flat.iterdir()) and set(images.classes) == {0}


def test_at_most_so_many_from_all_over(folder: Path) -> None:
    images = find_images(folder, 8)
    assert len(images.paths) == 8 and len(set(images.classes)) > 2


def test_damaged_and_other_files_are_counted(folder: Path) -> None:
    (folder / "cut.jpg").write_bytes(next(folder.glob("*/*/*.jpg")).read_bytes()[:300])
    (folder / "empty.JPEG").touch()
    (folder / "labels.csv").write_text("1,2")
    (folder / ".hidden.jpg").touch()
    images = find_images(folder, 100)
    assert len(images.paths) == 30
    assert images.passed_over.startswith("2 images that can't be read (such as ")
    assert images.passed_over.endswith("; 1 other file")


def test_links_that_go_round_in_circles(folder: Path) -> None:
    (folder / "again").symlink_to(folder)
    (folder / "train" / "up").symlink_to("..")
    assert len(set(find_images(folder, 100).paths)) >= 30


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.touch(), "Not a directory"),
        (lambda path: path.mkdir(), "there is no image in it or below;"),
        (lambda path: (path.mkdir(), (path / "notes.txt").touch()), "(1 other files are there)"),
        (lambda path: (path.mkdir(), (path / "a.jpg").write_text("no image")), "none of 1 images can be read; "),
    ],
    ids=["not there", "a file", "empty", "other files", "no image can be read"],
)
def test_what_is_wrong_in_a_sentence(tmp_path: Path, make: object, says: str) -> None:
    make(tmp_path / "it")  # type: ignore[operator]
    with pytest.raises(DDLPError) as caught:
        find_images(tmp_path / "it", 10)
    assert says in str(caught.value) and str(tmp_path / "it") in str(caught.value) and "Name " in str(caught.value)
    assert "\n" not in str(caught.value)
