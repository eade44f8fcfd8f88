"""One of our pages, parsed."""

from __future__ import annotations

import base64
from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """A parsed page: tables (rows of texts) by the heading before them, texts, PNG pictures by plot."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.pictures: dict[str, bytes] = {}
        self.tiles: dict[str, str] = {}
        self._at: list[str] = []
        self._texts: list[str] = []
        self._heading = self._plot = self._tile = ""
        self.source = path.read_text()
        self.feed(self.source)
        self.text = " ".join(self._texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag not in ("meta", "img"):
            self._at.append(tag)
        if tag in ("h1", "h2", "h3"):
            self._heading = ""
        elif tag == "tr":
            self.tables.setdefault(self._heading, []).append([])
        elif tag in ("td", "th"):
            self.tables[self._heading][-1].append("")
        elif tag == "figure":
            self._plot = attributes["data-plot"]
        elif tag == "img":
            encoded = attributes["src"].removeprefix("data:image/png;base64,")
            self.pictures[self._plot] = base64.b64decode(encoded, validate=True)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        while self._at and self._at.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._at and self._at[-1] != "style":
            self._texts.append(data)
        if self._at and self._at[-1] in ("h1", "h2", "h3"):
            self._heading += data
        elif {"td", "th"} & set(self._at):
            self.tables[self._heading][-1][-1] += data
        elif self._at and self._at[-1] == "dt":
            self._tile = data
        elif self._at and self._at[-1] == "dd":
            self.tiles[self._tile] = data
