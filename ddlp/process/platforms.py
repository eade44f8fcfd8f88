"""Other systems than Linux: `DDLPLoader` works there as torch's DataLoader does, and nothing else of ddlp runs."""

from __future__ import annotations

import functools
import sys

from ddlp.errors import Untranslatable
from ddlp.process.user_warnings import advise_user

__all__ = ["OtherSystem", "other_system", "tell_once"]

_NAMES = {"darwin": "macOS", "win32": "Windows"}
_WAY = "for ddlp's own workers, devices and commands run it on Linux (on Windows: WSL 2)"


class OtherSystem(Untranslatable):
    """ddlp prepares nothing itself, because this is not Linux."""

    def __init__(self, system: str) -> None:
        super().__init__(system, "is not Linux, and ddlp prepares batches itself, and reaches devices, on Linux only", (_WAY,))

    def __reduce__(self) -> tuple[type[OtherSystem], tuple[str]]:
        return OtherSystem, (self.operator,)

    def __str__(self) -> str:
        return f"{self.operator} {self.why}; {_WAY}."


def other_system() -> OtherSystem | None:
    """Return the error to raise on another system than Linux; None on Linux."""
    return None if sys.platform == "linux" else OtherSystem(_NAMES.get(sys.platform, sys.platform))


@functools.cache
def tell_once(system: str) -> None:
    """Say, once a process, what works on this system."""
    works = "DDLPLoader works as torch's DataLoader does, whatever the strategy: its workers run your data set's own code"
    advise_user(f"ddlp: {OtherSystem(system)} Here {works}.")
