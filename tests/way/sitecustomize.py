"""Notes which files of ddlp/ and csd_engine/ run a line while a window is open, in all threads of all processes.

A process that a traced one starts imports this file by itself: its directory is in PYTHONPATH, and Python looks there for a
module of this name. The first byte of $DDLP_WAY/window, which all processes map, is the number of the open window; 0: none is
open. What runs goes to $DDLP_WAY/ran, as lines "window kind name": a "file", or a "type" of which an object is made.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

HOME = "DDLP_WAY"
PACKAGES = ("ddlp", "csd_engine")
REPOSITORY = Path(__file__).resolve().parents[2]


def trace(home: Path) -> Callable[[FrameType, str, Any], Any]:
    """Trace the calling thread, its threads and its children from now on. Returns the function for `sys.settrace`."""
    with open(home / "window", "rb") as file:
        window = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
    ran = os.open(home / "ran", os.O_WRONLY | os.O_APPEND)
    inside: dict[str, str] = {}  # of a code's file: its path in the repository; "" if it is not in the packages
    noted: set[tuple[int, str, str]] = set()

    def note(kind: str, name: str) -> None:
        number = window[0]
        if number and (number, kind, name) not in noted:
            noted.add((number, kind, name))
            os.write(ran, f"{number} {kind} {name}\n".encode())

    def ours(path: str) -> str:
        if path not in inside:
            relative = os.path.relpath(path, REPOSITORY) if os.path.isabs(path) else ""
            inside[path] = relative if relative.split(os.sep)[0] in PACKAGES else ""
        return inside[path]

    def note_type(frame: FrameType) -> None:
        """Note the type of which an object is made, and its file: a dataclass's `__init__` runs no line there."""
        made = frame.f_locals.get("self", frame.f_locals.get("_cls"))
        cls = made if isinstance(made, type) else type(made)
        if cls.__module__.split(".")[0] in PACKAGES:
            note("type", f"{cls.__module__}.{cls.__qualname__}")
            note("file", ours(str(sys.modules[cls.__module__].__file__)))

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        note("file", ours(frame.f_code.co_filename))
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        path = ours(code.co_filename)
        generated = code.co_filename.startswith("<string")  # of a dataclass or NamedTuple
        if code.co_name == "__init__" or (generated and code.co_name in ("__new__", "<lambda>")):
            note_type(frame)
        return line if path else None

    threading.settrace(call)
    sys.settrace(call)
    return call


if HOME in os.environ:
    trace(Path(os.environ[HOME]))
