"""The state of one device in an epoch, beside the ledger's account and the rates."""

from __future__ import annotations

from dataclasses import dataclass

from ddlp.sources.base import AttachedSource

__all__ = ["DeviceState"]


@dataclass
class DeviceState:
    """One device in one epoch.

    Attributes:
        source: takes the device's leases. It stays here after a loss, for the batches that it has published.
        gone: the device was lost, and may come back.
        barred: the device is not used again in this epoch.
        unusable: its published batches that could not be used.
        unusable_in_a_row: those since the last one that could be used.
    """

    source: AttachedSource | None = None
    gone: bool = False
    barred: bool = False
    unusable: int = 0
    unusable_in_a_row: int = 0
