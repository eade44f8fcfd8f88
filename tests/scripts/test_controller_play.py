"""`scripts.controller_play`: what it plays, and what it makes of the times."""

from __future__ import annotations

import random

import pytest

from scripts import controller_play
from scripts.controller_play import BATCHES, PLAIN_S, Played, Workload, drawn, seconds_of

CACHED = Workload("prefix", fill=1.1, cached=0.1, room=1.0, step_s=0.0, sources=(0.02,), epochs=4)


def test_what_is_kept_comes_from_the_cache_in_later_epochs() -> None:
    played = Played(CACHED, random.Random(1), lambda: True)
    first_s, second_s = played.epoch("cpu"), played.epoch("cpu")
    assert first_s == pytest.approx(1.1 * PLAIN_S * BATCHES, rel=0.05) and played.full
    assert second_s == pytest.approx(0.1 * PLAIN_S * BATCHES, rel=0.05)


def test_sources_and_room_count() -> None:
    alone, both = (seconds_of(CACHED, way, 1) for way in ("host alone", "with sources"))
    assert both == pytest.approx(alone / 1.5, rel=0.05)
    little = Workload(**{**vars(CACHED), "room": 0.25})
    played = Played(little, random.Random(1), lambda: True)
    played.epoch("wrr")
    played.epoch("wrr")
    assert len(played.kept) == BATCHES // 4


def test_auto_keeps_up_with_the_best_and_keeps_nothing_where_training_limits() -> None:
    best = min(seconds_of(CACHED, way, 1) for way in controller_play.FIXED)
    assert seconds_of(CACHED, "auto", 1) < 1.2 * best
    limited = Workload(**{**vars(CACHED), "step_s": 2 * PLAIN_S})
    assert seconds_of(limited, "auto", 1) == pytest.approx(4 * BATCHES * 2 * PLAIN_S, rel=0.05)


def test_the_table_has_a_line_for_each_number_of_epochs(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["controller_play", "--workloads", "2", "--seed", "3", "--show", "1"])
    assert controller_play.main() == 0
    told = capsys.readouterr().out
    assert told.count("\n| ") >= 3 and "| all | 2 |" in told and "Workload(" in told
    assert drawn(random.Random(1)) == drawn(random.Random(1))
