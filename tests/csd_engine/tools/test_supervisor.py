"""The supervisor with real engines: a dead engine is restarted, both end when told to, and no engine runs on alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from csd_engine.protocol.keys import make_keys
from csd_engine.tools.supervisor import _LOG_BYTES, Supervisor, _Log
from tests.engine_process import alive, until
from tests.open_files import few_descriptors


class Home:
    """A home directory with keys and settings, and supervisors started for it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="home-"))
        (self.path / "data").mkdir()
        make_keys(self.path / "keys")
        self.settings("--listen", f"ipc://{self.path}/s", "--spool", f"{self.path}/spool", "--keys", f"{self.path}/keys")

    def settings(self, *arguments: str) -> None:
        every = [*arguments, "--root", f"{self.path}/data", "--workers", "1"]
        (self.path / "engine.json").write_text(json.dumps({"arguments": every}))

    def start(self, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "csd_engine.tools.supervisor", str(self.path), *arguments]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def read(self, name: str) -> str:
        try:
            return (self.path / "run" / name).read_text().strip()
        except FileNotFoundError:
            return ""

    def engine(self, before: int = 0) -> int:
        """The engine's process id, once it serves and differs from `before`."""
        return until(lambda: [int(s.split()[2]) for s in [self.read("state")] if s.startswith("ready")
                              and int(s.split()[2]) != before], 20, "an engine")[0]  # fmt: skip

    def supervisor(self) -> int:
        return int(until(lambda: self.read("supervisor.pid"), 60, "a supervisor"))


@pytest.fixture
def make_home() -> Iterator[Callable[[], Home]]:
    homes: list[Home] = []

    def make() -> Home:
        homes.append(Home())
        return homes[-1]

    yield make
    for home in homes:
        pid = home.read("supervisor.pid")
        if pid and alive(int(pid)):
            os.kill(int(pid), signal.SIGKILL)
        shutil.rmtree(home.path, ignore_errors=True)


@pytest.fixture
def home(make_home: Callable[[], Home]) -> Home:
    return make_home()


def test_an_engine_that_is_killed_comes_back_and_both_end_when_told(home: Home) -> None:
    process = home.start()
    first = home.engine()
    os.kill(first, signal.SIGKILL)
    second = home.engine(before=first)
    assert alive(second) and home.supervisor() == process.pid
    process.terminate()
    assert process.wait(20) == 0 and not alive(second)
    assert home.read("state") == "stopped" and not home.read("supervisor.pid")
    assert not (home.path / "spool" / ".lock").exists(), "the engine did not end cleanly"
    assert "the engine ended (status -9" in home.read("engine.log")


def test_it_goes_on_without_its_terminal_and_its_parent(home: Home) -> None:
    assert home.start("--detach").wait(20) == 0
    engine = home.engine()
    supervisor = home.supervisor()
    assert os.getsid(supervisor) != os.getsid(0)
    assert os.readlink(f"/proc/{supervisor}/fd/0") == os.devnull and os.readlink(f"/proc/{supervisor}/fd/1") == os.devnull
    os.kill(supervisor, signal.SIGTERM)
    until(lambda: not alive(supervisor) and not alive(engine), 30, "the end of both")


def test_the_engine_does_not_outlive_its_supervisor(home: Home) -> None:
    process = home.start()
    engine = home.engine()
    process.kill()
    process.wait()
    until(lambda: not alive(engine), 30, "the end of the engine")
    again = home.start()
    assert home.engine(before=engine)
    again.terminate()
    assert again.wait(20) == 0


def test_one_supervisor_a_home(home: Home) -> None:
    process = home.start()
    home.engine()
    second = home.start()
    assert second.wait(20) == 3 and "one runs already" in second.stderr.read()
    assert process.poll() is None
    process.terminate()
    process.wait(20)


def test_an_engine_that_does_not_start_says_why_and_is_tried_again(home: Home) -> None:
    good = (home.path / "engine.json").read_text()
    home.settings("--listen", "tcp://256.0.0.1:1", "--spool", f"{home.path}/spool", "--keys", f"{home.path}/keys")
    process = home.start()
    failed = until(lambda: [s for s in [home.read("state")] if s.startswith("failed")], 20, "a failure")[0]
    assert "cannot listen on tcp://256.0.0.1:1" in failed
    (home.path / "engine.json").write_text("{}")
    until(lambda: "KeyError('arguments')" in home.read("state"), 30, "another failure")
    (home.path / "engine.json").write_text(good)
    home.engine()
    process.terminate()
    assert process.wait(20) == 0


def test_while_it_is_tried_again_the_state_says_why_it_ended(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor, states = Supervisor(str(home.path)), []

    def start() -> None:
        states.append(home.read("state"))
        supervisor._stop = len(states) == 3
        raise OSError("no memory")

    monkeypatch.setattr(supervisor, "_start", start)
    monkeypatch.setattr(supervisor, "_sleep", lambda seconds: None)
    while not supervisor._stop:
        supervisor._round()
    assert states[0] == "starting" and all("no memory" in state for state in states[1:])


def test_the_log_is_bounded(tmp_path: Path) -> None:
    log = _Log(str(tmp_path / "log"))
    for number in range(4 * _LOG_BYTES // 1000):
        log.write(b"%8d" % number + b"." * 991 + b"\n")
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"log", "log.1"} and max(sizes.values()) <= _LOG_BYTES and sizes["log.1"] > _LOG_BYTES - 2000
    assert (tmp_path / "log").read_bytes().rstrip(b".\n").endswith(b"%8d" % (4 * _LOG_BYTES // 1000 - 1))


def test_a_log_that_cannot_be_begun_anew_is_no_end(tmp_path: Path) -> None:
    """Renaming fails, then opening fails. Some log lines are lost until it works again, but the supervisor goes on."""
    log = _Log(str(tmp_path / "log"))
    full = b"." * (_LOG_BYTES - 10) + b"\n"
    log.write(full)
    (tmp_path / "log.1").mkdir()
    for _ in range(2):
        log.write(b"lost for want of a name\n")
    (tmp_path / "log.1").rmdir()
    with few_descriptors(0):
        for _ in range(2):
            log.write(b"lost for want of a descriptor\n")
    for _ in range(2):
        log.write(b"kept again\n")
    assert (tmp_path / "log").read_bytes() == 2 * b"kept again\n"
    assert (tmp_path / "log.1").read_bytes() == full


def test_it_costs_no_more_than_a_bare_interpreter() -> None:
    code = "import sys, csd_engine.tools.supervisor; print([m for m in ('numpy', 'PIL', 'zmq') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
