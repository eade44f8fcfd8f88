"""`ddlp doctor` on a device of this machine: each common fault is made, found and named with its way out.

Real sshd, engine, keys, files and spool; tests/board does the same on an ARM board.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from csd_engine.machine import build as own
from csd_engine.protocol.keys import make_pair
from ddlp import cli
from ddlp.deploy import doctor, prove
from ddlp.deploy.findings import bad, ok, warn
from ddlp.devices import address_book as book
from tests.ddlp.deploy.local_device import Device, ddlp
from tests.ddlp.deploy.quick import quicken
from tests.ddlp.deploy.sshd import Sshd, kill_tree
from tests.needs import need

COMPILED = shutil.ignore_patterns("__pycache__")  # the engine may compile modules meanwhile


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """A device for all tests here, with its own copy of the data set, deployed once."""
    need("ssh", "sshd")
    home, base = tmp_path_factory.mktemp("doctor"), Path(tempfile.mkdtemp(prefix="ddlp-test-"))
    device = Device(Sshd(home / "sshd"), base)
    device.data_there.unlink()
    shutil.copytree(device.data_here, device.data_there)
    with pytest.MonkeyPatch.context() as patch:
        quicken(patch)
        patch.setenv("DDLP_HOME", str(base / "book"))
        assert cli.main(device.arguments()) == 0
        device.engine()
        for name, path in _restored(device).items():
            shutil.copytree(path, home / name, symlinks=True, ignore=COMPILED)
    yield device
    kill_tree(device.supervisor())
    device.sshd.stop()
    shutil.rmtree(base)


def _restored(device: Device) -> dict[str, Path]:
    """What tests change, by a name."""
    parts = {name: device.home / name for name in ("engines", "keys")}
    return {**parts, "book": book.directory("csd0"), "here": device.data_here, "there": device.data_there}


@pytest.fixture
def deployed(shared: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device as it was at first. Its images/s are fixed, because measuring them takes the longest."""
    monkeypatch.setattr(prove.Trial, "images_per_s", lambda *_: 100.0)
    monkeypatch.setenv("DDLP_HOME", str(shared.data_here.parent / "book"))
    server = shared.sshd
    shutil.copy(server.directory / "user.pub", server.directory / "authorized_keys")
    current = os.readlink(shared.home / "current") if (shared.home / "current").is_symlink() else ""
    if not current.endswith(own.build()):  # an engine of another build may run
        kill_tree(shared.supervisor())
    for name, path in _restored(shared).items():
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(server.directory.parent / name, path, symlinks=True, dirs_exist_ok=True)  # but for such modules
    for path in shared.spool.glob("job-*"):
        shutil.rmtree(path)
    ddlp(capsys, *shared.arguments("--upgrade"))  # mends the rest
    return shared


class Patient:
    """Runs the doctor and reads its answer."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def ask(self, *arguments: str, status: int = 1) -> dict:
        answer = json.loads(ddlp(self._capsys, "doctor", "csd0", "--json", *arguments, status=status))
        self.checks = [one["check"] for one in answer["checks"]]
        return answer

    def wrong(self, *arguments: str, status: int = 1) -> dict:
        """What the first check says that found a fault."""
        answer = self.ask(*arguments, status=status)
        level = "bad" if status else "warn"
        ours = ("device", "this host")
        found = next(one for one in answer["checks"] if one["level"] == level and one["check"] not in ours)
        if status:
            assert found["way_out"] == answer["first"] and not answer["healthy"]
        return {**found, "not_asked": answer["not_asked"]}


@pytest.fixture
def patient(capsys: pytest.CaptureFixture[str]) -> Patient:
    return Patient(capsys)


EVERYTHING = [
    "this host", "ssh", "device", "engine", "kernel", "keys", "service", "handshake", "spool", "data", "pixels", "images",
]  # fmt: skip


def test_a_healthy_device(deployed: Device, patient: Patient, capsys) -> None:
    before = sorted(str(path) for path in deployed.home.rglob("*") if "__pycache__" not in str(path))
    answer = patient.ask(status=0)
    assert answer["healthy"] and list(dict.fromkeys(patient.checks)) == EVERYTHING and not answer["not_asked"]
    assert not [one for one in answer["checks"] if one["level"] == "bad"]
    assert before == sorted(str(path) for path in deployed.home.rglob("*") if "__pycache__" not in str(path))
    assert not [name for name in os.listdir(deployed.spool) if name.startswith(".ddlp")]
    said = ddlp(capsys, "doctor", "csd0", "--verify")
    assert (
        "names, sizes and contents of all 24 files compared" in said and "operators and decoders make the same pixels" in said
    )


@pytest.mark.parametrize("setting", ("off", ""))
def test_this_host_alone(setting: str, request: pytest.FixtureRequest) -> None:
    if not setting:
        request.getfixturevalue("need_kernel")
    variables = {**os.environ, "DDLP_KERNEL": setting}
    done = subprocess.run([sys.executable, "-m", "ddlp", "doctor", "--json"], env=variables, stdout=subprocess.PIPE)
    answer = json.loads(done.stdout)
    found = answer["checks"][0]
    assert {one["check"] for one in answer["checks"]} == {"kernel", "gpu"}
    assert done.returncode == 0 and answer["healthy"]
    if setting:
        assert found["what"] == "no kernel on this host" and "DDLP_KERNEL" in answer["first"]
    else:
        assert found["level"] == "ok" and "decodes with Pillow's libjpeg-turbo" in found["what"]


def test_the_data_sets_differ(deployed: Device, patient: Patient) -> None:
    there = deployed.data_there
    one, two, three = (there / path for path in deployed.paths[:3])
    whole = one.read_bytes()
    one.unlink()
    found = patient.wrong()
    assert found["check"] == "data" and "1 file missing in" in found["what"] and deployed.paths[0] in found["what"]
    assert found["way_out"].startswith("Copy what differs: rsync -a -e ") and "board:" in found["way_out"]
    assert "images" in found["not_asked"]
    one.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    os.utime(one, (0, 0))
    two.write_bytes(b"short")
    three.rename(deployed.data_there.parent / "elsewhere.jpg")
    three.symlink_to(deployed.data_there.parent / "elsewhere.jpg")
    (there / "more.jpg").write_bytes(whole)
    for arguments in ((), ("--verify",)):  # 24 files: the sample holds all of them
        said = [check for check in patient.ask(*arguments)["checks"] if check["check"] == "data"]
        links, size, others, more = (next(check for check in said if words in check["what"]) for words in (
            "links that lead out of it", "1 file of another size in", "1 file with other contents in", "1 file more in",
        ))  # fmt: skip
        assert deployed.paths[2] in links["what"] and deployed.paths[1] in size["what"] and "more.jpg" in more["what"]
        assert "--checksum" in others["way_out"]
        assert [check["level"] for check in (links, size, others, more)] == ["bad", "bad", "bad", "warn"]


@pytest.mark.slow
def test_the_wrong_directory(deployed: Device, patient: Patient) -> None:
    shutil.rmtree(deployed.data_there)
    found = patient.ask()
    assert any("is not there" in one["what"] and one["check"] == "device" for one in found["checks"])
    deployed.data_there.mkdir()
    found = patient.wrong()
    assert "holds none of the 24 files of" in found["what"] and "not mounted" in found["why"] and "--root" in found["way_out"]
    deployed.data_here.rename(deployed.data_here.parent / "moved")
    assert "is not there on this host" in patient.wrong()["what"]


def test_ours_in_the_data_directory_is_no_part_of_it() -> None:
    assert doctor._left_out("/data", "/data/spool", None, "/elsewhere") == {"spool"}
    assert not doctor._left_out("/data", "/data", "/data2", "/") and doctor._left_out("/", "/a/b") == {"a/b"}


def test_ssh_is_down_and_the_engine_is_not(deployed: Device, patient: Patient) -> None:
    server = deployed.sshd
    server.stop()
    answer = patient.ask()
    assert [(one["check"], one["level"]) for one in answer["checks"][1:]] == [("ssh", "bad"), ("handshake", "ok")]
    assert "no SSH server does" in answer["checks"][1]["what"] and "Start sshd" in answer["first"]
    assert answer["not_asked"] == [name for name in EVERYTHING if name not in ("this host", "ssh", "handshake")]
    server.keygen("host")
    server.start()
    found = patient.wrong()
    assert "its host key is not the one that this host knows" in found["what"] and "ssh-keygen" in found["way_out"]
    server.knows()
    (server.directory / "authorized_keys").write_text("")
    found = patient.wrong()
    assert "does not let this user in" in found["what"] and "ssh-copy-id" in found["way_out"]


def test_the_engine_does_not_run(deployed: Device, patient: Patient, capsys) -> None:
    ddlp(capsys, "stop", "csd0")
    found = patient.wrong()
    assert (found["check"], found["what"], found["way_out"]) == ("service", "the engine does not run", "ddlp start csd0")
    assert set(found["not_asked"]) == {"handshake", "images"} and "pixels" in patient.checks and "data" in patient.checks
    settings = (deployed.home / "engine.json").read_text()
    (deployed.home / "engine.json").write_text(settings.replace('"--workers", "1"', '"--workers", "many"'))
    ddlp(capsys, "start", "csd0", status=1)
    found = patient.wrong()
    assert found["what"] == "the engine ends again and again" and "invalid int value: 'many'" in found["why"]
    assert "ddlp logs csd0" in found["way_out"]


@pytest.mark.slow
def test_ports(deployed: Device, patient: Patient, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record has a wrong port; the port is closed to this host but not to the device; the engine hangs."""
    monkeypatch.setattr(doctor, "_GREET_TIMEOUT_S", 2.0)
    record = book.load("csd0")
    book.save(dataclasses.replace(record, listen_port=1))
    found = patient.wrong()
    assert found["check"] == "service" and "listens on tcp://0.0.0.0" in found["what"] and "on port 1" in found["why"]
    assert found["way_out"] == "ddlp deploy --name csd0"
    book.save(record)
    os.kill(deployed.engine(), signal.SIGSTOP)
    try:
        found = patient.wrong()
        assert (found["check"], found["what"]) == ("handshake", "the engine runs, but hangs")
        assert found["way_out"].startswith("ddlp stop csd0 && ddlp start csd0")
    finally:
        os.kill(deployed.engine(), signal.SIGCONT)
    ddlp(capsys, "stop", "csd0")
    settings = (deployed.home / "engine.json").read_text()
    (deployed.home / "engine.json").write_text(settings.replace("tcp://0.0.0.0:", "tcp://127.0.0.2:"))
    ddlp(capsys, "start", "csd0")
    found = patient.wrong()
    assert found["check"] == "handshake" and "of 127.0.0.1 is closed, though the engine runs" in found["why"]
    assert "firewall" in found["why"] and "--listen-port" in found["way_out"]


def test_keys(deployed: Device, patient: Patient, tmp_path: Path) -> None:
    clients = list((deployed.home / "keys/clients").glob("*.key"))
    clients[0].rename(tmp_path / "client")
    found = patient.wrong()
    assert found["check"] == "keys" and "does not know this host's key" in found["what"]
    assert "ddlp deploy --name csd0" in found["way_out"] and "handshake" in found["not_asked"]
    (tmp_path / "client").rename(clients[0])
    make_pair(tmp_path, "server")
    ours = book.directory("csd0") / "server.key"
    kept = ours.read_bytes()
    ours.write_bytes((tmp_path / "server.key").read_bytes())
    assert "another key than this host knows" in patient.wrong()["what"]
    ours.write_bytes(kept)
    (deployed.home / "keys/server.key_secret").unlink()
    assert "no keys in" in patient.wrong()["what"]
    (book.directory("csd0") / "host.key_secret").unlink()
    assert "this host's keys in" in patient.wrong()["what"]


@pytest.mark.slow
def test_files_of_the_engine(deployed: Device, patient: Patient) -> None:
    record = book.load("csd0")
    book.save(dataclasses.replace(record, operators={"f" * 32: "my_ops.py"}))
    found = patient.wrong()
    assert (
        found["check"] == "engine"
        and "my_ops.py are not there" in found["what"]
        and "--operators my_ops.py" in found["way_out"]
    )
    book.save(record)
    spare = deployed.home / "current/csd_engine/service/turns.py"
    spare.write_text(spare.read_text() + "\n")
    assert "were changed" in patient.wrong()["what"]
    (deployed.home / "engine.json").unlink()
    assert "were changed" in patient.wrong()["what"]
    shutil.rmtree(deployed.home / "engines")
    found = patient.wrong()
    assert "no engine in" in found["what"] and found["way_out"] == "ddlp deploy --name csd0"
    assert found["not_asked"] == ["kernel", "service", "handshake", "data", "pixels", "images"]


def another_build(deployed: Device) -> Path:
    """Point `current` to a copy of the engine, as if it were another version."""
    old = deployed.home / "engines" / ("0" * 32)
    shutil.copytree(deployed.home / "current", old)
    (deployed.home / "current").unlink()
    (deployed.home / "current").symlink_to(old)
    return old


def test_another_build_and_an_older_protocol(deployed: Device, patient: Patient, capsys) -> None:
    old = another_build(deployed)
    found = patient.wrong(status=0)
    assert found["check"] == "engine" and "build 000000000000 is there" in found["what"] and "--upgrade" in found["way_out"]
    protocol = old / "csd_engine/protocol/codec.py"
    text = protocol.read_text()
    number = int(text.split("\nPROTOCOL = ")[1].split("\n")[0])
    protocol.write_text(text.replace(f"\nPROTOCOL = {number}\n", f"\nPROTOCOL = {number - 1}\n"))
    ddlp(capsys, "stop", "csd0")
    ddlp(capsys, "start", "csd0")
    found = patient.wrong()
    assert (
        found["check"] == "handshake"
        and "protocol" in found["what"]
        and found["way_out"] == "ddlp deploy --name csd0 --upgrade"
    )


def test_an_operator_that_differs(deployed: Device, patient: Patient) -> None:
    steps = another_build(deployed) / "csd_engine/transforms/primitives.py"
    text = steps.read_text()
    assert "return luma if" in text
    changed = text.replace("return luma if", "luma = luma.point(lambda v: v ^ 1)\n        return luma if")
    assert "return KernelStep(StepKind.GRAY, " in changed
    steps.write_text(changed.replace("return KernelStep(StepKind.GRAY, ", "return None and ("))
    answer = patient.ask()
    found = [one for one in answer["checks"] if one["what"].startswith("Grayscale, 1 channel")]
    assert len(found) > 1  # Pillow's pixels, and torch's
    assert all(one["check"] == "pixels" and "% of values differ, by at most 1" in one["what"] for one in found)
    assert answer["not_asked"] == ["images"]


def test_spools(deployed: Device, patient: Patient, base: Path) -> None:
    record = book.load("csd0")
    (base / "another").mkdir()
    book.save(dataclasses.replace(record, host_spool=str(base / "another")))
    found = patient.wrong(status=0)
    assert found["check"] == "spool" and "written there is not seen by the device" in found["why"]
    book.save(dataclasses.replace(record, host_spool=str(base / "nothing")))
    found = patient.wrong(status=0)
    assert "is not there on this host" in found["what"] and "--host-spool DIR" in found["way_out"]
    assert os.listdir(base / "another") == []


@pytest.mark.slow
def test_no_python_and_no_pillow(deployed: Device, patient: Patient, tmp_path: Path) -> None:
    record = book.load("csd0")
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    book.save(dataclasses.replace(record, python=str(bare / "bin/python")))
    answer = patient.ask()
    found = next(one for one in answer["checks"] if one["level"] == "bad")
    assert (found["check"], found["what"]) == ("device", "no numpy") and "python3-pil" in found["way_out"]
    assert "ddlp deploy --name csd0" in answer["first"] and answer["not_asked"] == ["pixels", "images"]
    book.save(dataclasses.replace(record, python=str(tmp_path / "gone/python")))
    answer = patient.ask()
    found = next(one for one in answer["checks"] if one["level"] == "bad")
    assert found["what"] == "no Python" and {"data", "pixels"} < set(answer["not_asked"])


def test_what_to_do_first() -> None:
    checkup = doctor.Checkup("x", [("a", ok("1")), ("b", warn("2", "why", "mend 2")), ("c", bad("3", "why", "mend 3"))])
    assert not checkup.healthy and checkup.first.way_out == "mend 3"
    checkup = doctor.Checkup("x", [("a", warn("0", "")), ("b", warn("2", "why", "mend 2"))])
    assert checkup.healthy and checkup.first.way_out == "mend 2" and doctor.Checkup("x").first is None


def test_an_unknown_device(capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DDLP_HOME", str(tmp_path))
    assert "no device is called 'csd9'" in ddlp(capsys, "doctor", "csd9", status=1)
