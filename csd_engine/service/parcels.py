"""Parcels: the source bytes of samples that hosts send with their leases, for an engine that sees no copy of the data set.

The engine asks for each part, a few leases ahead. One parcel of a host comes at a time, into its job's directory. Parcels count
in the spool's quota: those of all hosts take a quarter of it at most, and those of one host an eighth. So batches have room.
What is wrong with a parcel fails its lease or probe alone.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Tuple

from csd_engine.errors import EngineError
from csd_engine.machine.sizes import size_text
from csd_engine.protocol import codec as say
from csd_engine.service.jobs import Job, Parcel
from csd_engine.service.spool import Spool

__all__ = ["Parcels", "most_bytes"]

_WINDOW_BYTES = 4 * say.MAX_PART_BYTES  # that are asked for and have not come
_SILENT_S = 60.0  # a host reads a whole batch before it sends the first part


def most_bytes(quota_bytes: int) -> int:
    """Return how many bytes a parcel may have, and all parcels of one host together."""
    return quota_bytes // 8


@dataclass
class _Incoming:
    job: Job
    lease: int  # or OF_PROBE
    parcel: Parcel
    descriptor: int


class Parcels:
    """The parcels of all jobs on one spool. `send` sends a message to a host."""

    def __init__(self, spool: Spool, send: Callable[[bytes, say.Message], None]) -> None:
        self._spool, self._send = spool, send
        self._incoming: Dict[str, _Incoming] = {}  # by host
        self._held: Dict[str, int] = {}  # bytes, by host

    def ask(self, jobs: List[Job], ahead: int) -> List[Tuple[Job, int, str]]:
        """Ask hosts for what is needed next. Return (job, lease or OF_PROBE, reason) of parcels that will not come.

        Args:
            jobs: the open jobs with carried data.
            ahead: of how many leases of a job the parcels may be here before they are begun.
        """
        failed: List[Tuple[Job, int, str]] = []
        for host in dict.fromkeys(job.host for job in jobs):
            if host not in self._incoming:
                wanted = self._next([job for job in jobs if job.host == host], ahead)
                if wanted is not None:
                    why = self._begin(*wanted)
                    if why:
                        failed.append((*wanted, why))
        for host, incoming in list(self._incoming.items()):
            parcel = incoming.parcel
            if parcel.total and not parcel.reserved:
                self._reserve(host, parcel)
            if parcel.complete:
                os.close(incoming.descriptor)
                del self._incoming[host]
            elif parcel.come < parcel.asked and time.monotonic() - parcel.heard_s > _SILENT_S:
                failed.append((incoming.job, incoming.lease, f"the host has not sent the samples' bytes for {_SILENT_S:g} s"))
            elif parcel.reserved or not parcel.asked:
                self._ask_on(incoming)
        return failed

    @staticmethod
    def _next(jobs: List[Job], ahead: int) -> Optional[Tuple[Job, int]]:
        """Return whose parcel a host should send next: a probe's, else that of the lease that comes first in its job."""
        candidates: List[Tuple[int, Job, int]] = []
        for job in jobs:
            if job.probes and job.probe_parcel is None:
                return job, say.OF_PROBE
            for place, lease in enumerate(itertools.islice(job.queue, ahead)):
                if job.work[lease].parcel is None:
                    candidates.append((place, job, lease))
                    break
        return min(candidates, key=lambda candidate: candidate[0])[1:] if candidates else None

    def _begin(self, job: Job, lease: int) -> str:
        """Make the file of a parcel. Return why that failed, or an empty text."""
        parcel = Parcel(f"{'probe' if lease == say.OF_PROBE else lease}.parcel", time.monotonic())
        file = self._spool.job_file(job.key, parcel.name)
        try:
            descriptor = file.directory.open(file.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            return f"the samples' bytes cannot be kept: {error.strerror}, {file.directory.path}"
        if lease == say.OF_PROBE:
            job.probe_parcel = parcel
        else:
            job.work[lease].parcel = parcel
        self._incoming[job.host] = _Incoming(job, lease, parcel, descriptor)
        return ""

    def _ask_on(self, incoming: _Incoming) -> None:
        parcel = incoming.parcel
        while not parcel.asked or (parcel.asked < parcel.total and parcel.asked - parcel.come < _WINDOW_BYTES):
            if parcel.asked == parcel.come:
                parcel.heard_s = time.monotonic()  # the host's time begins now
            self._send(incoming.job.peer, say.NeedParcel(incoming.job.name, incoming.lease, parcel.asked))
            parcel.asked += say.MAX_PART_BYTES

    def _reserve(self, host: str, parcel: Parcel) -> None:
        """Count a parcel in the spool, if there is room. What was announced counts, since no more is asked for before."""
        spool, held = self._spool, self._held.get(host, 0)
        if (
            held + parcel.total <= most_bytes(spool.quota_bytes)
            and spool.parcel_bytes + parcel.total <= spool.quota_bytes // 4
            and not spool.shortage_of_bytes(parcel.total)
        ):
            spool.reserve_parcel(parcel.total)
            self._held[host] = held + parcel.total
            parcel.reserved = True

    def add(self, job: Job, message: say.ParcelPart, part: say.Payload) -> None:
        """Store a part. One that nobody waits for is dropped.

        Raises:
            EngineError: it is not what was asked for, or cannot be kept.
        """
        incoming = self._incoming.get(job.host)
        if incoming is None or incoming.job is not job or incoming.lease != message.lease:
            return
        parcel = incoming.parcel
        if message.offset != parcel.come or parcel.come >= parcel.asked:
            return
        most = most_bytes(self._spool.quota_bytes)
        if not parcel.total:
            if not 0 < message.total <= most:
                raise EngineError(
                    f"the samples of the batch take {size_text(message.total)}, the engine takes at most {size_text(most)} "
                    "from a host. Start it with a larger --quota-bytes, or make batches smaller"
                )
            parcel.total, parcel.digest = message.total, message.digest
        expected = min(say.MAX_PART_BYTES, parcel.total - parcel.come)
        if (message.total, message.digest) != (parcel.total, parcel.digest) or len(part) != expected:
            raise EngineError(
                f"a part of {len(part)} bytes from {message.offset} of {message.total} came, and {expected} from {parcel.come} "
                f"of {parcel.total} were expected"
            )
        rest = memoryview(part)
        try:
            while len(rest):
                rest = rest[os.write(incoming.descriptor, rest) :]
        except OSError as error:
            raise EngineError(f"the samples' bytes cannot be kept: {error.strerror}") from None
        parcel.come += expected
        parcel.heard_s = time.monotonic()

    def drop(self, job: Job, parcel: Optional[Parcel]) -> None:
        """Remove a parcel, complete or not."""
        if parcel is None:
            return
        incoming = self._incoming.get(job.host)
        if incoming is not None and incoming.parcel is parcel:
            os.close(incoming.descriptor)
            del self._incoming[job.host]
        if parcel.reserved:
            parcel.reserved = False
            self._spool.give_parcel_back(parcel.total)
            self._held[job.host] -= parcel.total
            if not self._held[job.host]:
                del self._held[job.host]
        file = self._spool.job_file(job.key, parcel.name)
        file.directory.unlink(file.name)
