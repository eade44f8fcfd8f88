"""What an epoch has to tell the user: warnings, told once by the training thread, and what the report says of the devices.

Pure; called under the epoch's lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["UserMessages"]

VANISHED_S = 2.0  # a file that is gone is told after this long, unless its device turns out to be gone as well
_RETURN = "return"


@dataclass
class UserMessages:
    """Gathered by any thread; times are a monotonic clock's."""

    _warnings: list[str] = field(default_factory=list)
    _vanished: list[tuple[float, str, str]] = field(default_factory=list)  # (when, device, warning)
    hanging: set[str] = field(default_factory=set)  # devices of which `hangs` told
    notes: dict[str, str] = field(default_factory=dict)  # what a device says of itself now
    remarks: dict[tuple[str, str], str] = field(default_factory=dict)  # (device, what about) -> what there is to say of it
    _away: set[str] = field(default_factory=set)  # devices whose loss was told, and their return not yet

    def __bool__(self) -> bool:
        """Whether there is a warning, due or not yet."""
        return bool(self._warnings or self._vanished)

    def warn(self, text: str) -> None:
        """Tell this."""
        self._warnings.append(text)

    def hangs(self, device: str) -> None:
        """A device's batch is read and read: told once."""
        if device not in self.hanging:
            self.hanging.add(device)
            self.warn(f"the spool of device {device} does not answer; the host prepares its batches until it does.")

    def vanished(self, device: str, text: str, now: float) -> None:
        """Tell of a file that is gone, unless `gone` tells that its device is gone as well."""
        self._vanished.append((now, device, text))

    def gone(self, device: str, reason: str | None) -> None:
        """A device is lost: an engine that ends removes its files.

        Told with the reason, unless there is none to tell or it was told before, and the device is not `back` since.
        """
        self._vanished = [one for one in self._vanished if one[1] != device]
        self.remarks.pop((device, _RETURN), None)
        if reason is not None and device not in self._away:
            self._away.add(device)
            self.warn(f"device {device} is gone ({reason}); the host prepares its batches.")

    def back(self, device: str) -> None:
        """A device takes part, again where its loss was told: the report says so, and nobody is warned of good news."""
        if device in self._away:
            self._away.remove(device)
            self.remarks[device, _RETURN] = "it was gone, and is back"

    def take(self, now: float, over: bool) -> list[str]:
        """The warnings that are due, once; all of them where the epoch is over."""
        due = [one for one in self._vanished if over or now - one[0] > VANISHED_S]
        self._vanished = [one for one in self._vanished if one not in due]
        warnings, self._warnings = self._warnings, []
        return warnings + [text for _, _, text in due]

    def for_report(self) -> tuple[str, ...]:
        """A line for each thing that there is to say of a device."""
        said = [(device, text) for (device, _), text in self.remarks.items()]
        return tuple(f"{device}: {text}" for device, text in (*said, *self.notes.items()) if text)
