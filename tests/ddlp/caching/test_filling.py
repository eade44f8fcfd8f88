"""`loader.fill_cache()` and `ddlp cache fill`: a cache made ahead of training."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from csd_engine.prepare import batch_maker
from ddlp import Cache, DDLPError, DDLPLoader, cli
from ddlp.caching.filling import Filled
from tests.ddlp.caching.test_opening import COUNT, CROPS, EVALUATION, SIDE, Own, counted, epoch, files, make, same

__all__ = ["files"]


def filled(cache: Cache, files: list[str], transform: Any = EVALUATION, **arguments: Any) -> Filled:
    return make(files, transform, cache=cache, **arguments).fill_cache(progress=False)


@pytest.mark.parametrize("workers", (0, 2))
@pytest.mark.parametrize(("transform", "keeps"), ((EVALUATION, "auto"), (CROPS, "pixels")))
def test_the_first_epoch_comes_from_it(files: list[str], tmp_path: Path, transform: Any, keeps: str, workers: int) -> None:
    cache = Cache(tmp_path / "cache", "1G", keeps)
    loader, plain = make(files, transform, cache=cache, num_workers=workers), make(files, transform)
    before = torch.get_rng_state()
    found = loader.fill_cache(progress=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert (found.samples, found.kept, found.made, found.failed, found.why) == (COUNT, COUNT, COUNT, 0, "")
    assert found.written_bytes > 0
    assert loader.fill_cache(progress=False).made == 0
    for _ in range(2):
        assert same(epoch(loader), epoch(plain))
        assert counted(loader) == (COUNT, 0)
    assert filled(cache, files, transform).made == 0  # the next run


def test_it_goes_on_where_it_was_stopped(files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, calls = Cache(tmp_path / "cache", "1G"), 0
    original = batch_maker.BatchMaker.start

    def start(self: Any, *arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise KeyboardInterrupt
        return original(self, *arguments, **more)

    monkeypatch.setattr(batch_maker.BatchMaker, "start", start)
    with pytest.raises(KeyboardInterrupt):
        filled(cache, files, num_workers=0)
    monkeypatch.undo()
    found = filled(cache, files)
    assert 0 < found.made < COUNT
    assert found.kept == COUNT
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_no_more_than_the_quota(files: list[str], tmp_path: Path) -> None:
    quota = 4096 + 8 + COUNT // 4 * (SIDE * SIDE * 3 + 56)
    found = filled(Cache(tmp_path / "cache", quota), files)
    assert (found.samples, found.kept) == (COUNT, COUNT // 4)
    assert "no more room" in str(found)
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.safetensors")) <= quota


def _fill(directory: Path, files: list[str], answers: Any) -> None:
    answers.put(tuple(filled(Cache(directory, "1G"), files, num_workers=1)))


def test_two_at_once(files: list[str], tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    both = [context.Process(target=_fill, args=(tmp_path / "cache", files, answers)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert [one.exitcode for one in both] == [0, 0]
    loader = make(files, cache=Cache(tmp_path / "cache", "1G"))
    assert same(epoch(loader), epoch(make(files)))
    assert counted(loader) == (COUNT, 0)


def test_a_bad_image_is_counted_and_raised_in_its_place(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{number}.png") for number in range(5)]
    for path in paths:
        Image.new("RGB", (40, 40), (9, 9, 9)).save(path)
        os.utime(path, (1e9, 1e9))
    Path(paths[2]).write_bytes(b"no image")
    os.utime(paths[2], (1e9, 1e9))
    loader = make(paths, cache=Cache(tmp_path / "cache", "1G"))
    found = loader.fill_cache(progress=False)
    assert (found.kept, found.failed, found.why) == (4, 1, "")
    with pytest.raises(OSError, match=r"2\.png"):
        epoch(loader)


def test_what_can_not_be_filled(files: list[str], tmp_path: Path) -> None:
    with pytest.raises(DDLPError, match="has no cache"):
        make(files).fill_cache()
    with pytest.raises(DDLPError, match="your own code"):
        make(files, Own(), cache=Cache(tmp_path / "cache", "1G")).fill_cache()


def test_a_subset_fills_its_own_samples(files: list[str], tmp_path: Path) -> None:
    loader = make(files, cache=Cache(tmp_path / "cache", "1G"))
    part = DDLPLoader(torch.utils.data.Subset(loader.dataset, [3, 4, 3, 9]), 2, cache=loader.cache)
    assert part.fill_cache(progress=False)[:3] == (3, 3, 3)


# -- ddlp cache fill -----------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
import ddlp, torch
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

def loader(*steps, cache=True):
    transform = T.Compose([*steps, T.ToTensor()])
    kept = ddlp.Cache(sys.argv[2], "1G") if cache else False
    return ddlp.DDLPLoader(ImageFolder(sys.argv[1], transform), 8, num_workers=1, cache=kept)

if __name__ == "__main__":
    train, val = loader(T.RandomResizedCrop(24), T.RandomHorizontalFlip()), loader(T.Resize(28), T.CenterCrop(24))
    list(DataLoader(range(3)))
    list(loader(T.Resize((9, 9)), cache=False))
    print("begins")
    try:
        list(train)
        print("trains")
    finally:
        print("ends")
"""


@pytest.fixture
def folder(files: list[str], tmp_path: Path) -> Path:
    for number, file in enumerate(files):
        (tmp_path / "images" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        os.link(file, tmp_path / "images" / str(number % 2) / f"{number}.jpg")
    return tmp_path / "images"


def ran(*words: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ddlp", "cache", "fill", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_of_a_script(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = ran("--", script, folder, tmp_path / "cache")
    assert (done.returncode, done.stdout) == (0, "begins\nends\n"), done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("ddlp cache fill: ")]
    assert len(lines) == 2
    assert all("train.py:" in line and f"{COUNT} of {COUNT} samples are kept, {COUNT} made now" in line for line in lines)
    transform = v1.Compose([v1.Resize(28), v1.CenterCrop(24), v1.ToTensor()])
    loader = DDLPLoader(ImageFolder(str(folder), transform), 8, cache=Cache(tmp_path / "cache", "1G"))
    list(loader)
    assert counted(loader) == (COUNT, 0)
    script.write_text("pass\n")
    assert "no DDLPLoader with cache= was made" in ran("--", script).stderr


def test_of_a_folder(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--dir", str(tmp_path / "cache"), "--size", "1G"]
    assert cli.main(["cache", "fill", str(folder), *options]) == 0
    assert f"{COUNT} of {COUNT} samples are kept, {COUNT} made now" in capsys.readouterr().out
    transform = v1.Compose([v1.RandomCrop(20, pad_if_needed=True), v1.ToTensor()])
    loader = DDLPLoader(ImageFolder(str(folder), transform), 8, cache=Cache(tmp_path / "cache", "1G"))
    list(loader)
    assert counted(loader) == (COUNT, 0)
    wrong = {
        "belong together": (str(folder), *options[:2]),
        "find any class folder": (str(folder / "0"), *options),
        "name a folder": (),
        "one folder, and this is more": (str(folder), "more"),
        "since a script's loaders have their own": ("train.py", *options),
        "there is no folder 'no-folder'; --dir and --size": ("no-folder", *options),  # mistyped, with options and without
        "there is no folder 'nothing.py.txt', and 'nothing.py.txt' is no command": ("nothing.py.txt",),
    }
    for told, words in wrong.items():
        assert cli.main(["cache", "fill", *words]) == 1
        assert told in capsys.readouterr().err
