"""How the terminal shows a comparison, and the sentences about it."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path

import pytest
from PIL import Image

from ddlp.tryout.comparison import Comparison, Row
from ddlp.tryout.cores import Cores
from ddlp.tryout.picture import draw
from ddlp.tryout.terminal import parts, sentences, text


class Terminal(io.StringIO):
    """A fake of a terminal or a pipe with some encoding."""

    def __init__(self, encoding: str = "utf-8", terminal: bool = False) -> None:
        super().__init__()
        self._encoding, self._terminal = encoding, terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._terminal


def row(name: str, cores: int, rate: float, engine: float = 0.0, workers: int | None = None) -> Row:
    return Row(name, cores, workers, [rate, rate, 2 * rate], [0.5] * 3, [engine] * 3)


@pytest.fixture
def found() -> Comparison:
    rows = [
        row("dataloader", 1, 250, workers=1), row("dataloader", 2, 500, workers=2), row("cpu", 1, 1000),
        row("csd", 1, 1000, 1.0), row("mte", 2, 1900, 0.5), row("wrr", 2, 2000, 0.5),
    ]  # fmt: skip
    return Comparison(512, 32, Cores(0, 1), None, 1000.0, 1000.0, 0.008, rows)


def bars(printed: str) -> dict[str, str]:
    """Row -> its bar, for rows that take one line. DataLoader has two rows; the second counts."""
    lines = [re.sub(r"\x1b\[\d+m", "", line) for line in printed.splitlines()]
    return {line.split()[0]: line.rpartition("%  ")[2] for line in lines if re.search(r"\d+x .*%  ", line)}


@pytest.mark.parametrize("columns", [80, 120])
def test_bars_are_as_long_as_the_rates_say(found: Comparison, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    printed = text(found, Terminal())
    assert max(map(len, printed.splitlines())) <= columns and "\x1b" not in printed
    drawn = bars(printed)
    assert list(drawn) == ["dataloader", "cpu", "csd", "mte", "wrr"]
    assert abs(len(drawn["wrr"]) - 2 * len(drawn["cpu"])) <= 1 and abs(len(drawn["cpu"]) - 2 * len(drawn["dataloader"])) <= 1
    assert set(drawn["cpu"]) == {"█"} and set(drawn["csd"]) == {"▒"} and set(drawn["dataloader"]) == {"░"}
    assert abs(drawn["wrr"].count("█") - drawn["wrr"].count("▒")) <= 1
    assert re.search(r"wrr +cores 0\+1 +2,000 +8\.0x +50%", printed)


def test_how_far_the_rounds_lie_apart(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gain is no quotient of the rates beside it, so the reader sees from where to where it goes."""
    monkeypatch.setenv("COLUMNS", "110")
    found.rows[0].rates, found.rows[3].rates = [200.0, 150.0, 250.0], [800.0, 900.0, 1000.0]
    printed = text(found, Terminal())
    assert re.search(r"csd +core 1 +900 +4\.0x", printed) and "csd 4.0 to 6.0;" in printed
    for row in found.rows:
        del row.rates[1:]
    assert "to 4.0;" not in text(found, Terminal()), "one round has no spread"


def test_colours_only_on_a_terminal_that_wants_them(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[33m" in text(found, Terminal(terminal=True))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in text(found, Terminal(terminal=True))


def test_a_terminal_without_these_characters(found: Comparison) -> None:
    printed = text(found, Terminal("ascii"))
    assert printed.isascii() and set(bars(printed)["wrr"]) == {"#", "="}


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
    printed = text(alone, Terminal())
    assert (
        "the host needs for a batch" in printed.replace("\n", " ") and "- csd, mte and wrr could not take part: why" in printed
    )


def test_the_picture(found: Comparison, tmp_path: Path) -> None:
    draw(found, tmp_path / "it.png")
    with Image.open(tmp_path / "it.png") as image:
        colours = {colour: count for count, colour in image.convert("RGB").getcolors(1 << 20) or []}
    torch, host, engine = (colours[tuple(bytes.fromhex(colour))] for colour in ("818b98", "0969da", "bc4c00"))
    assert abs(host / engine - 1) < 0.1 and abs(host / torch - (1000 + 950 + 1000) / 750) < 0.3


def test_a_part_of_less_than_a_pixel_is_no_error(found: Comparison, tmp_path: Path) -> None:
    """Summing up first, rate times mean part once left 1e-13 images/s for the host."""
    for rate in (979.123, 1057.7, 1183.31):
        found.rows[3] = row("csd", 1, rate, 1.0)
        assert [part.by for part in parts(found.rows[3])] == ["engine"]
    found.rows[4] = row("mte", 2, rate, 1 - 1e-9)
    draw(found, tmp_path / "drawn.png")
