"""What an epoch has in memory for the training loop."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ddlp.ledger import Side

__all__ = ["Delivered", "Failure"]


@dataclass
class Failure:
    """Stands in a batch's place: its sample could not be prepared."""

    error: BaseException


@dataclass
class Delivered:
    """A batch that goes to the training loop: images as the epilogue made them (or uint8, where it runs later)."""

    position: int
    side: Side
    images: torch.Tensor
    boxes: torch.Tensor | None
