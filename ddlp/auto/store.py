"""What earlier runs have measured: a JSON file each in the user's cache directory, named by a digest of what was measured.

The files are a help and never an error: if something is wrong with one, a run measures as if it were the first, and says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ddlp.process.cache_directory import cache_directory
from ddlp.process.user_warnings import advise_user

__all__ = ["Stored"]

_T = TypeVar("_T")
_MOST = 1000  # files: about 4 MB


class Stored:
    """The place of one thing's figures. Several processes and threads may use it at once; nobody waits.

    Args:
        of: all that the figures depend on, as plain data. The same data find the same figures.
        directory: of the files; None: ``measured`` in `cache_directory`.
    """

    def __init__(self, of: Mapping[str, Any], directory: Path | None = None) -> None:
        cache = cache_directory()
        if directory is None and cache is not None:
            directory = cache / "measured"
        self._of = dict(of)
        text = json.dumps(self._of, sort_keys=True, default=str)
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        self.path = None if directory is None else directory / f"{digest}.json"
        self._last = ""  # the figures in the file
        self._warned = False

    def read(self, check: Callable[[Any], _T]) -> _T | None:
        """Return the figures as ``check`` returns them; None if there are none. What it raises ValueError for is damaged."""
        if self.path is None:
            return None
        try:
            figures = json.loads(self.path.read_bytes())["figures"]
            result = check(figures)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            self._tell("read", error)
            return None
        self._last = json.dumps(figures)
        return result

    def write(self, figures: Mapping[str, Any]) -> None:
        """Keep these figures in the place of older ones. Of all things the newest 1,000 stay."""
        text = json.dumps(figures)
        if self.path is None or text == self._last:
            return
        try:
            self.path.parent.mkdir(0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, suffix=".part", delete=False) as stream:
                try:
                    json.dump({"of": self._of, "figures": figures}, stream, indent=1, default=str)
                    stream.flush()
                    os.replace(stream.name, self.path)
                except BaseException:
                    os.unlink(stream.name)
                    raise
            _remove_oldest(self.path.parent)
        except OSError as error:
            self._tell("written", error)
        self._last = text

    def _tell(self, what: str, error: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"[:200]
        advise_user(f"ddlp: the stored measurements in {self.path} can't be {what}: {why}")


def _remove_oldest(directory: Path) -> None:
    names = os.listdir(directory)
    if len(names) <= _MOST:
        return
    written_at: dict[str, float] = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            written_at[name] = os.stat(directory / name).st_mtime
    for name in sorted(written_at, key=written_at.__getitem__)[:-_MOST]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(directory / name)
