"""Which hosts may connect, and what each may read: in memory, and read again when the files change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, Optional, Tuple

from csd_engine.protocol.keys import HostRoots, PathLike, allowed_clients

__all__ = ["AllowList"]

_GONE = (FileNotFoundError, NotADirectoryError, PermissionError)


class AllowList:
    """The keys in `directory`/clients.

    They stay in memory: where the files can't be read for a while, since descriptors or memory are short, the last ones hold.
    """

    def __init__(self, directory: PathLike) -> None:
        self.keys: Dict[bytes, Optional[HostRoots]] = {}
        self._directory = directory
        self._files: Tuple[Tuple[object, ...], ...] = ()
        self.refresh()

    def __contains__(self, key: object) -> bool:
        return key in self.keys

    def roots(self, key: bytes) -> Optional[HostRoots]:
        """Return the directories that this host was deployed with; None: it may read all that the engine may.

        If no host has such directories, each may read all. Else a key that is not in the list has none.
        """
        listed = any(roots is not None for roots in self.keys.values())
        return self.keys.get(key, ()) if listed else None

    def refresh(self) -> None:
        """Read the keys again if a file has changed."""
        try:
            files = self._look()
            if files != self._files:
                self.keys, self._files = allowed_clients(self._directory), files
        except OSError:  # at the next time, perhaps
            pass

    def _look(self) -> Tuple[Tuple[object, ...], ...]:
        """Return what tells that a file was added, removed, written, or given away. Raises OSError: it can't be known now."""
        found = []
        try:
            with os.scandir(Path(self._directory, "clients")) as entries:
                for entry in entries:
                    if entry.name.endswith((".key", ".roots")):
                        try:
                            status = entry.stat()
                        except _GONE:
                            continue
                        content = (entry.name, status.st_ino, status.st_size, status.st_mtime_ns)
                        found.append((*content, status.st_uid, status.st_mode))
            status = os.stat(Path(self._directory, "clients"))
        except _GONE:
            return ()
        return ((status.st_uid, status.st_mode), *sorted(found))
