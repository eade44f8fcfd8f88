"""The versions of the parts that decide about pixels and messages, as an engine tells them."""

from __future__ import annotations

import platform
from typing import Dict

import numpy
import PIL
from PIL import features

import csd_engine
from csd_engine.machine.build import build

__all__ = ["libjpeg", "versions"]


def libjpeg() -> str:
    """Return the version of the library that Pillow decodes JPEGs with, as "turbo 3.1.0"; empty where it has none."""
    if features.check_feature("libjpeg_turbo"):
        return f"turbo {features.version_feature('libjpeg_turbo')}"
    return features.version("jpg") or ""


def versions() -> Dict[str, str]:
    """Return the versions of the parts that decide about pixels and messages. `build` tells states of one version apart."""
    import zmq  # imported here: a host without devices asks for `libjpeg` alone

    return {
        "csd_engine": csd_engine.__version__,
        "build": build(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "pillow": PIL.__version__,
        "libjpeg": libjpeg(),
        "pyzmq": zmq.__version__,
        "libzmq": zmq.zmq_version(),
        "machine": platform.machine(),
    }
