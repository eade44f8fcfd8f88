"""Facts about this machine, to be stored beside what was measured on it."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

from csd_engine.machine.computer import cpu_model

__all__ = ["machine"]

_PACKAGES = (
    "torch", "torchvision", "numpy", "Pillow", "pyzmq", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "spdl", "turboloader",
)  # fmt: skip


def machine() -> dict[str, Any]:
    """Return facts about this machine: processor, memory, versions, the kernel in use, the time."""
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text()) if Path("/proc/meminfo").exists() else None
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(memory.group(1)) / 1e6) if memory else None,
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions,
        "libjpeg": _libjpeg(),
        "kernel": _kernel(),
        "load": [round(part, 2) for part in os.getloadavg()],
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _libjpeg() -> str:
    from PIL import features

    return f"{features.version('libjpeg_turbo') or features.version('jpg')}"


def _kernel() -> str:
    """Return the compiled kernel's variant, or why there is none."""
    from csd_engine.kernels import kernel, why_not

    library = kernel()
    return f"none ({why_not()})" if library is None else library.variant
