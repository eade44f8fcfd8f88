"""The probe read: what its outcomes mean, that it leaves no process and no file, and the whole path with a fake driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddlp.transfer.gds.cufile import strict
from ddlp.transfer.gds.probe import _last_error, _try, judge, run_child
from ddlp.transfer.gds.probe_child import Outcome
from tests.engine_process import alive, until
from tests.needs import c_compiler

GOOD = Outcome(True, "", 6.5, "cufile")
ROUND = Outcome(True, "", 6.5, "posix")
BAD = Outcome(False, "nvidia-fs.ko driver not loaded", None, "cufile")
WAYS = ("load nvidia-fs", "set CUFILE_USE_PCIP2PDMA=true: try")


@pytest.mark.parametrize(
    ("outcomes", "kind", "speed", "reason", "first"),
    [
        ({"strict": GOOD}, "gds", 6.5, "every compatibility mode off", None),
        ({"strict": ROUND}, "posix", None, "goes round cuFile", "set KVIKIO_COMPAT_MODE=OFF"),
        ({"strict": BAD, "cufile": GOOD}, "cufile-compat", 6.5, "nvidia-fs.ko driver not loaded", "load nvidia-fs"),
        (
            {"strict": BAD, "p2pdma": GOOD, "cufile": GOOD},
            "cufile-compat",
            6.5,
            "not loaded",
            "set CUFILE_USE_PCIP2PDMA=true: a probe read",
        ),
        ({"strict": BAD, "cufile": ROUND, "posix": GOOD}, "posix", 6.5, "goes round cuFile", "load nvidia-fs"),
        ({"strict": BAD, "cufile": BAD, "posix": ROUND}, "posix", 6.5, "cuFile can't read there: nvidia-fs", "load nvidia-fs"),
        ({"strict": BAD, "cufile": BAD, "posix": BAD}, "posix", None, "kvikio can't read there", "load nvidia-fs"),
    ],
)
def test_what_the_reads_mean_together(outcomes, kind, speed, reason, first) -> None:
    found = judge(outcomes, WAYS)
    assert (found.kind, found.gb_per_s) == (kind, speed) and reason in found.reason and found.gpu
    assert (found.ways_out[0].startswith(first) if first else found.ways_out == ()) and "\n" not in found.reason
    assert sum("CUFILE_USE_PCIP2PDMA" in way for way in found.ways_out) <= 1


def test_a_failure_that_nothing_explains_still_says_where_to_look() -> None:
    assert "CUFILE_LOGGING_LEVEL" in judge({"strict": BAD, "cufile": GOOD}, ()).ways_out[0]
    for outcomes in ({"strict": ROUND}, {"strict": BAD, "p2pdma": GOOD, "cufile": GOOD}, {"strict": GOOD}):
        assert not any("CUFILE_LOGGING_LEVEL" in way for way in judge(outcomes, ()).ways_out)


def gone(process: int) -> bool:
    return until(lambda: not alive(process), 30, f"the end of process {process}")


def test_a_read_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    note = tmp_path / "grandchild"
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"child = subprocess.Popen(['sleep', '600']); open({str(note)!r}, 'w').write(str(child.pid))\n"
        "while True: pass"
    )
    outcome = run_child([sys.executable, "-c", code], dict(os.environ), 1.5)
    assert not outcome.ok and outcome.why == "the read did not end within 1.5 s"
    assert gone(int(note.read_text()))


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11: without a word"),
        ("raise SystemExit('no such thing')", "status 1: no such thing"),
        ("print('{\"unknown\": 1}')", "status 0: without a word"),
    ],
)
def test_a_read_that_crashes_is_an_outcome(code: str, why: str) -> None:
    outcome = run_child([sys.executable, "-c", code], dict(os.environ), 30)
    assert not outcome.ok and outcome.why == f"the read's process ended with {why}"


def test_the_read_dies_with_whoever_waits_for_it() -> None:
    """The read may hang inside cuFile, where its own code cannot notice that the parent died."""
    child = (
        "import os; from csd_engine.service.worker_start import die_with_parent\n"
        "die_with_parent(); print(os.getpid(), flush=True)\n"
        "while True: pass"
    )
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    waiting = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert waiting.stdout is not None
    reading = int(waiting.stdout.readline())
    waiting.send_signal(signal.SIGKILL)
    waiting.wait()
    assert gone(reading)


def test_cufiles_own_reason_is_found(tmp_path: Path) -> None:
    log = tmp_path / "cufile.log"
    log.write_text(  # as libcufile 1.17 writes it
        " 22-11-2026 05:58:24:434 [pid=19334 tid=19335] WARN   0:184 failed to open /proc/driver/nvidia-fs/devcount \n"
        " 22-11-2026 05:58:24:434 [pid=19334 tid=19335] ERROR  cufio-drv:1141 nvidia-fs.ko driver not loaded\n"
    )
    assert _last_error(str(log)) == "nvidia-fs.ko driver not loaded"
    assert _last_error(str(tmp_path / "none")) == ""


def test_the_whole_way_with_a_driver_in_name_only(tmp_path: Path) -> None:
    """The driver and kvikio are empty fakes. All else is real: the file, the child process, its result, what is left."""
    libraries, packages, spool, root = (tmp_path / name for name in ("lib", "packages", "spool", "root"))
    for directory in (libraries, packages / "kvikio", spool, root / "proc/driver/nvidia/gpus/0000:01:00.0"):
        directory.mkdir(parents=True)
    (packages / "kvikio/__init__.py").touch()
    empty = [*c_compiler(), "-shared", "-o", str(libraries / "libcuda.so.1"), "-x", "c", os.devnull]
    subprocess.run(empty, check=True)
    code = (
        "import dataclasses, json, sys; from ddlp.transfer.gds.probe import probe\n"
        "print(json.dumps(dataclasses.asdict(probe(sys.argv[1], root=sys.argv[2]))))"
    )
    variables = {"LD_LIBRARY_PATH": libraries, "PYTHONPATH": f"{os.getcwd()}:{packages}", "TMPDIR": tmp_path / "tmp"}
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-c", code, str(spool), str(root)]
    done = subprocess.run(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    assert found["kind"] == "posix" and found["gpu"] and "sees no CUDA device" in found["reason"]
    assert "nvidia-smi" in found["ways_out"][0] and found["gb_per_s"] is None
    assert list(spool.iterdir()) == [] == list((tmp_path / "tmp").iterdir())


def test_a_real_read_says_what_it_lacks(tmp_path: Path) -> None:
    from ddlp.transfer.gds.needs import why_not

    missing = why_not()
    if missing is None:
        pytest.skip("all is there")
    outcome = _try(str(tmp_path / "none"), "", 0, 60, "strict", strict({}))
    assert not outcome.ok and outcome.why == missing[0]
