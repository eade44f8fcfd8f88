"""scripts/csd_emulator.sh: boards can be reached, their limits hold, and nothing of them is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.board.boards import SCRIPT, Board, emulator, raise_board, state

CACHE = Path(os.environ.get("DDLP_CSD_CACHE", "/var/cache/ddlp-csd-emulator"))
BINFMT = Path("/proc/sys/fs/binfmt_misc")


def processes() -> dict[int, Path]:
    return {int(entry.name): entry for entry in Path("/proc").iterdir() if entry.name.isdigit()}


def namespaces(entry: Path) -> set[str]:
    try:
        return {os.readlink(entry / "ns" / kind) for kind in ("mnt", "net", "pid", "uts", "ipc")}
    except OSError:  # the process has ended, or is a zombie
        return set()


def namespaces_of(board: Board) -> set[str]:
    """The board's own namespaces, read from its first process."""
    pid = int((state() / board.name / "pid").read_text().split()[0])
    return namespaces(Path(f"/proc/{pid}")) - namespaces(Path("/proc/self"))


def traces(name: str, own: set[str], network: str = "") -> list[str]:
    """Everything on this machine that belongs to the board `name` with namespaces `own`. Empty once the board is gone."""
    found = [f"process {pid}" for pid, entry in processes().items() if namespaces(entry) & own]
    for entry in processes().values():
        try:
            if f"/{name}\0".encode() in (entry / "cmdline").read_bytes():
                found.append(f"{entry}: started for it")
            found += [f"{entry}: {line}" for line in (entry / "mountinfo").read_text().splitlines() if f"/{name}/" in line]
        except OSError:
            continue
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if f"/{name}/" in line]
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout.splitlines()
    found += [line for line in routes if network and f" {network}" in f" {line}"]
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout.splitlines()
    found += [line for line in links if f"csd-{name}" in line]
    loops = subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout.splitlines()
    found += [line for line in loops if f"/{name}/" in line]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/ddlp-csd-{name}")]
    found += [str(path) for path in state().glob(f"{name}*")]
    return found


def gone(name: str, own: set[str], network: str = "") -> None:
    """Assert that nothing is left. Linux removes network namespaces a moment after their last process."""
    deadline = time.monotonic() + 20
    while (found := traces(name, own, network)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found == []


@pytest.fixture
def own_state(needs_boards: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory of this test alone, so that its board is the only one, and the last one."""
    monkeypatch.setenv("DDLP_CSD_STATE", str(tmp_path / "state"))
    yield tmp_path / "state"
    emulator("down", "--all")


def test_a_board_is_an_arm_system_of_its_own(board: Board) -> None:
    seen = board.run(
        "uname -m; hostname; python3 -c 'import numpy, PIL, zmq, sys; print(sys.maxsize, zmq.has(\"curve\"))'"
    ).stdout
    assert seen.split("\n")[:3] == ["armv7l", board.name, f"{2**31 - 1} True"]
    assert board.run("python3 -c 'import torch'", check=False).returncode == 1
    assert board.run("ip -4 -o addr show eth0").stdout.split()[3] == f"{board.ip}/24"
    # It reaches the host, but not at the host's usual address, and nothing behind it.
    assert board.ip != board.host_ip
    assert board.run("ip route show default; ip route get 192.0.2.1", check=False).stdout == ""
    assert board.run("dpkg --audit").stdout == ""
    # Without byte code each start of Python would take seconds, and an ordinary user cannot write it.
    compiled = """import argparse, numpy, os, PIL.Image, zmq
print([os.path.exists(module.__cached__) for module in (argparse, numpy, PIL.Image, zmq)])"""
    assert board.run(f"python3 -c '{compiled}'", user="ddlp").stdout == "[True, True, True, True]\n"


def test_two_logins(board: Board) -> None:
    assert board.run("id -un").stdout == "root\n"
    assert board.run("id -un; sudo -n id -un", user="ddlp").stdout == "ddlp\nroot\n"
    # Even root on the board can neither set the host's clock nor mount.
    for forbidden in ('date -s "$(date)"', "mount -t tmpfs none /mnt", "mknod /tmp/disk b 8 0"):
        assert "not permitted" in board.run(forbidden, check=False).stderr.replace("permission denied", "not permitted")


def test_the_host_key_is_checked(board: Board, tmp_path: Path) -> None:
    other = tmp_path / "known_hosts"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    other.write_text(f"{board.ip} {(tmp_path / 'key.pub').read_text()}")
    done = subprocess.run(
        ["ssh", "-F", str(board.ssh_config), "-o", f"UserKnownHostsFile={other}", board.name, "true"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 255 and "Host key verification failed" in done.stderr


def test_data_is_read_only_and_the_spool_is_shared(board: Board) -> None:
    (board.data / "picture").write_text("pixels")
    assert board.run(f"cat {board.data_there}/picture").stdout == "pixels"
    assert "Read-only" in board.run(f"touch {board.data_there}/x", check=False).stderr
    assert board.spool is not None
    board.run(f"echo batch > {board.spool_there}/published", user="ddlp")
    assert (board.spool / "published").read_text() == "batch\n"
    (board.spool / "published").unlink()
    assert board.run(f"ls {board.spool_there}").stdout == ""
    (board.data / "picture").unlink()


@pytest.mark.slow
def test_two_boards_with_their_own_addresses_disks_and_processes(
    board: Board, make_board: Callable[..., Board], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").write_text("of the host")
    other = make_board("--bare", "--no-shared-spool", "--data", str(data), "--data-writable", "--port", "2222")
    assert other.ip != board.ip and other.spool is None
    assert other.run("hostname; cat /data/file").stdout == f"{other.name}\nof the host"
    other.run("echo written > /data/file; echo mine > /spool/x; echo x > /root/only-here")
    assert (data / "file").read_text() == "written\n"
    assert board.run("ls /root /spool").stdout.split() == ["/root:", "/spool:"]
    assert other.run("command -v python3", check=False).returncode == 1
    board.run("setsid sleep 600 > /dev/null 2>&1 < /dev/null & true")
    assert "sleep 600" not in other.run("ps ax").stdout
    board.run("kill $(pidof -x sleep) 2>/dev/null || pkill -f 'sleep 600'")
    status = emulator("status").stdout
    assert f"{board.name}: up" in status and f"{other.name}: up" in status


@pytest.mark.slow
def test_limits_hold(make_board: Callable[..., Board]) -> None:
    small = make_board("--cores", "1", "--cpu-share", "20", "--memory", "256M", "--disk", "64M")
    notes = (state() / small.name / "notes").read_text()
    assert notes == "", "a limit is not enforced on this machine"
    assert small.run("nproc").stdout == "1\n"
    # CPU seconds per second. On a busy machine they can only be fewer.
    used = """from time import monotonic, process_time
start, used = monotonic(), process_time()
while monotonic() < start + 3: pass
print((process_time() - used) / 3)"""
    assert float(small.run(f"python3 -c '{used}'").stdout) < 0.3
    assert small.run("python3 -c 'b = bytes(1) * (50 << 20); print(len(b))'").stdout == f"{50 << 20}\n"
    assert small.run("python3 -c 'b = bytearray(b\"x\" * (1 << 30))'; echo $?").stdout == "137\n"
    full = small.run("dd if=/dev/zero of=/root/big bs=1M count=100", check=False)
    assert full.returncode != 0 and "No space left on device" in full.stderr
    small.run("rm /root/big; true")


def leave_orphan(board: Board) -> None:
    """Leave a process that forked twice and left its session: only process 1 is its parent."""
    board.run("(setsid sh -c 'sleep 7200 & sleep 7200' >/dev/null 2>&1 </dev/null &) &")


def test_nothing_is_left_after_down(own_state: Path) -> None:
    entries = set(BINFMT.iterdir()) if BINFMT.exists() else set()
    board = raise_board("d")
    own = namespaces_of(board)
    leave_orphan(board)
    assert len(own) == 5 and len(traces(board.name, own)) > 8
    assert set(BINFMT.iterdir()) != entries, "up must add an entry for this board"
    network = board.ip.rpartition(".")[0]
    assert [line for line in traces(board.name, own, network) if "unreachable" in line]
    board.down()
    gone(board.name, own, network)
    assert not own_state.exists()
    assert (set(BINFMT.iterdir()) if BINFMT.exists() else set()) == entries


@pytest.mark.slow
def test_nothing_is_left_of_a_frozen_board(make_board: Callable[..., Board]) -> None:
    board = make_board("--bare")
    own = namespaces_of(board)
    leave_orphan(board)
    board.freeze()
    with pytest.raises(subprocess.TimeoutExpired):
        board.run("true", timeout_s=3)
    board.thaw()
    assert board.run("echo back").stdout == "back\n"
    board.freeze()
    board.down()
    gone(board.name, own)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["keeper", "pid"])
def test_nothing_is_left_of_a_board_that_was_killed_from_outside(make_board: Callable[..., Board], victim: str) -> None:
    board = make_board("--bare")
    own = namespaces_of(board)
    leave_orphan(board)
    os.kill(int((state() / board.name / victim).read_text().split()[0]), signal.SIGKILL)
    deadline = time.monotonic() + 20
    while f"{board.name}: off" not in emulator("status", board.name).stdout:
        assert time.monotonic() < deadline, "its processes still run"
        time.sleep(0.1)
    board.down()
    gone(board.name, own)


@pytest.mark.slow  # test_two_boards.py pulls a cable
def test_a_board_whose_cable_or_plug_is_pulled_comes_back_with_its_disk_and_keys(make_board: Callable[..., Board]) -> None:
    board = make_board("--bare")
    own = namespaces_of(board)
    board.cable(plugged=False)
    assert "No route to host" in board.run("true", check=False).stderr
    assert "unplugged" in emulator("status", board.name).stdout
    board.cable(plugged=True)
    board.run("echo kept > /root/file; echo half a batch > /spool/part; sync")
    leave_orphan(board)
    board.kill()
    assert not [line for line in traces(board.name, own) if "process" in line]
    # Nor may packets to it leave by the host's default route, to another computer with that address.
    assert "No route to host" in board.run("true", check=False).stderr
    assert board.spool is not None and (board.spool / "part").exists()
    board.start()
    assert board.run("cat /root/file; ps ax").stdout.startswith("kept\n")
    assert "sleep 7200" not in board.run("ps ax").stdout


@pytest.mark.slow
def test_what_was_given_with_data_and_spool_stays(make_board: Callable[..., Board], tmp_path: Path) -> None:
    for name in ("data", "spool"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text(name)
    make_board("--bare", "--data", str(tmp_path / "data"), "--spool", str(tmp_path / "spool")).down()
    assert [(tmp_path / name / "mine").read_text() for name in ("data", "spool")] == ["data", "spool"]


def interrupted(arguments: list[str], when: Callable[[], bool], number: signal.Signals) -> subprocess.Popen[bytes]:
    """Start `up` and send a signal when `when` is true: to the process group, as Ctrl-C does; SIGKILL only to the process."""
    process = subprocess.Popen([str(SCRIPT), "up", *arguments], start_new_session=True, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not when():
        assert process.poll() is None and time.monotonic() < deadline, "up ended before it could be interrupted"
        time.sleep(0.01)
    (os.kill if number == signal.SIGKILL else os.killpg)(process.pid, number)
    process.wait(timeout=300)
    return process


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("file", ["record", "keeper", "pid"])
def test_nothing_is_left_of_an_interrupted_up(board: Board, own_state: Path, file: str, number: signal.Signals) -> None:
    name = f"i{os.getpid()}"
    process = interrupted(["--name", name, "--bare"], (own_state / name / file).exists, number)
    assert process.returncode == 128 + number
    gone(name, set())
    assert not own_state.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_down_that_is_interrupted_ends_what_it_began(own_state: Path, number: signal.Signals) -> None:
    board = raise_board("e", "--bare")
    process = subprocess.Popen([str(SCRIPT), "down", "--name", board.name], start_new_session=True, stderr=subprocess.DEVNULL)
    while (own_state / board.name / "keeper").exists():
        time.sleep(0.001)
    os.killpg(process.pid, number)
    assert process.wait(timeout=300) == 0
    gone(board.name, set())
    assert not own_state.exists()


@pytest.mark.slow
def test_what_a_killed_up_leaves_goes_with_down(board: Board, own_state: Path) -> None:
    name = f"k{os.getpid()}"
    interrupted(["--name", name, "--bare"], (own_state / name / "pid").exists, signal.SIGKILL)
    emulator("down", "--name", name)
    gone(name, set())
    assert not own_state.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_making_that_was_interrupted(
    own_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("DDLP_CSD_CACHE", str(cache))
    interrupted(["--name", f"m{os.getpid()}"], lambda: any(cache.glob("new.armhf/debs/*.deb")), number)
    deadline = time.monotonic() + 20
    while any(
        str(cache).encode() in (entry / "cmdline").read_bytes()
        for entry in processes().values()
        if (entry / "cmdline").exists()
    ):
        assert time.monotonic() < deadline, "making the system goes on without its 'up'"
        time.sleep(0.1)
    if number == signal.SIGINT:
        assert [path.name for path in cache.iterdir()] == [".lock"]
        assert not own_state.exists()


@pytest.mark.slow
def test_nothing_is_left_of_a_board_that_cannot_start(board: Board, own_state: Path) -> None:
    """With so little memory, its first process is killed while it sets up its mounts."""
    name = f"f{os.getpid()}"
    done = emulator("up", "--name", name, "--bare", "--memory", "500K", check=False)
    assert done.returncode == 1 and f"{name} stopped while it started" in done.stderr
    gone(name, set())
    assert not own_state.exists()


def test_without_root(tmp_path: Path) -> None:
    """Also if root runs this test: then as another user."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    try:
        shutil.copy(SCRIPT, place)
        shutil.copytree(SCRIPT.with_suffix(""), place / SCRIPT.stem)
        user = {"user": "nobody"} if os.geteuid() == 0 else {}
        for command in (["up"], ["down", "--all"], ["kill", "--name", "csd0"]):
            done = subprocess.run([str(place / SCRIPT.name), *command], capture_output=True, text=True, cwd="/", **user)  # type: ignore[call-overload]
            assert done.returncode == 1 and f"'{command[0]}' needs root" in done.stderr and "sudo" in done.stderr
        assert (
            "--memory SIZE"
            in subprocess.run([str(place / SCRIPT.name), "--help"], capture_output=True, text=True, cwd="/", **user).stdout
        )  # type: ignore[call-overload]
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["up", "--name", "Board!"], "small letters"),
        (["up", "--arch", "mips"], "armhf or arm64"),
        (["up", "--cpu-share", "200"], "from 1 to 100"),
        (["up", "--memory", "much"], "such as 512M"),
        (["up", "--data", "/no/such"], "no such directory"),
        (["up", "--colour"], "unknown option --colour"),
        (["down"], "--name NAME or --all"),
        (["down", "--name", "nobody"], "there is no board nobody"),
        (["net", "--name", "nobody", "up"], "there is no board nobody"),
        (["frobnicate"], "unknown command"),
    ],
)
def test_wrong_arguments(needs_boards: None, arguments: list[str], words: str) -> None:
    done = emulator(*arguments, check=False)
    assert done.returncode == 1 and words in done.stderr


def test_a_name_is_taken_once(board: Board) -> None:
    done = emulator("up", "--name", board.name, check=False)
    assert done.returncode == 1 and "already" in done.stderr
    board.run("true")
