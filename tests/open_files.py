"""What this process has open."""

from __future__ import annotations

import os
from pathlib import Path


def open_files() -> list[str]:
    """The targets of its descriptors: paths, those of removed files with " (deleted)" behind, "socket:[123]" and the like."""
    found = []
    for one in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{one}"))
        except OSError:  # the listing's own
            pass
    return found


def open_below(directory: Path) -> list[str]:
    return [one for one in open_files() if one.startswith(f"{directory}/")]
