"""URLs of object storages and web servers, as text. `csd_engine.data.objects.store.below` says which an engine may read."""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from typing import Type
from urllib.parse import unquote, urlsplit

from csd_engine.errors import StorageRefused

__all__ = ["check_url", "checked_url", "climbs", "is_plain", "is_url", "is_web"]

_CLOUDS = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")
_WEB = ("http", "https")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_PLAIN = re.compile(r"[\w.,=+@!()'~ -]+", re.ASCII)
_BLANKS = "".join(map(chr, range(33))) + "\x7f\xa0\xad\u200b\ufeff"
_DECODED = 3  # times


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
    if climbs(parts.path):
        raise raises(f"{url!r} leads elsewhere than its names say. Write the path without '.' and '..'.")
    if parts.scheme not in (*_CLOUDS, *_WEB) or not parts.netloc:
        raise raises(
            f"{url!r} is no URL of objects. Write s3://bucket/prefix/, gs://, az:// or https://server/dir/; for files on this "
            "machine use torchvision's ImageFolder or ddlp.TarImages."
        )


def is_plain(name: str) -> bool:
    """Whether a name in a URL, percent-encoded or not, is nothing that a server might take for another path."""
    name = unquote(name)
    return _PLAIN.fullmatch(name) is not None and name == name.strip() and not climbs(name)


def climbs(key: str) -> bool:
    """Whether a server could take a name in a key or path for ``.`` or ``..``, however it reads them.

    Servers have decoded paths twice, taken a backslash for a slash, cut a name at a semicolon, dropped blanks at its end, and
    folded full-width dots.
    """
    for _ in range(_DECODED):
        key = unquote(key)
    names = re.split(r"[/\\]", unicodedata.normalize("NFKC", key))
    return any(name.split(";")[0].strip(_BLANKS) in (".", "..") for name in names)


def checked_url(argument: str) -> str:
    """Return an engine's ``--root URL`` with a slash at its end. Raises StorageRefused."""
    try:
        check_url(argument)
    except StorageRefused as error:
        raise StorageRefused(f"--root: {error}") from None
    if importlib.util.find_spec("obstore") is None:
        raise StorageRefused(f"--root {argument}: object storage needs obstore, which is not installed here: pip install obstore")
    return argument.rstrip("/") + "/"
