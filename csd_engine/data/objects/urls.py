"""URLs of object storages and web servers, and which of them an engine may read."""

from __future__ import annotations

import importlib.util
import re
from typing import Sequence, Type
from urllib.parse import urlsplit

from csd_engine.errors import StorageRefused

__all__ = ["below", "check_url", "checked_url", "is_url", "is_web"]

_CLOUDS = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")
_WEB = ("http", "https")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_PLAIN = re.compile(r"[\w.,=+@!()'~ -]+", re.ASCII)  # a name below a root: what a server might take for another path is none


def is_url(text: str) -> bool:
    """Whether this is a URL, and no path."""
    return _SCHEME.match(text) is not None


def is_web(url: str) -> bool:
    """Whether it is a web server's."""
    return urlsplit(url).scheme in _WEB


def check_url(url: str, raises: Type[Exception] = StorageRefused) -> None:
    """Raise such an error unless it is a URL of a bucket or web server, without credentials."""
    try:
        parts = urlsplit(url)
    except ValueError as error:  # brackets without an address in them
        raise raises(f"{url!r} is no URL of objects: {error}. Correct it.") from None
    if "@" in parts.netloc and parts.scheme not in ("abfs", "abfss") or parts.query or parts.fragment:
        shown = f"{parts.scheme}://...{parts.path}"
        raise raises(
            f"{shown} has a user, a query or a fragment in its URL, where credentials would be seen. Leave them out: set those "
            "of the environment (AWS_ACCESS_KEY_ID ...), or give config= or credential_provider=."
        )
    if parts.scheme not in (*_CLOUDS, *_WEB) or not parts.netloc:
        raise raises(
            f"{url!r} is no URL of objects. Write s3://bucket/prefix/, gs://, az:// or https://server/dir/; for files on this "
            "machine use torchvision's ImageFolder or ddlp.TarImages."
        )


def below(url: str, roots: Sequence[str]) -> bool:
    """Whether a URL is one of these roots, which end with a slash, or lies below one of them."""
    url = url.rstrip("/") + "/"
    for root in roots:
        names = url[len(root) :].split("/")[:-1]
        if url.startswith(root) and all(_PLAIN.fullmatch(name) and name not in (".", "..") for name in names):
            return True
    return False


def checked_url(argument: str) -> str:
    """Return an engine's ``--root URL`` with a slash at its end. Raises StorageRefused."""
    try:
        check_url(argument)
    except StorageRefused as error:
        raise StorageRefused(f"--root: {error}") from None
    if importlib.util.find_spec("obstore") is None:
        raise StorageRefused(f"--root {argument}: object storage needs obstore, which is not installed here: pip install obstore")
    return argument.rstrip("/") + "/"
