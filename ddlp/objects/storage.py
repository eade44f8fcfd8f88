"""A prefix of an object storage, or a directory of a web server, by obstore. It is imported when it is needed.

Credentials stay in the process: they are in no message, repr or pickle.
"""

from __future__ import annotations

import os
import queue
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from ddlp.errors import DDLPError
from ddlp.objects.manifest import Manifest, Part, Stored, parse_index, same_tag

__all__ = ["INDEX", "ObjectChanged", "Storage", "check_url"]

INDEX = "index.txt"  # beside the directories of a web server, which has no listing
_CLOUDS = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")
_WEB = ("http", "https")
_PAGE = 1000  # objects of one answer to a listing
_ASKED = 32  # objects whose sizes are asked for at once
_QUIET_S = 3.0  # a listing that takes longer prints its progress at this interval
_LONGEST = 240  # characters of a storage's own message
_SECRET = re.compile(r"secret|token|password|account_key|access_key|sas|credential|service_account|authorization", re.I)
_PATIENCE = {"max_retries": 2, "retry_timeout": timedelta(seconds=60)}  # who asks goes on, as long as the object is wanted
_REFUSED = ("PermissionDeniedError", "UnauthenticatedError")
_SHORTER = ("416 Range Not Satisfiable", "Wanted range starting at")  # a part is behind the object's end
_AT_FIRST = {**_PATIENCE, "max_retries": 4}  # a wrong address should be told soon


class ObjectChanged(Exception):
    """An object is not the listed one any more. Says how it differs."""


class Storage:
    """Objects below one URL.

    Args:
        url: of a bucket and prefix, or of a web server's directory.
        config: obstore's settings of this kind of storage, such as {"region": "eu-north-1"}.
        client_options: obstore's ``ClientConfig``, such as {"proxy_url": ...}.
        credential_provider: obstore's, called for credentials.

    Raises:
        DDLPError: the URL is of an unknown kind, or has credentials in it; or obstore is missing.
    """

    def __init__(
        self,
        url: str,
        config: Mapping[str, Any] | None = None,
        client_options: Mapping[str, Any] | None = None,
        credential_provider: Callable[[], Any] | None = None,
    ) -> None:
        check_url(url)
        self.url = url.rstrip("/") + "/"
        self.web = urlsplit(url).scheme in _WEB
        self._config, self._client_options = dict(config or {}), dict(client_options or {})
        self._credential_provider = credential_provider
        self._store: Any = None
        self._pid = os.getpid()
        _obstore()

    def __repr__(self) -> str:
        return f"Storage({self.url!r})"

    def __deepcopy__(self, memo: Any) -> Storage:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without credentials: another process has those of its environment."""
        config = {name: value for name, value in self._config.items() if not _SECRET.search(name)}
        options = {name: value for name, value in self._client_options.items() if name != "default_headers"}
        return Storage, (self.url, config, options)

    # -- at construction

    def manifest(self, index: str | None) -> Manifest:
        """List the objects, or read the index file.

        Args:
            index: the key of the index file; None: list.

        Raises:
            DDLPError: the storage can't be reached or read, the index is damaged, or there is no image; in one line.
        """
        store = self._make(_AT_FIRST)
        try:
            if index is None:
                found = Manifest.of(self._listed(store))
            else:
                content = bytes(_obstore().get(store, index).bytes())
                found = Manifest.of(parse_index(content, self.url + index))
        except ValueError as error:
            raise DDLPError(self._plain(error)) from None
        except Exception as error:
            raise DDLPError(self._not_listed(error, index)) from None
        if not found.objects:
            raise DDLPError(
                f"Below {self.url} is no image in a directory. The first directory below the URL is an image's "
                f"class: {self.url}cat/1.jpg is of class cat."
            )
        return found

    def _listed(self, store: Any) -> Iterator[Stored]:
        told, count = time.monotonic(), 0
        for page in _obstore().list(store, chunk_size=_PAGE):
            for one in page:
                yield Stored(one["path"], one["size"], one["e_tag"] or "")
            count += len(page)
            if time.monotonic() - told > _QUIET_S:
                told = time.monotonic()
                print(f"ddlp: listing {self.url}: {count:,} objects", file=sys.stderr, flush=True)

    def stored(self, keys: Sequence[str]) -> list[Stored]:
        """Return these objects' sizes and ETags. Many are asked for at once.

        Raises:
            DDLPError: the storage can't be reached, one of them is missing or may not be read; in one line.
        """
        store, left, found = self._make(_AT_FIRST), deque(keys), {}
        answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

        def ask() -> None:
            while left:
                try:
                    key = left.popleft()
                except IndexError:  # another thread was faster
                    return
                try:
                    answers.put((key, _obstore().head(store, key)))
                except BaseException as error:
                    answers.put((key, error))

        for _ in range(min(_ASKED, len(keys))):
            threading.Thread(target=ask, name="ddlp-objects", daemon=True).start()
        told = time.monotonic()
        try:
            for count in range(len(keys)):
                key, answer = answers.get()
                if isinstance(answer, Exception):
                    raise DDLPError(self._not_asked(answer, self.url + key)) from None
                if isinstance(answer, BaseException):
                    raise answer
                found[key] = Stored(key, answer["size"], answer["e_tag"] or "")
                if time.monotonic() - told > _QUIET_S:
                    told = time.monotonic()
                    print(f"ddlp: {self.url}: sizes of {count + 1:,} of {len(keys):,} objects", file=sys.stderr, flush=True)
        finally:
            left.clear()
        return [found[key] for key in keys]

    def _not_asked(self, error: Exception, what: str) -> str:
        """One line: why an object can't be found, and what to do."""
        if type(error).__name__ in _REFUSED:
            return self._refused(what, "read", type(error).__name__)
        if isinstance(error, FileNotFoundError):
            return f"There is no {what}. Check the bucket, the names and the numbers in braces."
        return f"{what} can't be read: {self._plain(error)}. Check the URL, the region and the credentials."

    def _refused(self, what: str, how: str, why: str) -> str:
        return (
            f"{what} may not be {how} with these credentials ({why}). Check those of the environment; for a public bucket give "
            'config={"skip_signature": True}.'
        )

    def _not_listed(self, error: Exception, index: str | None) -> str:
        """One line: why the objects can't be listed, and what to do."""
        kind, what = type(error).__name__, self.url if index is None else self.url + index
        refused = next((code for code in ("401 Unauthorized", "403 Forbidden") if index is None and code in str(error)), "")
        if refused or kind in _REFUSED:
            return self._refused(what, "listed" if index is None else "read", refused or kind)
        if isinstance(error, FileNotFoundError) or (index is None and "404 Not Found" in str(error)):
            way = (
                "Check the bucket's name and region" if index is None
                else "Write one there: find . -type f -printf '%s %P\\n' > index.txt, or name another in index="
            )  # fmt: skip
            return f"There is no {what}. {way}."
        return f"{what} can't be read: {self._plain(error)}. Check the URL, the region and the credentials."

    # -- later

    def get_ready(self) -> None:
        """Connect, if that is still to be done. Raises DDLPError in a fork of the process: obstore's threads are not there."""
        if os.getpid() != self._pid:
            raise DDLPError(
                f"{self.url} can't be read in a forked process, since obstore does not survive a fork. Give the loader "
                'multiprocessing_context="forkserver" or "spawn", or transforms that ddlp knows, which need no processes.'
            )
        if self._store is None:
            self._store = self._make(_PATIENCE)

    def read(self, wanted: Stored | Part) -> Any:
        """Return the bytes of an object or of a part, as a buffer. Any thread may call this, after `get_ready`.

        Raises:
            ObjectChanged: it is not the listed one any more.
            Exception: obstore's own; `os_error` translates it.
        """
        listed, options = (wanted.whole, _options(wanted)) if isinstance(wanted, Part) else (wanted, None)
        if options is not None and not wanted.size:
            return b""
        result = _obstore().get(self._store, listed.key, options=options)
        found = result.meta
        if found["size"] != listed.size:
            raise ObjectChanged(f"it had {listed.size} bytes and has {found['size']}")
        if not same_tag(listed.tag, found["e_tag"] or ""):
            raise ObjectChanged(f"its ETag was {listed.tag} and is {found['e_tag']}")
        data = result.bytes()
        if len(data) != wanted.size:
            raise ConnectionError(f"it broke off at byte {len(data)} of {wanted.size}")
        return data

    def os_error(self, error: Exception) -> OSError:
        """Return what obstore raised as the error that the same file would give, without credentials."""
        kind = type(error).__name__
        if kind == "PreconditionError":
            error = ObjectChanged("its ETag is another one")
        elif any(words in str(error) for words in _SHORTER):
            error = ObjectChanged("it is shorter")
        if isinstance(error, ObjectChanged):
            return OSError(f"it has changed since it was listed: {error}. Make the data set anew")
        if kind == "NotSupportedError":
            return OSError("its server sends whole files alone, and no ranges of their bytes")
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError("there is no such object any more")
        if kind in _REFUSED:
            return PermissionError("it may not be read with these credentials")
        return ConnectionError(self._plain(error))

    def _make(self, retry: Mapping[str, Any]) -> Any:
        obstore = _obstore()
        try:
            if self.web:
                options = {"allow_http": self.url.startswith("http:"), **self._client_options}
                return obstore.store.HTTPStore(self.url[:-1], client_options=options, retry_config=retry)
            given: dict[str, Any] = {"client_options": self._client_options, "retry_config": retry}
            if str(self._config.get("endpoint", "")).startswith("http:"):
                given["client_options"] = {"allow_http": True, **self._client_options}
            if self._credential_provider is not None:
                given["credential_provider"] = self._credential_provider
            return obstore.store.from_url(self.url, config=self._config, **given)
        except Exception as error:
            raise DDLPError(f"{self.url}: {self._plain(error)}. Correct config= or client_options=.") from None

    def _plain(self, error: Exception) -> str:
        """An error's first line, without credentials and without URLs' queries, which may be signed."""
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        for value in self._secrets():
            text = text.replace(value, "***")
        return re.sub(r"\?[^\s\"')]*=[^\s\"')]*", "?...", text)[:_LONGEST].rstrip(". ")

    def _secrets(self) -> Iterator[str]:
        headers = self._client_options.get("default_headers") or {}
        named = [value for name, value in (*self._config.items(), *os.environ.items()) if _SECRET.search(name)]
        for value in (*named, *headers.values()):
            text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
            if len(text) > 3:
                yield text


def _options(part: Part) -> dict[str, Any]:
    """obstore's ``GetOptions``: these bytes, of the object as it was. Whether it still is, the answer tells as well."""
    found: dict[str, Any] = {"range": (part.offset, part.offset + part.size)}
    if part.whole.tag.startswith('"'):  # a weak ETag would never match
        found["if_match"] = part.whole.tag
    return found


def check_url(url: str) -> None:
    """Raise DDLPError unless it is a URL of a bucket or web server, without credentials."""
    parts = urlsplit(url)
    if "@" in parts.netloc and parts.scheme not in ("abfs", "abfss") or parts.query or parts.fragment:
        shown = f"{parts.scheme}://...{parts.path}"
        raise DDLPError(
            f"{shown} has a user, a query or a fragment in its URL, where credentials would be seen. Leave them out: set those "
            "of the environment (AWS_ACCESS_KEY_ID ...), or give config= or credential_provider=."
        )
    if parts.scheme not in (*_CLOUDS, *_WEB) or not parts.netloc:
        raise DDLPError(
            f"{url!r} is no URL of objects. Write s3://bucket/prefix/, gs://, az:// or https://server/dir/; for files on this "
            "machine use torchvision's ImageFolder or ddlp.TarImages."
        )


def _obstore() -> ModuleType:
    try:
        import obstore
        import obstore.store
    except ImportError as error:
        raise DDLPError(
            f"Object storage needs obstore, which can't be imported ({error}). Install it, on Python 3.11 or newer: "
            "pip install 'ddlp[cloud]'."
        ) from None
    return obstore
