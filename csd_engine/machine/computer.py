"""What the kernel says of this computer and of our processes: memory, CPUs, temperature, load. Linux's files only."""

from __future__ import annotations

import math
import os
import platform
import re
from pathlib import Path
from typing import Dict, Iterable, Iterator, NamedTuple, Optional, Tuple

__all__ = [
    "Memory", "cpu_model", "cpus", "load", "memory", "process_memory", "processors", "status_bytes", "temperature_c",
]  # fmt: skip

_PLAUSIBLE_C = (-50.0, 200.0)  # sensors that are not connected tell nonsense


class Memory(NamedTuple):
    """Bytes of memory that this process may use: of the computer, or of its control group where that is less."""

    total: int
    available: int


def processors(root: str = "/") -> float:
    """Return how many CPUs this process may use at once: by its affinity, and by the quotas of its control groups.

    A quota may be a fraction: of 1.5, say, and below 1. `root`: where /proc and /sys are, for tests.
    """
    try:
        count = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # not Linux
        count = os.cpu_count() or 1
    quotas = [_quota(group) for group in _groups("cpu", root)]
    return min([float(count), *(quota for quota in quotas if quota is not None)])


def cpus() -> int:
    """Return `processors`, rounded up: so many workers use all of them."""
    return math.ceil(processors())


def _quota(group: Path) -> Optional[float]:
    """Return how many CPUs a control group may use at once; None: as many as there are."""
    for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = map(int, " ".join((group / file).read_text() for file in files).split())
        except (OSError, ValueError):  # 'max' is no number
            continue
        return quota / period if quota > 0 and period > 0 else None
    return None


def cpu_model() -> str:
    """Return the CPU's name, of some ARM boards the board's; where neither is told, the architecture."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        cpuinfo = ""
    match = re.search(r"^(?:model name|Model|Hardware)[ \t]*:[ \t]*(\S.*)", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def load() -> Tuple[float, float, float]:
    """Return the load average of 1, 5 and 15 minutes; zeros where there is none."""
    try:
        return os.getloadavg()
    except OSError:
        return (0.0, 0.0, 0.0)


def _kib(path: str) -> Dict[str, int]:
    """Return the `Name:  123 kB` lines of a file of /proc, in bytes."""
    sizes: Dict[str, int] = {}
    with open(path, encoding="ascii", errors="replace") as stream:
        for line in stream:
            name, _, rest = line.partition(":")
            parts = rest.split()
            if len(parts) == 2 and parts[1] == "kB":
                sizes[name] = int(parts[0]) << 10
    return sizes


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
            rollup = _kib(f"/proc/{pid}/smaps_rollup")
            resident += rollup["Rss"]
            private += rollup["Private_Clean"] + rollup["Private_Dirty"]
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


def _groups(controller: str, root: str = "/") -> Iterator[Path]:
    """Yield this process's control groups for `memory` or `cpu`, and those that they are in: the limits of all hold.

    In a container the path of a group may be the host's, below which nothing is found here; then the uppermost one is the
    container's own. Of cgroup v1, v2 and both at once, the groups of the wrong kind have no limits.
    """
    try:
        lines = Path(root, "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = Path(root, "sys/fs/cgroup", controller if controllers else "")
            yield from (top / group.relative_to("/") for group in (Path(path), *Path(path).parents))


def _reclaimable(group: Path) -> int:
    """Return the group's bytes of cached files, which the kernel drops where memory is wanted."""
    try:
        counters = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(counters.get("total_inactive_file", counters.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0


def memory() -> Memory:
    """Return this computer's memory; zeros where it cannot be read."""
    try:
        meminfo = _kib("/proc/meminfo")
    except (OSError, ValueError):
        return Memory(0, 0)
    total, available = meminfo.get("MemTotal", 0), meminfo.get("MemAvailable", meminfo.get("MemFree", 0))
    for group in _groups("memory"):
        for limit_file, use_file in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, use = _number(group / limit_file), _number(group / use_file)
            if limit is not None:  # cgroup v1 writes a huge number where there is none
                total = min(total, limit)
                available = min(available, max(0, limit - (use or 0) + _reclaimable(group)))
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
