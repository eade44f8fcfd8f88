"""Whatever peers send, each log record is one short line, and there are few of them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from csd_engine.service.engine_log import Formatter, RepeatFilter
from tests.engine_process import EngineProcess, Recipe
from tests.hostile_client import HostileClient

FORGED = "\n2026-01-01 00:00:00,000 csd_engine ERROR forged\x1b]0;owned\x07 "


def record(text: str, *values: object) -> logging.LogRecord:
    return logging.LogRecord("csd_engine", logging.WARNING, __file__, 1, text, values, None)


def test_listed_hosts_forge_no_line_and_do_not_flood_it(recipe: Recipe, start: Callable[..., EngineProcess]) -> None:
    engine = start("--root", str(recipe.root))
    with HostileClient(engine.address, engine.keys) as client:
        long = FORGED * 70  # as long as a text of a message may be
        for number in range(100):
            client.send_json("OpenJob", job=f"j{number}", pipeline={long: 1}, dataset={"type": long}, layout={long: long},
                             run="", rank=0, after_lower=False)  # fmt: skip
            client.send_json(long)
            client.send_json("Cancel", **{long: 1})
            client.send_json("Lease", job=long, lease=1, identity="", seed=1, epoch=1, items=[])
            client.send_json("Welcome", versions={}, quota_batches=1, quota_bytes=1, spool=long, workers=1)
        client.ping()
    lines = engine.log.split("\n")
    assert not any(line.startswith("2026-01-01") for line in lines)
    assert all(line.isprintable() for line in lines)
    assert 3 <= len(lines) <= 60 and max(map(len, lines)) < 600, engine.log


def test_repeated_records_are_counted_and_told_with_the_next_one() -> None:
    now = [0.0]
    repeat = RepeatFilter(lambda: now[0])
    assert sum(repeat.filter(record("refused %s", number)) for number in range(1000)) == 10
    assert repeat.filter(record("another kind"))
    now[0] = 61.0
    later = record("refused %s", "x")
    assert repeat.filter(later)
    assert later.getMessage() == "refused x (and 990 more of this kind in the last 61 s)"
    now[0] = 122.0
    last = record("refused %s", "y")
    assert repeat.filter(last) and last.getMessage() == "refused y"


def test_an_exceptions_text_is_set_in_and_escaped() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        one = record("failed")
        one.exc_info = (type(error), error, error.__traceback__)
    lines = Formatter("%(message)s").format(one).split("\n")
    assert lines[0] == "failed" and all(line.startswith("  ") and line.isprintable() for line in lines[1:])
