"""Recording an epoch that torch prepares: what comes with each batch becomes the events of an epoch of ddlp's own.

A worker's rests are the times between its batches. A batch is recorded when training gets it.
"""

from __future__ import annotations

import os
import time
from typing import Any

from torch.utils.data import DataLoader

from ddlp.recording.events import Exhausted, HostBatch, Rested, Step
from ddlp.recording.recorder import Recorder, Recording, recording_of
from ddlp.sources.workers.fetching import FetchHooks, Took
from ddlp.stats.live import length

__all__ = ["UserCodeRecording", "user_code_recording"]


def user_code_recording(
    record: str | os.PathLike[str] | Recorder | None, loader: DataLoader, epoch: int, strategy: str = "cpu", target: str = "cpu"
) -> UserCodeRecording | None:
    """Begin to record an epoch of user code; None: nothing is to be recorded. Raises OSError if nothing can be recorded."""
    recording = recording_of(record)
    if recording is None:
        return None
    first = {
        "epoch": epoch, "strategy": strategy, "batches": length(loader) or 0, "batch_size": loader.batch_size or 0,
        "workers": max(1, loader.num_workers), "fetchers": 0, "devices": [], "target": target,
        "prepared_by": "torch's workers" if loader.num_workers else "training thread",
    }  # fmt: skip
    return UserCodeRecording(recording, first)


class UserCodeRecording(FetchHooks):
    """Writes an epoch's events, ``first`` the first one's fields."""

    def __init__(self, recording: Recording, first: dict[str, Any]) -> None:
        self._recording, self._first = recording, first
        self._ended_at: dict[int, float] = {}  # of each worker's last batch
        self._closed = False

    def began(self) -> None:
        """As `FetchHooks.began`."""
        self._recording.start(**self._first)

    def delivered(self, took: Took, position: int, samples: int, asked_at: float, got_at: float, ready: int) -> None:
        """As `FetchHooks.delivered`."""
        self._rested(took.worker, took.began_at, over=False)
        self._recording.saw(
            HostBatch(took.worker, position, took.began_at, took.ended_at, took.read_s, took.cpu_s, "made")
        )
        self._ended_at[took.worker] = took.ended_at
        self._recording.saw(Step(position, "cpu", samples, asked_at, got_at, time.monotonic(), ready, 0, 0, 0))

    def exhausted(self, asked_at: float) -> None:
        """As `FetchHooks.exhausted`."""
        self._recording.saw(Exhausted(asked_at, time.monotonic()))

    def closed(self) -> None:
        """As `FetchHooks.closed`."""
        if not self._closed:
            self._closed = True
            for worker in self._ended_at:
                self._rested(worker, time.monotonic(), over=True)
            self._recording.closed()

    def _rested(self, worker: int, until: float, over: bool) -> None:
        since = self._ended_at.get(worker)
        if since is not None and self._first["prepared_by"] != "training thread":
            self._recording.saw(Rested("host", worker, since, max(since, until), over))
