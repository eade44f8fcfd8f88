"""Counting the images that are decoded late, in all processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from PIL import Image

from ddlp.decode.savings import COUNTING, Counter, Savings, total
from tests.at_once import at_once
from tests.small_images import make_images


@pytest.fixture
def counter(tmp_path: Path) -> Counter:
    (tmp_path / "counts").touch()
    return Counter(str(tmp_path / "counts"))


def test_forks_threads_and_a_process_that_is_killed(counter: Counter) -> None:
    def count(images: int) -> None:
        for _ in range(images):
            if counter.image():
                counter.took(0.25, 1.0)

    at_once(lambda _: count(300), 3)
    pid = os.fork()
    if pid == 0:
        count(30)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    found = total(counter._path)
    assert (found.images, found.measured) == (930, 6)  # images 2, 202, 402, ... of the one, image 2 of the other
    assert (found.late_s, found.pillows_s, found.saved_s) == (1.5, 6.0, 0.75 * 930)


def test_without_an_image_nothing_is_saved(counter: Counter) -> None:
    assert total(counter._path) == Savings() and total(counter._path).saved_s == 0.0


def test_the_users_line_names_no_negative_saving() -> None:
    lines = [str(Savings(1200, 6, 0.5, pillows_s)).partition("; ") for pillows_s in (1.0, 0.5, 0.25)]
    assert {line for line, _, _ in lines} == {"1,200 JPEGs were decoded late"}
    how = "processor time (an estimate, measured on 6 of them)"
    assert [saved for _, _, saved in lines] == [f"that saved some 100 s of {how}", *[f"that saved no {how}"] * 2]
    assert str(Savings(1)) == "1 JPEGs were decoded late"


def test_the_scripts_process_has_ended(tmp_path: Path) -> None:
    """Its file went with it. A child that goes on works as before."""
    counter = Counter(str(tmp_path / "gone"))
    assert [counter.image() for _ in range(3)] == [False, True, False] and total(counter._path) == Savings()


def test_what_is_measured_is_the_work_of_both_ways(counter, tmp_path, installed, monkeypatch) -> None:
    """An image counts once, however many parts of it are made, and its pixels are the same when it is made both ways."""
    monkeypatch.setattr(COUNTING, "counter", counter)
    paths = make_images(tmp_path, 2)
    made = []
    for path in paths:
        image = Image.open(path)
        made.append([image.crop((0, 0, 20, 20)).resize((8, 8)).tobytes(), image.convert("RGB").tobytes()])
    found = total(counter._path)
    assert (found.images, found.measured) == (2, 1) and found.late_s > 0 < found.pillows_s
    monkeypatch.setattr(COUNTING, "counter", None)
    for path, (cropped, whole) in zip(paths, made, strict=True):
        image = Image.open(path)
        assert image.crop((0, 0, 20, 20)).resize((8, 8)).tobytes() == cropped and image.convert("RGB").tobytes() == whole
