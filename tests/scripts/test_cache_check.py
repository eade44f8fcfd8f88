"""`scripts.cache_check`: what an LRU cache would have, and the hits of a loader with room for a quarter."""

from __future__ import annotations

import subprocess
import sys

from scripts.cache_check import lru_hits


def test_an_lru_cache_has_what_was_used_last() -> None:
    assert lru_hits([[0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 2, 3]], 2) == [0, 2, 2]
    assert lru_hits([[0, 1, 2, 3]] * 3, 2) == [0, 0, 0]  # in the same order it always drops what comes next
    assert lru_hits([[0, 1, 2, 3]] * 3, 4) == [0, 4, 4]


def test_room_for_a_quarter_gives_a_quarter_of_hits() -> None:
    command = [sys.executable, "-m", "scripts.cache_check", "quota", "--images", "40", "--size", "64", "--rounds", "2"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    assert "ddlp  hits in each epoch: 0.0%, 25.0%, 25.0%" in told and "LRU   hits in each epoch: 0.0%, " in told
