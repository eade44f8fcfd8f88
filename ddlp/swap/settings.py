"""What `ddlp run` was told, as the processes that it starts find it in their environment. Imports no torch."""

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
    """What `ddlp run` was told, as its processes find it in the environment.

    Attributes:
        strategy, csd, record: as `DDLPLoader` takes them; ``csd`` empty: no device.
        compare: time torch's own workers.
        prefix: sys.prefix of the environment whose Python processes are meant.
        pid: the process that `ddlp run` has become, where that is a script's interpreter; else 0.
    """

    strategy: str | None = None
    csd: tuple[str, ...] = ()
    record: str | None = None
    compare: bool = True
    prefix: str = ""
    pid: int = 0

    def to_text(self) -> str:
        """For the environment."""
        return json.dumps(asdict(self))


@functools.cache
def settings() -> Settings:
    """Those of this process."""
    data = json.loads(os.environ[VARIABLE])
    return Settings(**{**data, "csd": tuple(data["csd"])})


def say(text: str) -> None:
    """One line to standard error, where there is one; standard output is the script's."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
        print(f"ddlp run: {text}", file=sys.stderr, flush=True)
