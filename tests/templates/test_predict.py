"""templates/predict.py: rows in order with the model's own classes, bad images, and going on after Ctrl-C or a lost file."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as T

import predict
from ddlp.errors import DDLPError

IMAGES, BATCH = 22, 4
BAD = (5, 21)
TRANSFORM = T.Compose([T.Resize(8), T.CenterCrop(8), T.ToTensor()])
CLASSES = ["cat", "dog", "owl"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of images, in two directories; those numbered BAD are no images."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(3)
    for number in range(IMAGES):
        path = root / f"year {number // 10}" / f"{number:02}.png"
        path.parent.mkdir(exist_ok=True)
        if number in BAD:
            path.write_bytes(b"no image")
        else:
            Image.fromarray(random.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(path)
    (root / "notes.txt").write_text("no image either")
    return root


class Linear(nn.Module):
    """A linear model on flat pixels. At its n-th batch it sends Ctrl-C."""

    def __init__(self, interrupted_at: int = 0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers, self.left = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, len(CLASSES))), interrupted_at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return self.layers(x)


def options(photos: Path, out: Path, *more: str) -> Any:
    given = ["--data", str(photos), "--out", str(out), "--batch-size", str(BATCH), "--workers", "1", "--device", "cpu"]
    return predict.flags().parse_args([*given, "--part", "6", "--top", "2", *more])


def run(photos: Path, out: Path, *more: str, interrupted_at: int = 0) -> int:
    chosen = options(photos, out, *more)
    return predict.predict(predict.find_images(photos), Linear(interrupted_at), TRANSFORM, CLASSES, chosen)


def rows(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parquet.read_table(out).to_pylist()
    return found


@torch.inference_mode()
def check(photos: Path, out: Path) -> None:
    """Check all rows against the model on each image alone."""
    model, found = Linear().eval(), rows(out)
    assert [row["path"] for row in found] == [f"year {number // 10}/{number:02}.png" for number in range(IMAGES)]
    for number, row in enumerate(found):
        if number in BAD:
            assert "UnidentifiedImageError" in row["error"] and row["labels"] is None and row["scores"] is None
            continue
        image = TRANSFORM(Image.open(photos / row["path"]).convert("RGB"))[None]
        scores, classes = model(image).softmax(1).topk(2)
        assert row["error"] is None and row["labels"] == [CLASSES[one] for one in classes[0].tolist()]
        assert row["scores"] == pytest.approx(scores[0].tolist(), abs=1e-6)


@pytest.mark.parametrize("strategy", ["cpu", "ordered"])
def test_each_image_has_its_row_in_order(photos: Path, tmp_path: Path, capsys: Any, strategy: str) -> None:
    assert run(photos, tmp_path, "--strategy", strategy) == 0
    check(photos, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("part-*")) == [f"part-{first:010}.parquet" for first in (0, 6, 12, 18)]
    said = capsys.readouterr().out
    assert f"all {IMAGES} images" in said and "2 images can't be read" in said


def test_it_goes_on_after_ctrl_c_and_after_lost_files(photos: Path, tmp_path: Path, capsys: Any) -> None:
    assert run(photos, tmp_path, interrupted_at=3) == 130
    assert [row["path"][-6:-4] for row in rows(tmp_path)] == [f"{number:02}" for number in range(3 * BATCH)]
    assert "stopped: 12 of 22" in capsys.readouterr().out
    assert run(photos, tmp_path) == 0
    assert "12 of 22 images are done already" in capsys.readouterr().err
    check(photos, tmp_path)
    (tmp_path / "part-0000000012.parquet").unlink()
    assert run(photos, tmp_path) == 0
    check(photos, tmp_path)
    assert run(photos, tmp_path) == 0 and not list(tmp_path.glob("_part*"))


def test_results_of_another_run_are_not_mixed(photos: Path, tmp_path: Path) -> None:
    assert run(photos, tmp_path) == 0
    with pytest.raises(predict.Stop, match="another directory"):
        run(photos, tmp_path, "--top", "1")


def test_an_error_of_the_loaders_own_ends_it(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any) -> Any:
        raise DDLPError("out of order")

    monkeypatch.setattr("ddlp.epoch.iterator.EpochIterator._next_data", fails)
    with pytest.raises(DDLPError, match="out of order"):
        run(photos, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--data", "nowhere"], "no images below it"),
        (["--data", ".", "--model", "vgg"], "no model of torchvision's"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8)).save("photo.png")
    assert predict.main([*arguments, "--out", "out"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("predict: ") and says in line


def test_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert predict.main(["--small", "--device", "cpu"]) == 0
    assert "all 16 images are in predictions" in capsys.readouterr().out and len(rows(tmp_path / "predictions")) == 16
