"""A number of bytes as people read it."""

from __future__ import annotations

__all__ = ["size_text"]


def size_text(count: int) -> str:
    """Return a number of bytes in three digits: 999 B, 1.5 KiB, 38.5 MiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} PiB"
