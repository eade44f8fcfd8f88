"""The directories that the engine may read, with their paths on the host and here, and the URLs of object storages."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Tuple

from csd_engine.data.objects.urls import below, checked_url, is_url
from csd_engine.errors import EngineError, RootNotAllowed

__all__ = ["Roots"]


@dataclass(frozen=True)
class Roots:
    """Pairs of (path on the host, real path on the device), and URLs.

    With `trust` every absolute path is allowed as it is. This is only for an engine whose one client is the process that
    started it, as the same user and over a private socket. That process could read the files itself. URLs are not: that process
    may have other credentials.
    """

    pairs: Tuple[Tuple[str, str], ...]
    trust: bool = False
    urls: Tuple[str, ...] = ()

    @staticmethod
    def parse(arguments: List[str], trust: bool = False) -> "Roots":
        """Make roots from `HOST_PATH`, `HOST_PATH=DEVICE_PATH` or `URL` arguments.

        Raises:
            EngineError: a path is not absolute, or the directory does not exist here. Or a URL is none of objects, or obstore
                is missing.
        """
        pairs, urls = [], []
        for argument in arguments:
            if is_url(argument):
                urls.append(checked_url(argument))
                continue
            host, _, device = argument.partition("=")
            device = device or host
            if not host.startswith("/") or not device.startswith("/"):
                raise EngineError(f"--root {argument}: paths must be absolute. Write --root /path/on/host=/path/here.")
            if not os.path.isdir(device):
                raise EngineError(f"--root {argument}: {device} is not a directory here. Mount it or correct the path.")
            pairs.append((os.path.normpath(host), os.path.realpath(device)))
        return Roots(tuple(pairs), trust, tuple(urls))

    def with_files(self, host: str, device: str) -> Roots:
        """Return these roots and one more, for the arrays that hosts put below the spool."""
        return replace(self, pairs=self.pairs + ((os.path.normpath(host), os.path.realpath(device)),))

    def of_host(self, own: Optional[Tuple[Tuple[str, str], ...]]) -> Roots:
        """Return those of these roots that are a host's own, given as (path on the host, path here); None: all of them."""
        if own is None:
            return self
        mine = {(os.path.normpath(host), os.path.realpath(device)) for host, device in own if not is_url(host)}
        urls = tuple(url for url in self.urls if (url, url) in own)
        return replace(self, pairs=tuple(pair for pair in self.pairs if pair in mine), urls=urls)

    def resolve(self, path: str) -> str:
        """Return the path on the device for a path on the host, or a URL as it is.

        Raises:
            RootNotAllowed: it is below none of the roots.
        """
        if is_url(path):
            if below(path, self.urls):
                return path
            raise RootNotAllowed(
                f"{path} is below none of the URLs that the engine may read for this host ({', '.join(self.urls) or 'none'}). "
                f"Deploy this host with --root {path}, or start the engine with it, and with credentials for it."
            )
        normal = os.path.normpath(path)
        if os.path.isabs(normal):
            for host, device in self.pairs:
                if normal == host:
                    return device
                prefix = host.rstrip("/") + "/"
                if normal.startswith(prefix):
                    return os.path.join(device, normal[len(prefix) :])
            if self.trust:
                return normal
        allowed = ", ".join(host for host, _ in self.pairs) or "none"
        raise RootNotAllowed(
            f"{path} is outside the roots that the engine may read for this host ({allowed}). Deploy this host with --root, "
            f"or start the engine with --root {path}, or --root HOST_PATH=DEVICE_PATH where it has another name there."
        )

    @property
    def beneath(self) -> Any:
        """Real directories; a file is not opened if it lies outside all of them after links are followed. None: no limit."""
        return None if self.trust else [device for _, device in self.pairs]

    def to_data(self) -> Dict[str, Any]:
        """Return plain data for a worker's command."""
        return {"pairs": [list(pair) for pair in self.pairs], "trust": self.trust, "urls": list(self.urls)}

    @staticmethod
    def from_data(data: Dict[str, Any]) -> "Roots":
        """Make roots from `to_data`'s result."""
        return Roots(tuple((host, device) for host, device in data["pairs"]), bool(data["trust"]), tuple(data["urls"]))
