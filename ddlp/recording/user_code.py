"""Recording an epoch that torch prepares: what comes with each batch becomes the events of an epoch of ddlp's own.

A worker's rests are the times between its batches. A batch is recorded when training gets it.
"""

from __future__ import annotations

import os
import time

from torch.utils.data import DataLoader

from csd_engine.machine.computer import processors
from ddlp.process.ranks import here
from ddlp.process.version import __version__
from ddlp.recording.events import FORMAT, EpochBegan, Exhausted, HostBatch, Rested, Step
from ddlp.recording.recorder import Recorder, Recording
from ddlp.sources.workers.fetching import FetchHooks, Took
from ddlp.stats.live import length

__all__ = ["UserCodeRecording", "recording_of"]


def recording_of(
    record: str | os.PathLike[str] | Recorder | None, loader: DataLoader, epoch: int, strategy: str = "cpu", target: str = "cpu"
) -> UserCodeRecording | None:
    """Begin to record an epoch of user code; None: nothing is to be recorded. Raises OSError if nothing can be recorded."""
    if record is None:
        return None
    recorder, ranks = record if isinstance(record, Recorder) else Recorder(record), here()
    recording = recorder.begin()
    return UserCodeRecording(
        recording,
        EpochBegan(
            FORMAT,
            __version__,
            clock=recording.clock or time.time(),
            pid=os.getpid(),
            rank=0 if ranks is None else ranks.rank,
            epoch=epoch,
            strategy=strategy,
            batches=length(loader) or 0,
            batch_size=loader.batch_size or 0,
            workers=max(1, loader.num_workers),
            fetchers=0,
            devices=[],
            target=target,
            processors=processors(),
            prepared_by="torch's workers" if loader.num_workers else "training thread",
        ),
    )


class UserCodeRecording(FetchHooks):
    """Writes an epoch's events, ``first`` the first one."""

    def __init__(self, recording: Recording, first: EpochBegan) -> None:
        self._recording, self._first = recording, first
        self._ended_at: dict[int, float] = {}  # of each worker's last batch
        self._closed = False

    def began(self) -> None:
        """As `FetchHooks.began`."""
        self._recording.began(self._first)

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
        if since is not None and not self._first.itself:
            self._recording.saw(Rested("host", worker, since, max(since, until), over))
