"""The settings of `ddlp run`, which its processes find in their environment. This module does not import torch."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from dataclasses import asdict, dataclass

__all__ = ["VARIABLE", "Settings", "say", "settings"]

VARIABLE = "DDLP_RUN"


@dataclass(frozen=True)
class Settings:
    """The settings of `ddlp run`, as its processes find them in the environment.

    Attributes:
        strategy, csd, record: as `DDLPLoader` takes them, or the strategy "dataloader"; ``csd`` empty: no device.
        compare: time torch's own workers.
        fill: swap nothing; fill the caches of the script's loaders, and end it (`ddlp cache fill`).
        prefix: sys.prefix of the environment whose Python processes swap the loader.
        pid: the script's process, if `ddlp run` has become its interpreter; else 0.
        only_exact: swap no loader whose random numbers would be others then.
        postpone: have JPEGs that Pillow opens decoded late, in each process.
        counts: the file in which processes count these; "": nobody does.
    """

    strategy: str | None = None
    csd: tuple[str, ...] = ()
    record: str | None = None
    compare: bool = True
    fill: bool = False
    prefix: str = ""
    pid: int = 0
    only_exact: bool = False
    postpone: bool = True
    counts: str = ""

    def to_text(self) -> str:
        """Return the settings as text for the environment."""
        return json.dumps(asdict(self))


@functools.cache
def settings() -> Settings:
    """Return the settings of this process."""
    data = json.loads(os.environ[VARIABLE])
    return Settings(**{**data, "csd": tuple(data["csd"])})


def say(text: str) -> None:
    """Print one line to standard error, if there is one. Standard output belongs to the script."""
    line = f"ddlp {'cache fill' if settings().fill else 'run'}: {text}"
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
        if tqdm is not None and getattr(tqdm, "_instances", None):  # the script shows bars: the line goes above them
            tqdm.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)
