"""What an epoch has in memory for the training loop."""

from __future__ import annotations

from dataclasses import dataclass

from ddlp.schedule.ledger import Side
from ddlp.sources.host.native import PreparedBatch

__all__ = ["Delivered", "Failure"]


@dataclass
class Failure:
    """Stands in a batch's place: its sample could not be prepared."""

    error: BaseException


@dataclass
class Delivered:
    """A batch that goes to the training loop."""

    position: int
    side: Side
    pixels: PreparedBatch
