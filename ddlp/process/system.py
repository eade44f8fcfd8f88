"""Which running system this is: what a lock or a process number tells of another one, in a directory that both see, is nothing.

A network file system may keep locks on each machine apart (NFS with local_lock=, Lustre with localflock), and a number that is
a process there is another one here.
"""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

__all__ = ["PREFIX", "boot", "own_prefix", "processes"]

PREFIX = "ddlp-"


def boot(root: str | os.PathLike[str] = "/") -> str:
    """8 hex digits, the same for all that this kernel runs until it is started again. ``root``: where /proc is, for tests."""
    try:
        told = (Path(root) / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        told = socket.gethostname()
    return hashlib.blake2b(told.encode(), digest_size=4).hexdigest()


def processes(root: str | os.PathLike[str] = "/") -> str:
    """The same for all to whom a process number is the same process: `boot`, and the container's namespace of them."""
    try:
        return f"{boot(root)} {os.readlink(Path(root) / 'proc/self/ns/pid')}"
    except OSError:
        return boot(root)


def own_prefix() -> str:
    """What the names of this user's directories begin with, as made on this machine since it was started."""
    return f"{PREFIX}{os.getuid()}-{boot()}-"
