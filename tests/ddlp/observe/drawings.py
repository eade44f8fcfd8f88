"""What the pages have had drawn: matplotlib's figures, as they were before they became pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

__all__ = ["Drawings", "drawings"]


class Drawings:
    """The figures since the last `clear`, in the order of the page."""

    def __init__(self) -> None:
        self.figures: list[Any] = []

    def clear(self) -> None:
        """Forget them."""
        self.figures.clear()

    def artists(self, gid: str, label: str = "") -> list[Any]:
        """Return what was drawn under this name, of all figures or of those whose label begins so."""
        found = (figure for text, figure in self.figures if text.startswith(label))
        return [one for figure in found for one in figure.axes[0].get_children() if one.get_gid() == gid]

    def width(self, gid: str) -> float:
        """Return the sum of all boxes' widths."""
        return float(sum(path.get_extents().width for one in self.artists(gid) for path in one.get_paths()))

    def dots(self, gid: str) -> int:
        """Return the number of marks."""
        return sum(len(one.get_offsets()) for one in self.artists(gid))

    def curve(self, gid: str, label: str = "") -> list[float]:
        """Return the values of the only curve of this name."""
        (line,) = self.artists(gid, label)
        return [float(y) for y in line.get_ydata()]


@pytest.fixture
def drawings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Drawings]:
    """What is drawn in this test."""
    from ddlp.observe.report import pictures  # matplotlib

    found, element = Drawings(), pictures.element

    def noted(figure: Any, label: str) -> str:
        found.figures.append((label, figure))
        return element(figure, label)

    monkeypatch.setattr(pictures, "element", noted)
    yield found
