"""`ddlp status`: real engines, one that is down, one that hangs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from ddlp import cli
from ddlp.deploy import status as command
from ddlp.devices import address_book as book
from tests.engine_process import EngineProcess, Recipe, make_jpegs


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """An engine in the address book as csd0, and a recipe for jobs on it. csd1 is in the book too, but down."""
    home, root = Path(tempfile.mkdtemp(prefix="e-")), tmp_path_factory.mktemp("status")
    (root / "images").mkdir()
    engine = EngineProcess(home, "--root", str(root / "images"))
    paths = make_jpegs(root / "images", np.random.default_rng(7))
    engine.recipe = Recipe(root / "images", paths, root / "manifest")
    patch = pytest.MonkeyPatch()
    patch.setenv("DDLP_HOME", str(root / "home"))
    for name, address in (("csd0", engine.address), ("csd1", f"ipc://{home}/nobody")):
        book.save(book.DeviceRecord(
            name, "user@host", (), address, (), str(engine.spool), str(engine.spool), "/home/user/.ddlp/csd0", sys.executable,
            "0" * 32, "armv7l",
        ))  # fmt: skip
        for key in ("server.key", "host.key", "host.key_secret"):
            shutil.copy(engine.keys / key, book.directory(name) / key)
    yield engine
    patch.undo()
    engine.process.send_signal(signal.SIGCONT)
    engine.end()
    shutil.rmtree(home)


def ask(capsys, *arguments):
    status = cli.main(["status", *arguments])
    return status, capsys.readouterr().out


def test_a_device_that_is_up(engine, capsys):
    link = engine.link()
    job = engine.recipe.open(link, SimpleQueue())
    status, out = ask(capsys, "csd0", "--json")
    (told,) = json.loads(out)
    assert status == 0 and told["reachable"] and told["name"] == "csd0" and told["warnings"] == []
    assert told["status"]["jobs"][0]["job"] == job.directory.name and told["status"]["private_bytes"] > 1 << 20
    status, out = ask(capsys, "csd0")
    assert status == 0 and "not reachable" not in out and "other build" not in out
    assert job.directory.name in out and told["status"]["jobs"][0]["host"] in out
    assert " MiB of " in out and "MB" not in out
    link.close()


def test_all_devices_by_default_and_one_that_is_down(engine, capsys):
    status, out = ask(capsys, "--timeout", "0.5")
    lines = out.splitlines()
    assert status == 1
    assert lines[1].split()[:3] == ["csd0", "here", "up"] and lines[2].startswith("csd1 ") and "not reachable" in lines[2]
    assert "no engine answered" in out
    status, out = ask(capsys, "--json", "--timeout", "0.5")
    assert [one["reachable"] for one in json.loads(out)] == [True, False]


def test_one_that_hangs_holds_up_no_other(engine, capsys, monkeypatch):
    engine.process.send_signal(signal.SIGSTOP)
    assert "not reachable" in ask(capsys, "csd0", "--timeout", "0.5")[1]
    engine.process.send_signal(signal.SIGCONT)
    together = threading.Barrier(6, timeout=300)  # it breaks and raises if devices are asked one after the other
    alone = command.ask
    monkeypatch.setattr(command, "ask", lambda *given: (together.wait(), alone(*given))[1])
    assert ask(capsys, *["csd0"] * 6)[0] == 0


def test_by_address(engine, capsys, monkeypatch):
    monkeypatch.setenv("DDLP_KEYS", str(engine.keys))
    assert ask(capsys, engine.address)[0] == 0
    status, out = ask(capsys, "ipc:///nowhere/at/all", "no such device", "--timeout", "0.2")
    assert status == 1 and out.count("not reachable") == 2


def test_another_build_is_said(engine, capsys, monkeypatch):
    monkeypatch.setattr(command, "build", lambda: "another")
    status, out = ask(capsys, "csd0")
    assert status == 0 and "other build" in out and "ddlp deploy --name csd0 --upgrade" in out


def test_a_directory_without_cards(tmp_path, capsys):
    """A pool that nobody has joined: a table of no engine would tell nothing."""
    cards = tmp_path / "cards"
    cards.mkdir(0o700)
    assert ask(capsys, str(cards)) == (0, f"no engine has a card in {cards}\n")
    status, out = ask(capsys, str(cards), "--json")
    assert (status, json.loads(out)) == (0, [])


def test_nothing_known(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DDLP_HOME", str(tmp_path))
    assert cli.main(["status"]) == 2
    assert "ddlp deploy" in capsys.readouterr().err


def test_it_starts_without_torch(engine):
    script = "import sys; from ddlp.cli import main; main(['status', 'csd0']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.splitlines()[-1] == "False"
