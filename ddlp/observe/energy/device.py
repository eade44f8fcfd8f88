"""A device's own sensors, asked through its engine over a connection of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from csd_engine.machine.sensors import Reading, whole
from ddlp.errors import DDLPError
from ddlp.observe.energy.model import CSD
from ddlp.observe.energy.sources import Source
from ddlp.observe.energy.tally import interval_s
from ddlp.sources.engine.device_link import link_to

if TYPE_CHECKING:
    from ddlp.devices.device import Device
    from ddlp.sources.engine.link import EngineLink

__all__ = ["DeviceSensors"]

_TIMEOUT_S = 5.0
_LEAST_S = 0.1  # between two questions, whatever the range of a counter that the device tells
_POWER_INTERVAL_S = 1.0  # a message to and fro, and a few files to read on a small board


class DeviceSensors(Source):
    """The sensors of a device: the ``chosen`` ones, or those that together measure all of it. Each is of the part ``csd``."""

    prompt = False

    def __init__(self, device: Device, chosen: tuple[str, ...] = ()) -> None:
        self.name = device.label
        self.interval_s = _POWER_INTERVAL_S
        self._device = device
        self._chosen = chosen
        self._link: EngineLink | None = None

    def open(self) -> None:
        """Connect, and see whether it has any. Raises DDLPError where it has none, EngineError where it can't be reached."""
        self._link = link_to(self._device)
        try:
            readings = self._link.sensors(_TIMEOUT_S)
            counted = whole(readings, self._chosen)
            if not counted:
                raise DDLPError(self._none(readings))
            ranges = [reading.range_j for reading in counted if reading.joules is not None]
            self.interval_s = _POWER_INTERVAL_S if len(ranges) < len(counted) else max(_LEAST_S, min(map(interval_s, ranges)))
            self._chosen = tuple(reading.sensor for reading in counted)  # the same ones from now on, even if some sleep
        except BaseException:
            self.close()
            raise

    def _none(self, readings: tuple[Reading, ...]) -> str:
        names = ", ".join(reading.sensor for reading in readings)
        if self._chosen:
            return f"it has no sensor {', '.join(self._chosen)}, but {names or 'none'}"
        return f"it has no sensor of its power{f', only {names}' if names else ''}"

    def read(self) -> list[Reading]:
        """Ask. Raises EngineError where it doesn't answer."""
        if self._link is None or self._link.lost is not None:
            self.close()
            self._link = link_to(self._device)
        readings = self._link.sensors(_TIMEOUT_S)
        return [reading._replace(sensor=f"{self.name} {reading.sensor}", part=CSD) for reading in whole(readings, self._chosen)]

    def close(self) -> None:
        """Close the connection."""
        link, self._link = self._link, None
        if link is not None:
            link.close()
