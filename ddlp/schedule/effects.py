"""What a device is to be told when the ledger has dropped a copy of its."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cancel", "Effect", "Release"]


@dataclass(frozen=True)
class Cancel:
    """Tell the device to stop working on this lease."""

    device: str
    lease: int


@dataclass(frozen=True)
class Release:
    """Tell the device that this lease's file is not needed (any more): unlink it, give the quota back."""

    device: str
    lease: int


Effect = Cancel | Release
