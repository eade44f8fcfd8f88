"""cuFile's own settings: where a process gets them, a copy without the compatibility mode, and the ones in force.

cuFile reads a JSON file with // comments ($CUFILE_ENV_PATH_JSON, else /etc/cufile.json) when its driver is opened; for some
settings an environment variable takes precedence. Its compatibility mode is the property ``allow_compat_mode``. libcufile 1.17
ignores the variable CUFILE_ALLOW_COMPAT_MODE, which many texts name: the file alone counts there.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import json
import os
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["SONAME", "Error", "Settings", "in_force", "quiet_log", "read_settings", "section", "strict", "wants_p2pdma"]

Settings = dict[str, Any]
_FILE = "/etc/cufile.json"
SONAME = "libcufile.so.0"
_STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
# enum CUFileBoolConfigParameter_t of cufile.h, since 1.14
_ALLOW_COMPAT_MODE, _FORCE_COMPAT_MODE = 1, 2


class Error(ctypes.Structure):
    """CUfileError_t."""

    _fields_ = [("err", ctypes.c_int), ("cu_err", ctypes.c_int)]


def read_settings(environ: Mapping[str, str] = os.environ, file: str = _FILE) -> Settings:
    """The settings of the file that cuFile would read; empty where there is none, or none that can be parsed."""
    with contextlib.suppress(OSError, ValueError):
        with open(environ.get("CUFILE_ENV_PATH_JSON") or file, encoding="utf-8") as stream:
            text = stream.read()
        settings = json.loads(_STRING_OR_COMMENT.sub(lambda match: match[0] if match[0].startswith('"') else "", text))
        if isinstance(settings, dict):
            return settings
    return {}


def section(settings: Settings, *names: str) -> Settings:
    """A part of the settings, made where it is missing."""
    for name in names:
        if not isinstance(settings.get(name), dict):
            settings[name] = {}
        settings = settings[name]
    return settings


def strict(settings: Settings, p2pdma: bool = False) -> Settings:
    """A copy of the settings, with which a read fails if it can't be direct. ``p2pdma``: with the kernel's PCI P2PDMA on."""
    settings = copy.deepcopy(settings)
    section(settings, "properties")["allow_compat_mode"] = False
    if p2pdma:
        section(settings, "properties")["use_pci_p2pdma"] = True
        section(settings, "block", "nvme")["use_pci_p2pdma"] = True
    return settings


def wants_p2pdma(settings: Settings, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether cuFile is told to use the kernel's PCI P2PDMA; off by default."""
    variable = environ.get("CUFILE_USE_PCIP2PDMA")
    if variable is not None:
        return variable.lower() in ("1", "true")
    return section(copy.deepcopy(settings), "properties").get("use_pci_p2pdma") is True


def quiet_log() -> None:
    """Keep cuFile from writing cufile.log into the working directory, unless the user said where it goes.

    Call it before cuFile's driver is opened. The first file opens it.
    """
    if "CUFILE_LOGFILE_PATH" not in os.environ and not section(read_settings(), "logging").get("dir"):
        os.environ["CUFILE_LOGFILE_PATH"] = os.devnull


def in_force() -> tuple[bool, bool] | None:
    """(compatibility mode allowed, compatibility mode forced), as this process's open driver has them.

    None if libcufile is too old to tell (before 1.14) or not loaded. Before the driver is open, cuFile tells (False, False).
    """
    try:
        ask = ctypes.CDLL(SONAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW).cuFileGetParameterBool
    except (OSError, AttributeError):
        return None
    ask.restype = Error
    values = []
    for parameter in (_ALLOW_COMPAT_MODE, _FORCE_COMPAT_MODE):
        value = ctypes.c_bool()
        if ask(parameter, ctypes.byref(value)).err:
            return None
        values.append(value.value)
    return values[0], values[1]
