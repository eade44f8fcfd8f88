"""Byte counts as text for people."""

from __future__ import annotations

import pytest

from csd_engine.machine.sizes import size_text


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0 B"), (7, "7 B"), (999, "999 B"), (1000, "0.977 KiB"), (1536, "1.5 KiB"), (10_000, "9.77 KiB"),
        (1 << 20, "1 MiB"), (40_370_176, "38.5 MiB"), (3 << 29, "1.5 GiB"), (26_500_000_000, "24.7 GiB"), (5 << 40, "5 TiB"),
        (999 << 40, "999 TiB"), (700 << 50, "700 PiB"),
    ],
)  # fmt: skip
def test_three_digits(count: int, text: str) -> None:
    assert size_text(count) == text
