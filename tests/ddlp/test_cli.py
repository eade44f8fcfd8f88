"""The command line itself: Ctrl-C, errors, the list of commands."""

import argparse
import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common import user_environment
from ddlp import cli


def interrupted(_: argparse.Namespace) -> int:
    raise KeyboardInterrupt


def test_ctrl_c_ends_the_program_or_whoever_calls_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.set_defaults(run=interrupted)
    monkeypatch.setattr(cli, "make_parser", lambda given: parser)
    monkeypatch.setattr(sys, "argv", ["ddlp", "anything"])
    assert cli.main() == 130 and capsys.readouterr().err == "ddlp: stopped\n"
    with pytest.raises(KeyboardInterrupt):  # called by a test, for example: Ctrl-C must end all tests
        cli.main(["anything"])
    assert capsys.readouterr().err == ""


def test_alone_it_shows_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    shown = capsys.readouterr()
    assert shown.err == "" and shown.out.startswith("usage: ddlp") and "doctor" in shown.out and "--version" in shown.out


def test_its_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    packaged = configparser.ConfigParser()
    packaged.read(Path(__file__).parents[2] / "setup.cfg")
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out == f"ddlp {packaged['metadata']['version']}\n"


def test_a_reader_that_has_read_enough_ends_it_without_a_traceback(tmp_path: Path) -> None:
    """As in `ddlp plan ... | head`."""
    (tmp_path / "plan.toml").write_text("step_s = 0.1\nhost_rate = 4\n")
    read, write = os.pipe()
    os.close(read)
    environment = {**user_environment(), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "ddlp", "plan", "--setup", "plan.toml"]
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs, one for each side")
def test_a_bench_without_the_photographs_says_what_to_install(tmp_path: Path) -> None:
    """Only `pip install .` was run: neither package that ships the photographs can be imported."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules.update(skimage=None, sklearn=None)\n")
    environment = user_environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    command = [sys.executable, "-m", "benchmarks.overlap", "--data", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (1, "") and "Traceback" not in done.stderr, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("python -m benchmarks.overlap: "))
    assert "is not installed" in line and "pip install 'ddlp[quickstart]'" in line


def test_help_waits_for_no_torch() -> None:
    """torch takes a second or more to import, and help needs none of it."""
    code = """
import contextlib, io, sys
from ddlp import cli
for command in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        cli.main([command, "--help"])
    assert said.getvalue().startswith(f"usage: ddlp {command}"), command
    assert "torch" not in sys.modules, command
"""
    commands = (
        "analyse", "trace", "report", "plan", "try", "run", "status", "deploy", "keys", "logs", "stop", "start", "energy",
        "cache", "doctor", "parity",
    )  # fmt: skip
    subprocess.run([sys.executable, "-c", code, *commands], check=True, env=user_environment())
