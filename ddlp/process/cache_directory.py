"""The user's cache directory, and what of it is ddlp's. Nothing there is needed: whoever empties it loses time alone."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_directory", "samples_directory"]


def cache_directory() -> Path | None:
    """Return $XDG_CACHE_HOME/ddlp, else ~/.cache/ddlp; None if this user has no home. It may be missing."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    cache = given if os.path.isabs(given) else os.path.expanduser("~/.cache")  # the specification: ignore relative ones
    return Path(cache, "ddlp") if os.path.isabs(cache) else None


def samples_directory() -> Path | None:
    """Return where ``DDLPLoader(cache="auto")`` keeps samples; None if this user has no home. It may be missing."""
    directory = cache_directory()
    return None if directory is None else directory / "samples"
