"""What an epoch has to tell the user: warnings, told once by the training thread, and what the report says of the devices.

Pure; called under the epoch's lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Tidings"]

VANISHED_S = 2.0  # a file that is gone is told after this long, unless its device turns out to be gone as well


@dataclass
class Tidings:
    """Gathered by any thread; times are a monotonic clock's."""

    _warnings: list[str] = field(default_factory=list)
    _vanished: list[tuple[float, str, str]] = field(default_factory=list)  # (when, device, warning)
    notes: dict[str, str] = field(default_factory=dict)  # what a device says of itself now
    remarks: dict[str, str] = field(default_factory=dict)  # what there is to say about a device

    def __bool__(self) -> bool:
        """Whether there is a warning, due or not yet."""
        return bool(self._warnings or self._vanished)

    def warn(self, text: str) -> None:
        """Tell this."""
        self._warnings.append(text)

    def vanished(self, device: str, text: str, now: float) -> None:
        """Tell of a file that is gone, unless `gone` tells that its device is gone as well."""
        self._vanished.append((now, device, text))

    def gone(self, device: str) -> None:
        """A device is lost: an engine that ends removes its files."""
        self._vanished = [one for one in self._vanished if one[1] != device]

    def take(self, now: float, over: bool) -> list[str]:
        """The warnings that are due, once; all of them where the epoch is over."""
        due = [one for one in self._vanished if over or now - one[0] > VANISHED_S]
        self._vanished = [one for one in self._vanished if one not in due]
        warnings, self._warnings = self._warnings, []
        return warnings + [text for _, _, text in due]

    def for_report(self) -> tuple[str, ...]:
        """A line for each thing that there is to say of a device."""
        return tuple(f"{d}: {text}" for said in (self.remarks, self.notes) for d, text in said.items() if text)
