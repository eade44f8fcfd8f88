"""Key files: pairs made one at a time, never overwritten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from csd_engine.errors import EngineError
from csd_engine.protocol.keys import allowed_clients, fresh_pair, load_pair, load_public, make_keys, make_pair


def test_a_pair_is_made_once(tmp_path: Path) -> None:
    public = make_pair(tmp_path / "keys", "server")
    assert public == tmp_path / "keys" / "server.key" and load_public(public) == load_pair(f"{public}_secret").public
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert Path(f"{public}_secret").stat().st_mode & 0o777 == 0o600
    assert b"secret-key" not in public.read_bytes()
    with pytest.raises(EngineError, match="never overwritten"):
        make_pair(tmp_path / "keys", "server")


@pytest.mark.parametrize("before", [False, True])
def test_both_pairs_and_the_host_let_in(tmp_path: Path, before: bool) -> None:
    others = {load_public(make_pair(tmp_path / "clients", "another")): None} if before else {}
    keys = make_keys(tmp_path)
    host, server = (load_pair(keys / f"{name}.key_secret").public for name in ("host", "server"))
    assert host != server and allowed_clients(keys) == {**others, host: None}, "whoever was let in before still is"


def test_each_fresh_pair_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = fresh_pair()
    assert (len(pair.public), len(pair.secret)) == (40, 40) and pair.public == zmq.curve_public(pair.secret)
    assert fresh_pair() != pair
    monkeypatch.setattr(zmq, "has", lambda what: what != "curve")
    with pytest.raises(EngineError, match="built without CURVE"):
        fresh_pair()


def test_from_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "csd_engine", "--make-pair", str(tmp_path), "server"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{tmp_path}/server.key\n"
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 2 and "never overwritten" in again.stderr


def test_to_make_them_imports_no_engine() -> None:
    """On a small board, importing numpy and the rest takes seconds."""
    code = "import sys, csd_engine.__main__; print([m for m in ('numpy', 'PIL') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
