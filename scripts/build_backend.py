"""The build backend that pyproject.toml names: setuptools' own, which also asks pip for zig if no C compiler works.

If $CC is set it does not ask for zig. CC=none installs ddlp without the kernel, on a computer with neither a compiler nor PyPI.
"""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 the other hooks

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from csd_engine.kernels import compilers  # noqa: E402


def _compiler() -> list[str]:
    """Return what to ask pip for. Nothing if zig could not compile here either: the package must install there too."""
    if not os.environ.get("DDLP_WHEEL") and (compilers.find() or not compilers.system()):
        return []
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    return settings["options.extras_require"]["zig"].split("\n")[1:]


def get_requires_for_build_wheel(config_settings: dict[str, object] | None = None) -> list[str]:
    """Return the requirements that pip installs before it builds a wheel."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_compiler()]


def get_requires_for_build_editable(config_settings: dict[str, object] | None = None) -> list[str]:
    """Return the requirements that pip installs before `pip install -e`."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_compiler()]
