"""Where readings come from: what all meters have in common, and those that Linux shows below /sys.

A source is opened before an epoch, read at its begin, at its end and every ``interval_s`` between, and closed. A sensor that
is missing in one reading sleeps or is gone; if it comes back, its measurement goes on.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from csd_engine.machine import sensors
from csd_engine.machine.sensors import Reading, Sensor
from ddlp.observe.energy.tally import interval_s
from ddlp.process.user_warnings import warn_user

__all__ = ["YOURS", "LocalSensors", "Source", "local_sources"]

YOURS = "your meter counts it"
_POWER_INTERVAL_S = 0.1  # a read of a file or two
_warned: set[str] = set()


class Source:
    """Some sensors that are read together.

    Attributes:
        name: for people: what it is and where.
        interval_s: seconds between two readings, at most.
        prompt: a reading is so quick that the caller may wait for it.
    """

    name: str
    interval_s: float
    prompt: bool = True

    def open(self) -> None:
        """Make ready to be read. Raises DDLPError, EngineError or OSError where that can't be done."""

    def read(self) -> Sequence[Reading]:
        """What the sensors say now. Those that can't be read now are left out, or have no value. Raises as `open`."""
        raise NotImplementedError

    def close(self) -> None:
        """Free what `open` took. May be called without `open`."""


class LocalSensors(Source):
    """Sensors of this computer; each one's name and part as `csd_engine.machine.sensors` tells.

    No file is kept open, since a domain has a new one after its driver was loaded again.
    """

    def __init__(self, name: str, sensors: Sequence[Sensor]) -> None:
        self.name = name
        self.sensors = tuple(sensors)
        gauges = any(not sensor.counts for sensor in sensors)
        self.interval_s = _POWER_INTERVAL_S if gauges else min(interval_s(sensor.range_j) for sensor in sensors)

    def read(self) -> list[Reading]:
        """Each that may be read."""
        return sensors.read_all(self.sensors)


def local_sources(sys: str, yours: Collection[str] = ()) -> tuple[list[LocalSensors], list[str]]:
    """The sensors of RAPL and hwmon that measure a part of their own and may be read, and why the others are not used.

    Of those that this user may not read it warns, once.

    ``yours``: the parts that a meter of the user counts. With the sensors here they would count twice.
    """
    used: list[LocalSensors] = []
    absent: list[str] = []
    _rapl(sys, yours, used, absent)
    monitors = sensors.hwmon(sys)
    # Of the rails of a board, count those that together measure all of it. A GPU's sensor stands for itself.
    # It makes no difference which of them sleep at this moment.
    readings = sensors.read_all(monitors)
    counted = {reading.sensor for reading in sensors.whole([reading for reading in readings if reading.part == "machine"])}
    counted |= {reading.sensor for reading in readings if reading.part == "gpu"}
    usable = _without_yours("hwmon", [monitor for monitor in monitors if monitor.name in counted], yours, absent)
    if usable:
        used.append(LocalSensors("hwmon", usable))
    left = [monitor.name for monitor in monitors if monitor.name not in counted]
    if left:
        absent.append(f"hwmon {', '.join(left)}: part of what is counted already, not readable, or of no known part")
    elif not monitors:
        absent.append(f"hwmon: no sensor of power or energy in {sys}/class/hwmon")
    return used, absent


def _without_yours(name: str, candidates: list[Sensor], yours: Collection[str], absent: list[str]) -> list[Sensor]:
    dropped = [sensor.name for sensor in candidates if sensor.part in yours]
    if dropped:
        absent.append(f"{name} {', '.join(dropped)}: {YOURS}")
    return [sensor for sensor in candidates if sensor.part not in yours]


def _rapl(sys: str, yours: Collection[str], used: list[LocalSensors], absent: list[str]) -> None:
    domains = [domain for domain in sensors.rapl(sys) if domain.part]
    if not domains:
        why = f"no processor package in {sys}/class/powercap"
        absent.append(f"RAPL: {why}. Virtual machines, containers and most ARM boards have none")
        return
    counted = _without_yours("RAPL", domains, yours, absent)
    refused = [domain for domain in counted if _refused(domain.files[0])]
    readable = [domain for domain in counted if domain not in refused]
    if refused:
        names = ", ".join(domain.name for domain in refused)
        files = f"{Path(sys) / 'class/powercap'}/intel-rapl:*/energy_uj"
        text = (
            f"RAPL {names}: this user may not read it; since Linux 5.10 only root may. sudo chmod a+r {files} "
            f"{files.replace(':*', ':*:*')} allows it until the next boot; docs/energy.md says how to make it last and what "
            "speaks against it"
        )
        absent.append(text)
        if text not in _warned:
            _warned.add(text)
            warn_user(f"ddlp: {text}")
    if readable:
        used.append(LocalSensors("RAPL", readable))


def _refused(file: Path) -> bool:
    """Whether this user lacks the right to read the file. Other errors, as of a sleeping sensor, do not count."""
    try:
        os.close(os.open(file, os.O_RDONLY))
    except PermissionError:
        return True
    except OSError:
        pass
    return False
