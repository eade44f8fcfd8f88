"""What a check of a device says: all is well, a warning, or what stands in the way; with the reason and the way out."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from csd_engine.protocol.printable import printable_lines
from ddlp.errors import DDLPError

__all__ = ["DeviceNotReady", "Finding", "Level", "bad", "ok", "warn"]


class Level(enum.Enum):
    """How much a finding matters."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """One result of a check.

    Attributes:
        level: OK; WARN: it will run, but not as well as it could; BAD: it will not run.
        what: the fact, with its value: "python 3.11.2 at /usr/bin/python3".
        why: why that matters, empty where all is well.
        way_out: what to do, an imperative, with the command to type.
    """

    level: Level
    what: str
    why: str = ""
    way_out: str = ""

    def __post_init__(self) -> None:
        for name in ("what", "why", "way_out"):  # they quote what a device says
            object.__setattr__(self, name, printable_lines(getattr(self, name)))

    def __str__(self) -> str:
        text = f"{self.level.value:4} {self.what}"
        if self.why:
            text += f": {self.why}"
        return text + (f"\n     -> {self.way_out}" if self.way_out else "")


def ok(what: str) -> Finding:
    """All is well here."""
    return Finding(Level.OK, what)


def warn(what: str, why: str, way_out: str = "") -> Finding:
    """It will run, but not as well as it could."""
    return Finding(Level.WARN, what, why, way_out)


def bad(what: str, why: str, way_out: str) -> Finding:
    """It will not run before this is mended."""
    return Finding(Level.BAD, what, why, way_out)


class DeviceNotReady(DDLPError):
    """Checks of a device found what stands in the way."""

    def __init__(self, name: str, *findings: Finding) -> None:
        super().__init__(f"{name} is not ready:\n" + "\n".join(map(str, findings)))
