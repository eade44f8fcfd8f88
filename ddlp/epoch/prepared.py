"""A batch that goes to the training loop."""

from __future__ import annotations

from dataclasses import dataclass

from ddlp.schedule.ledger import Side
from ddlp.sources.base import PreparedBatch

__all__ = ["Delivered"]


@dataclass(frozen=True)
class Delivered:
    """A batch that the executor gives to the training thread, with its position and the side that made it."""

    position: int
    side: Side
    batch: PreparedBatch
