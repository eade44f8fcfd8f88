"""The address book: what this host knows of each device, by name.

One directory a device, $DDLP_HOME/devices/NAME/, with `device.json` (the record), `server.key` (the engine's public key) and
this host's pair `host.key`, `host.key_secret`. DDLP_HOME defaults to $XDG_CONFIG_HOME/ddlp, else ~/.config/ddlp.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from csd_engine.data.objects.urls import is_url
from csd_engine.machine.file_locks import fcntl
from ddlp.errors import DDLPError

__all__ = [
    "DeviceRecord",
    "UnknownDevice",
    "check_name",
    "ddlp_home",
    "directory",
    "is_name",
    "load",
    "locked",
    "names",
    "remove",
    "save",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RECORD = "device.json"


class UnknownDevice(DDLPError, ValueError):
    """There is no device of this name in the address book."""


@dataclass(frozen=True)
class DeviceRecord:
    """What `ddlp deploy` was told of a device and has found out about it, and where it put things.

    Attributes:
        name: what ``csd=`` calls it.
        destination: for ssh: ``user@host``, or a name from ~/.ssh/config.
        ssh_options: given to ssh before the destination, e.g. ``("-p", "2222")``.
        address: the engine's, ``tcp://10.0.0.2:7711``; empty until it has answered there.
        roots: pairs (path on this host, path on the device) that the engine may read. An object storage's is (URL, URL).
        host_spool: where this host sees the engine's spool, as given; None: it does not.
        device_spool: the spool's path on the device.
        home: our directory on the device; everything but spool and data is below it.
        python: path of the interpreter there that was found to suit.
        build: content hash of the csd_engine archive that runs there.
        machine: ``uname -m`` there.
        versions: of the parts there, as the engine tells them.
        operators: content hash -> the file's name here.
        service: ``systemd`` or ``supervised``.
        engine_options: of the engine, as given: ``("--workers", "2")``.
        kernel_choice: how it is to get its kernel: ``auto``, ``device``, ``cross`` or ``none``.
        given_python: the interpreter to use there, as given; None: the one that suits best.
        given_address: where this host is to reach the engine, as given: a host, or a whole address; None: the host that ssh
            reaches.
        listen_port: on which the engine is to listen; behind a NAT the port of ``address`` may be another.
    """

    name: str
    destination: str
    ssh_options: tuple[str, ...]
    address: str
    roots: tuple[tuple[str, str], ...]
    host_spool: str | None
    device_spool: str
    home: str
    python: str
    build: str
    machine: str
    versions: dict[str, str] = field(default_factory=dict)
    operators: dict[str, str] = field(default_factory=dict)
    service: str = "supervised"
    engine_options: tuple[str, ...] = ()
    kernel_choice: str = "auto"
    given_python: str | None = None
    given_address: str | None = None
    listen_port: int = 7711

    @property
    def directories(self) -> tuple[tuple[str, str], ...]:
        """Those of the roots that are directories."""
        return tuple(pair for pair in self.roots if not is_url(pair[0]))

    @property
    def urls(self) -> tuple[str, ...]:
        """Those of the roots that are URLs of object storages."""
        return tuple(url for url, _ in self.roots if is_url(url))

    @property
    def options(self) -> dict[str, str]:
        """The engine's options with their values."""
        return dict(zip(self.engine_options[::2], self.engine_options[1::2], strict=True))


def ddlp_home() -> Path:
    """$DDLP_HOME, else $XDG_CONFIG_HOME/ddlp, else ~/.config/ddlp."""
    given = os.environ.get("DDLP_HOME")
    return Path(given) if given else Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "ddlp"


def is_name(name: str) -> bool:
    """Whether this may be a device's name: 1 to 64 letters, digits, '.', '_' or '-'."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """Return the name, or raise DDLPError where it can't be a device's."""
    if not is_name(name):
        raise DDLPError(f"{name!r} can't be a device's name. Take 1 to 64 letters, digits, '.', '_' or '-', e.g. csd0.")
    return name


def directory(name: str) -> Path:
    """The device's directory, whether or not it is there."""
    return ddlp_home() / "devices" / check_name(name)


def names() -> tuple[str, ...]:
    """All devices with a record, sorted."""
    return tuple(sorted(path.parent.name for path in (ddlp_home() / "devices").glob(f"*/{_RECORD}")))


def load(name: str) -> DeviceRecord:
    """The record of a device.

    Raises:
        UnknownDevice: there is none of this name.
        DDLPError: the record can't be read, or is damaged.
    """
    path = directory(name) / _RECORD
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        known = ", ".join(names()) or "none yet"
        raise UnknownDevice(f"no device is called {name!r} in {path.parent.parent} (known: {known}). {_anew(name)}") from None
    except (OSError, ValueError) as error:
        raise DDLPError(f"the record of {name} can't be read: {error}, in {path}. {_anew(name)}") from None
    return _parse(data, path)


def _anew(name: str) -> str:
    return f"Deploy it: ddlp deploy user@host --name {name} --root DATA --spool SPOOL"


def _parse(data: Any, path: Path) -> DeviceRecord:
    try:
        known = {field.name for field in dataclasses.fields(DeviceRecord)}
        values = {key: value for key, value in data.items() if key in known}  # a newer ddlp may have written more
        values["ssh_options"] = tuple(values["ssh_options"])
        values["engine_options"] = tuple(values["engine_options"])
        values["roots"] = tuple((host, device) for host, device in values["roots"])
        return DeviceRecord(**values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DDLPError(f"{path} is no device's record: {error!r}. {_anew(path.parent.name)}") from None


def save(record: DeviceRecord) -> None:
    """Write the record, whole or not at all; the directory is this user's alone."""
    where = directory(record.name)
    where.mkdir(parents=True, exist_ok=True)
    where.chmod(0o700)
    with tempfile.NamedTemporaryFile("w", dir=where, prefix=".device", delete=False) as stream:
        try:
            json.dump(dataclasses.asdict(record), stream, indent=1)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
            os.replace(stream.name, where / _RECORD)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(stream.name)
            raise


def remove(name: str) -> None:
    """Forget a device and its keys. It is no error if there is no such device."""
    shutil.rmtree(directory(name), ignore_errors=True)


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Let only one `ddlp deploy` work on a device at a time. Raises DDLPError while there is another."""
    where = directory(name)
    where.mkdir(parents=True, exist_ok=True)
    where.chmod(0o700)
    with open(where / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DDLPError(f"another ddlp deploy is at work on {name}. Wait until it is done.") from None
        try:
            yield
        finally:
            if not (where / _RECORD).exists() and not any(where.glob("*.key*")):
                remove(name)  # the deployment stored no record and no keys
