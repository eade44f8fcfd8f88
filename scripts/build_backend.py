"""The build backend that pyproject.toml names: setuptools', which asks pip for zig as well where no C compiler works.

With $CC set it does not: CC=none installs without the kernel, where neither a compiler nor PyPI is within reach.
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
    """What to ask pip for; nothing where zig could not serve either, so that the package installs there as well."""
    if not os.environ.get("DDLP_WHEEL") and (compilers.find() or not compilers.system()):
        return []
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    return settings["options.extras_require"]["zig"].split("\n")[1:]


def get_requires_for_build_wheel(config_settings: dict[str, object] | None = None) -> list[str]:
    """What pip installs before it builds a wheel."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_compiler()]


def get_requires_for_build_editable(config_settings: dict[str, object] | None = None) -> list[str]:
    """What pip installs before `pip install -e`."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_compiler()]
