"""The comparison as a table, and the sentences about it."""

from __future__ import annotations

import dataclasses
import re

import pytest

from ddlp.tryout.comparison import Comparison, Cores, Row
from ddlp.tryout.text import sentences, text


def row(name: str, cores: int, rate: float, engine: float = 0.0, workers: int | None = None) -> Row:
    return Row(name, cores, workers, [rate, rate, 2 * rate], [0.5] * 3, [engine] * 3)


@pytest.fixture
def found() -> Comparison:
    rows = [
        row("dataloader", 1, 250, workers=1), row("dataloader", 2, 500, workers=2), row("cpu", 1, 1000),
        row("csd", 1, 1000, 1.0), row("mte", 2, 1900, 0.5), row("wrr", 2, 2000, 0.5),
    ]  # fmt: skip
    return Comparison(512, 32, Cores(0, 1), None, 1000.0, 1000.0, 0.008, rows)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table(found: Comparison, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    printed = text(found)
    assert max(map(len, printed.splitlines())) <= columns and printed.isascii()
    assert re.search(r"dataloader +core 0, 1 worker +250 +1\.0x +1\.0 to 1\.0 +50% +0%", printed)
    assert re.search(r"wrr +cores 0\+1 +2,000 +8\.0x +8\.0 to 8\.0 +50% +50%", printed)


def test_how_far_the_rounds_lie_apart(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gain is no quotient of the rates beside it, so the reader sees from where to where it goes."""
    monkeypatch.setenv("COLUMNS", "110")
    found.rows[0].rates, found.rows[3].rates = [200.0, 150.0, 250.0], [800.0, 900.0, 1000.0]
    printed = text(found)
    assert re.search(r"csd +core 1 +900 +4\.0x +4\.0 to 6\.0", printed)
    for row in found.rows:
        del row.rates[1:]
    assert re.search(r"csd +core 1 +800 +4\.0x +- ", text(found)), "one round has no spread"


def test_what_it_means(found: Comparison) -> None:
    swap, second, whether = sentences(found)
    assert "250 images/s with DataLoader and 1,000 with DDLPLoader, 4.0 times" in swap and "4.0 such cores" in swap
    assert (
        "core 1 stood in for one that prepares 1,000 images/s" in second and "2,000, 100% of the sum of cpu and csd" in second
    )
    assert "about 250 images/s for each core" in whether


def test_what_it_means_elsewhere(found: Comparison) -> None:
    """No gain by the swap, one core for both, a device, no engine: no sentence may claim what was not measured."""
    slow = dataclasses.replace(found, rows=[row("dataloader", 1, 1000, workers=1), *found.rows[2:]])
    assert "brings nothing here" in sentences(slow)[0]
    one_core = dataclasses.replace(found, cores=Cores(3, 3))
    assert "host and engine share it" in sentences(one_core)[1]
    device = dataclasses.replace(found, csd="csd0")
    assert "csd0 prepares 1,000 images/s" in sentences(device)[1] and "stood in" not in sentences(device)[1]
    alone = dataclasses.replace(
        found, rate_engine=None, rows=found.rows[:3], notes=["csd, mte and wrr could not take part: why"]
    )
    assert "no engine took part" in sentences(alone)[1]
    printed = text(alone)
    assert (
        "the host needs for a batch" in printed.replace("\n", " ") and "- csd, mte and wrr could not take part: why" in printed
    )
