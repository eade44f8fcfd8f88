"""The recipe for a new kind of data set: two files and two lines are enough for the loader, its report and a real engine."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision import transforms

from csd_engine.data.kinds import KINDS
from ddlp import DDLPLoader, ImageFiles
from ddlp.translate.datasets import LEAVES
from tests.engine_process import make_jpegs
from tests.joined_dataset import JoinedImages, joined_images
from tests.joined_files import JoinedSet

ROOT = Path(__file__).resolve().parents[2]
IN_EVERY_PROCESS = """
from csd_engine.data.kinds import KINDS
from tests.joined_files import JoinedSet
KINDS[JoinedSet.type] = JoinedSet
"""


@pytest.fixture
def tables(monkeypatch, tmp_path):
    """Add the two lines. A new Python process gets the engine's line too, because the engine has processes of its own."""
    monkeypatch.setitem(KINDS, JoinedSet.type, JoinedSet)
    monkeypatch.setitem(LEAVES, JoinedImages, joined_images)
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "sitecustomize.py").write_text(IN_EVERY_PROCESS)
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "start"), str(ROOT), *filter(None, [inherited])]))


@pytest.fixture
def dataset(tmp_path):
    (tmp_path / "images").mkdir()
    names = make_jpegs(tmp_path / "images", np.random.default_rng(2))
    contents = [(tmp_path / "images" / name).read_bytes() for name in names]
    (tmp_path / "joined").write_bytes(b"".join(contents))
    transform = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
    joined = JoinedImages(str(tmp_path / "joined"), list(map(len, contents)), list(range(len(names))), transform)
    paths = [str(tmp_path / "images" / name) for name in names]
    return ConcatDataset([joined, Subset(ImageFiles(paths, joined.targets, transform), [3, 4, 5])])


@pytest.mark.parametrize("strategy", ["cpu", "csd"])
def test_a_new_kind_is_two_files_and_two_lines(tables, dataset, tmp_path, strategy):
    loader = DDLPLoader(dataset, 4, strategy=strategy, spool=None if strategy == "cpu" else str(tmp_path / "spool"))
    assert "JoinedImages (24 samples)" in loader.explain()
    batches, expected = list(loader), list(DataLoader(dataset, 4))
    assert len(batches) == len(expected) > 0
    for ours, theirs in zip(batches, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert loader.report().batches_csd == (len(batches) if strategy == "csd" else 0)


def test_without_its_line_the_users_own_code_prepares_it(dataset):
    loader = DDLPLoader(dataset, 4, strategy="cpu")
    assert "JoinedImages" in loader.explain() and "not exactly one that ddlp knows" in loader.explain()
