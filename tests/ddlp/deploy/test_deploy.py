"""`ddlp deploy` from end to end over a real sshd on this machine. tests/board does the same on an ARM board."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torchvision.transforms import Compose, Resize, ToTensor

from csd_engine.machine import build as own
from ddlp import DDLPError, DDLPLoader, ImageFiles, load_operators
from ddlp.deploy import deployment
from ddlp.devices import address_book as book
from ddlp.devices import device as reach
from tests.ddlp.deploy.local_device import QUICK_DDLP, SYSTEMD, Device, ddlp, epoch, everything, tree
from tests.ddlp.deploy.sshd import kill_tree, programs, python_path
from tests.engine_process import alive, until
from tests.ports import free_port

REPOSITORY = Path(__file__).resolve().parents[3]


def test_a_training_script_needs_nothing_but_a_deployed_device(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    told = ddlp(capsys, *device.arguments())
    assert 'csd0 is ready. Use it with csd="csd0".' in told and "6 images give the same bits there" in told
    record = book.load("csd0")
    assert record.build == own.build() and " images/s through" in told and record.host_spool == str(device.spool_here)
    assert record.service == "supervised" and record.address == f"tcp://127.0.0.1:{device.port}"
    expected = epoch(device, strategy="cpu")
    got = epoch(device, csd="csd0", strategy="csd")
    assert device.report.batches_csd and all(torch.equal(got[k], expected[k]) for k in expected)
    secrets = [path for path in device.home.rglob("*.key_secret")]
    assert [path.name for path in secrets] == ["server.key_secret"] and secrets[0].stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in book.directory("csd0").glob("*key*")) == ["host.key", "host.key_secret", "server.key"]


def test_a_second_run_changes_nothing(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    ddlp(capsys, *device.arguments())
    engine, supervisor = device.engine(), device.supervisor()
    before = tree(device.home, book.directory("csd0"))
    for arguments in (device.arguments(), ["deploy", "--name", "csd0"]):
        assert "Nothing had to be changed." in ddlp(capsys, *arguments)
        assert tree(device.home, book.directory("csd0")) == before
        assert (device.engine(), device.supervisor()) == (engine, supervisor)


@pytest.mark.slow
def test_what_was_changed_by_hand_is_mended(device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    """What is changed together is mended by different steps; only one of it needs the engine to be started again."""
    ddlp(capsys, *device.arguments())
    code = device.home / "current" / "csd_engine" / "service" / "engine.py"
    keys, here = device.home / "keys", book.directory("csd0")
    for damage in (
        (lambda: code.write_text("broken"), lambda: (here / "server.key").unlink()),
        (lambda: (device.home / "current").unlink(), lambda: shutil.rmtree(keys / "clients")),
        (lambda: shutil.rmtree(device.home / "engines"), lambda: [path.unlink() for path in here.glob("host.key*")]),
        (lambda: (device.home / "engine.json").write_text("{}"),),
        (lambda: shutil.rmtree(keys),),
        (lambda: book.remove("csd0"), lambda: kill_tree(device.supervisor())),
        (lambda: shutil.rmtree(device.home / "run"),),
    ):
        for one in damage:
            one()
        assert "is ready" in ddlp(capsys, *device.arguments())
        assert "Nothing had to be changed" in ddlp(capsys, *device.arguments())
        assert code.read_bytes() == (REPOSITORY / "csd_engine" / "service" / "engine.py").read_bytes()


def _copied(to: Path) -> Path:
    """Copy the packages, with what is compiled of them, but not what others compile just now."""
    for name in ("csd_engine", "ddlp"):
        shutil.copytree(REPOSITORY / name, to / name, ignore=shutil.ignore_patterns("*.pyc.*"))
    return to


def _older_build(device: Device, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, change: Callable) -> None:
    """Deploy from a copy of csd_engine that `change` has changed."""
    copy = _copied(device.sshd.directory / "older")
    change(copy / "csd_engine")
    done = subprocess.run(
        [sys.executable, "-c", QUICK_DDLP, *device.arguments()], env={**os.environ, "PYTHONPATH": str(copy)}, cwd=copy,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_upgrade_replaces_another_build(device: Device, capsys, monkeypatch) -> None:
    _older_build(device, capsys, monkeypatch, lambda code: (code / "old.py").write_text("OLD = 1\n"))
    old, engine = book.load("csd0").build, device.engine()
    told = ddlp(capsys, "deploy", "--name", "csd0")
    assert f"build {old[:12]} is there" in told and "--upgrade" in told and device.engine() == engine
    record, elsewhere = book.load("csd0"), str(device.sshd.home / "another spool")
    for more in (["--spool", elsewhere], ["--listen-port", str(device.port - 1)], ["--workers", "2"]):
        told = ddlp(capsys, "deploy", "--name", "csd0", *more, status=1)
        assert f"runs build {old[:12]}" in told and f"{more[0]} would change" in told and "Nothing was changed" in told
        assert book.load("csd0") == record and device.engine() == engine
    told = ddlp(capsys, "deploy", "--name", "csd0", "--upgrade")
    assert f"unpacked beside {old[:12]}" in told and device.engine() != engine
    assert book.load("csd0").build == own.build() != old
    assert [path.name for path in (device.home / "engines").iterdir()] == [own.build()]
    assert "Nothing had to be changed." in ddlp(capsys, "deploy", "--name", "csd0", "--upgrade")


def test_an_upgrade_that_does_not_answer_is_rolled_back(device: Device, capsys) -> None:
    """test_hosts.py has settings with which the engine does not start."""
    ddlp(capsys, *device.arguments())
    newer = _copied(device.sshd.directory / "newer")
    jobs = newer / "csd_engine" / "service" / "job_service.py"
    fault = "import csd_engine.protocol.codec as p; p.PROTOCOL = 77"
    jobs.write_text(f"{jobs.read_text()}\nimport sys\nif '--parent' in sys.argv:  # as the service\n    {fault}\n")
    done = subprocess.run(
        [sys.executable, "-m", "ddlp", "deploy", "--name", "csd0", "--upgrade"], env={**os.environ, "PYTHONPATH": str(newer)},
        cwd=newer, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and f"Build {own.build()[:12]} runs again" in done.stdout, done.stdout + done.stderr
    assert [path.name for path in (device.home / "engines").iterdir()] == [own.build()]
    assert "Nothing had to be changed." in ddlp(capsys, *device.arguments())


def test_stop_start_and_logs(device: Device, capsys) -> None:
    ddlp(capsys, *device.arguments())
    supervisor, engine = device.supervisor(), device.engine()
    assert ddlp(capsys, "stop", "csd0") == "csd0 is stopped\n" and not alive(supervisor) and not alive(engine)
    assert ddlp(capsys, "stop", "csd0") == "csd0 did not run\n"
    assert "started the engine, process" in ddlp(capsys, "logs", "csd0")
    assert len(ddlp(capsys, "logs", "csd0", "-n", "1").splitlines()) == 1
    assert "listens on tcp://0.0.0.0" in ddlp(capsys, "start", "csd0") and device.engine() != engine
    again = device.engine()
    assert "listens on" in ddlp(capsys, "start", "csd0") and device.engine() == again
    assert ddlp(capsys, "stop", "csd0") == "csd0 is stopped\n"
    assert "started, kept running" in ddlp(capsys, *device.arguments())
    ddlp(capsys, "logs", "nobody", status=1)


@pytest.mark.slow
def test_with_a_grep_that_has_no_z_a_running_engine_is_seen(make_device: Callable[..., Device], tmp_path: Path, capsys) -> None:
    refuse = 'for one; do case $one in -*z*) echo "grep: no -z here" >&2; exit 2 ;; esac; done'
    grep = f'{refuse}; exec {shutil.which("grep")} "$@"\n'
    device = make_device(f"SetEnv HOME={tmp_path}/sshd0/home {python_path(programs(tmp_path / 'bin', grep=grep))}")
    ddlp(capsys, *device.arguments())
    supervisor = device.supervisor()
    assert "Nothing had to be changed." in ddlp(capsys, *device.arguments()) and device.supervisor() == supervisor
    assert ddlp(capsys, "stop", "csd0") == "csd0 is stopped\n" and not alive(supervisor)


@pytest.mark.slow
def test_a_user_who_does_not_linger_is_told(make_device: Callable[..., Device], tmp_path: Path, capsys, monkeypatch) -> None:
    device = make_device(f"SetEnv HOME={tmp_path}/sshd0/home {python_path(programs(tmp_path / 'bin', **SYSTEMD))}")
    look = deployment.survey  # as if there were a systemd here
    monkeypatch.setattr(deployment, "survey", lambda *given: dataclasses.replace(look(*given), systemd="user"))
    (device.sshd.home / "may").write_text("nothing")
    told = ddlp(capsys, *device.arguments(), status=1)
    assert "csd0 answers, but:" in told and "lingering is off for user" in told and "loginctl enable-linger user" in told
    told = ddlp(capsys, "doctor", "csd0", status=1)
    assert "lingering is off for user" in told and "Do this first: As root, there: loginctl enable-linger user" in told
    (device.sshd.home / "may").write_text("polkit")
    for command in (device.arguments(), ["doctor", "csd0"]):
        assert "lingering" not in ddlp(capsys, *command)
    ddlp(capsys, "deploy", "--name", "csd0", "--uninstall")
    assert (device.sshd.home / "lingers").exists() and not device.home.exists()


@pytest.mark.slow
def test_where_no_unit_can_be_written_the_engine_runs_all_the_same(make_device, tmp_path: Path, capsys, monkeypatch) -> None:
    refuses = programs(tmp_path / "bin", **{**SYSTEMD, "systemctl": "echo Read-only file system >&2; exit 1\n"})
    device = make_device(f"SetEnv HOME={tmp_path}/sshd0/home {python_path(refuses)}")
    (device.sshd.home / "may").write_text("nothing")
    look = deployment.survey  # as if there were a systemd here
    monkeypatch.setattr(deployment, "survey", lambda *given: dataclasses.replace(look(*given), systemd="user"))
    for words in ("is ready", "Nothing had to be changed"):
        told = ddlp(capsys, *device.arguments())
        assert words in told and "nothing starts the engine when the device boots" in told and "Read-only" in told
    assert book.load("csd0").service == "supervised" and alive(device.supervisor())


def test_uninstall_leaves_nothing(device: Device, capsys) -> None:
    data = everything(device.data_here)
    ddlp(capsys, *device.arguments())
    (device.spool / "mine").write_text("not ddlp's")
    (device.spool / "job-4711").mkdir()
    supervisor, engine = device.supervisor(), device.engine()
    book.remove("csd0")  # it holds the key that tells this host from others
    uninstall = ["deploy", "--name", "csd0", "--uninstall", "board", *device.sshd.options, "--spool", str(device.spool)]
    assert "the engine stays for 1 other host" in ddlp(capsys, *uninstall)
    assert alive(supervisor) and device.home.exists()
    ddlp(capsys, *uninstall, "--all")
    until(lambda: not alive(supervisor) and not alive(engine), 30, "the end of the engine")
    assert everything(device.sshd.home) == [] and everything(device.spool) == ["job-4711", "mine"]
    assert not book.directory("csd0").exists() and everything(device.data_here) == data
    told = ddlp(capsys, "deploy", "--name", "csd0", "--uninstall", status=1)
    assert "no device is called 'csd0'" in told


@pytest.mark.slow
def test_a_cache_is_made_used_and_removed(device: Device, capsys, base: Path) -> None:
    cache, mine = base / "new" / "a cache", base / "new" / "a cache" / "mine"
    for path in device.paths:
        os.utime(device.data_here / path, ns=(10**18, 10**18))
    assert "is ready" in ddlp(capsys, *device.arguments("--cache", f"{cache}:1G"))
    assert cache.stat().st_mode & 0o777 == 0o700
    assert "Nothing had to be changed" in ddlp(capsys, "deploy", "--name", "csd0")
    paths = [str(device.data_here / path) for path in device.paths]
    loader = DDLPLoader(ImageFiles(paths, [0] * 24, Compose([Resize([9, 9]), ToTensor()])), 4, csd="csd0", strategy="csd")
    for _ in range(2):
        assert len(list(loader)) == 6
    told = ddlp(capsys, "status", "csd0")
    assert " of 1 GiB, " in told and "samples from it" in told and list(cache.glob("shelf-*"))
    mine.touch()
    ddlp(capsys, "deploy", "--name", "csd0", "--uninstall")
    assert everything(cache) == ["mine"]


def test_uninstall_of_a_device_that_is_gone(device: Device, capsys) -> None:
    ddlp(capsys, *device.arguments())
    kill_tree(device.supervisor())
    device.sshd.stop()
    assert "--uninstall --forget" in ddlp(capsys, "deploy", "--name", "csd0", "--uninstall", status=1)
    assert book.names() == ("csd0",)
    ddlp(capsys, "deploy", "--name", "csd0", "--uninstall", "--forget")
    assert not book.directory("csd0").exists()


def test_operators_travel(device: Device, capsys, tmp_path: Path) -> None:
    (tmp_path / "my_ops.py").write_text("def invert(image):\n    return image.point(lambda v: 255 - v)\n")
    told = ddlp(capsys, *device.arguments("--operators", str(tmp_path / "my_ops.py")))
    assert "copied: my_ops.py" in told
    ((number, name),) = book.load("csd0").operators.items()
    assert name == "my_ops.py"
    assert (device.home / "operators" / f"{number}.py").read_bytes() == (tmp_path / "my_ops.py").read_bytes()
    assert "Nothing had to be changed." in ddlp(capsys, *device.arguments("--operators", str(tmp_path / "my_ops.py")))
    inverted = load_operators(tmp_path / "my_ops.py").invert()
    expected = epoch(device, strategy="cpu", more=[inverted])
    got = epoch(device, csd="csd0", strategy="csd", more=[inverted])
    assert device.report.batches_csd and all(torch.equal(got[k], expected[k]) for k in expected)
    assert not torch.equal(expected[0], epoch(device, strategy="cpu")[0])
    shutil.rmtree(device.home / "operators")
    (tmp_path / "my_ops.py").unlink()
    assert "copied: my_ops.py" in ddlp(capsys, "deploy", "--name", "csd0")
    assert (device.home / "operators" / f"{number}.py").exists()
    (tmp_path / "broken.py").write_text("def broken(:\n")
    assert "broken.py" in ddlp(capsys, *device.arguments("--operators", str(tmp_path / "broken.py")), status=1)


def test_a_spool_that_is_not_the_same_directory(device: Device, capsys, base: Path) -> None:
    other = base / "another disk"
    other.mkdir()
    told = ddlp(capsys, *device.arguments("--host-spool", str(other)))
    assert "is not seen by the device" in told and book.load("csd0").host_spool == str(other) and os.listdir(other) == []
    assert os.listdir(device.spool) and not list(device.spool.glob(".ddlp-*"))
    expected, got = epoch(device, strategy="cpu"), epoch(device, csd="csd0", strategy="csd")
    assert device.report.batches_csd and all(torch.equal(got[k], expected[k]) for k in expected)


def test_data_that_differ(device: Device, capsys, base: Path) -> None:
    shutil.copytree(device.data_here, base / "other")
    for path in device.paths[::2]:
        shutil.copy(device.data_here / device.paths[1], base / "other" / path)
    device.shown = base / "other"
    told = ddlp(capsys, *device.arguments(), status=1)
    assert "gives other pixels there" in told and "ddlp doctor csd0" in told
    (device.data_here / device.paths[0]).unlink()
    told = ddlp(capsys, *device.arguments(), status=1)
    assert "can't be read there" in told


def test_the_port_is_closed(device: Device, capsys) -> None:
    told = ddlp(capsys, *device.arguments("--address", f"tcp://127.0.0.1:{free_port()}"), status=1)
    assert "is closed, though the engine runs" in told and "--listen-port" in told
    with pytest.raises(DDLPError, match="was not finished"):
        reach.Device.at("csd0")
    assert 'Use it with csd="csd0"' in ddlp(capsys, *device.arguments())


def test_the_port_is_taken(device: Device, capsys) -> None:
    with socket.socket() as other:
        other.bind(("0.0.0.0", device.port))
        other.listen()
        told = ddlp(capsys, *device.arguments(), status=1)
        assert "does not start" in told and "Address already in use" in told
        assert not alive(device.supervisor()), "a supervisor keeps trying to start the engine"
    assert "is ready" in ddlp(capsys, *device.arguments())


def test_broken_off_it_is_mended_by_the_next_run(device: Device, capsys) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ddlp", *device.arguments()], env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        process.wait(2.5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
    assert process.wait(20) in (0, 130, -signal.SIGINT)
    config = str(device.sshd.config)
    until(lambda: not _commands(config), 30, "the end of its ssh processes")
    ddlp(capsys, *device.arguments())
    assert "Nothing had to be changed." in ddlp(capsys, *device.arguments())
    assert epoch(device, csd="csd0", strategy="csd")


def _commands(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"ssh") and word.encode() in words:
            found.append(str(path))
    return found


def test_two_at_once_is_one_too_many(device: Device, capsys) -> None:
    with book.locked("csd0"):
        assert "another ddlp deploy is at work" in ddlp(capsys, *device.arguments(), status=1)
