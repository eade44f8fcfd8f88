"""A prefix of an object storage, or a directory of a web server, by obstore. It is imported when it is needed.

Credentials stay in the process: they are in no message, repr or pickle.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import Any, Callable, ClassVar, Dict, Iterator, Mapping, Optional, Tuple, Type, Union

from csd_engine.data.objects.own_hosts import cloud_of, led_astray, only_own_hosts
from csd_engine.data.objects.stored import Part, Stored, mark_of, same_tag
from csd_engine.data.objects.urls import check_url, is_web, obstore_module, opened
from csd_engine.errors import StorageRefused

__all__ = ["REFUSED", "ObjectChanged", "ObjectStore"]

REFUSED = ("PermissionDeniedError", "UnauthenticatedError")  # obstore's errors
_SERVERS = ("endpoint", "base_url")  # settings that name another server than the cloud's own
_SERVERS_OF_ENVIRONMENT = (  # obstore reads them too
    "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "GOOGLE_BASE_URL",
)  # fmt: skip
ASTRAY = "its server sends requests on to another host, which is refused"
_PASSING = ("GenericError", "JoinError")  # obstore's errors; all others stay: a key that is none, a setting, a range
_STATUS = re.compile(r"status code: (4\d\d)\b")  # what a server answers to a request that it will never grant ...
_LATER = (408, 409, 425, 429)  # ... but for these
_LONGEST = 240  # characters of a storage's own message
# obstore's settings that may be seen, without the name of their cloud; all others are taken for secrets.
_SHOWN = frozenset({
    "account_name", "base_url", "bucket", "bucket_name", "checksum_algorithm", "conditional_put", "container_name",
    "copy_if_not_exists", "default_region", "disable_tagging", "endpoint", "endpoint_url", "endpoint_url_s3", "imdsv1_fallback",
    "metadata_endpoint", "region", "request_payer", "s3_express", "skip_signature", "unsigned_payload", "use_emulator",
    "use_fabric_endpoint", "virtual_hosted_style_request",
    "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only",
    "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_only", "pool_idle_timeout",
    "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url", "randomize_addresses", "read_timeout",
    "root_certificate", "timeout", "user_agent",
})  # fmt: skip
_CLOUD = re.compile(r"(aws|azure_storage|azure|google_storage|google)_", re.I)
_OF_PROXIES = re.compile(r"(https?|all)_proxy", re.I)
_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]*@")
PATIENCE = {"max_retries": 2, "retry_timeout": timedelta(seconds=60)}  # who asks goes on, as long as the object is wanted
_SHORTER = ("416 Range Not Satisfiable", "Wanted range starting at")  # a part is behind the object's end


class ObjectChanged(Exception):
    """An object is not the listed one any more. Says how it differs."""


class ObjectStore:
    """Objects below one URL, which are read.

    Args:
        url: of a bucket and prefix, or of a web server's directory.
        config: obstore's settings of this kind of storage, such as {"region": "eu-north-1"}.
        client_options: obstore's ``ClientConfig``, such as {"proxy_url": ...}.
        credential_provider: obstore's, called for credentials.

    Attributes:
        raises: the kind of errors that it raises on purpose.

    Raises:
        StorageRefused: the URL is of an unknown kind, or has credentials in it; or obstore is missing.
    """

    raises: ClassVar[Type[Exception]] = StorageRefused

    def __init__(
        self,
        url: str,
        config: Optional[Mapping[str, Any]] = None,
        client_options: Optional[Mapping[str, Any]] = None,
        credential_provider: Optional[Callable[[], Any]] = None,
    ) -> None:
        check_url(url, self.raises)
        self.url = url.rstrip("/") + "/"
        self.web = is_web(url)
        self._config, self._client_options = dict(config or {}), dict(client_options or {})
        self._credential_provider = credential_provider
        self._store: Any = None
        self._pid = os.getpid()
        obstore_module(self.raises)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __deepcopy__(self, memo: Any) -> ObjectStore:
        return self

    def __reduce__(self) -> Tuple[Any, ...]:
        """Pickle only what may be seen, without credentials: another process has those of its environment."""
        config, options = (
            {name: value for name, value in settings.items() if _may_be_shown(name, value)}
            for settings in (self._config, self._client_options)
        )
        return type(self), (self.url, config, options)

    def get_ready(self) -> None:
        """Connect, if that is still to be done. Raises `raises` in a fork of the process: obstore's threads are not there."""
        if os.getpid() != self._pid:
            raise self.raises(
                f"{self.url} can't be read in a forked process, since obstore does not survive a fork. Give the loader "
                'multiprocessing_context="forkserver" or "spawn", or transforms that ddlp knows, which need no processes.'
            )
        if self._store is None:
            self._store = self._make(PATIENCE)

    def reach(self) -> str:
        """Ask once for what lies below the URL; return a line for a person that says what came.

        Raises:
            StorageRefused: it does not answer, or not with these settings and credentials.
        """
        obstore, store = obstore_module(self.raises), self._make({"max_retries": 0})
        try:
            if self.web:
                answer = f"index.txt has {obstore.head(store, 'index.txt')['size']} bytes"
            else:
                page = next(iter(obstore.list(store, chunk_size=1)), ())
                answer = f"{page[0]['path']} is there" if page else "nothing is there"
        except FileNotFoundError:  # a web server's: a bucket that is missing gives another error
            answer = "it has no index.txt"
        except Exception as error:
            raise self.raises(
                f"{self.url} can't be {'read' if self.web else 'listed'}: {self.plain(error)}. Check the URL, and the "
                "endpoint, region and credentials of the engine's environment, or in --environment FILE."
            ) from None
        return f"{self.url} answers: {answer}"

    def read(self, wanted: Union[Stored, Part]) -> Any:
        """Return the bytes of an object or of a part, as a buffer. Any thread may call this, after `get_ready`.

        Raises:
            ObjectChanged: it is not the listed one any more.
            Exception: obstore's own; `os_error` translates it.
        """
        listed, options = (wanted.whole, _options(wanted)) if isinstance(wanted, Part) else (wanted, None)
        if options is not None and not wanted.size:
            return b""
        result = obstore_module(self.raises).get(self._store, listed.key, options=options)
        meta = result.meta
        if meta["size"] != listed.size:
            raise ObjectChanged(f"it had {listed.size} bytes and has {meta['size']}")
        tag = meta["e_tag"] or ""
        if not same_tag(listed.tag, tag):
            raise ObjectChanged(f"its ETag was {listed.tag} and is {tag}")
        if listed.mark and mark_of(tag) != listed.mark:
            raise ObjectChanged(f"its ETag is another one, {tag or 'none'}")
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
        if kind in REFUSED:
            return PermissionError("it may not be read with these credentials")
        if led_astray(error):
            return PermissionError(ASTRAY)
        return ConnectionError(self.plain(error)) if _may_pass(error) else OSError(self.plain(error))

    def _make(self, retry: Mapping[str, Any]) -> Any:
        options = {**only_own_hosts(self.url, self._config, self._client_options), **self._client_options}
        try:
            if self.web:
                options = {"allow_http": self.url.startswith("http:"), **options}
                return opened(self.url, self.raises, client_options=options, retry_config=retry)
            if self._server().startswith("http:"):
                options = {"allow_http": True, **options}
            given: Dict[str, Any] = {"client_options": options, "retry_config": retry}
            if self._credential_provider is not None:
                given["credential_provider"] = self._credential_provider
            return opened(self.url, self.raises, config=self._config, **given)
        except Exception as error:
            raise self.raises(f"{self.url}: {self.plain(error)}. Correct config= or client_options=.") from None

    def _server(self) -> str:
        """Return the server that stands for the cloud's own, by its settings or by the environment; "" for none."""
        cloud = cloud_of(self.url)
        of_environment = (os.environ.get(name) for name in _SERVERS_OF_ENVIRONMENT if name.startswith(cloud))
        return str(next(filter(None, (*map(self._config.get, _SERVERS), *of_environment)), ""))

    def plain(self, error: Exception) -> str:
        """Return an error's first line, without credentials and without URLs' queries, which may be signed."""
        if led_astray(error):
            return ASTRAY
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        for value in self._secrets():
            text = text.replace(value, "***")
        text = _USER_OF_URL.sub("***@", text)
        return re.sub(r"\?[^\s\"')]*=[^\s\"')]*", "?...", text)[:_LONGEST].rstrip(". ")

    def _secrets(self) -> Iterator[str]:
        """Yield the texts that no message may have."""
        of_environment = [pair for pair in os.environ.items() if _CLOUD.match(pair[0]) or _OF_PROXIES.fullmatch(pair[0])]
        for name, value in (*self._config.items(), *self._client_options.items(), *of_environment):
            if not _may_be_shown(name, value):
                yield from _texts(value)


def _may_be_shown(name: str, value: Any) -> bool:
    """Whether a setting is one that tells no secret. A URL may have a password in it, or be signed."""
    return _CLOUD.sub("", name, count=1).lower() in _SHOWN and not ("://" in str(value) and re.search("[@?]", str(value)))


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts of a secret setting that are long enough to be recognised."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    else:
        text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
        user = _USER_OF_URL.search(text)
        password = "" if user is None else user[0][:-1].partition(":")[2]
        yield from (secret for secret in (text, password) if len(secret) > 3)


def _may_pass(error: Exception) -> bool:
    """Whether the same request may be answered later. obstore tells all troubles of a connection as GenericError."""
    if not isinstance(error, OSError) and type(error).__name__ not in _PASSING:
        return False
    status = _STATUS.search(str(error))
    return status is None or int(status[1]) in _LATER


def _options(part: Part) -> Dict[str, Any]:
    """obstore's ``GetOptions``: these bytes, of the object as it was. Whether it still is, the answer tells as well."""
    options: Dict[str, Any] = {"range": (part.offset, part.offset + part.size)}
    if part.whole.tag.startswith('"'):  # a weak ETag would never match
        options["if_match"] = part.whole.tag
    return options
