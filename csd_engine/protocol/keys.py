"""CURVE key files (zmq.auth certificates), and which hosts may connect.

A key directory holds `server.key_secret` and `server.key` (the engine's), `host.key_secret` and `host.key` (one
host's), and `clients/`, the allow-list: the public `.key` file of every host that may connect. CURVE alone lets in any host
that has the server's public key, hence the list.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Dict, NamedTuple, Optional, Tuple, Union

import zmq
import zmq.auth

from csd_engine.errors import EngineError
from csd_engine.machine.directory import Directory, distrusted, trusted_content

__all__ = [
    "AllowList", "HostRoots", "KeyPair", "allowed_clients", "fresh_pair", "load_pair", "load_public", "make_keys", "make_pair",
    "open_clients",
]  # fmt: skip

PathLike = Union[str, "os.PathLike[str]"]
HostRoots = Tuple[Tuple[str, str], ...]
"""The directories of one host: (path on the host, path on the device)."""
_LOG = logging.getLogger("csd_engine")
_PUBLIC_MODE = 0o644  # whatever the umask: a key file that a group may write is none
_GONE = (FileNotFoundError, NotADirectoryError, PermissionError)
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class KeyPair(NamedTuple):
    """A CURVE key pair, 40 Z85 characters each."""

    public: bytes
    secret: bytes


def fresh_pair() -> KeyPair:
    """Return a fresh pair, in memory alone. Raises EngineError if libzmq has no CURVE."""
    _check_curve()
    return KeyPair(*zmq.curve_keypair())


def _check_curve() -> None:
    if not zmq.has("curve"):
        raise EngineError("this libzmq was built without CURVE: install pyzmq's wheel for encrypted links.")


def make_pair(directory: PathLike, name: str) -> Path:
    """Make a fresh pair `name`.key and `name`.key_secret in `directory` (made if missing, for its owner alone).

    Returns the path of the public one.

    Raises:
        EngineError: there is such a pair already, or libzmq has no CURVE.
        OSError: the directory cannot be written.
    """
    home = Path(directory)
    _check_curve()
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    if (home / f"{name}.key_secret").exists():
        raise EngineError(f"{home / name}.key_secret exists: keys are never overwritten. Choose another directory.")
    public, secret = zmq.auth.create_certificates(str(home), name)
    os.chmod(secret, 0o600)
    os.chmod(public, _PUBLIC_MODE)
    return Path(public)


def make_keys(directory: PathLike) -> Path:
    """Make fresh keys for an engine and one host in `directory`, and put the host's on the allow-list.

    Raises:
        EngineError: there are keys already, or libzmq has no CURVE.
        OSError: the directory cannot be written.
    """
    home = Path(directory)
    for name in ("server", "host"):
        make_pair(home, name)
    clients = home / "clients"
    clients.mkdir(exist_ok=True)
    clients.chmod(0o700)
    (clients / "host.key").write_bytes((home / "host.key").read_bytes())
    (clients / "host.key").chmod(_PUBLIC_MODE)
    return home


def _load(path: Path) -> Tuple[bytes, bytes]:
    try:
        shielded = not distrusted(os.stat(path.parent), secret=True)
        return _keys(trusted_content(str(path), shielded=shielded))
    except (OSError, ValueError) as error:
        raise EngineError(f"key file {path} cannot be used: {error}. See --make-keys.") from None


def _keys(content: bytes) -> Tuple[bytes, bytes]:
    """Return the public key in a file of zmq.auth's, and the secret one, if it is there. Raises ValueError."""
    fields: Dict[bytes, bytes] = {}
    for line in content.splitlines():
        name, equals, value = line.partition(b"=")
        if equals:
            fields.setdefault(name.strip(), value.strip(b" \t'\""))
    if not fields.get(b"public-key"):
        raise ValueError("it holds no public key")
    return fields[b"public-key"], fields.get(b"secret-key", b"")


def load_pair(path: PathLike) -> KeyPair:
    """Read a `.key_secret` file.

    Raises:
        EngineError: missing, or holds no secret key.
    """
    public, secret = _load(Path(path))
    if not secret:
        raise EngineError(f"key file {os.fspath(path)} holds no secret key. Give the .key_secret file.")
    return KeyPair(public, secret)


def load_public(path: PathLike) -> bytes:
    """Return the public key in a `.key` or `.key_secret` file; raises EngineError."""
    return _load(Path(path))[0]


def allowed_clients(directory: PathLike) -> Dict[bytes, Optional[HostRoots]]:
    """Return the public keys (Z85) of all hosts in `directory`/clients, and what each may read.

    NAME.roots beside a host's NAME.key lists its directories: ``[[path on the host, path here], ...]``. If no host has such a
    file, each may read all that the engine may (None). Else a host without one, or with one that makes no sense or can't be
    read, may read nothing. Keys that can't be read, or that another user may have written, are left out.

    Raises:
        OSError: the files can't be read now, for example since this process may open no further file.
    """
    try:
        clients = open_clients(directory)
    except _GONE:
        return {}
    except EngineError as error:
        _LOG.error("no host is let in: %s", error)
        return {}
    hosts = {}
    for name in clients.names():
        if not name.endswith(".key"):
            continue
        try:
            key, _ = _keys(trusted_content(name, clients))
            hosts[key] = _roots(clients, f"{name[: -len('.key')]}.roots")
        except ValueError as error:
            _LOG.warning("%s/%s lets nobody in: %s", clients.path, name, error)
        except OSError as error:
            if error.errno in _SHORT:
                raise
    clients.close()
    listed = any(roots is not None for roots in hosts.values())
    return {key: () if listed and roots is None else roots for key, roots in hosts.items()}


def open_clients(directory: PathLike) -> Directory:
    """Open the allow-list of a key directory.

    Raises:
        OSError: it can't be opened.
        EngineError: another user may have put keys there.
    """
    clients = Directory(os.path.realpath(Path(directory, "clients")))
    if why := distrusted(clients.status()):
        raise EngineError(
            f"{clients.path} is not used: {why}, and whose key lies there is let in. Give it to the engine's user, and take "
            f"the right away from all others: chmod go-w {clients.path}"
        )
    return clients


def _roots(clients: Directory, name: str) -> Optional[HostRoots]:
    try:
        return tuple((str(host), str(device)) for host, device in json.loads(trusted_content(name, clients).decode()))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _SHORT:
            raise
    except (TypeError, ValueError, RecursionError):
        pass
    return ()


class AllowList:
    """The keys in `directory`/clients.

    They stay in memory: where the files can't be read for a while, since descriptors or memory are short, the last ones hold.
    """

    def __init__(self, directory: PathLike) -> None:
        self.keys: Dict[bytes, Optional[HostRoots]] = {}
        self._directory = directory
        self._files: Tuple[Tuple[object, ...], ...] = ()
        self.refresh()

    def __contains__(self, key: object) -> bool:
        return key in self.keys

    def roots(self, key: bytes) -> Optional[HostRoots]:
        """Return the directories that this host was deployed with; None: it may read all that the engine may.

        If no host has such directories, each may read all. Else a key that is not in the list has none.
        """
        listed = any(roots is not None for roots in self.keys.values())
        return self.keys.get(key, ()) if listed else None

    def refresh(self) -> None:
        """Read the keys again if a file has changed."""
        try:
            files = self._look()
            if files != self._files:
                self.keys, self._files = allowed_clients(self._directory), files
        except OSError:  # at the next time, perhaps
            pass

    def _look(self) -> Tuple[Tuple[object, ...], ...]:
        """Return what tells that a file was added, removed, written, or given away. Raises OSError: it can't be known now."""
        files = []
        try:
            with os.scandir(Path(self._directory, "clients")) as entries:
                for entry in entries:
                    if entry.name.endswith((".key", ".roots")):
                        try:
                            status = entry.stat()
                        except _GONE:
                            continue
                        content = (entry.name, status.st_ino, status.st_size, status.st_mtime_ns)
                        files.append((*content, status.st_uid, status.st_mode))
            status = os.stat(Path(self._directory, "clients"))
        except _GONE:
            return ()
        return ((status.st_uid, status.st_mode), *sorted(files))
