"""A storage's server can't send its clients to another host.

obstore follows redirects wherever they lead, sends a session token along, and can't be told not to. But it can be told of a
proxy, and of hosts that it reaches without one. So all hosts but a storage's own lie behind a proxy that nobody answers.
"""

from __future__ import annotations

import functools
import os
import socket
from typing import Any, Dict, List, Mapping, Optional
from urllib.parse import urlsplit

__all__ = ["cloud_of", "led_astray", "only_own_hosts"]

_CLOUD_OF = {"s3": "AWS", "s3a": "AWS", "gs": "GOOGLE"}  # by scheme; the others are Azure's
# With their subdomains, those of other countries, and where credentials come from.
_DOMAINS = {
    "AWS": ("amazonaws.com", "amazonaws.com.cn", "api.aws", "aws.dev"),
    "GOOGLE": ("googleapis.com", "metadata.google.internal", "metadata"),
    "AZURE": (
        "windows.net", "azure.com", "azure.net", "chinacloudapi.cn", "usgovcloudapi.net", "microsoftonline.com",
        "microsoftonline.us", "microsoft.com",
    ),
}  # fmt: skip
_OF_THE_MACHINE = ("169.254.0.0/16", "fd00:ec2::/32")  # where a cloud's computers find their credentials
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@functools.lru_cache(maxsize=1)
def _nobody() -> socket.socket:
    """Return a socket whose port is taken, and refuses all connections."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


def _address() -> str:
    return f"127.0.0.1:{_nobody().getsockname()[1]}"


def cloud_of(url: str) -> str:
    """Return how the names of the settings of a bucket's cloud begin."""
    return _CLOUD_OF.get(urlsplit(url).scheme, "AZURE")


def only_own_hosts(url: str, config: Mapping[str, Any], client_options: Mapping[str, Any]) -> Dict[str, str]:
    """Return obstore's client options by which a store at this URL reaches its own hosts alone.

    Its own are the URL's host, or the cloud's, and those of all URLs in its settings, as an endpoint. Nothing where requests go
    through a proxy of the user's: then it is the proxy that says where they may go.
    """
    proxies = [*map(os.environ.get, (*_PROXIES, *map(str.upper, _PROXIES))), client_options.get("proxy_url")]
    if any(proxies):
        return {}
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):
        hosts = [parts.hostname]
    else:
        cloud = cloud_of(url)
        of_environment = [value for name, value in os.environ.items() if name.startswith(cloud)]
        hosts = [*_DOMAINS[cloud], *_OF_THE_MACHINE, *_hosts([*config.values(), *of_environment])]
        if cloud == "AZURE":
            hosts += ["localhost", "127.0.0.1"]  # its emulator, and its own machine's agents
    return {"proxy_url": f"http://{_address()}", "proxy_excludes": ",".join(dict.fromkeys(filter(None, hosts)))}


def _hosts(values: List[Any]) -> List[Optional[str]]:
    """Return the hosts of those settings that are URLs."""
    hosts = []
    for value in values:
        try:
            parts = urlsplit(str(value))
            hosts.append(parts.hostname if parts.scheme in ("http", "https") else None)
        except ValueError:  # it is something else
            continue
    return hosts


def led_astray(error: Exception) -> bool:
    """Whether a request has failed since it was sent on to another host."""
    return _address() in str(error)
