"""Identifies the running system. One system's locks and process numbers mean nothing to another, even in a shared directory.

A network file system may keep each machine's locks apart (NFS with local_lock=, Lustre with localflock). A process number
belongs to other processes on other machines.
"""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

__all__ = ["PREFIX", "boot", "own_prefix", "processes"]

PREFIX = "ddlp-"


def boot(root: str | os.PathLike[str] = "/") -> str:
    """8 hex digits, the same for all processes of this kernel until a restart. ``root``: where /proc is, for tests."""
    try:
        identity = (Path(root) / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        identity = socket.gethostname()
    return hashlib.blake2b(identity.encode(), digest_size=4).hexdigest()


def processes(root: str | os.PathLike[str] = "/") -> str:
    """`boot` and the container's process namespace: where these are the same, a process number is the same process."""
    try:
        return f"{boot(root)} {os.readlink(Path(root) / 'proc/self/ns/pid')}"
    except OSError:
        return boot(root)


def own_prefix() -> str:
    """The prefix for names of directories that this user makes on this machine until it is started again."""
    return f"{PREFIX}{os.getuid()}-{boot()}-"
