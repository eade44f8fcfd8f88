"""Data sets for the benchmarks, small and quickly made."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from benchmarks.common import user_environment
from ddlp.process import cores
from ddlp.sampledata import make_cifar10
from tests.jpegkinds import encode_kind, picture


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


@pytest.fixture(autouse=True)
def only_its_own_processes(monkeypatch):
    """The benches run in this process and check its children's cores: those of other tests' fixtures are none of theirs."""
    family, before = cores.family, set(cores.family(os.getpid())) - {os.getpid()}
    monkeypatch.setattr(cores, "family", lambda pid: [one for one in family(pid) if one not in before])


@pytest.fixture
def forked(forks, monkeypatch):
    """The turns of startup, papers.scaled and host are forks. test_bare_loops_are_counted_together starts a real process."""

    def child(module: str, work: Mapping[str, Any], cpus: Sequence[int], timeout_s: float = 0.0) -> Any:
        code = f"import json, sys, {module} as bench\nprint(json.dumps(bench.turn(json.load(sys.stdin))))"
        done = forks.run(code=code, given=json.dumps(work), environment=user_environment(), cpus=cpus)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    for name in ("startup", "papers.scaled", "host"):
        monkeypatch.setattr(f"benchmarks.{name}.child", child)
