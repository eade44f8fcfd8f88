"""What a script has measured, as docs/results keeps it for `benchmarks.papers.page`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import machine_line
from ddlp.process.machine import machine

__all__ = ["RESULTS", "Kept", "result"]

RESULTS = Path(__file__).parents[1] / "docs" / "results"


@dataclass(frozen=True)
class Kept:
    """What a command has printed.

    ``how``: as docs/paper.md's column of that name has it. ``page``: the place in docs/ that tells of it.
    """

    command: str
    date: str
    machine: str
    how: str
    page: str
    figures: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Kept:
        """Return a file's result. Raises OSError, ValueError or TypeError if it is missing or not of that form."""
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        """Write it for `read`."""
        path.write_text(self.json() + "\n")

    def json(self) -> str:
        """Return what `write` writes."""
        return json.dumps(asdict(self), indent=1)


def result(command: str, how: str, page: str, figures: dict[str, Any], beside: str) -> Kept:
    """Return what was found on this machine now. ``beside``: what else is to be said of the machine."""
    facts = machine()
    return Kept(command, facts["date"], f"{machine_line(facts).rpartition('; ')[0]}; {beside}", how, page, figures)
