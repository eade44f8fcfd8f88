"""What the kernel says of this computer and of our processes: memory, CPUs, temperature, load. Linux's files only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

__all__ = ["Memory", "cpus", "load", "memory", "process_memory", "status_bytes", "temperature_c"]

_PLAUSIBLE_C = (-50.0, 200.0)  # sensors that are not connected tell nonsense
_NO_LIMIT = 1 << 60  # cgroup v1 writes a huge number where there is none


class Memory(NamedTuple):
    """Bytes of memory that this process may use: of the computer, or of its control group where that is less."""

    total: int
    available: int


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        return os.cpu_count() or 1


def load() -> Tuple[float, float, float]:
    """Return the load average of 1, 5 and 15 minutes; zeros where there is none."""
    try:
        return os.getloadavg()
    except OSError:
        return (0.0, 0.0, 0.0)


def _kib(path: str) -> Dict[str, int]:
    """Return the `Name:  123 kB` lines of a file of /proc, in bytes."""
    found: Dict[str, int] = {}
    with open(path, encoding="ascii", errors="replace") as stream:
        for line in stream:
            name, _, rest = line.partition(":")
            parts = rest.split()
            if len(parts) == 2 and parts[1] == "kB":
                found[name] = int(parts[0]) << 10
    return found


def status_bytes() -> Dict[str, int]:
    """Return the sizes in this process's /proc/self/status, in bytes, by their names there. Raises OSError, ValueError."""
    return _kib("/proc/self/status")


def process_memory(pids: Iterable[int]) -> Tuple[int, int]:
    """Return (resident, private) bytes of these processes together; one that is gone counts as 0.

    A page that several of them share is in `resident` once for each, and not in `private`.
    """
    resident = private = 0
    for pid in pids:
        try:
            found = _kib(f"/proc/{pid}/smaps_rollup")
            resident += found["Rss"]
            private += found["Private_Clean"] + found["Private_Dirty"]
        except (OSError, KeyError, ValueError):
            try:  # Linux before 4.14
                pages = Path(f"/proc/{pid}/statm").read_text().split()
                size = os.sysconf("SC_PAGE_SIZE")
                resident += int(pages[1]) * size
                private += (int(pages[1]) - int(pages[2])) * size
            except (OSError, IndexError, ValueError):
                continue
    return resident, private


def _number(path: Path) -> Optional[int]:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # 'max' is no number
        return None


def _groups() -> List[Tuple[Path, str, str]]:
    """Return this process's control groups: (directory, file of the limit, file of the use)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found.append((Path("/sys/fs/cgroup" + path), "memory.max", "memory.current"))
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            found.append((Path("/sys/fs/cgroup/memory" + path), *names))
    return found


def _reclaimable(group: Path) -> int:
    """Return the group's bytes of cached files, which the kernel drops where memory is wanted."""
    try:
        found = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(found.get("total_inactive_file", found.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0


def memory() -> Memory:
    """Return this computer's memory; zeros where it cannot be read."""
    try:
        found = _kib("/proc/meminfo")
    except (OSError, ValueError):
        return Memory(0, 0)
    total, available = found.get("MemTotal", 0), found.get("MemAvailable", found.get("MemFree", 0))
    for directory, limit_file, use_file in _groups():
        limit, use = _number(directory / limit_file), _number(directory / use_file)
        if limit is not None and limit < min(total, _NO_LIMIT):
            total = limit
            available = min(available, max(0, limit - (use or 0) + _reclaimable(directory)))
    return Memory(total, available)


def temperature_c(sys: str = "/sys") -> Optional[float]:
    """Return the hottest sensor's degrees Celsius; None where none can be read."""
    root = Path(sys) / "class"
    for pattern in ("thermal/thermal_zone*/temp", "hwmon/hwmon*/temp*_input", "hwmon/hwmon*/device/temp*_input"):
        values = [number / 1000 for number in map(_number, sorted(root.glob(pattern))) if number is not None]
        plausible = [value for value in values if _PLAUSIBLE_C[0] < value < _PLAUSIBLE_C[1]]
        if plausible:
            return max(plausible)
    return None
