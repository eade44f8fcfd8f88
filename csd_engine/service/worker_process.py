"""A worker process, seen from the engine's service: started, given work over a pipe, watched, ended."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Set, Tuple

from csd_engine.service.channel import LineBuffer
from csd_engine.service.jobs import Job, Parcel, ProbeWork, Work

__all__ = ["WorkerProcess", "child_environment"]

_READ_BYTES = 1 << 16
PROBE_S = 20.0  # of workers' time for a probe, all its samples together


def child_environment() -> Dict[str, str]:
    """Return an environment in which a child Python finds this csd_engine, wherever it is installed."""
    environment = dict(os.environ)
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = home + (os.pathsep + inherited if inherited else "")
    environment["PYTHONSAFEPATH"] = "1"  # else a zmq.py in the working directory would be imported
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[name] = "1"  # numpy's thread pools would take memory and do nothing here
    # By default glibc's threshold grows with the largest freed block, up to 32 MB, and each worker keeps that much. With a
    # fixed threshold, a large image's memory is freed at once, and an ordinary image needs no new pages each time.
    environment["MALLOC_MMAP_THRESHOLD_"] = str(4 << 20)
    environment["MALLOC_TRIM_THRESHOLD_"] = str(4 << 20)
    return environment


def _name_and_digest(parcel: Optional[Parcel]) -> Optional[Tuple[str, str]]:
    """Return the name and the digest of a parcel, for a worker."""
    return None if parcel is None else (parcel.name, parcel.digest)


class WorkerProcess:
    """One worker process. No call blocks but `end`: bytes that its pipe does not take at once wait in a buffer."""

    def __init__(self, arguments: List[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "csd_engine.service.worker_start", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            env=child_environment(),
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self.read_descriptor = self._process.stdout.fileno()
        self.write_descriptor = self._process.stdin.fileno()
        os.set_blocking(self.write_descriptor, False)
        self._lines = LineBuffer()
        self.unsent: Deque[memoryview] = deque()  # commands that wait for its pipe
        self._known: Set[str] = set()
        self.ready = False
        self.kernel = ""  # the kernel's variant, or "none"; set when the worker is ready
        self._started_s = self._begun_s = time.monotonic()
        self._start_took_s = 0.0
        self.lease: Optional[Tuple[Job, Work]] = None
        self.probe: Optional[Tuple[Job, ProbeWork]] = None
        self.following: List[Work] = []  # the leases that it has been told to expect, in their order
        self._last_report_s = time.monotonic()
        self._cancelled_s: Optional[float] = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def idle(self) -> bool:
        """Whether it can be given work."""
        return self.ready and self.lease is None and self.probe is None

    @property
    def cancelled(self) -> bool:
        """Whether it was told to stop what it does."""
        return self._cancelled_s is not None

    def is_ready(self, kernel: str) -> None:
        """Note that it has started. `kernel`: the kernel's variant, or "none"."""
        self.ready, self.kernel, self._start_took_s = True, kernel, time.monotonic() - self._started_s

    def lost_s(self) -> float:
        """Return the seconds that its death costs: those since its work was begun, and a new worker's start."""
        return time.monotonic() - self._begun_s + self._start_took_s

    def hangs(self, silent_s: float, cancelled_s: float) -> bool:
        """Return whether it works on one sample for more than `silent_s`, or ignores a cancel for more than `cancelled_s`."""
        now = time.monotonic()
        if self.lease is None and self.probe is None:
            return False
        ignored = self._cancelled_s is not None and now - self._cancelled_s > cancelled_s
        return ignored or now - self._last_report_s > silent_s

    def kill(self) -> None:
        """End it at once. `reports` then returns None."""
        self._process.kill()

    def _send(self, **command: Any) -> None:
        self.unsent.append(memoryview((json.dumps(command, separators=(",", ":")) + "\n").encode("ascii")))
        self.flush()

    def flush(self) -> None:
        """Send the bytes that the pipe takes. A closed pipe is no error here: `reports` then returns None."""
        try:
            while self.unsent:
                piece = self.unsent[0]
                sent = os.write(self.write_descriptor, piece)
                if sent < len(piece):
                    self.unsent[0] = piece[sent:]
                else:
                    self.unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self.unsent.clear()

    def _send_job(self, job: Job) -> None:
        if job.key not in self._known:
            self._known.add(job.key)
            self._send(do="job", **job.command)

    def begin(self, job: Job, work: Work, begun: bool) -> None:
        """Give it a lease. `begun`: a recycled file is in place, which the worker overwrites."""
        later = itertools.dropwhile(lambda expected: expected is not work, self.following)
        self.lease, self.following, self._cancelled_s = (job, work), list(later)[1:], None
        self._last_report_s = self._begun_s = time.monotonic()
        self._send_job(job)
        lease = work.lease
        self._send(
            do="lease", job=job.key, lease=lease.lease, identity=lease.identity, seed=lease.seed, epoch=lease.epoch,
            items=lease.items, begun=begun, parcel=_name_and_digest(work.parcel),
        )  # fmt: skip

    def expect(self, job: Job, work: Work) -> None:
        """Let it request the samples of a lease that it will probably get after `following`, of the job of the one at work."""
        self.following.append(work)
        self._send(
            do="next", job=job.key, lease=work.lease.lease, sources=[index for index, _ in work.lease.items],
            following=[expected.lease.lease for expected in self.following],
        )  # fmt: skip

    def begin_probe(self, job: Job, probe: ProbeWork) -> None:
        """Give it the rest of a probe. It makes as many of the samples as fit into a turn."""
        self.probe, self._cancelled_s = (job, probe), None
        self._last_report_s = self._begun_s = time.monotonic()
        self._send_job(job)
        self._send(
            do="probe", job=job.key, seed=probe.probe.seed, epoch=probe.probe.epoch, items=probe.left,
            left_s=PROBE_S - probe.spent_s, parcel=_name_and_digest(job.probe_parcel),
        )  # fmt: skip

    def cancel(self) -> None:
        """Stop its lease or probe between two samples. It answers `cancelled`, or `published` or `probed` if it was faster."""
        if self.lease is not None or self.probe is not None:
            self._cancelled_s = time.monotonic()
            self._send(do="cancel", lease=None if self.lease is None else self.lease[1].lease.lease)

    def forget(self, job: Job) -> None:
        """Let it close the job's reader."""
        if job.key in self._known:
            self._known.discard(job.key)
            self._send(do="forget", job=job.key)

    def reports(self) -> Optional[List[Dict[str, Any]]]:
        """Return the reports that have come; None when the process has ended."""
        try:
            data = os.read(self.read_descriptor, _READ_BYTES)
        except OSError:
            data = b""
        self._last_report_s = time.monotonic()
        return self._lines.feed(data) if data else None

    def close_pipes(self) -> None:
        """Make it drop its lease and exit."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass

    def end(self, grace_s: float) -> int:
        """Close its pipes, wait for its end, and kill it after `grace_s`. Return its exit status."""
        self.close_pipes()
        try:
            return self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
