"""The versions of what decides about pixels and messages, as an engine tells them."""

from __future__ import annotations

import platform
from typing import Dict

import numpy
import PIL
import zmq

import csd_engine
from csd_engine.build import build

__all__ = ["versions"]


def versions() -> Dict[str, str]:
    """Return the versions of what decides about pixels and messages; `build` tells states of one version apart."""
    return {
        "csd_engine": csd_engine.__version__,
        "build": build(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "pillow": PIL.__version__,
        "pyzmq": zmq.__version__,
        "libzmq": zmq.zmq_version(),
        "machine": platform.machine(),
    }
