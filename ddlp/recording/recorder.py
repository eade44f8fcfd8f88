"""Recording: what a run's threads did, as JSON lines, written by a thread of its own."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections import deque
from pathlib import Path
from typing import TextIO

from ddlp.epoch.hooks import EpochHooks
from ddlp.recording.events import EpochBegan, EpochEnded, Event, to_line
from ddlp.recording.gpus import SampledGpus
from ddlp.recording.watch import Observer, Watch

__all__ = ["Recorder", "Recording", "hooks_of"]

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


def hooks_of(record: str | os.PathLike[str] | Recorder | None, observers: tuple[Observer, ...]) -> EpochHooks:
    """The hooks of the epoch that begins now: they do nothing where nobody watches.

    Raises OSError where nothing can be recorded.
    """
    if record is not None:
        recorder = record if isinstance(record, Recorder) else Recorder(record)
        observers = (recorder.begin(), *observers)
    return Watch(observers) if observers else EpochHooks()


class Recording(Observer):
    """One epoch's file. Any thread may tell it what it saw."""

    def __init__(self, file: TextIO, limit: int = LIMIT) -> None:
        self._file = file
        self._limit = limit
        self._origin = time.monotonic()
        self.clock = time.time()
        self._events: deque[Event] = deque()
        self._left_out = 0
        self._wake = threading.Event()
        self._end: EpochEnded | None = None
        self._writer: threading.Thread | None = None

    def began(self, event: EpochBegan) -> None:
        """Write this event first, although the epoch's threads are at work already."""
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
