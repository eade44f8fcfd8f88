"""`ddlp energy` as a user runs it."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from ddlp import cli
from ddlp.errors import DDLPError
from ddlp.observe.energy import EnergyResult, PartEnergy, Tariff, comparison, load, save, summaries
from tests.engine_process import alive, until


def ddlp(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ddlp", "energy", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ, **options)  # type: ignore[call-overload]


def test_a_command_is_measured_and_compared(tmp_path, recorded, capsys):
    """RAPL counters in a recorded tree. The measured command itself increases them."""
    counter = recorded.root / "class/powercap/intel-rapl:0/energy_uj"
    common = ("--sys", recorded.root, "--price", "0.36", "--currency", "EUR", "--co2", "100")
    for label, joules in (("cpu", 360), ("wrr", 180)):
        recorded.package(0)
        script = f"import sys; open(sys.argv[1], 'w').write('{joules}000000'); print('trained'); sum(range(10**6)); sys.exit(3)"
        done = ddlp("run", "--out", tmp_path / f"{label}.json", "--label", label, "--batches", 10, "--samples", 80, *common,
                    "--", sys.executable, "-c", script, counter)  # fmt: skip
        assert done.returncode == 3 and done.stdout == "trained\n", done.stderr
        assert f"{joules / 10:g}" in done.stderr and "measured: rapl/package-0" in done.stderr
    files = [str(tmp_path / f"{label}.json") for label in ("cpu", "wrr")]
    first, _ = (one.to_data() for file in files for one in load(file))
    assert (first["total_j"], first["cost"], first["co2_g"]) == (360, pytest.approx(360 / 3.6e6 * 0.36), pytest.approx(0.01))
    assert first["j_per_batch"] == 36 and {one["part"]: one["joules"] for one in first["parts"]} == {"cpu": 360, "dram": 0}
    assert 0 < first["host_cpu_s"] < 60
    assert cli.main(["energy", "compare", *files]) == 0
    _, cpu, wrr = capsys.readouterr().out.splitlines()[:3]
    assert cpu.split()[:2] == ["cpu", "1"] and "1.000" in cpu and "0.500" in wrr
    assert cli.main(["energy", "compare", "--baseline", "wrr", "--json", *files]) == 0
    assert [one["ratio"] for one in json.loads(capsys.readouterr().out)] == [2.0, 1.0]


def test_two_files_of_the_same_command_are_two_lines(tmp_path, capsys):
    files = [str(tmp_path / name) for name in ("cpu.json", "wrr.json")]
    for file in files:
        assert ddlp("run", "--out", file, "--sys", tmp_path, "--", "true").returncode == 0
    assert cli.main(["energy", "compare", *files]) == 0
    _, cpu, wrr, *rest = capsys.readouterr().out.splitlines()
    assert cpu.split()[:2] == ["cpu", "1"] and "1.000" in cpu and wrr.split()[:2] == ["wrr", "1"]
    assert not any("files call so" in line for line in rest)
    assert cli.main(["energy", "compare", "--json", *files]) == 0
    cpu, wrr = json.loads(capsys.readouterr().out)
    assert [(one["label"], one["runs"], one["files"]) for one in (cpu, wrr)] == [("cpu", 1, files[:1]), ("wrr", 1, files[1:])]
    assert (cpu["ratio"], wrr["ratio"]) == (1, pytest.approx(wrr["joules"] / cpu["joules"]))


def test_files_that_are_merged_into_one_line_are_named(tmp_path, capsys):
    first, second, other = (tmp_path / name for name in ("a/cpu.json", "b/cpu.json", "wrr.json"))
    save(str(first), [result("cpu", 100), result("cpu", 200)])
    save(second, [result("cpu", 300)])
    save(other, [result("wrr", 100)])
    files = [str(file) for file in (first, second, other)]
    assert cli.main(["energy", "compare", *files]) == 0
    out = capsys.readouterr().out
    assert f"cpu is the mean of what 2 files call so: {first}, {second}\n" in out and "wrr is the mean" not in out
    assert cli.main(["energy", "compare", "--json", *files]) == 0
    assert [(one["runs"], one["files"]) for one in json.loads(capsys.readouterr().out)] == [(3, files[:2]), (1, files[2:])]


def test_meters_and_why_others_are_missing(recorded):
    done = ddlp("meters", "--seconds", 0.1, "--sys", recorded.root, "--external", "machine=command:echo 230 W")
    assert done.returncode == 0, done.stderr
    assert "rapl/package-0" in done.stdout and "230" in done.stdout and "no meter: hwmon" in done.stdout


def test_it_starts_without_torch():
    script = "import sys; from ddlp.cli import main; main(['energy', 'meters', '--seconds=0']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.splitlines()[-1] == "False"


def test_ctrl_c_is_the_commands_and_what_it_took_is_told(tmp_path):
    script = "import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(7))\nprint('on', flush=True)"
    script += "\ntime.sleep(60)"
    child = subprocess.Popen(
        [sys.executable, "-m", "ddlp", "energy", "run", "--out", str(tmp_path / "it.json"), "--", sys.executable, "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ, start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == "on\n"
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=300)
    assert child.returncode == 7 and "total" in said and load(str(tmp_path / "it.json"))[0].seconds > 0


def test_what_it_took_is_told_where_sigterm_has_ended_the_command_already(tmp_path):
    """As when a whole process group is told to end: the command ends before its parent gets the signal."""
    script = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    ours = subprocess.Popen(
        [sys.executable, "-m", "ddlp", "energy", "run", "--out", str(tmp_path / "it.json"), "--", sys.executable, "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    assert ours.stdout is not None
    command = int(ours.stdout.readline())
    os.kill(ours.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, ours.pid, os.WSTOPPED)
    os.kill(command, signal.SIGTERM)
    until(lambda: not alive(command), 30, "the end of the command")
    ctypes.CDLL(None).tgkill(ours.pid, ours.pid, int(signal.SIGTERM))  # to the waiting thread, as is usual
    os.kill(ours.pid, signal.SIGCONT)
    _, said = ours.communicate(timeout=300)
    assert ours.returncode == 128 + signal.SIGTERM and "total" in said and load(tmp_path / "it.json")[0].seconds > 0, said


def test_where_the_result_can_t_go_is_said_before_the_command_runs(tmp_path):
    for out in (tmp_path, tmp_path / "file" / "it.json"):
        (tmp_path / "file").write_text("")
        done = ddlp("run", "--out", out, "--", "touch", tmp_path / "ran")
        assert done.returncode == 1 and done.stderr.startswith(f"ddlp: --out {out} can't be written: "), done.stderr
    assert not (tmp_path / "ran").exists()
    (tmp_path / "before.json").write_text("kept")
    for name in ("before.json", "new.json"):
        assert ddlp("run", "--out", tmp_path / name, "--", "/nowhere/at/all").returncode == 1
    assert (tmp_path / "before.json").read_text() == "kept" and not (tmp_path / "new.json").exists()


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_result_that_can_t_be_written_is_told(tmp_path, more):
    """The command creates a directory at the path of its result."""
    done = ddlp("run", "--out", tmp_path / "it", *more, "--", "sh", "-c", 'mkdir "$1"; exit 3', "sh", tmp_path / "it")
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    assert f"{tmp_path / 'it'} can't be written: Is a directory" in done.stderr
    assert json.loads(done.stdout)["seconds"] > 0 if more else "total" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["run"], "no command"), (["run", "--", "/nowhere/at/all"], "can't be run"), (["compare", "/nowhere"], "can't be read"),
     (["meters", "--external", "x"], "is no meter"), (["meters", "--csd", "nobody"], "nobody")],
)  # fmt: skip
def test_what_is_wrong_is_said(arguments, said, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("DDLP_HOME", str(tmp_path))
    assert cli.main(["energy", *arguments]) == 1
    assert said in capsys.readouterr().err


def test_a_file_of_something_else_is_refused(tmp_path):
    for text, said in (("{}", "no energy record"), ("[1]", "no energy record"), ("junk", "can't be read"),
                       ('{"format": "ddlp energy 1", "results": [{"label": "x"}]}', "no energy result")):  # fmt: skip
        (tmp_path / "f").write_text(text)
        with pytest.raises(DDLPError, match=said):
            load(tmp_path / "f")


def result(label: str, joules: float, batches: int | None = 10, modelled: bool = False, **more: float) -> EnergyResult:
    parts = (PartEnergy("cpu", joules, modelled, ("s",)), *(PartEnergy(name, j, False, ("s",)) for name, j in more.items()))
    return EnergyResult(label, label, 0, 5.0, batches, None, 0, parts, 2.0, 1.0, Tariff())


def test_means_over_seeds_and_their_spread(tmp_path):
    results = [result("cpu", 100), result("cpu", 300), result("wrr", 100, modelled=True)]
    save(tmp_path / "deep" / "r.json", results)
    assert load(tmp_path / "deep" / "r.json") == results
    cpu, wrr = summaries(results)
    assert (cpu.runs, cpu.joules, cpu.least_j, cpu.most_j, cpu.ratio) == (2, 20, 10, 30, 1)
    assert (wrr.joules, wrr.ratio, wrr.modelled) == (10, 0.5, ("cpu",))
    text = comparison(results)
    assert "10..30" in text and "10*" in text and "not measured" in text and "not all totals are of one kind" in text
    head, measured, modelled = (re.split(r"  +", line.strip()) for line in text.splitlines()[:3])
    named = {"J/batch", "/ cpu", "cpu", "USD/run", "g CO2/run"}
    of_cpu, of_wrr = (dict(zip(["label", *head], cells)) for cells in (measured, modelled))
    assert not any("*" in cell for cell in of_cpu.values()) and {name for name in head if "*" in of_wrr[name]} == named
    with pytest.raises(DDLPError, match="no result is called 'mte', only cpu, wrr"):
        comparison(results, "mte")


def test_runs_of_unknown_length_are_compared_whole():
    cpu, other = summaries([result("cpu", 100), result("other", 50, batches=None)])
    assert (cpu.unit, cpu.joules, other.joules) == ("run", 100, 50)
