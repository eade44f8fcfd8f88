"""Which cores of this machine stand for the host and for the computer beside the storage."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cores", "choose_cores"]


@dataclass(frozen=True)
class Cores:
    """Two CPUs by number; the same one twice where this process may use only one."""

    host: int
    engine: int

    @property
    def both(self) -> tuple[int, ...]:
        """Both CPUs, each once."""
        return (self.host,) if self.engine == self.host else (self.host, self.engine)


def choose_cores() -> Cores:
    """The first CPU that this process may use, and the next one that is no hyperthread of it, if there is one."""
    host, *others = sorted(os.sched_getaffinity(0))
    apart = [cpu for cpu in others if _physical(cpu) != _physical(host)]
    return Cores(host, (apart or others or [host])[0])


def _physical(cpu: int) -> tuple[str, ...]:
    """An id that only the hyperthreads of one core share."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        return tuple((topology / name).read_text() for name in ("physical_package_id", "core_id"))
    except OSError:
        return (str(cpu),)
