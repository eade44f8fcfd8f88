"""`LoaderView`: a loader, as the code sees it that decides for it."""

from __future__ import annotations

from dataclasses import dataclass

from torch.utils.data import DataLoader

from ddlp.begin.auto_workers import LoaderWorkers
from ddlp.begin.loader_parts import LoaderParts
from ddlp.begin.progress import Progress
from ddlp.begin.travel import Travel
from ddlp.config import LoaderConfig
from ddlp.epoch.hooks import EpochHooks
from ddlp.frameworks.accelerate import Prepared

__all__ = ["LoaderView"]


@dataclass(frozen=True)
class LoaderView:
    """A loader's arguments, as they are now, and what it keeps from epoch to epoch.

    Attributes:
        torch: the loader, for the arguments that are DataLoader's.
        config: its other arguments, as they are now.
        parts: what it keeps from epoch to epoch.
        progress: where it is.
        travel: what is known about its samples.
        auto_workers: measures it, with ``num_workers="auto"``.
        prepared: what an Accelerator has made of it.
        hooks: of this epoch, which is then not recorded; None: no others than a recording.
    """

    torch: DataLoader
    config: LoaderConfig
    parts: LoaderParts
    progress: Progress
    travel: Travel
    auto_workers: LoaderWorkers | None
    prepared: Prepared | None
    hooks: EpochHooks | None
