"""Recording: what a run's threads did, as JSON lines, written by a thread of its own."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections import deque
from pathlib import Path
from typing import Any, TextIO

from csd_engine.machine.computer import processors
from ddlp.process.ranks import here
from ddlp.process.version import __version__
from ddlp.recording.events import FORMAT, EpochBegan, EpochEnded, Event, to_line
from ddlp.recording.gpus import SampledGpus
from ddlp.recording.watch import Watch
from ddlp.schedule.strategies import Strategy
from ddlp.sources.base import Resources

__all__ = ["Recorder", "Recording", "recording_of"]

LIMIT = 1 << 16  # events that wait to be written: some 10 MB
_LOOK_S = 1.0  # a killed process loses at most this much
_SAMPLE_S = 0.25  # between two samples of the GPUs: NVML's own figures are means over a sixth of a second to a second


class Recorder:
    """Records every epoch of a loader: ``DDLPLoader(..., record=Recorder("runs/x"))``, or just ``record="runs/x"``.

    Each epoch is a file of its own there, ``0000.jsonl`` and so on in the order in which they began. Several loaders and
    processes may share a directory. Pickles.

    Args:
        directory: made with the first epoch.
        limit: events kept in memory until they are written; beyond that they are left out, and counted.
    """

    def __init__(self, directory: str | os.PathLike[str], limit: int = LIMIT) -> None:
        self.directory = Path(directory)
        self.limit = limit

    def begin(self) -> Recording:
        """An epoch begins. Raises OSError where nothing can be written."""
        self.directory.mkdir(parents=True, exist_ok=True)
        number = sum(1 for _ in self.directory.glob("*.jsonl"))
        while True:
            try:
                file = open(self.directory / f"{number:04d}.jsonl", "x", encoding="utf-8")
            except FileExistsError:  # another loader's
                number += 1
            else:
                return Recording(file, self.limit)


def recording_of(record: str | os.PathLike[str] | Recorder | None) -> Recording | None:
    """A recording of the epoch that begins now; None: nothing is to be recorded. Raises OSError if nothing can be recorded."""
    if record is None:
        return None
    return (record if isinstance(record, Recorder) else Recorder(record)).begin()


class Recording(Watch):
    """One epoch's file. Any thread may tell it what it saw."""

    def __init__(self, file: TextIO, limit: int = LIMIT) -> None:
        super().__init__()
        self._file = file
        self._limit = limit
        self._origin = time.monotonic()
        self._clock = time.time()
        self._events: deque[Event] = deque()
        self._left_out = 0
        self._wake = threading.Event()
        self._end: EpochEnded | None = None
        self._writer: threading.Thread | None = None

    def began(self, resources: Resources, strategy: Strategy) -> None:
        """As `EpochHooks.began`."""
        super().began(resources, strategy)
        epoch, ledger = resources.epoch, strategy.ledger
        self.start(
            epoch=epoch.number, strategy=strategy.name, batches=ledger.length, batch_size=max(1, strategy.rates.full_batch),
            workers=epoch.host_threads, fetchers=epoch.fetchers, devices=list(ledger.devices),
            target="cpu" if epoch.target is None else str(epoch.target),
        )  # fmt: skip

    def start(self, **fields: Any) -> None:
        """Write these fields of `EpochBegan` first, although the epoch's threads are at work already."""
        ranks = here()
        event = EpochBegan(
            FORMAT, __version__, self._clock, os.getpid(), 0 if ranks is None else ranks.rank, processors=processors(), **fields
        )
        self._events.appendleft(event)
        self._writer = threading.Thread(target=self._write, name="ddlp-record", daemon=True)
        self._writer.start()

    def saw(self, event: Event) -> None:
        """Take an event; costs its thread a microsecond."""
        waiting = len(self._events)
        if waiting >= self._limit:
            self._left_out += 1
            return
        self._events.append(event)
        if waiting * 2 == self._limit:
            self._wake.set()

    def closed(self) -> None:
        """The epoch is over: write what is left."""
        if self._end is not None:
            return
        if self._writer is None:  # the epoch could not begin
            self._file.close()
            Path(self._file.name).unlink(missing_ok=True)
            return
        self._end = EpochEnded(time.monotonic(), self._left_out)
        self._wake.set()
        self._writer.join()

    def _write(self) -> None:
        gpus = SampledGpus()
        try:
            with self._file as file:
                end: EpochEnded | None = None
                while end is None:
                    self._wake.wait(_SAMPLE_S if gpus else _LOOK_S)
                    self._wake.clear()
                    end = self._end  # read it before the events: all of them were there before it was set
                    self._events.extend(gpus.sample())
                    while self._events:
                        file.write(to_line(self._events.popleft(), self._origin) + "\n")
                    file.write("" if end is None else to_line(end, self._origin) + "\n")
                    file.flush()
        except OSError as error:  # a full disk is no reason to end the training
            self._limit = 0
            self._events.clear()
            warnings.warn(f"ddlp: recording into {self._file.name} ended: {error}. Free space there.", stacklevel=1)
        finally:
            gpus.close()
