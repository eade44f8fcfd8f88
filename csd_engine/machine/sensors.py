"""Power and energy sensors that Linux shows below /sys: powercap's RAPL domains, and hwmon's power chips (INA2xx and others).

Reading one costs the open and read of a file or two. What the files hold: Documentation/power/powercap and
Documentation/hwmon/sysfs-interface.rst of the kernel.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

__all__ = ["MAX_JOULES", "MAX_WATTS", "PARTS", "Reading", "Sensor", "hwmon", "rapl", "read_all", "sensors", "whole"]

# What a sensor measures: processor packages, memory, a GPU or the whole computer. "": something inside one of these, or
# something unknown.
PARTS = ("cpu", "dram", "gpu", "machine", "")

MAX_JOULES, MAX_WATTS = 1e18, 1e9  # a value beyond them, or below zero joules, is nonsense

_CHIPS = (
    ("gpu", re.compile(r"amdgpu|i915|xe|nouveau")),
    ("machine", re.compile(r"ina\d.*|power_meter|corsairpsu")),
)
_INPUT_RAIL = re.compile(r".*(_in|(^|[^a-z])(vin|input|total))", re.IGNORECASE)  # VDD_IN, POM_5V_IN; not VIN_SYS_5V0


class Reading(NamedTuple):
    """What a sensor said: `joules` since some moment, or `watts` now. The other is None; both are if it sleeps or is gone."""

    sensor: str
    part: str
    joules: Optional[float]
    watts: Optional[float]
    range_j: float = 0.0  # a counter of joules begins again at 0 after this value; 0: it never does


class Sensor(NamedTuple):
    """One sensor; its value is the product of its files' numbers, divided by 1e6."""

    name: str  # unique on this computer, e.g. rapl/package-0, ina3221/VDD_IN
    part: str
    files: Tuple[Path, ...]
    counts: bool  # joules so far; else watts now
    range_j: float = 0.0

    def read(self) -> Reading:
        """Read it.

        Raises:
            OSError: it sleeps, is gone or may not be read.
            ValueError: its value is no number, or an impossible one.
        """
        value = 1.0
        for file in self.files:
            value *= float(file.read_text())
        value /= 1e6  # microjoules, microwatts, millivolts times milliamperes
        least, most = (0.0, MAX_JOULES) if self.counts else (-MAX_WATTS, MAX_WATTS)
        if not (least <= value <= most and self.range_j <= MAX_JOULES):
            raise ValueError(f"{self.name}: {value:g} is no number of {'joules' if self.counts else 'watts'}")
        return Reading(self.name, self.part, value if self.counts else None, None if self.counts else value, self.range_j)


def read_all(sensors: Iterable[Sensor]) -> List[Reading]:
    """Read the sensors that this user may read. One that can't be read now has no value but is listed: it may wake up."""
    readings = []
    for sensor in sensors:
        try:
            readings.append(sensor.read())
        except (OSError, ValueError) as error:
            # Not PermissionError: that includes EPERM, which amdgpu answers while its card is suspended.
            if getattr(error, "errno", None) != errno.EACCES:
                readings.append(Reading(sensor.name, sensor.part, None, None, sensor.range_j))
    return readings


def sensors(sys: str = "/sys") -> List[Sensor]:
    """Return all sensors of this computer."""
    return rapl(sys) + hwmon(sys)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _by_numbers(path: Path) -> Tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", path.name)))


def rapl(sys: str = "/sys") -> List[Sensor]:
    """Return the RAPL domains, readable or not. A package that two interfaces show (msr and mmio) is counted once."""
    root = Path(sys) / "class" / "powercap"
    domains: List[Sensor] = []
    packages: Set[str] = set()
    # The domains of the msr interface come first: for the same package, mmio shows the same energy once more.
    for interface in ("intel-rapl", "intel-rapl-mmio"):
        shown = {}
        for zone in sorted(root.glob(interface + ":*"), key=_by_numbers):
            name, numbers = _text(zone / "name"), _by_numbers(zone)
            if not name:
                continue
            if len(numbers) == 1:
                shown[numbers[0]] = name
            parent = shown.get(numbers[0], "")
            if parent in packages:
                continue
            if len(numbers) > 1:
                part, name = "dram" if name == "dram" else "", f"{parent}/{name}"
            else:
                part = "cpu" if name.startswith("package") else "dram" if name.startswith("dram") else ""
            range_j = _text(zone / "max_energy_range_uj")
            files = (zone / "energy_uj",)
            domains.append(Sensor("rapl/" + name, part, files, True, int(range_j) / 1e6 if range_j.isdigit() else 0.0))
        packages.update(shown.values())
    return domains


def hwmon(sys: str = "/sys") -> List[Sensor]:
    """Return hwmon's sensors of power and energy, of chips that have them."""
    sensors: List[Sensor] = []
    seen = set()
    for monitor in sorted((Path(sys) / "class" / "hwmon").glob("hwmon*"), key=_by_numbers):
        chip = _text(monitor / "name") or _text(monitor / "device" / "name")
        part = next((part for part, names in _CHIPS if names.fullmatch(chip)), "")
        directory = monitor if (monitor / "name").exists() else monitor / "device"  # kernels before 3.15
        for place, (label, files, counts) in enumerate(_channels(directory, chip.startswith("ina"))):
            name = base = f"{chip or monitor.name}/{label}"
            number = 1
            while name in seen:
                number += 1
                name = f"{base}-{number}"
            seen.add(name)
            # Intel's xe: the card is channel 1, its package channel 2. Older cards have only the package.
            inside = chip == "xe" and place > 0
            sensors.append(Sensor(name, "" if inside else part, files, counts))
    return sensors


def _channels(directory: Path, multiply: bool) -> List[Tuple[str, Tuple[Path, ...], bool]]:
    """Return (label, files, counts) of each channel of a chip.

    These are its counters of energy. Without any, its powers; without those, voltage times current of its rails.
    """
    try:
        names = set(os.listdir(str(directory)))
    except OSError:
        return []

    def numbered(*patterns: str) -> List[Tuple[int, str]]:
        return sorted(
            {int(match[1]): name for pattern in patterns for name in names for match in [re.fullmatch(pattern, name)] if match}
            .items()
        )  # fmt: skip

    def label(number: int, *kinds: str) -> str:
        for kind in kinds:
            text = _text(directory / f"{kind}{number}_label")
            if text:
                return text
        return f"{kinds[0]}{number}"

    energies = numbered(r"energy(\d+)_input")
    if energies:
        return [(label(number, "energy"), (directory / name,), True) for number, name in energies]
    powers = numbered(r"power(\d+)_average", r"power(\d+)_input")  # of both, `input` counts
    if powers:
        return [(label(number, "power", "in", "curr"), (directory / name,), False) for number, name in powers]
    if not multiply:
        return []
    # An INA3221 has three rails; its in4 to in7 and curr4 are shunts and sums.
    return [
        (label(number, "in", "curr"), (directory / name, directory / f"curr{number}_input"), False)
        for number, name in numbered(r"in([1-3])_input")
        if f"curr{number}_input" in names
    ]


def whole(readings: Sequence[Reading], chosen: Sequence[str] = ()) -> List[Reading]:
    """Return the readings that together are those of the whole computer, none twice.

    These are the `chosen` ones, by name. Without any: the rail that feeds all others, if a label tells which one that is; else
    all rails; else the processor packages and the memory.
    """
    if chosen:
        return [reading for reading in readings if reading.sensor in chosen]
    rails = [reading for reading in readings if reading.part == "machine"]
    inputs = [reading for reading in rails if _INPUT_RAIL.fullmatch(reading.sensor)]
    if inputs or rails:
        return inputs[:1] or rails
    return [reading for reading in readings if reading.part in ("cpu", "dram")]
