"""`python -m benchmarks --all`: all parts of the benches, one document; finished parts are kept."""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from benchmarks.__main__ import BENCHES, _path, planned
from benchmarks.common import user_environment
from tests.benchmarks.bench import bench
from tests.ddlp.faults.scene import processes
from tests.engine_process import until


def test_every_bench_has_parts_that_its_own_options_take():
    """And `--all` has each save its figures."""
    found = planned(BENCHES)
    want_a_gpu = set() if torch.cuda.is_available() else {"gpu", "train"}
    assert {bench for _, bench, _ in found} == set(BENCHES) - want_a_gpu
    assert len({title for title, _, _ in found}) == len(found)
    for _, name, arguments in found:
        with pytest.raises(SystemExit) as ended:
            bench([name, *arguments, "--save", "figures.json", "-h"])
        assert ended.value.code == 0, (name, arguments)


@pytest.mark.slow
def test_the_document_and_what_was_kept(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.__main__.BENCHES", {"pools": BENCHES["pools"]})
    short = ["--engines", "1", "--batches", "2", "--rounds", "1"]
    monkeypatch.setattr("benchmarks.pools.report_parts", lambda: [("A pool", short)], raising=False)
    out = tmp_path / "docs" / "benchmarks.md"
    arguments = ["__main__", "--all", "--document", str(out), "--parts", str(tmp_path / "parts")]
    assert bench(arguments) == 0
    text = out.read_text()
    assert "## Aims:" in text and "DataLoader, n + 1 workers" in text and "Machine:" in text
    [(title, _, given)] = planned({"pools": BENCHES["pools"]})
    kept = json.loads(_path(tmp_path / "parts", title).read_text())
    assert kept["arguments"] == given and kept["status"] == 0 and len(kept["aims"]) == 1
    capsys.readouterr()
    assert bench([*arguments, "--resume"]) == 0
    assert ": kept" in capsys.readouterr().err and out.read_text().count("\n") == text.count("\n")


def commands_with(scratch):
    """Command lines of the running processes whose temporary files go to this directory."""
    return [process.command for process in processes() if f"TMPDIR={scratch}\0" in process.environment]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs, one for each side")
@pytest.mark.slow  # tests/ddlp/tryout/test_command.py and tests/scripts/test_recipes.py have Ctrl-C with children that measure
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ended_by_a_signal_it_leaves_nothing_running_and_no_file(small_sets, tmp_path, number):
    """SIGTERM goes to the one process, as from kill; Ctrl-C goes to all."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "bench").symlink_to(small_sets)
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    command = [sys.executable, "-m", "benchmarks", "--all", "--only", "overlap"]
    command += ["--document", "found.md", "--parts", "parts"]
    environment = {**user_environment(), "TMPDIR": str(scratch)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True, stderr=subprocess.PIPE) as process:
        try:
            until(lambda: any("benchmarks.bare" in line for line in commands_with(scratch)), 60, "a bare loop")
            assert list(scratch.iterdir())
            (os.kill if number == signal.SIGTERM else os.killpg)(process.pid, number)
            assert process.wait(60) == 128 + number
            assert not commands_with(scratch) and not list(scratch.iterdir())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.stderr is not None and process.stderr.read().decode().count("Traceback") == 0


def test_without_all_it_lists_them(capsys):
    assert bench(["__main__"]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == [f"benchmarks.{name}" for name in BENCHES]
