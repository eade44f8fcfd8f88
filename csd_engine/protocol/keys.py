"""CURVE key files (zmq.auth certificates), and which hosts may connect.

A key directory holds `server.key_secret` and `server.key` (the engine's), `host.key_secret` and `host.key` (one
host's), and `clients/`, the allow-list: the public `.key` file of every host that may connect. CURVE alone lets in any host
that has the server's public key, hence the list.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Dict, NamedTuple, Optional, Tuple, Union

import zmq
import zmq.auth

from csd_engine.errors import EngineError

__all__ = ["HostRoots", "KeyPair", "allowed_clients", "fresh_pair", "load_pair", "load_public", "make_keys", "make_pair"]

PathLike = Union[str, "os.PathLike[str]"]
HostRoots = Tuple[Tuple[str, str], ...]
"""The directories of one host: (path on the host, path on the device)."""
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
    (home / "clients").mkdir(exist_ok=True)
    (home / "clients" / "host.key").write_bytes((home / "host.key").read_bytes())
    return home


def _load(path: Path) -> Tuple[bytes, bytes]:
    try:
        public, secret = zmq.auth.load_certificate(str(path))
    except (OSError, ValueError) as error:
        raise EngineError(f"key file {path} cannot be used: {error}. See --make-keys.") from None
    return public, secret or b""


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
    read, may read nothing. Unreadable keys are left out.

    Raises:
        OSError: the files can't be read now, for example since this process may open no further file.
    """
    found = {}
    for path in sorted(Path(directory, "clients").glob("*.key")):
        try:
            found[zmq.auth.load_certificate(str(path))[0]] = _roots(path.with_suffix(".roots"))
        except ValueError:
            continue
        except OSError as error:
            if error.errno in _SHORT:
                raise
    listed = any(roots is not None for roots in found.values())
    return {key: () if listed and roots is None else roots for key, roots in found.items()}


def _roots(path: Path) -> Optional[HostRoots]:
    try:
        return tuple((str(host), str(device)) for host, device in json.loads(path.read_bytes().decode()))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in _SHORT:
            raise
    except (TypeError, ValueError, RecursionError):
        pass
    return ()
