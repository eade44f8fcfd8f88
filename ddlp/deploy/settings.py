"""engine.json on the device: the engine's command line, of one host or of all that use the engine.

HOME/keys/clients/HASH.key     a host that may come in
HOME/keys/clients/HASH.roots   the directories and URLs that it was deployed with: it may read these alone

engine.json has those of all hosts, so the other hosts keep theirs when a host is deployed or removed. All hosts share spool,
port and options: a second host uses the engine's spool and port, and the engine's options stay, unless that host gives others.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from csd_engine.cache.place import cache_directory
from csd_engine.data.objects.environment import environment_file
from csd_engine.data.objects.urls import is_url
from csd_engine.protocol.keys import load_public
from ddlp.deploy.findings import Finding, bad, ok
from ddlp.deploy.place import client_file, remove_client
from ddlp.deploy.shell import Shell
from ddlp.deploy.survey import Survey
from ddlp.devices import address_book as book
from ddlp.devices.address_book import DeviceRecord

__all__ = ["Settings", "check", "hosts", "make", "others", "put", "withdraw"]

Roots = tuple[tuple[str, str], ...]
"""Pairs (path on a host, path on the device); an object storage's is (URL, URL)."""


@dataclass(frozen=True)
class Settings:
    """The engine's command line, by its options."""

    listen: str
    spool: str
    keys: str
    roots: Roots
    options: Mapping[str, str]

    @property
    def text(self) -> str:
        """engine.json, on one line."""
        words = ["--listen", self.listen, "--spool", self.spool, "--keys", self.keys]
        words += [word for host, device in self.roots for word in ("--root", host if is_url(host) else f"{host}={device}")]
        return json.dumps({"arguments": words + [word for pair in self.options.items() for word in pair]})

    @property
    def port(self) -> int:
        """The port on which the engine is to listen."""
        return int(self.listen.rpartition(":")[2])

    @property
    def cache(self) -> str:
        """The directory of the engine's cache; empty: it has none."""
        return cache_directory(self.options.get("--cache", "none"))

    @property
    def environment(self) -> str:
        """The file with settings and credentials of storages; empty: there is none."""
        return environment_file(self.options.get("--environment", "none"))

    @property
    def reads(self) -> list[str]:
        """The paths that the engine reads apart from ours."""
        directories = [device for _, device in self.roots if not is_url(device)]
        return [*directories, *([self.environment] if self.environment else [])]

    @staticmethod
    def parse(text: str | None) -> Settings | None:
        """The settings in such a text; None if it is missing, or `ddlp deploy` did not write it."""
        try:
            words = json.loads(text or "")["arguments"]
            pairs = list(zip(words[::2], words[1::2], strict=True))
            roots = tuple(_pair(value) for option, value in pairs if option == "--root")
            options = {option: value for option, value in pairs if option != "--root"}
            listen, spool, keys = options.pop("--listen"), options.pop("--spool"), options.pop("--keys")
            settings = Settings(listen, spool, keys, roots, options)
            return settings if settings.port else None
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


def _pair(value: str) -> tuple[str, str]:
    """What such a ``--root`` says."""
    if is_url(value):
        return value, value
    host, _, device = value.rpartition("=")
    return host, device


def _own_key(name: str) -> str:
    file = book.directory(name) / "host.key"
    return load_public(file).decode() if file.exists() else ""


def _roots_of(text: str) -> Roots:
    """The directories that a host's file on the device lists; none if the text makes no sense."""
    try:
        return tuple((str(host), str(device)) for host, device in json.loads(text))
    except (TypeError, ValueError):
        return ()


def others(survey: Survey, name: str) -> dict[str, Roots]:
    """The other hosts that the engine lets in, by their keys, with the directories of each."""
    ours = _own_key(name)
    return {key: _roots_of(text) for key, text in survey.clients.items() if key != ours}


def hosts(rest: Collection[str]) -> str:
    """The other hosts, in words."""
    return f"{len(rest)} other host{'s' * (len(rest) > 1)}"


def check(survey: Survey, record: DeviceRecord) -> Iterator[Finding]:
    """Whether the engine can serve this host beside the others that use it. Called before anything is changed."""
    rest, there = others(survey, record.name), Settings.parse(survey.settings)
    if not rest:
        return
    yield ok(f"{hosts(rest)} may use this engine: what they were given stays")
    way_out = "or set up an engine for this host alone, with --name, --spool and --listen-port of its own"
    if there is not None and there.spool != record.device_spool:
        yield bad(f"the engine's spool is {there.spool}, not {record.device_spool}", f"it serves {hosts(rest)} as well",
                  f"Give --spool {shlex.quote(there.spool)}; {way_out}.")  # fmt: skip
    if there is not None and there.port != record.listen_port:
        yield bad(f"the engine listens on port {there.port}, not {record.listen_port}", f"it serves {hosts(rest)} as well",
                  f"Give --listen-port {there.port}; {way_out}.")  # fmt: skip


def make(survey: Survey, record: DeviceRecord, given: Mapping[str, str], *, ipv6: bool) -> Settings:
    """The settings to start the engine with.

    Args:
        survey: of the device.
        record: of the device, as this host wants it.
        given: options of the engine that were given now. If other hosts use the engine, its other options stay as they are.
        ipv6: this host reaches the device by IPv6.
    """
    home = survey.home
    operators = {"--operators": f"{home}/operators"}
    options = {**record.options, **operators}
    listen = f"tcp://{'[::]' if ipv6 else '0.0.0.0'}:{record.listen_port}"
    own = Settings(listen, record.device_spool, f"{home}/keys", record.roots, options)
    there = Settings.parse(survey.settings)
    if others(survey, record.name):
        own = dataclasses.replace(own, roots=_all_roots(survey, record.name, record.roots))
        if there is not None:
            both = there.listen if "[::]" in there.listen else listen  # [::] accepts IPv4 too
            return dataclasses.replace(own, listen=both, options={**there.options, **given, **operators})
    return own


def _all_roots(survey: Survey, name: str, own: Roots) -> Roots:
    """All hosts' directories, with ``own`` as this host's. They keep the device's order, so each host writes the same text."""
    there = Settings.parse(survey.settings)
    theirs = [pair for roots in others(survey, name).values() for pair in roots]
    before = _roots_of(survey.clients.get(_own_key(name), ""))
    kept = [pair for pair in (there.roots if there else ()) if pair in own or pair in theirs or pair not in before]
    return tuple(dict.fromkeys([*kept, *own, *theirs]))


def put(shell: Shell, survey: Survey, record: DeviceRecord, text: str) -> bool:
    """Write engine.json, and the list of this host's roots; True if that changed something for the engine."""
    ours, roots = _own_key(record.name), json.dumps(record.roots)
    if survey.clients.get(ours) != roots:
        shell.put(roots.encode() + b"\n", client_file(survey.home, ours, "roots"))
    if survey.settings == text:
        return False
    shell.put(text.encode() + b"\n", f"{survey.home}/engine.json", 0o600)
    return True


def withdraw(shell: Shell, survey: Survey, name: str) -> None:
    """Take this host out of an engine that others use: its key, and the directories that only this host had.

    The engine keeps running. It ends this host's connections, and reads its settings at its next start.
    """
    ours, there = _own_key(name), Settings.parse(survey.settings)
    if ours not in survey.clients:
        return
    remove_client(shell, survey.home, ours)
    if there is not None:
        text = dataclasses.replace(there, roots=_all_roots(survey, name, ())).text
        shell.put(text.encode() + b"\n", f"{survey.home}/engine.json", 0o600)
