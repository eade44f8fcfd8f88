"""The CPUs of a measurement: this process is moved there, and whatever ran elsewhere meanwhile is an error.

A figure "on one core" is wrong as soon as a worker process or a thread may use another core too. So each comparison that names
cores measures inside `pinned` or `ran_on`. Linux only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddlp.errors import DDLPError

__all__ = ["ProcessUse", "WrongCores", "cpu_s", "family", "pinned", "ran_on"]

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_IDLE_S = 0.02  # a process that waits, as an engine without a job does, wakes now and then: a tick or two say nothing


class WrongCores(DDLPError):
    """A thread that used processor time was allowed on CPUs that its measurement does not name."""


@dataclass(frozen=True)
class ProcessUse:
    """A process that used processor time during a measurement, of those threads that were there at its end.

    Fields:
        pid: of the process.
        command: its command line, shortened.
        cpus: CPUs on which these threads may run.
        threads: how many threads used processor time.
        cpu_s: seconds of processor time, in steps of 10 ms.
    """

    pid: int
    command: str
    cpus: tuple[int, ...]
    threads: int
    cpu_s: float


@contextlib.contextmanager
def pinned(*cpus: int, engine: Collection[int] = (), threads: int = 1) -> Iterator[list[ProcessUse]]:
    """Run all threads of this process, and processes that it starts, on these CPUs, with so many torch threads.

    Processes that were started before keep their CPUs; `ran_on` says which of these are allowed, and what is raised.

    Args:
        cpus: by number.
        engine: CPUs of engines and other helpers that run beside this process.
        threads: torch's, within operators.
    """
    import torch

    before, torch_threads = _affinities(), torch.get_num_threads()
    here = os.sched_getaffinity(0)
    _move({}, set(cpus))
    torch.set_num_threads(threads)
    try:
        with ran_on(cpus, engine) as used:
            yield used
    finally:
        _move(before, here)
        torch.set_num_threads(torch_threads)


@contextlib.contextmanager
def ran_on(cpus: Collection[int], engine: Collection[int] = ()) -> Iterator[list[ProcessUse]]:
    """Check at the end that nothing has used other CPUs than these: no thread of this process or of its descendants.

    This process may use ``cpus`` only. Each other process may use ``cpus`` or ``engine``, but not both. A process that used
    20 ms of processor time or less does not count, nor does a thread that has ended: it had the CPUs of its parent.

    Yields a list, which has an entry for each process at the end.

    Raises:
        WrongCores: names the process, its CPUs, and those of the measurement.
    """
    here = os.getpid()
    before = {thread: ticks for pid in family(here) for thread, ticks in _ticks(pid).items()}
    used: list[ProcessUse] = []
    yield used
    for pid in family(here):
        spent, allowed = 0, set()
        busy = {thread: ticks - before.get(thread, 0) for thread, ticks in _ticks(pid).items()}
        busy = {thread: ticks for thread, ticks in busy.items() if ticks > 0}
        for thread, ticks in busy.items():
            with contextlib.suppress(OSError):  # it has ended since
                allowed |= os.sched_getaffinity(thread)
                spent += ticks
        if spent * _TICK_S > _IDLE_S:
            used.append(ProcessUse(pid, _command(pid), tuple(sorted(allowed)), len(busy), spent * _TICK_S))
    for process in used:
        sides = [set(cpus)] if process.pid == here else [set(cpus), set(engine)]
        if not any(side.issuperset(process.cpus) for side in sides):
            beside = f" (engines: {_listed(engine)})" if engine else ""
            raise WrongCores(
                f"the measurement is of CPUs {_listed(cpus)}{beside}, but process {process.pid} ({process.command}) used "
                f"{process.cpu_s:.2f} s of processor time and may run on CPUs {_listed(process.cpus)}. The figure would be "
                "wrong. Start that process inside the measurement, or pin it."
            )


def _listed(cpus: Collection[int]) -> str:
    return ", ".join(map(str, sorted(cpus)))


def family(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants that still run, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parent = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    pids = [pid]
    for parent in pids:  # grows during the loop
        pids += children.get(parent, [])
    return pids


def cpu_s(pids: Sequence[int]) -> float:
    """Return the processor seconds of these processes so far, of all their threads. Ended processes count as 0."""
    return sum(_stat_ticks(Path(f"/proc/{pid}/stat")) for pid in pids) * _TICK_S


def _ticks(pid: int) -> dict[int, int]:
    """The processor time of each thread of a process, in ticks, by the thread's id. Empty if the process has ended."""
    try:
        threads = [int(entry) for entry in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return {}
    return {thread: _stat_ticks(Path(f"/proc/{pid}/task/{thread}/stat")) for thread in threads}


def _stat_ticks(stat: Path) -> int:
    """User and system time of a process or thread, in ticks; 0 if it has ended (proc_pid_stat(5), fields 14 and 15)."""
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:80]
    except OSError:
        return "?"


def _affinities() -> dict[int, set[int]]:
    """The CPUs of each thread of this process, by the thread's id."""
    cpus: dict[int, set[int]] = {}
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(OSError):  # it has ended since
            cpus[thread] = os.sched_getaffinity(thread)
    return cpus


def _move(cpus: dict[int, set[int]], others: set[int]) -> None:
    """Let each thread of this process run on its CPUs in ``cpus``, or on ``others`` if it is not there.

    A thread that is not moved yet may start another one meanwhile, so it looks again until there is no new one.
    """
    moved: set[int] = set()
    while new := {int(thread) for thread in os.listdir("/proc/self/task")} - moved:
        for thread in new:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cpus.get(thread, others))
        moved |= new
