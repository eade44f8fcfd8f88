"""The source bytes of a job's samples, sent with its leases to an engine that sees no copy of the data set."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from csd_engine.batchfile.checksum import Checksum
from csd_engine.data.arrays import ArraySet
from csd_engine.data.base import Dataset, Fetch, Reader, at_hand, fingerprint
from csd_engine.data.carried import CarriedSet, pack_parcel
from csd_engine.data.concat import ConcatSet
from csd_engine.errors import DatasetError
from csd_engine.protocol import codec as say

__all__ = ["MOST_AHEAD", "Parcels", "carried"]

_LOG = logging.getLogger("ddlp")
_MOST_ASKED = 64  # questions that wait; an engine that means well has a few
MOST_AHEAD = 8  # leases whose samples are requested before the engine asks for them
_ROOM_S = 0.01  # between two looks whether the engine has read what was sent

Failed = Callable[[int, str], None]


def carried(dataset: Dataset) -> Dataset:
    """Return the description of a data set whose files come with the leases. Arrays are sent whole, as ever."""
    if isinstance(dataset, ConcatSet):
        return ConcatSet(tuple(map(carried, dataset.parts)))
    return dataset if isinstance(dataset, (ArraySet, CarriedSet)) else CarriedSet(fingerprint(dataset), len(dataset))


class Parcels:
    """The parcels of one job. Its thread reads files and sends them as the engine asks; it starts with the first question.

    Args:
        job: the job's name.
        reader: of the data set, for this object alone, which closes it.
        most_bytes: of a parcel.
        send: queues a part's frames; False while the engine has not read those before.
        failed: called by the thread with a lease, or `csd_engine.protocol.messages.OF_PROBE`, whose parcel can't be sent, and
            the reason.
    """

    def __init__(
        self, job: str, reader: Reader, most_bytes: int, send: Callable[[list[say.Payload]], bool], failed: Failed
    ) -> None:
        self._job, self._reader, self._most_bytes = job, reader, most_bytes
        self._send, self._failed = send, failed
        self._samples: dict[int, tuple[int, ...]] = {}  # of each lease whose parcel was not asked for yet
        self._cpu_s: dict[int, float] = {}  # of each lease's parcel
        self._asked: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        # The thread's own: the parcel that it sends, and what the next ones need.
        self._coming: dict[int, Fetch] = {}  # of the next leases, from object storage
        self._lease: int | None = None
        self._parcel = memoryview(b"")
        self._digest = ""
        self._sent = 0

    def expect(self, lease: int, indices: Iterable[int]) -> None:
        """Note the samples of a lease, by source index: the engine may ask for them from now on."""
        self._samples[lease] = tuple(dict.fromkeys(indices))

    def forget(self, lease: int) -> None:
        """Note that a lease is over."""
        self._samples.pop(lease, None)
        self._cpu_s.pop(lease, None)

    def cpu_s(self, lease: int) -> float:
        """Return the processor seconds that reading and sending a lease's parcel took. They are told once."""
        return self._cpu_s.pop(lease, 0.0)

    def wanted(self, question: say.NeedParcel) -> None:
        """Send the part that the engine asks for. Each part is sent once, in order; what is asked for beside that is not."""
        with self._lock:
            if self._closed or self._asked.qsize() >= _MOST_ASKED:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ddlp-parcels", daemon=True)
                self._thread.start()
        self._asked.put((question.lease, question.offset))

    def close(self) -> None:
        """End the thread, once it has read the file at hand. May be called again."""
        with self._lock:
            closed, self._closed = self._closed, True
            if closed:
                return
            self._asked.put(None)
            if self._thread is None:
                self._reader.close()

    # -- the thread

    def _run(self) -> None:
        try:
            while (asked := self._asked.get()) is not None and not self._closed:
                lease, offset = asked
                try:
                    self._answer(lease, offset)
                except Exception as error:  # for one lease: the host prepares its batch
                    if not isinstance(error, DatasetError):
                        _LOG.exception("the samples of lease %d can't be sent", lease)
                    self._end_parcel()
                    self._failed(lease, str(error) or repr(error))
        finally:
            self._end_parcel()
            self._drop(self._coming)
            self._reader.close()

    def _answer(self, lease: int, offset: int) -> None:
        began = time.thread_time()
        if offset == 0 and lease in self._samples:
            self._begin_parcel(lease, self._samples.pop(lease))
        if lease != self._lease or offset != self._sent:
            return
        part = self._parcel[offset : offset + say.MAX_PART_BYTES]
        frames = say.encode(say.ParcelPart(self._job, lease, offset, len(self._parcel), self._digest), part)
        self._cpu_s[lease] = self._cpu_s.get(lease, 0.0) + time.thread_time() - began  # before the batch comes
        while not self._send(frames):
            if self._closed:
                return
            time.sleep(_ROOM_S)
        self._sent += len(part)
        if self._sent == len(self._parcel):
            self._end_parcel()

    def _begin_parcel(self, lease: int, indices: Sequence[int]) -> None:
        begun = self._coming.pop(lease, None) or self._reader.fetch(indices)
        self._request_ahead()
        with at_hand(self._reader, indices, lambda: not self._closed, begun) as reader:
            parcel = pack_parcel(reader, (index for index in indices if not self._closed), self._most_bytes)
        checksum = Checksum()
        checksum.update(parcel)
        self._lease, self._parcel, self._digest, self._sent = lease, memoryview(parcel), checksum.hexdigest(), 0

    def _request_ahead(self) -> None:
        """Request the samples of the next leases, if they come from object storage: the engine asks for a lease at a time."""
        expected = tuple(self._samples.items())[:MOST_AHEAD]
        self._drop(self._coming.keys() - dict(expected))
        with contextlib.suppress(Exception):  # the lease itself will tell
            for lease, indices in expected:
                if lease not in self._coming and (fetch := self._reader.fetch(indices, ahead=True)) is not None:
                    self._coming[lease] = fetch

    def _drop(self, leases: Iterable[int]) -> None:
        for lease in tuple(leases):
            self._coming.pop(lease).close()

    def _end_parcel(self) -> None:
        self._lease, self._parcel, self._sent = None, memoryview(b""), 0
