"""Commands over a real sshd, and the errors if the device cannot be reached."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlp.deploy import shell
from ddlp.deploy.shell import Shell
from tests.ddlp.deploy.sshd import Sshd, kill_tree
from tests.engine_process import children, until


def test_commands_their_input_and_their_end(sshd: Sshd) -> None:
    with Shell("board", sshd.options) as there:
        done = there.run("cat; echo oops >&2; exit 3", input=b"abc\0\n" * 100_000, timeout_s=30)
        assert (done.status, done.out, done.err) == (3, "abc\\x00\n" * 100_000, "oops\n")
        assert there.run("echo \"$HOME\" '*' \\$x", timeout_s=30).out == f"{sshd.home} * $x\n"
        assert there.run("read x || echo empty", timeout_s=30).out == "empty\n"
        assert there.run("exit 255", timeout_s=30).status == 255
        assert there.run("sleep 1.2; wc -c", input=bytes(3_000_000), timeout_s=30).out.strip() == "3000000", "sent slowly"
        with pytest.raises(shell.CommandFailed, match=r"making tea failed on board: no water\."):
            there.must("echo no water >&2; exit 1", "making tea", timeout_s=30)


def test_what_a_device_prints_is_bounded_and_fit_for_a_terminal(sshd: Sshd, capfd: pytest.CaptureFixture[str]) -> None:
    escapes = r"printf '\033]0;title\007\033[2J\tone\r\n\302\233two\342\200\256'"
    plain = "\\x1b]0;title\\x07\\x1b[2J  one\n\\x9btwo\\u202e"
    with Shell("board", sshd.options) as there:
        done = there.run(f"{escapes}; {escapes} >&2", timeout_s=30)
        assert (done.out, done.err) == (plain, plain)
        assert there.attach(f"sh -c {shlex.quote(escapes)}") == 0
        assert capfd.readouterr().out == plain
        with pytest.raises(shell.ShellError, match="board has printed more than 16 MiB: yes"):
            there.run("yes", timeout_s=120)
        assert there.run("head -c 50000000 /dev/zero >&2; echo done", timeout_s=120).out == "done\n"
        with pytest.raises(shell.CommandFailed) as failed, there.stream(f"{escapes} >&2; exit 1", "streaming", timeout_s=60):
            pass
        assert "\x1b" not in str(failed.value) and "title" in str(failed.value)
        assert there.run("echo more", timeout_s=30).out == "more\n"
    assert [shell.number_in(text) for text in ("12\n", "9" * 5000, "\u00b2", "-1", "", "0x1")] == [12, *[None] * 5]


def test_one_connection_serves_all_commands(sshd: Sshd) -> None:
    with Shell("board", sshd.options) as there:
        connections = {there.run("echo $SSH_CONNECTION", timeout_s=30).out for _ in range(3)}
    assert len(connections) == 1


def test_a_file_arrives_whole_or_not_at_all(sshd: Sshd) -> None:
    target = sshd.home / "a dir" / "it's a file"
    with Shell("board", sshd.options) as there:
        there.put(b"\0\xff" * 300_000, str(target), 0o640)
        assert target.read_bytes() == b"\0\xff" * 300_000 and target.stat().st_mode & 0o777 == 0o640
        there.put(b"", str(target))
        assert target.read_bytes() == b"" and os.listdir(target.parent) == [target.name]
        with pytest.raises(shell.CommandFailed, match="No space left on device.*Free some space"):
            there.must("cat > /dev/full", "writing", input=b"x", timeout_s=30)
        (sshd.home / "file").touch()
        with pytest.raises(shell.CommandFailed, match=f"writing {sshd.home}/file/x failed on board"):
            there.put(b"x", str(sshd.home / "file" / "x"))


def all_of(read: Callable[[int], bytes]) -> bytes:
    return b"".join(iter(lambda: read(4096), b""))


def test_bytes_come_while_a_command_runs(sshd: Sshd) -> None:
    with Shell("board", sshd.options) as there:
        command = "printf 'a\\0\\377'; while [ ! -e ~/go ]; do sleep 0.1; done; cat"
        with there.stream(command, "x", input=b"b" * 300_000) as read:
            assert read(10) == b"a\0\xff"
            (sshd.home / "go").touch()
            assert all_of(read) == b"b" * 300_000
        with pytest.raises(shell.CommandFailed, match=r"counting failed on board: sheep lost\."):
            with there.stream("echo 12; echo sheep lost >&2; exit 3", "counting") as read:
                assert all_of(read) == b"12\n"
        with pytest.raises(shell.Slow, match="counting on board has not finished within 1 s"):
            with there.stream("echo 1; sleep 60", "counting", timeout_s=1) as read:
                all_of(read)
        with pytest.raises(ZeroDivisionError), there.stream("sleep 60", "counting"):
            raise ZeroDivisionError
        with pytest.raises(shell.ShellError, match="broke off"):
            with there.stream("echo 1; sleep 60", "counting") as read:
                assert read(10) == b"1\n"
                sshd.stop()
                assert all_of(read) == b""


def test_a_connection_that_breaks_off_in_the_middle_leaves_no_half_file(sshd: Sshd) -> None:
    target, data = sshd.home / "file", bytes(300_000_000)
    with Shell("board", sshd.options) as there:
        there.connect()
        sending = threading.Thread(target=_quietly, args=(there, data, target))
        sending.start()
        until(lambda: (sshd.home / "file.part").exists(), what="the first bytes")
        assert there._master is not None
        there._master.kill()  # the device sees the end of input, as if all had been sent
        sending.join(60)
    assert not sending.is_alive()
    until(lambda: not (sshd.home / "file.part").exists(), what="the end of the command over there")
    assert not target.exists()


def _quietly(there: Shell, data: bytes, target: Path) -> None:
    with contextlib.suppress(shell.ShellError):
        there.put(data, str(target))


def test_a_file_s_progress_can_be_watched(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(3_000_000))
    told: list[int] = []
    with Shell("board", sshd.options) as there, open(tmp_path / "big", "rb") as stream:
        done = there.run("cat | wc -c; sleep 2", input=stream, timeout_s=30, waiting=told.append)
    assert done.out.strip() == "3000000" and told and told[-1] == 3_000_000


def test_a_command_that_takes_too_long(sshd: Sshd) -> None:
    with Shell("board", sshd.options) as there:
        with pytest.raises(shell.Slow, match="has not finished within 0.5 s: sleep 60"):
            there.run("sleep 60", timeout_s=0.5)
        assert there.run("echo on", timeout_s=30).out == "on\n"


def test_the_way_out_of_a_changed_host_key_leads_out(sshd: Sshd) -> None:
    sshd.keygen("host")
    sshd.stop()
    sshd.start()
    fingerprint = subprocess.run(
        ["ssh-keygen", "-lf", str(sshd.directory / "host.pub")], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    with pytest.raises(shell.ShellError, match="its host key is not the one") as caught, Shell("board", sshd.options) as there:
        there.connect()
    assert fingerprint in str(caught.value) and str(sshd.known_hosts) in str(caught.value)
    forget = str(caught.value).partition("forget the old key with ")[2].partition(" and connect")[0]
    subprocess.run(forget, shell=True, check=True)
    with pytest.raises(shell.ShellError, match="Connect once by hand"), Shell("board", sshd.options) as there:
        there.connect()


def test_a_key_that_is_not_allowed(sshd: Sshd) -> None:
    (sshd.directory / "authorized_keys").write_text("")
    with pytest.raises(shell.ShellError, match=r"Permission denied \(publickey.*ssh-add.*ssh-copy-id"):
        Shell("board", sshd.options).connect()


def test_nothing_listens(sshd: Sshd) -> None:
    sshd.stop()
    with pytest.raises(shell.ShellError, match="Connection refused.*-p PORT"):
        Shell("board", sshd.options).connect()


def test_a_name_that_nobody_knows(sshd: Sshd) -> None:
    with pytest.raises(shell.ShellError, match="can't be resolved"):
        Shell("no-such-board.invalid", sshd.options).connect()


@pytest.mark.parametrize("options", [("-o", "Colour=green"), ("-F", "/no/such/config"), ("-Y9",)])
def test_options_that_ssh_does_not_take(sshd: Sshd, options: tuple[str, ...]) -> None:
    with pytest.raises(shell.ShellError, match="does not take its options"):
        Shell("board", (*sshd.options, *options)).connect()


@pytest.mark.parametrize("destination", ["", "-oProxyCommand=touch /tmp/x", "a b"])
def test_what_is_no_destination(destination: str) -> None:
    with pytest.raises(shell.ShellError, match="is no destination"):
        Shell(destination)


def test_a_user_without_a_shell(make_sshd: Callable[..., Sshd]) -> None:
    server = make_sshd("ForceCommand echo go away; exit 1")
    with pytest.raises(shell.ShellError, match="go away"):
        Shell("board", server.options).connect()


def test_a_login_shell_that_talks_disturbs_nothing(make_sshd: Callable[..., Sshd]) -> None:
    server = make_sshd('ForceCommand printf "welcome\\nstranger "; eval "$SSH_ORIGINAL_COMMAND"')
    with Shell("board", server.options) as there:
        assert there.run("echo hello", timeout_s=30).out == "hello\n"
        assert there.run("cat", input=b"abc", timeout_s=30).out == "abc"
        with there.stream("printf 'a\\0\\377'; cat", "x", input=b"b" * 300_000) as read:
            assert read(1) == b"a" and all_of(read) == b"\0\xff" + b"b" * 300_000
        with pytest.raises(shell.CommandFailed, match=r"making tea failed on board: no water\."):
            there.must("echo no water; exit 1", "making tea", timeout_s=30)


def _runs(marker: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker in path.read_bytes().replace(b"\0", b" ").decode(errors="replace") and "pytest" not in path.read_text():
                return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_ssh_stays_behind(sshd: Sshd, number: signal.Signals) -> None:
    temporary = Path(tempfile.mkdtemp(dir="/tmp"))  # short: a socket's path may have at most 107 bytes
    code = textwrap.dedent(
        f"""
        from ddlp.deploy.shell import Shell
        with Shell("board", {sshd.options!r}) as there:
            there.connect()
            print("there", flush=True)
            there.attach("sh -c 'echo one; exec sleep 98{sshd.port}'")
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["there\n", "one\n"]
        clients = children(process.pid)
        assert len(clients) == 2
        process.send_signal(number)
        process.wait(60)
        until(lambda: not _runs(f"sleep 98{sshd.port}") and not _runs(str(sshd.config)), what="the end of ssh and sleep")
        assert number == signal.SIGKILL or not list(temporary.iterdir()), "only a killed process may leave files"
    finally:
        kill_tree(process.pid)
        shutil.rmtree(temporary)


def test_a_command_that_is_attached_gives_its_status(sshd: Sshd, capfd: pytest.CaptureFixture[str]) -> None:
    with Shell("board", sshd.options) as there:
        began = time.monotonic()
        assert there.attach("sh -c 'echo hello; exit 7'") == 7
        assert time.monotonic() - began < 60
    assert capfd.readouterr().out == "hello\n"
