"""Cards: what is written is read, and nothing that another user may have written."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from csd_engine.errors import BadMessage, EngineError
from csd_engine.protocol.cards import (
    RENEW_S,
    STALE_S,
    Card,
    allow_host,
    open_cards,
    read_cards,
    remove_card,
    renew_card,
    write_card,
)

CARD = Card("tcp://node7:7711", "k" * 40, "node7", 4711)


@pytest.fixture
def cards(tmp_path: Path) -> Path:
    (tmp_path / "cards").mkdir(0o700)
    return tmp_path / "cards"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_directory_is_refused(cards):
    os.chown(cards, 12345, -1)
    with pytest.raises(EngineError, match="belongs to another user"):
        open_cards(cards)


def test_cards_are_read_as_written_and_others_files_left_alone(cards):
    write_card(cards, "node7-1-ab", CARD)
    for name, content in {"bad.card": "{", "notes.txt": "x", "deep.card": "[" * 4000}.items():
        (cards / name).write_text(content)
    foreign = cards / "foreign.card"
    foreign.write_text((cards / "node7-1-ab.card").read_text())
    foreign.chmod(0o666)  # anybody may have written it
    (cards / "link.card").symlink_to("node7-1-ab.card")
    assert read_cards(cards) == {"node7-1-ab": CARD}
    assert stat.S_IMODE((cards / "node7-1-ab.card").stat().st_mode) & 0o022 == 0
    remove_card(cards, "node7-1-ab")
    assert read_cards(cards) == {} and foreign.exists() and (cards / "notes.txt").exists()


def test_a_stale_card_is_removed_and_a_living_engine_writes_it_again(cards):
    write_card(cards, "node7-1-ab", CARD)
    for name in ("node7-1-ab.card", "node7-2-cd.card.part"):
        (cards / name).touch()
        os.utime(cards / name, (1.0, 1.0))
    assert read_cards(cards) == {} and not list(cards.iterdir())
    renew_card(cards, "node7-1-ab", CARD)
    assert read_cards(cards) == {"node7-1-ab": CARD}


GOOD = {"address": CARD.address, "key": CARD.key, "host": CARD.host, "pid": CARD.pid}


@pytest.mark.parametrize("field, taken, refused, meaning", [
    ("address", ["tcp://a:1", "ipc:///a/b", "tcp://" + "x" * 256],
     ["file:///etc/passwd", "tcp://a b", None, "tcp://", "tcp://" + "x" * 257, "TCP://a:1"],
     "an address, tcp://HOST:PORT or ipc:///path"),
    ("key", ["0123456789abcdefghijklmnopqrstuvwxyzABCD", "EFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{", "}@%$#" * 8],
     ["k" * 39, "k" * 41, "~" * 40, " " * 40, None], "a public key of 40 characters"),
    ("host", ["a", "~" * 255], ["", "x" * 256, "\x1b[2J", "a b", 1], "a host's name"),
    ("pid", [0], [-1, "1", None], f"an integer from 0 to {(1 << 63) - 1}"),
])  # fmt: skip
def test_a_card_is_checked(field: str, taken: list[Any], refused: list[Any], meaning: str):
    for value in taken:
        assert getattr(Card.parse(json.dumps({**GOOD, field: value, "more": 1}).encode()), field) == value
    for value in refused:
        with pytest.raises(BadMessage, match=f"is no card: {re.escape(meaning)}$"):
            Card.parse(json.dumps({**GOOD, field: value}).encode())


def test_where_others_may_write_nothing_is_read_or_written(cards):
    for mode in (0o770, 0o707, 0o1777):
        cards.chmod(mode)
        for use in (
            open_cards, read_cards, lambda path: write_card(path, "a", CARD), lambda path: renew_card(path, "a", CARD),
            lambda path: allow_host(path, "host-a", "key"),
        ):  # fmt: skip
            with pytest.raises(EngineError, match="others than its owner may write to it"):
                use(cards)
        remove_card(cards, "a")
    assert not list(cards.iterdir())
    with pytest.raises(EngineError, match="can't be used: No such file"):
        open_cards(cards / "none")


def test_a_card_is_renewed_each_ten_seconds_and_stale_after_a_minute(cards, monkeypatch):
    assert (RENEW_S, STALE_S) == (10.0, 60.0)
    for name, time_s in (("new", 1000.0), ("old", 999.75), ("renewed", 1.0)):
        write_card(cards, name, CARD)
        os.utime(cards / f"{name}.card", (time_s, time_s))
    renew_card(cards, "renewed", CARD)
    monkeypatch.setattr(time, "time", lambda: 1060.0)
    assert set(read_cards(cards)) == {"new", "renewed"} and not (cards / "old.card").exists()


def test_a_renewal_writes_nothing_and_follows_no_link(cards, tmp_path):
    write_card(cards, "a", CARD)
    (tmp_path / "elsewhere").write_text("")
    (cards / "b.card").symlink_to(tmp_path / "elsewhere")
    for path in (cards / "a.card", tmp_path / "elsewhere"):
        os.utime(path, (1.0, 1.0))
    file = (cards / "a.card").stat().st_ino
    for name in ("a", "b"):
        renew_card(cards, name, CARD)
    assert (cards / "a.card").stat().st_ino == file and (cards / "a.card").stat().st_mtime > 1.0
    assert (tmp_path / "elsewhere").stat().st_mtime == 1.0


def test_a_card_is_written_where_an_attempt_ended_half_way(cards):
    (cards / "a.card.part").write_text("{")
    write_card(cards, "a", CARD)
    assert read_cards(cards) == {"a": CARD} and len(list(cards.iterdir())) == 1


def test_what_has_no_name_of_a_card_is_none(cards):
    write_card(cards, "a", CARD)
    content = (cards / "a.card").read_text()
    for name in ("B.c-9", "x" * 64, "-a", ".a", "", "a_b", "x" * 65, "ä"):
        (cards / f"{name}.card").write_text(content)
    (cards / "b.cards").write_text(content)
    (cards / "b.card.part").write_text(content)  # it is being written
    assert set(read_cards(cards)) == {"a", "B.c-9", "x" * 64}
    assert len(list(cards.iterdir())) == 11, "the others' files are left alone"


def test_a_card_has_4096_bytes_at_most(cards):
    write_card(cards, "a", CARD)
    content = json.loads((cards / "a.card").read_text())
    for name, size in (("b", 4096), ("c", 4097)):
        text = json.dumps({**content, "more": ""})
        (cards / f"{name}.card").write_text(text[:-2] + "x" * (size - len(text)) + text[-2:])
    assert set(read_cards(cards)) == {"a", "b"}


def test_a_hosts_key_is_put_on_the_list_once(cards):
    allow_host(cards, "host-a", "its key")
    allow_host(cards, "host-a", "another key")
    allow_host(cards, "host-b", "b's key")
    clients = cards / "clients"
    assert {path.name: path.read_text() for path in clients.iterdir()} == {"host-a.key": "its key", "host-b.key": "b's key"}
    clients.chmod(0o770)
    with pytest.raises(EngineError, match="clients can't be used: others than its owner"):
        allow_host(cards, "host-c", "c's key")
