"""A bench as its command runs, in this process."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from benchmarks.common import command


def bench(arguments: Sequence[str]) -> int:
    """Run `python -m benchmarks.NAME ...`, and return its exit status. ``arguments``: the name, and the options."""
    name, *options = arguments
    return command(importlib.import_module(f"benchmarks.{name}"), options)
