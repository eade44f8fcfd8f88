"""The file with the settings and credentials of object storages: `--environment FILE`, a line NAME=VALUE for each.

Its values go into this process's environment, where obstore finds them, and nowhere else: they are in no message and no log.
"""

from __future__ import annotations

import os
import re
from typing import Dict, Sequence

from csd_engine.errors import StorageRefused
from csd_engine.machine.directory import first_above, trusted_content

__all__ = ["environment_file", "load_environment"]

_NAME = re.compile(r"(AWS|AZURE|GOOGLE)_[A-Z0-9_]+|(HTTPS?|ALL|NO)_PROXY|(https?|all|no)_proxy|SSL_CERT_(FILE|DIR)")
_NAMES = "AWS_..., AZURE_..., GOOGLE_..., HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR"


def environment_file(text: str) -> str:
    """Return the path of ``--environment FILE``; empty for "none"."""
    return "" if text == "none" else text


def load_environment(text: str, others: Sequence[str]) -> None:
    """Take the file's variables into this process's environment; nothing for "none".

    Args:
        text: as ``--environment`` has it.
        others: the data sets' roots, the spool, the cache: directories that hosts may read or write.

    Raises:
        StorageRefused: the file lies in one of ``others``, can't be read, could be read or written by another user, or has a
            line that sets no variable of a storage's client.
    """
    path = environment_file(text)
    if not path:
        return
    above = first_above(os.path.realpath(path), others)
    if above is not None:
        raise StorageRefused(
            f"--environment {path} lies in {os.path.realpath(above)}, which hosts may read or write. Give a file outside all "
            "--root directories, the --spool and the --cache."
        )
    os.environ.update(_parsed(_content(path), path))


def _content(path: str) -> bytes:
    """Return what is in the file, if nobody else can read or write it. Raises StorageRefused."""
    try:
        return trusted_content(path, secret=True)
    except OSError as error:
        raise StorageRefused(
            f"--environment {path} can't be read: {error.strerror}. Correct the path, or give the file to the engine's user."
        ) from None
    except ValueError as why:
        raise StorageRefused(
            f"--environment {path} is not used: {why}. Give a file with lines NAME=VALUE to the engine's user, or to root, and "
            f"type chmod 600 {path}"
        ) from None


def _parsed(content: bytes, path: str) -> Dict[str, str]:
    """Return the variables. Raises StorageRefused, which names a line and quotes nothing of it."""
    variables = {}
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not _NAME.fullmatch(name):
            raise StorageRefused(
                f"--environment {path}, line {number}: it sets no variable of a storage's client. Write NAME=VALUE; the names "
                f"are {_NAMES}."
            )
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        if not value.isprintable() or "\ufffd" in value:
            raise StorageRefused(f"--environment {path}, line {number}: the value is no printable UTF-8 text. Correct it.")
        variables[name] = value
    return variables
