"""The driver's library that the real nvidia-ml-py loads in tests: fake_nvml.c, compiled."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from tests.needs import c_compiler

needs_pynvml = pytest.mark.skipif(importlib.util.find_spec("pynvml") is None, reason="needs nvidia-ml-py")


def compiled(directory: Path) -> Path:
    """Put the library into a directory, for LD_LIBRARY_PATH. Returns the directory."""
    made = directory / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run([*c_compiler(), "-shared", "-fPIC", "-w", "-o", made, source], check=True)
    return directory
