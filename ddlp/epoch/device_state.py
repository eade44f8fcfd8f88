"""What an epoch knows of one device, beside the ledger's account and the rates."""

from __future__ import annotations

from dataclasses import dataclass

from ddlp.sources.base import AttachedSource

__all__ = ["DeviceState"]


@dataclass
class DeviceState:
    """One device in one epoch.

    Attributes:
        source: takes its leases; that of a lost device stays, for the batches it has published.
        gone: it was lost, and may come back.
        barred: it is not used again in this epoch.
    """

    source: AttachedSource | None = None
    gone: bool = False
    barred: bool = False
