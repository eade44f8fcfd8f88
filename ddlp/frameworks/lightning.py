"""Lightning's Trainer, which keeps the states of its loaders in its checkpoints."""

from __future__ import annotations

import sys

_ASKS = ("lightning.pytorch.utilities.combined_loader", "pytorch_lightning.utilities.combined_loader")


def counts_batches() -> bool:
    """True where Lightning's Trainer asks for a loader's state, from within that loader's ``state_dict``.

    Its loop counts batches, and never asks for the one after the last. When it goes on from a checkpoint of an epoch's last
    batch it begins the next epoch, and would take an iterator with nothing left for that one.
    """
    frame = sys._getframe(2)
    return frame.f_globals.get("__name__") in _ASKS
