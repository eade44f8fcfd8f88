r"""A meter of your own: a file that some program keeps up to date, or a command that prints what a meter says.

    machine=file:/run/wattmeter          the last line that is not empty counts: "231.5 W"
    machine=command:curl -s http://plug/power
    csd=file:/run/board.watts

The text is a number and a unit: W, mW, kW, or, of a counter that only grows, J, mJ, uJ, kJ, Wh, kWh. A number alone is watts.
The part before '=' is what is measured: machine (the default: all that trains), cpu, dram, gpu, csd (all devices), or a name of
yours. Sensors that `EnergyMeter.auto` finds for the same part are not used: that part would count twice. Several meters of
yours for one part are added.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import deque
from pathlib import Path

from csd_engine.machine.sensors import Reading
from ddlp.errors import DDLPError
from ddlp.observe.energy.sources import Source
from ddlp.observe.energy.tally import interval_s

__all__ = ["ExternalMeter"]

_POWER_INTERVAL_S = 1.0
_COMMAND_S = 5.0
_TAIL_BYTES = 4096
_WATTS = {"": 1.0, "W": 1.0, "mW": 1e-3, "kW": 1e3}
_JOULES = {"J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "kJ": 1e3, "Wh": 3600.0, "kWh": 3.6e6}
_SAID = re.compile(r"\s*([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*([A-Za-z]*)\s*")
_SPEC = re.compile(r"(?:([A-Za-z][\w -]*)=)?(file|command):(.+)", re.DOTALL)


class ExternalMeter(Source):
    """One such meter.

    Raises:
        DDLPError: the specification is not of the form above.
    """

    def __init__(self, spec: str) -> None:
        match = _SPEC.fullmatch(spec)
        if match is None:
            raise DDLPError(f"{spec!r} is no meter: write [PART=]file:PATH or [PART=]command:WHAT TO RUN")
        self.part, self._kind, self._what = match[1] or "machine", match[2], match[3]
        self.name = f"external {self.part} ({self._kind} {self._what})"
        self.interval_s = _POWER_INTERVAL_S
        self.prompt = self._kind == "file"

    def open(self) -> None:
        """Read it once. Raises DDLPError where it says nothing that can be understood."""
        reading = self.read()[0]
        self.interval_s = _POWER_INTERVAL_S if reading.joules is None else interval_s(0.0)

    def read(self) -> list[Reading]:
        """Read it. Raises DDLPError as `open`."""
        text = self._file() if self._kind == "file" else self._command()
        lines = deque((line for line in text.splitlines() if line.strip()), 1)
        match = _SAID.fullmatch(lines[0]) if lines else None
        if match is None or (match[2] not in _WATTS and match[2] not in _JOULES):
            said = f"{lines[0]!r:.80}" if lines else "nothing"
            raise DDLPError(f"{self.name} said {said}; it must end in a line of a number and a unit, e.g. 231.5 W or 17500 J")
        value, unit = float(match[1]), match[2]
        if unit in _WATTS:
            return [Reading(self.name, self.part, None, value * _WATTS[unit])]
        return [Reading(self.name, self.part, value * _JOULES[unit], None)]

    def _file(self) -> str:
        try:
            with open(Path(self._what).expanduser(), "rb") as stream:
                try:
                    stream.seek(-_TAIL_BYTES, os.SEEK_END)  # a log may be long
                except OSError:
                    stream.seek(0)
                return stream.read(_TAIL_BYTES).decode(errors="replace")
        except OSError as error:
            raise DDLPError(f"{self.name}: {error.strerror}") from None

    def _command(self) -> str:
        process = subprocess.Popen(
            self._what, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        try:
            said, complaint = process.communicate(timeout=_COMMAND_S)
        except subprocess.TimeoutExpired:
            raise DDLPError(f"{self.name} took more than {_COMMAND_S:g} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # the shell's children as well
                process.communicate()
        if process.returncode:
            why = complaint.decode(errors="replace").strip()[-200:] or "it said nothing; type it into a shell to see why"
            raise DDLPError(f"{self.name} ended with status {process.returncode}: {why}")
        return said.decode(errors="replace")
