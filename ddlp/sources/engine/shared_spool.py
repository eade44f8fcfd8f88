"""Do host and device see the same spool? Both write something there and tell each other what they see.

A path that exists on both sides proves nothing: /data/spool may be two disks. And the path comes from the engine, which may be
false: nothing is removed before both have seen what the other wrote, and then only what ddlp's hosts have made.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from csd_engine.machine.directory import Directory
from csd_engine.machine.file_locks import fcntl
from csd_engine.service.spool import SIGN, look_at, remove_host_directory
from ddlp.errors import DDLPError
from ddlp.process.system import boot
from ddlp.sources.engine.dataset_upload import FILES, DatasetUpload
from ddlp.sources.engine.link import EngineLink
from ddlp.transfer.mapped_batch import may_map

__all__ = ["NotShared", "share_spool"]

_IN_THE_MAKING_S = 5.0
_PAUSES_S = (0.0, 0.2, 0.5)  # before each look: a network file system may show new files late


class NotShared(DDLPError):
    """Host and device do not see the same spool; says what was tried."""


def share_spool(link: EngineLink) -> DatasetUpload:
    """Make the host's directory in the spool that it shares with the engine of an open link.

    Nothing is written before this host has seen the engine's own file: the directory of that name here may be somebody else's.
    Once both see the same spool, directories that killed hosts have left are removed.

    Raises:
        NotShared: with the reason.
        EngineGone: the engine is lost.
    """
    assert link.spool is not None and link.welcome is not None
    try:
        return _share(link, link.spool, link.welcome.spool)
    except OSError as error:
        raise NotShared(f"the engine's spool cannot be used at {link.spool}: {error}") from error


def _share(link: EngineLink, spool: Path, there: str) -> DatasetUpload:
    if not os.path.isdir(spool):
        raise NotShared(f"the engine's spool {there} should be {spool} here, which is no directory")
    sign = link.look("")
    if not re.fullmatch(SIGN, sign.own) or not _has_file(spool, sign.own, sign.own_digest):
        raise NotShared(f"{spool} is here, but not what the engine has just shown in its spool {there}: another disk?")
    upload = DatasetUpload.shared(spool, there)
    try:
        file, digest = upload.show()
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            if digest and link.look(file).digest == digest:
                _sweep(spool / FILES, upload.owner)
                return upload
        raise NotShared(f"this host sees the engine's spool at {spool}, but the engine does not see what is written there")
    except BaseException:
        upload.close()
        raise


def _has_file(spool: Path, name: str, digest: str) -> bool:
    for pause_s in _PAUSES_S:
        time.sleep(pause_s)
        with contextlib.closing(Directory(os.path.realpath(spool))) as directory:
            if look_at(directory, name) == digest:
                return True
    return False


def _sweep(base: Path, owner: int) -> None:
    """Remove the directories of hosts' processes that are gone. A living process holds the lock in its directory.

    Directories that another machine may have made stay: see `ddlp.sources.engine.meeting.sweep`.

    Args:
        base: the spool's directory of hosts' files.
        owner: user id; the directories of other users stay.
    """
    prefix = "" if may_map(base) else f"{boot()}-"
    with contextlib.suppress(OSError), contextlib.closing(Directory(str(base))) as files:
        for name in files.names():
            with contextlib.suppress(OSError):
                status = files.status(name)
                if name.startswith(prefix) and status.st_uid == owner and time.time() - status.st_mtime > _IN_THE_MAKING_S:
                    _remove_unlocked(files, name)


def _remove_unlocked(files: Directory, name: str) -> None:
    """Remove a host's directory if no process holds the lock in it. Raises OSError if one does, or there is no lock."""
    with contextlib.closing(files.below(name)) as directory:
        lock = directory.open("lock", os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_host_directory(files, name)
        finally:
            os.close(lock)
