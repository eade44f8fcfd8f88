"""URLs of object storages and web servers, and which of them an engine may read. obstore is imported when it is needed."""

from __future__ import annotations

import functools
import importlib.util
import re
import unicodedata
from types import ModuleType
from typing import Any, Optional, Sequence, Tuple, Type
from urllib.parse import unquote, urlsplit

from csd_engine.errors import StorageRefused

__all__ = ["below", "check_url", "checked_url", "climbs", "is_url", "is_web", "obstore_module", "opened"]

_CLOUDS = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")
_WEB = ("http", "https")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_PLAIN = re.compile(r"[\w.,=+@!()'~ -]+", re.ASCII)
_BLANKS = "".join(map(chr, range(33))) + "\x7f\xa0\xad\u200b\ufeff"
_DECODED = 3  # times
_WITHOUT_ACCOUNT = ("az", "azure", "adl")  # URLs that name none
_PLACES = 64  # that are known


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


def _is_plain(name: str) -> bool:
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


def obstore_module(raises: Type[Exception] = StorageRefused) -> ModuleType:
    """Return obstore. Raises such an error if it is missing."""
    try:
        import obstore
        import obstore.store
    except ImportError as error:
        raise raises(
            f"Object storage needs obstore, which can't be imported ({error}). Install it, on Python 3.11 or newer: "
            "pip install 'ddlp[cloud]'."
        ) from None
    return obstore


def opened(url: str, raises: Type[Exception], **given: Any) -> Any:
    """Return obstore's store of what lies below a URL. Nobody else gives it a URL."""
    stores = obstore_module(raises).store
    return stores.HTTPStore(url.rstrip("/"), **given) if is_web(url) else stores.from_url(url.rstrip("/") + "/", **given)


def below(url: str, roots: Sequence[str]) -> bool:
    """Whether what is requested for a URL is what one of these roots says, or lies below it.

    URLs are compared after obstore has read them: it drops blanks at the end, then follows ``..``, and so on.
    """
    place = _place(url)
    if place is None:
        return False
    where, names = place
    for root in filter(None, map(_place, roots)):
        own = len(root[1])
        if root[0] == where and root[1] == names[:own] and all(map(_is_plain, names[own:])):
            return True
    return False


@functools.lru_cache(maxsize=_PLACES)
def _place(url: str) -> Optional[Tuple[str, Tuple[str, ...]]]:
    """Return the server or bucket that is asked for a URL, and the names of the path there; None: there is none."""
    try:
        check_url(url)
        if is_web(url):
            text = opened(url, StorageRefused, client_options={"allow_http": True}).url
            parts = urlsplit(text)
            where, path = f"{parts.scheme}://{parts.netloc}", parts.path
            if where + path != text or "@" in where:  # a query or fragment, if only its sign, or a user
                return None
        else:
            # Where it leads does not depend on credentials, but Azure's can't be opened without an account.
            account = {"account_name": "any"} if url.split(":")[0] in _WITHOUT_ACCOUNT else {}
            store = opened(url, StorageRefused, config=account, skip_signature=True)
            where, path = f"{type(store).__name__} {sorted(store.config.items())}", store.prefix or ""
    except Exception:  # obstore's are of many kinds
        return None
    path = path.strip("/")
    return where, tuple(path.split("/")) if path else ()


def checked_url(argument: str) -> str:
    """Return an engine's ``--root URL`` with a slash at its end. Raises StorageRefused."""
    try:
        check_url(argument)
    except StorageRefused as error:
        raise StorageRefused(f"--root: {error}") from None
    if importlib.util.find_spec("obstore") is None:
        raise StorageRefused(
            f"--root {argument}: object storage needs obstore, which is not installed here: pip install obstore"
        )
    return argument.rstrip("/") + "/"
