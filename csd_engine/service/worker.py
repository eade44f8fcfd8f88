"""A worker process of the engine: takes one lease at a time from its pipe and fills the batch file, a few samples at a time.

`python -m csd_engine.service.worker_start [--slowdown F] [--large-image-lock FILE --large-bytes N] [--memory N]
[--sample-timeout S] [--cache DIR --cache-bytes N]`, JSON lines on standard input and output. After each few samples it looks
whether the lease was cancelled. When its pipe closes, it drops its lease and exits.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import resource
import signal
import sys
import time
import warnings
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Generator, Iterator, List, Optional, Tuple, Union

import numpy as np
from PIL import Image, ImageFile

from csd_engine.batchfile.checksum import READ_BYTES, Checksum
from csd_engine.batchfile.reader import Layout
from csd_engine.batchfile.writer import BatchWriter
from csd_engine.data.base import Reader, open_reader
from csd_engine.data.carried import CarriedReader
from csd_engine.data.concat import ConcatSet
from csd_engine.data.kinds import parse_dataset
from csd_engine.data.roots import Roots
from csd_engine.errors import (
    CacheRefused,
    DatasetError,
    EngineError,
    LeftToHost,
    OperatorFileError,
    SampleError,
    SpoolError,
    SpoolFull,
)
from csd_engine.kernels import kernel
from csd_engine.machine.computer import status_bytes
from csd_engine.machine.directory import Directory
from csd_engine.prepare.batch_maker import BatchMaker
from csd_engine.prepare.cached_batch import SampleCache
from csd_engine.prepare.decode_time import limit_decoding
from csd_engine.prepare.destination import Destination
from csd_engine.prepare.large_image_lock import LargeImageLock, most_bytes
from csd_engine.prepare.operator_file import OperatorDirectory
from csd_engine.prepare.sample import is_bad_image, sample_digest
from csd_engine.prepare.started_batch import BatchRequest, StartedBatch
from csd_engine.service.channel import WorkerChannel
from csd_engine.service.lease_fetches import LeaseFetches
from csd_engine.service.worker_shelves import WorkerShelves
from csd_engine.transforms.pipeline import Pipeline

__all__ = ["Slowdown", "Worker", "WrittenRows", "main"]

PROGRESS_S = 0.1  # at least this long between two reports of progress
_CHUNK_BYTES = 1 << 20  # memory for samples that are made at once: it stays in a core's cache
_MOST_PARTS = 4096  # of open jobs: each part has an open file or a mapping, of which Linux allows a process 65,530
_LEAST_MEMORY_BYTES = 384 << 20
_FIRST_TO_END = 500  # of 1000
_PATIENCE_S = 20.0  # with a storage: less than after which a worker is replaced
_PROBE_TURN_S = 0.1  # others' leases come between the samples of a long probe
_SLEEP_AT_LEAST_S = 0.002  # shorter sleeps are mostly timer slack
_MOST_PIXELS = Image.MAX_IMAGE_PIXELS  # Pillow's own limit, which a user's operators may change
_ONLY_THE_HOST = (Warning, LeftToHost, Image.DecompressionBombError)  # reasons for which only the host may make a sample


@dataclass
class _OpenJob:
    reader: Reader
    carried: Optional[CarriedReader]  # the reader, if the samples' bytes come with the leases
    parts: int  # data sets that its data set consists of
    layout: Layout
    most_pixels: Optional[int]  # of an image; None: any number
    directory: Directory
    maker: BatchMaker
    cache: Optional[SampleCache]  # that the maker uses


def _few_descriptors() -> bool:
    """Return whether files take more than half of the descriptors that this process may have. It needs some for a batch."""
    try:
        lowest = os.dup(2)
    except OSError:
        return True
    os.close(lowest)
    return lowest > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2


class _Cancelled(Exception):
    """The lease at work was cancelled."""


def _unforeseen(what: str, error: Exception) -> EngineError:
    """Return the error for an exception that no check foresaw. The worker tells it and goes on."""
    return EngineError(f"{what}: {type(error).__name__}: {error}.")


def _smaller(first: Optional[int], second: Optional[int]) -> Optional[int]:
    """Return the smaller of two limits; None is no limit."""
    return min((limit for limit in (first, second) if limit is not None), default=None)


def _only_the_host(error: Exception) -> bool:
    """Whether the sample may be sound, and only the host may make it: it alone warns, and has no limits but Pillow's."""
    return isinstance(error.__cause__, _ONLY_THE_HOST)


def _obey(most_pixels: Optional[int]) -> None:
    """Have Pillow refuse in this process what only a host may make: images that it warns of, or that are cut off.

    Called for each lease, since a user's operators may change these settings of the process.
    """
    Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = most_pixels, False
    for category in (UserWarning, RuntimeWarning):
        warnings.filterwarnings("error", category=category, module=r"PIL\.")


class Slowdown:
    """Makes this worker `factor` times slower, like a device's processor: it sleeps (factor - 1) times its CPU time."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._cpu_s = time.process_time()
        self._owed_s = 0.0

    def begin(self) -> None:
        """Count CPU time from now. A lease that was cancelled leaves no debt to the next one, perhaps another host's."""
        self._cpu_s = time.process_time()
        self._owed_s = min(self._owed_s, _SLEEP_AT_LEAST_S)

    def owed_s(self) -> float:
        """Return the seconds to sleep now; 0 while the time is too short for a sleep."""
        if self._factor <= 1:
            return 0.0
        now = time.process_time()
        self._owed_s += (self._factor - 1) * (now - self._cpu_s)
        self._cpu_s = now
        return self._owed_s if self._owed_s >= _SLEEP_AT_LEAST_S else 0.0

    def slept(self, seconds: float) -> None:
        """Subtract the seconds slept. More than owed counts for the next samples."""
        self._owed_s -= seconds


def _job_directory(path: str, place: List[int]) -> Directory:
    """Open a job's directory. Raises SpoolError if it is not the one at that place: somebody has swapped it."""
    try:
        directory = Directory(path)
        if directory.place != tuple(place):
            raise OSError(0, "it is not the directory that the engine has made")
    except OSError as error:
        raise SpoolError(f"the job's directory {path} cannot be used: {error.strerror}. Who writes to the spool?") from None
    return directory


@contextlib.contextmanager
def _with_parcel(job: _OpenJob, parcel: Optional[List[str]]) -> Iterator[None]:
    """Let the job's reader read the samples that came with a lease. `parcel`: their file's name, and its digest.

    Raises:
        DatasetError: the file is missing or damaged.
    """
    if job.carried is None or parcel is None:
        yield
        return
    name, digest = parcel
    path = os.path.join(job.directory.path, name)
    try:
        descriptor = job.directory.open(name, os.O_RDONLY)
    except OSError as error:
        raise DatasetError(f"the samples' bytes cannot be read: {error.strerror}, {path}") from None
    try:
        checksum, memory = Checksum(), memoryview(bytearray(READ_BYTES))
        while checksum.read(descriptor, memory):
            pass
        if checksum.hexdigest() != digest:
            raise DatasetError("the samples' bytes came damaged: they do not have the digest that the host has sent")
    except BaseException:
        os.close(descriptor)
        raise
    try:
        job.carried.take(descriptor, path)
        yield
    finally:
        job.carried.drop()


def _sample_memory(layout: Layout, samples: int) -> Tuple[np.ndarray, Optional[np.ndarray]]:
    """Return memory for this number of samples of the layout: images and boxes."""
    images = np.empty((samples, layout.height, layout.width, layout.channels), dtype=np.uint8)
    return images, np.empty((samples, layout.boxes, 4), dtype=np.int32) if layout.boxes else None


class WrittenRows(Destination):
    """The rows of a batch file. Samples are made in a small reused memory, then written to the file.

    Args:
        writer: the batch file's writer; it stays open.
        before_writing: called between making samples and writing them.

    Attributes:
        first: the row in the file at which the samples that are made begin.
        left_out: how many rows are left to the host.
    """

    def __init__(self, writer: BatchWriter, before_writing: Callable[[], None] = lambda: None) -> None:
        layout = writer.layout
        self.first = self.left_out = 0
        self._writer, self._before_writing = writer, before_writing
        self._images, self._boxes = _sample_memory(layout, max(1, min(layout.batch, _CHUNK_BYTES // layout.row_bytes)))

    def place(self, part: slice) -> Tuple[np.ndarray, Optional[np.ndarray]]:
        """See `Destination.place`."""
        samples = part.stop - part.start
        return self._images[:samples], None if self._boxes is None else self._boxes[:samples]

    def done(self, part: slice) -> None:
        """See `Destination.done`. Raises as `BatchWriter.write_rows`."""
        self._before_writing()
        self._writer.write_rows(self.first + part.start, *self.place(part))

    def leave_out(self, row: int) -> None:
        """Mark the next row as one that the host makes. Its bytes are 0."""
        part = slice(row, row + 1)
        for memory in self.place(part):
            if memory is not None:
                memory[:] = 0
        self.done(part)
        self._writer.mark_bad(self.first + row)
        self.left_out += 1


class _OneRow(Destination):
    """Memory for one sample."""

    def __init__(self, layout: Layout) -> None:
        self._images, self._boxes = _sample_memory(layout, 1)

    def place(self, part: slice) -> Tuple[np.ndarray, Optional[np.ndarray]]:
        return self._images, self._boxes

    def done(self, part: slice) -> None:
        pass

    def sample(self) -> Tuple[np.ndarray, Optional[np.ndarray]]:
        """Return the sample that was made: its image and its boxes."""
        return self._images[0], None if self._boxes is None else self._boxes[0]


class Worker:
    """The worker's loop. `channel` brings commands and takes reports. `shelves` None: it keeps no samples."""

    def __init__(
        self,
        channel: WorkerChannel,
        slowdown: float,
        large_image_lock: LargeImageLock,
        shelves: Optional[WorkerShelves] = None,
    ) -> None:
        self._large_image_lock, self._shelves = large_image_lock, shelves
        self._channel = channel
        self._slowdown = Slowdown(slowdown)
        self._commands: Dict[str, Dict[str, Any]] = {}  # that open the jobs
        self._jobs: Dict[str, Union[_OpenJob, EngineError]] = {}  # the least recently used first
        self._inbox: Deque[Dict[str, Any]] = deque()
        self._charged_until = time.monotonic()  # the time before was idle, or a report has told of it
        self._reported_s = 0.0  # when the progress of the lease at work was told
        self._fetches: Optional[LeaseFetches] = None  # of the lease at work
        self._ahead: Dict[int, LeaseFetches] = {}  # by lease: of those that are probably the next ones, in their order

    def run(self) -> None:
        """Work until the pipe closes."""
        do = {
            "job": self._note_job,
            "forget": self._forget,
            "lease": self._lease,
            "next": self._note_next,
            "probe": self._probe,
            "cancel": lambda _: None,  # it came after the end of its lease
        }
        try:
            native = kernel()  # before the first sample: loading takes a moment, and the service then knows the variant
            self._channel.send("ready", kernel="none" if native is None else native.variant)
            while True:
                while not self._inbox:
                    self._inbox.extend(self._channel.receive(None))
                    self._charged_until = time.monotonic()
                command = self._inbox.popleft()
                do[command["do"]](command)
        except EOFError:
            return
        finally:
            if self._shelves is not None:
                self._shelves.close()

    def _report(self, kind: str, **fields: Any) -> None:
        """Report the end of a lease or probe, and the seconds spent on it: with its job's opening, and whatever came of it."""
        began, self._charged_until = self._charged_until, time.monotonic()
        self._channel.send(kind, spent_s=self._charged_until - began, **fields)

    def _note_job(self, command: Dict[str, Any]) -> None:
        self._commands[command["job"]] = command

    def _job(self, key: str) -> Union[_OpenJob, EngineError]:
        """Return a job, or why it can't be opened. One that was not used lately may be opened anew, and others closed."""
        known = self._jobs.pop(key, None)
        others = [name for name, job in self._jobs.items() if isinstance(job, _OpenJob)]
        parts = sum(job.parts for job in (known, *self._jobs.values()) if isinstance(job, _OpenJob))
        for name in others:
            if parts <= _MOST_PARTS and not _few_descriptors():
                break
            other = self._jobs.pop(name)
            assert isinstance(other, _OpenJob)
            parts -= other.parts
            self._close(other)
        self._jobs[key] = job = known or self._opened(self._commands[key])
        return job

    def _opened(self, command: Dict[str, Any]) -> Union[_OpenJob, EngineError]:
        try:
            directory = _job_directory(command["directory"], command["place"])
            most_pixels = _smaller(command["most_pixels"], _MOST_PIXELS)
            _obey(most_pixels)  # what is kept of samples depends on it
            roots = Roots.from_data(command["roots"])
            operators = command["operators"]
            calls = None if operators is None else OperatorDirectory(operators).call
            pipeline = Pipeline.parse(command["pipeline"], calls)
            layout = Layout.parse(command["layout"])
            manifests = command["manifests"]
            dataset = parse_dataset(command["dataset"])
            reader: Reader = open_reader(
                dataset,
                roots.resolve,
                lambda fingerprint: os.path.join(manifests, fingerprint),
                roots.beneath,
            )
            carried = CarriedReader(reader) if dataset.carried else None
            reader = carried or reader
            try:
                cache = None
                if self._shelves is None:
                    maker = BatchMaker(reader, pipeline, (layout.height, layout.width, layout.channels), layout.boxes)
                else:
                    maker, cache = self._shelves.maker(reader, pipeline, layout, dataset, roots)
            except BaseException:
                reader.close()
                raise
            parts = len(dataset.parts) if isinstance(dataset, ConcatSet) else 1
            return _OpenJob(reader, carried, parts, layout, most_pixels, directory, maker, cache)
        except Exception as error:  # reported with each lease
            failure = error if isinstance(error, EngineError) else _unforeseen("the job cannot be opened", error)
            failure.__traceback__ = failure.__context__ = failure.__cause__ = None  # their frames hold files and memory
            return failure

    def _forget(self, command: Dict[str, Any]) -> None:
        self._commands.pop(command["job"], None)
        job = self._jobs.pop(command["job"], None)
        if isinstance(job, _OpenJob):
            self._close(job)

    def _close(self, job: _OpenJob) -> None:
        self._drop_ahead(lambda _, fetches: fetches.reader is job.reader)
        job.reader.close()
        job.directory.close()
        if self._shelves is not None and job.cache is not None:
            self._shelves.release(job.cache.shelf)

    def _receive(self, lease: Optional[int], timeout_s: float) -> None:
        """Take in the service's commands, waiting at most `timeout_s`. Raises _Cancelled or EOFError."""
        self._inbox.extend(self._channel.receive(timeout_s))
        for command in list(self._inbox):
            if command["do"] == "next" and self._fetches is not None:  # what was begun for the lease at work is in use
                self._inbox.remove(command)
                self._note_next(command)
            elif command["do"] == "cancel" and command["lease"] == lease:
                self._inbox.remove(command)
                raise _Cancelled

    def _throttle(self, lease: Optional[int]) -> None:
        """Look for a cancel once, and sleep for the slowdown. Commands are read during the sleep."""
        owed_s = self._slowdown.owed_s()
        until = time.monotonic() + owed_s
        start = time.monotonic()
        while True:
            self._receive(lease, max(0.0, until - time.monotonic()))
            if time.monotonic() >= until:
                break
        if owed_s:
            self._slowdown.slept(time.monotonic() - start)

    def _lease(self, command: Dict[str, Any]) -> None:
        job, lease = self._job(command["job"]), command["lease"]
        about = {"job": command["job"], "lease": lease}
        if isinstance(job, EngineError):
            self._report("failed", reason=str(job), fatal=True, full=False, **about)
            return
        start, before = time.monotonic(), _cached(job)
        self._slowdown.begin()
        writer = None
        try:
            self._receive(lease, 0)
            layout = dataclasses.replace(job.layout, batch=len(command["items"]))
            writer = BatchWriter(job.directory, command["identity"], lease, layout, command["begun"])
            with _with_parcel(job, command["parcel"]):
                self._fill(job, writer, command)
            path = writer.publish()
        except BaseException as error:
            if writer is not None:
                writer.abort()
            if not isinstance(error, Exception) or isinstance(error, EOFError):  # EOFError: the service is gone
                raise
            if isinstance(error, _Cancelled):
                self._report("cancelled", **about)
                return
            if not isinstance(error, (SampleError, SpoolError, DatasetError)):
                error = _unforeseen("the batch cannot be made", error)
            full = isinstance(error, SpoolFull)
            fatal = isinstance(error, SpoolError) and not full
            self._report("failed", reason=str(error), fatal=fatal, full=full, **about)
        else:
            hits, misses = (after - begun for after, begun in zip(_cached(job), before))
            busy_s = time.monotonic() - start
            self._report("published", name=path.name, busy_s=busy_s, hits=hits, misses=misses, **about)

    def _fill(self, job: _OpenJob, writer: BatchWriter, command: Dict[str, Any]) -> None:
        """Make a lease's samples. Raises _Cancelled, or as `StartedBatch.make` and `BatchWriter.write_rows` do."""
        rows = WrittenRows(writer, self._large_image_lock.release)
        items = np.array(command["items"], dtype=np.int64).reshape(-1, 2)
        self._reported_s = time.monotonic()
        with contextlib.closing(self._brought(job, items[:, 0], command["lease"])) as brought:
            for part, reader in brought:
                rows.first = part.start
                with self._start(job, command, items[part], reader) as batch:
                    self._fill_part(batch, part, rows, writer, command)

    def _fill_part(
        self, batch: StartedBatch, part: slice, rows: WrittenRows, writer: BatchWriter, command: Dict[str, Any]
    ) -> None:
        done = 0
        while done < part.stop - part.start:
            try:
                done = self._make(batch, done, rows)
            except SampleError as error:
                if not (writer.layout.bad_rows and (is_bad_image(error) or _only_the_host(error))):
                    raise
                if rows.left_out >= writer.layout.most_bad_rows:
                    raise
                rows.leave_out(done)  # the host makes this row
                done += 1
            self._throttle(command["lease"])
            if time.monotonic() - self._reported_s >= PROGRESS_S:
                self._reported_s = time.monotonic()
                self._channel.send("progress", job=command["job"], lease=command["lease"], samples=part.start + done)

    def _brought(
        self, job: _OpenJob, sources: np.ndarray, lease: Optional[int], patience_s: float = _PATIENCE_S
    ) -> Generator[Tuple[slice, Optional[Reader]], None, None]:
        """Yield the parts of a lease whose samples are at hand, in their order, with a reader of them until the next part.

        Samples of an object storage are requested a few parts ahead, and then those of the next leases. All others need no
        bringing: the lease is one part, and the reader None. ``lease``: None for a probe. ``patience_s``: for each part.

        Raises:
            _Cancelled: the lease or probe was cancelled.
            SampleError: the storage does not answer.
        """
        if not job.reader.slow:
            yield slice(0, len(sources)), None
            return
        fetches = self._fetches = self._next_fetches(job, sources, lease)
        try:
            while fetches.left:
                self._request()
                self._receive(lease, 0)
                part, fetch = fetches.first()
                fetch.hurry()
                until = time.monotonic() + patience_s
                reader = fetch.wait(lambda: self._goes_on(lease, until))  # noqa: B023  it is called here alone
                if reader is None:
                    why = f"its storage has not answered for {patience_s:.3g} s"
                    raise SampleError(job.reader.where(int(sources[part.start])), why)
                yield part, reader
                fetches.done()
        finally:
            self._fetches = None
            fetches.close()

    def _next_fetches(self, job: _OpenJob, sources: np.ndarray, lease: Optional[int]) -> LeaseFetches:
        """Return the fetches of these samples. Those of a lease may have begun while an earlier one was at work."""
        if lease is not None:
            self._drop_ahead(lambda _, fetches: fetches.reader is not job.reader)
            ahead = self._ahead.pop(lease, None)
            if ahead is not None and np.array_equal(ahead.sources, sources):
                return ahead
            if ahead is not None:
                ahead.close()
        return LeaseFetches(job.reader, sources, job.cache)

    def _note_next(self, command: Dict[str, Any]) -> None:
        """Request the samples of a lease that is probably one of the next, once all of the lease at work are requested."""
        job = self._jobs.get(command["job"])
        if isinstance(job, _OpenJob) and job.reader.slow:
            still = set(command["following"]) - {command["lease"]}
            self._drop_ahead(lambda lease, fetches: lease not in still or fetches.reader is not job.reader)
            sources = np.array(command["sources"], dtype=np.int64)
            self._ahead[command["lease"]] = LeaseFetches(job.reader, sources, job.cache)
            self._request()

    def _request(self) -> None:
        """Request what the lease at work needs, then what the next ones need. Raises DatasetError for the one at work."""
        if self._fetches is not None and not self._fetches.begin(ahead=False):
            return
        try:
            all(fetches.begin(ahead=True) for fetches in self._ahead.values())
        except Exception:  # the lease itself will tell
            self._drop_ahead(lambda *_: True)

    def _drop_ahead(self, drop: Callable[[int, LeaseFetches], bool]) -> None:
        for lease, fetches in list(self._ahead.items()):
            if drop(lease, fetches):
                del self._ahead[lease]
                fetches.close()

    def _goes_on(self, lease: Optional[int], until: float) -> bool:
        """Return whether it is not that late. Raises _Cancelled."""
        self._receive(lease, 0)
        return time.monotonic() < until

    def _start(
        self, job: _OpenJob, command: Dict[str, Any], items: np.ndarray, reader: Optional[Reader]
    ) -> StartedBatch:
        _obey(job.most_pixels)
        large = self._large_image_lock.large_bytes, self._large_image_lock.acquire
        request = BatchRequest(items[:, 0], items[:, 1], command["seed"], command["epoch"], reader, *large)
        return job.maker.start(request)

    def _make(self, batch: StartedBatch, first: int, rows: Destination) -> int:
        """Make samples. A large image waits until no other worker decodes one."""
        try:
            return batch.make(first, rows)
        finally:
            self._large_image_lock.release()

    def _probe(self, command: Dict[str, Any]) -> None:
        """Make the first samples of a probe, as many as fit into a turn. After ``left_s`` seconds all others fail."""
        began = time.monotonic()
        job, items = self._job(command["job"]), command["items"]
        digests: List[str] = []
        try:
            for item in items:
                spent_s = time.monotonic() - began
                if spent_s > command["left_s"]:
                    digests += ["error: the probe took too long"] * (len(items) - len(digests))
                if len(digests) == len(items) or (digests and spent_s > _PROBE_TURN_S):
                    break
                digests.append(self._digest(job, command, item, command["left_s"] - spent_s))
                self._receive(None, 0)
        except _Cancelled:
            digests += ["error: the probe was cancelled"] * (len(items) - len(digests))
        self._report("probed", job=command["job"], digests=digests)

    def _digest(
        self, job: Union[_OpenJob, EngineError], command: Dict[str, Any], item: List[int], patience_s: float
    ) -> str:
        """Make a sample of a probe, and return its digest, or why there is none. Raises _Cancelled."""
        try:
            if isinstance(job, EngineError):
                raise job
            row, items = _OneRow(job.layout), np.array([item], dtype=np.int64)
            with _with_parcel(job, command["parcel"]), contextlib.closing(
                self._brought(job, items[:, 0], None, patience_s)
            ) as brought:
                for _, reader in brought:
                    with self._start(job, command, items, reader) as batch:
                        self._make(batch, 0, row)
            return sample_digest(*row.sample())
        except _Cancelled:
            raise
        except EngineError as error:
            by_operator = isinstance(error, OperatorFileError) or (isinstance(error, SampleError) and error.by_operator)
            return f"{'left' if _only_the_host(error) else 'refused' if by_operator else 'error'}: {error}"
        except Exception as error:
            return f"error: {_unforeseen('the sample cannot be made', error)}"


def _cached(job: _OpenJob) -> Tuple[int, int]:
    """Return the samples of this job's shelf that were found there since it was opened, and those that were not."""
    return (0, 0) if job.cache is None else (job.cache.shelf.counts.hits, job.cache.shelf.counts.misses)


def _shelves(directory: str, quota_bytes: int, memory_bytes: int) -> Optional[WorkerShelves]:
    """Return the shelves in this directory; None: there is none, or it can't be used any more, which is told."""
    try:
        return WorkerShelves(directory, quota_bytes, memory_bytes) if directory else None
    except CacheRefused as error:
        print(f"csd_engine: {error}", file=sys.stderr, flush=True)
        return None


def limit_memory(memory_bytes: int) -> None:
    """Have this process get a MemoryError before it takes half of `memory_bytes` (0: not known, no limit).

    What counts is writable private memory (RLIMIT_DATA): the data set's files, which are mapped, do not. If memory runs out
    all the same, Linux ends a worker before the service.
    """
    with contextlib.suppress(OSError, ValueError, KeyError):
        Path("/proc/self/oom_score_adj").write_text(str(_FIRST_TO_END), "ascii")
    with contextlib.suppress(OSError, ValueError, KeyError):
        if memory_bytes:
            most = status_bytes()["VmData"] + max(_LEAST_MEMORY_BYTES, memory_bytes // 2)
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def main(arguments: Optional[List[str]] = None) -> None:
    """Run a worker on this process's standard input and output."""
    parser = argparse.ArgumentParser(prog="python -m csd_engine.service.worker_start", description="The engine starts these.")
    parser.add_argument("--slowdown", type=float, default=1.0)
    parser.add_argument("--large-image-lock", default="", metavar="FILE")
    parser.add_argument("--large-bytes", type=int, default=0, metavar="N")
    parser.add_argument("--sample-timeout", type=float, default=math.inf, metavar="S")
    parser.add_argument("--memory", type=int, default=0, metavar="N")
    parser.add_argument("--cache", default="", metavar="DIR")
    parser.add_argument("--cache-bytes", type=int, default=0, metavar="N")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the engine, which closes our pipe
    limit_memory(options.memory)
    limit_decoding(options.sample_timeout)
    commands, reports = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a forgotten breakpoint() in a user's operator must not read commands
    os.dup2(2, 1)  # a stray print must not garble the reports
    large_image_lock = LargeImageLock(options.large_image_lock, options.large_bytes, most_bytes(options.memory))
    shelves = _shelves(options.cache, options.cache_bytes, options.memory)
    Worker(WorkerChannel(commands, reports), options.slowdown, large_image_lock, shelves).run()
    sys.stdout.flush()
