"""Data sets for the benchmarks, small and quickly made."""

from __future__ import annotations

import pytest

from ddlp.sampledata import make_cifar10
from ddlp.sampledata.jpegkinds import encode_kind, picture


@pytest.fixture(scope="session")
def small_sets(tmp_path_factory):
    """The benchmarks' directory with a CIFAR-10, and 24 small JPEG files in place of the finished set of 110 kB files."""
    root = tmp_path_factory.mktemp("bench")
    for number in range(24):
        folder = root / "110kb" / "train" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02}.jpg").write_bytes(encode_kind("420", picture(number, (150 + number, 120))))
    (root / "110kb" / "dataset.json").write_text("{}")
    make_cifar10(root / "cifar10", 100, 10)
    return root
