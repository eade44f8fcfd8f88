"""What an epoch asks of a device."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ddlp.sources.host.native import PreparedBatch


class DeviceJob(Protocol):
    """What an epoch asks of a device that has joined it. None of these but `read` blocks."""

    @property
    def open(self) -> bool:
        """False once the device was lost, or after `close`."""

    def lease(self, lease: int, position: int) -> None:
        """Prepare the batch at this position."""

    def cancel(self, lease: int) -> None:
        """Stop working on this lease."""

    def release(self, lease: int) -> None:
        """The file of this lease is not needed any more."""

    def waiting(self, waiting: bool) -> None:
        """Training waits for a batch (or does not any more)."""

    def read(self, lease: int, position: int, path: Path) -> PreparedBatch:
        """A published batch, verified. Called by several threads at once.

        Blocks, over the socket not after `close`, but for as long as the spool's file system does. Raises
        `csd_engine.errors.DamagedBatch`, `EngineGone` or OSError.
        """

    def close(self) -> None:
        """Nothing more is wanted."""
