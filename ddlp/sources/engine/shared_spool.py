"""Do host and device see the same spool? Both write something there and tell each other what they see.

A path that exists on both sides proves nothing: /data/spool may be two disks.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from csd_engine.service.spool import look_at
from ddlp.errors import DDLPError
from ddlp.sources.engine.dataset_upload import DatasetUpload
from ddlp.sources.engine.link import EngineLink
from ddlp.transfer.choose_transfer import WAYS

__all__ = ["NotShared", "TRANSFERS", "share_spool"]

TRANSFERS = ("auto", "shared", *WAYS, "stream")
_PAUSES_S = (0.0, 0.2, 0.5)  # before each look: a network file system may show new files late


class NotShared(DDLPError):
    """Host and device do not see the same spool; says what was tried."""


def share_spool(link: EngineLink) -> DatasetUpload:
    """Make the host's directory in the spool that it shares with the engine of an open link.

    Nothing is written before this host has seen the engine's own file: the directory of that name here may be somebody else's.

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
    if not _seen(spool / sign.own, sign.own_digest):
        raise NotShared(f"{spool} is here, but not what the engine has just shown in its spool {there}: another disk?")
    upload = DatasetUpload.shared(spool, there)
    try:
        file, digest = upload.show()
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            if link.look(file).digest == digest:
                return upload
        raise NotShared(f"this host sees the engine's spool at {spool}, but the engine does not see what is written there")
    except BaseException:
        upload.close()
        raise


def _seen(path: Path, digest: str) -> bool:
    for pause_s in _PAUSES_S:
        time.sleep(pause_s)
        if look_at(path) == digest:
            return True
    return False
