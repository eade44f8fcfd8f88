"""docs/design.md lists the files that a batch passes, in three ways. `tests/way` traces batches: the lists are what runs."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from ddlp.transfer.mapped_batch import may_map
from tests.forks import Forks

PAGE = Path(__file__).resolve().parents[1] / "docs" / "design.md"
# Of the windows, each with some batches. What a batch passes runs in nearly all, what is gone in none; what comes by chance, or
# falls into the next window on a busy machine, is between.
LISTED_AT_LEAST, UNLISTED_AT_MOST = 0.25, 0.75

Shares = dict[str, dict[str, float]]


class Listed(NamedTuple):
    """What the page lists for a way. ``clock``: what runs by the clock, so in any part of the windows."""

    file: set[str]
    type: set[str]
    clock: set[str]


def listed(page: str) -> dict[str, Listed]:
    """Return what each section "### `NAME`: ..." of the page lists."""
    _, *parts = re.split(r"^###? (?:`(\w+)`: )?.*$", page, flags=re.MULTILINE)
    ways: dict[str, Listed] = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        if name is not None:
            clock = " ".join(re.findall(r"^By the clock.*$", text, re.MULTILINE))
            ways[name] = Listed(
                set(re.findall(r"^\d+\. \[.*?\]\(\.\./(.*?)\)", text, re.MULTILINE)),
                set(re.findall(r"^- `([\w.]+)`", text, re.MULTILINE)),
                set(re.findall(r"\]\(\.\./(.*?)\)", clock) + re.findall(r"`([\w.]+)`", clock)),
            )
    return ways


def differences(ways: Mapping[str, Listed], traced: Mapping[str, Shares]) -> list[str]:
    """Return what must be added to the page's lists, or removed."""
    told: list[str] = []
    for name, shares in traced.items():
        for kind, runs in shares.items():
            on_page: set[str] = getattr(ways[name], kind)
            gone = [one for one in on_page if runs.get(one, 0.0) < LISTED_AT_LEAST]
            new = [one for one, share in runs.items() if share > UNLISTED_AT_MOST and one not in on_page | ways[name].clock]
            told += [f"{name}: remove the {kind} {one}" for one in sorted(gone)]
            told += [f"{name}: add the {kind} {one}" for one in sorted(new)]
    return told


@pytest.fixture(scope="module")
def traced(need_kernel: None, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shares]:
    home = tmp_path_factory.mktemp("way")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # steps of a GPU are measured, by a file more
    done = forks.run(module="tests.way.scene", arguments=[str(home)], environment=environment)
    assert not done.returncode, done.stderr
    found: dict[str, Shares] = json.loads((home / "shares.json").read_text())
    return found


def test_the_page_lists_what_runs_for_a_batch(traced):
    ways = listed(PAGE.read_text())
    assert sorted(ways) == sorted(traced)
    if not may_map(tempfile.gettempdir()):  # in a chroot no one knows the file system: there the engine's files are read
        del traced["wrr"]
    told = differences(ways, traced)
    assert not told, "\n".join(["docs/design.md, The way of a batch:", *told])


def test_a_difference_is_told():
    page = "## A\n### `cpu`: host\n1. [a](../ddlp/a.py): x\n1. [b](../ddlp/b.py): y\n- `ddlp.a.A`: z\n\n### `wrr`: e\n"
    page += "1. [a](../ddlp/a.py): x\n\nBy the clock: [c](../ddlp/c.py), `ddlp.c.C`.\n### B\n1. [d](../ddlp/d.py): x\n"
    ways = listed(page)
    assert ways == {
        "cpu": Listed({"ddlp/a.py", "ddlp/b.py"}, {"ddlp.a.A"}, set()),
        "wrr": Listed({"ddlp/a.py"}, set(), {"ddlp/c.py", "ddlp.c.C"}),
    }
    same = {"file": {"ddlp/a.py": 1.0, "ddlp/c.py": 0.9}, "type": {"ddlp.c.C": 0.5}}
    assert differences(ways, {"wrr": same}) == []
    other = {"file": {"ddlp/a.py": 1.0, "ddlp/c.py": 1.0}, "type": {"ddlp.a.A": 1.0}}
    assert differences(ways, {"cpu": other}) == ["cpu: remove the file ddlp/b.py", "cpu: add the file ddlp/c.py"]
