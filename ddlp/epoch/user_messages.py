"""An epoch's messages to the user: warnings and advice, which the training thread gives once, and lines for the report.

This module is pure. It is called under the epoch's lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["UserMessages"]

VANISHED_S = 2.0  # the warning of a missing file waits this long; it is dropped if the device turns out to be gone as well
_RETURN = "return"


@dataclass
class UserMessages:
    """The messages of one epoch. Any thread may add some. Times are those of a monotonic clock."""

    _warnings: list[str] = field(default_factory=list)
    _advice: list[str] = field(default_factory=list)
    _vanished: list[tuple[float, str, str]] = field(default_factory=list)  # (when, device, warning)
    hanging: set[str] = field(default_factory=set)  # devices for which `hangs` has warned
    notes: dict[str, str] = field(default_factory=dict)  # what a device says about itself now
    remarks: dict[tuple[str, str], str] = field(default_factory=dict)  # (device, subject) -> the remark
    _away: set[str] = field(default_factory=set)  # devices whose loss was told, and whose return was not
    _retired: set[str] = field(default_factory=set)  # devices that retire, or have retired

    def __bool__(self) -> bool:
        """Whether there is a warning, due or not yet, or advice."""
        return bool(self._warnings or self._vanished or self._advice)

    def warn(self, text: str) -> None:
        """Add a warning."""
        self._warnings.append(text)

    def advise(self, text: str) -> None:
        """Add a line where nothing is wrong."""
        self._advice.append(text)

    def take_advice(self) -> list[str]:
        """Return the lines of `advise`, each once."""
        advice, self._advice = self._advice, []
        return advice

    def hangs(self, device: str) -> None:
        """Warn, once, that reading a batch of this device does not end."""
        if device not in self.hanging:
            self.hanging.add(device)
            self.warn(f"the spool of device {device} does not answer; the host prepares its batches until it does.")

    def vanished(self, device: str, text: str, now: float) -> None:
        """Warn of a missing file, unless `gone` is told soon that its device is gone as well."""
        self._vanished.append((now, device, text))

    def gone(self, device: str, reason: str | None) -> None:
        """Note that a device is lost. Its missing files are not told any more: an engine that ends removes its files.

        Warns with the reason, unless ``reason`` is None, or the loss was told before and the device was not `back` since.
        """
        self._vanished = [entry for entry in self._vanished if entry[1] != device]
        if reason is not None:
            self._retired.discard(device)
        if device not in self._retired:
            self.remarks.pop((device, _RETURN), None)
        if reason is not None and device not in self._away:
            self._away.add(device)
            self.warn(f"device {device} is gone ({reason.rstrip('.')}); the host prepares its batches.")

    def retires(self, device: str, reason: str) -> None:
        """Note that a device finishes what it has, and goes. There is no warning for that."""
        self._retired.add(device)
        self.remarks[device, _RETURN] = f"it retired: {reason}"

    def back(self, device: str) -> None:
        """Note that a device takes part. If its loss was told, the report tells its return; there is no warning for that."""
        if device in self._away | self._retired:
            self.remarks[device, _RETURN] = "it was gone, and is back" if device in self._away else "it retired, and is back"
            self._away.discard(device)
            self._retired.discard(device)

    def take(self, now: float, over: bool) -> list[str]:
        """Return the warnings that are due, each once. If the epoch is over, all of them are due."""
        due = [entry for entry in self._vanished if over or now - entry[0] > VANISHED_S]
        self._vanished = [entry for entry in self._vanished if entry not in due]
        warnings, self._warnings = self._warnings, []
        return warnings + [text for _, _, text in due]

    def for_report(self) -> tuple[str, ...]:
        """Return one line for each remark and note about a device."""
        remarks = [(device, text) for (device, _), text in self.remarks.items()]
        return tuple(f"{device}: {text}" for device, text in (*remarks, *self.notes.items()) if text)
