"""`ddlp try` as a user starts it: rows, page, an unchanged folder, Ctrl-C, one core, errors."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common import user_environment
from ddlp.sampledata import make_thumbnails

ROWS = ["dataloader", "dataloader", "cpu", "csd", "mte", "wrr"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty images in ten classes, a damaged one, and a text file. The folder is read-only."""
    root = make_thumbnails(tmp_path / "images", 40, 1, side=48) / "train"
    (root / "damaged.jpg").write_bytes(b"\xff\xd8\xff")
    (root / "notes.txt").write_text("mine")
    return root


def started(
    cwd: Path, *arguments: str | Path, cpus: int = 0, program: tuple[str, str] = ("-m", "ddlp")
) -> subprocess.Popen[str]:
    """Start `ddlp try ARGUMENTS` in a directory. Its own files go below ``cwd``/tmp. ``cpus`` is the number that it may use."""
    (cwd / "tmp").mkdir(parents=True, exist_ok=True)
    environment = {**user_environment(), "TMPDIR": str(cwd / "tmp"), "COLUMNS": "80"}
    usable = sorted(os.sched_getaffinity(0))[: cpus or None]
    return subprocess.Popen(
        [sys.executable, *program, "try", *map(str, arguments)], cwd=cwd, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=functools.partial(os.sched_setaffinity, 0, usable),
    )  # fmt: skip


def lines_of(printed: str, row: str) -> list[str]:
    return [line for line in printed.splitlines() if line.split()[:1] == [row] and "x  " in line]


def listing(root: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in [root, *root.rglob("*")]}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs, one for each side")
def test_a_folder_of_the_users(tmp_path: Path, folder: Path) -> None:
    before = listing(folder)
    process = started(tmp_path, folder, "--seconds", "4", "--batch-size", "4")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "40 images of " in out and "passed over: 1 image that can't be read (such as " in out and "; 1 other file" in out
    assert [row for name in dict.fromkeys(ROWS) for row in [name] * len(lines_of(out, name))] == ROWS, out
    assert "What this means for your own job\n1. " in out and err.startswith("comparing: ")
    (made,) = (tmp_path / "runs").iterdir()
    assert "epoch 0, wrr: " in (made / "report.html").read_text() and (made / "report.html").as_uri() in out
    assert listing(folder) == before
    assert not [path for path in (tmp_path / "tmp").iterdir() if path.name.startswith("ddlp-")]


_CTRL_C_IN_A_FORK = """
import os, signal, sys
os.register_at_fork(before=lambda: os.killpg(0, signal.SIGINT))
from ddlp.cli import main
sys.exit(main())
"""


def test_ctrl_c_while_a_worker_starts(tmp_path: Path, folder: Path) -> None:
    process = started(tmp_path, folder, "--seconds", "8", program=("-c", _CTRL_C_IN_A_FORK))
    try:
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130 and err.splitlines()[-1] == "ddlp: stopped", err
    assert "Traceback" not in err and "ignored" not in err, err
    assert "gain" not in out and not list((tmp_path / "runs").iterdir())
    assert not [path for path in (tmp_path / "tmp").iterdir() if path.name.startswith("ddlp-")]


def test_what_is_wrong_is_said_before_torch_is_imported(tmp_path: Path) -> None:
    asked = "import sys; sys.modules['torch'] = None; from ddlp.cli import main; sys.exit(main(['try', 'nothing']))"
    done = subprocess.run([sys.executable, "-c", asked], cwd=tmp_path, env=user_environment(), capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("ddlp: nothing can't be read"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["images/train", "--out", "images/train/mine"], "nothing is to be written"),
        (["images/train", "--seconds", "0"], "--seconds 0: give a number above 0"),
        (["images/train", "--out", "/proc/x"], "--out /proc/x"),
    ],
)
def test_errors_take_one_line(tmp_path: Path, folder: Path, arguments: list[str], says: str) -> None:
    before = listing(folder)
    process = started(tmp_path, *arguments)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (1, "") and err.startswith("ddlp: ") and err.count("\n") == 1, err
    assert says in err and listing(folder) == before
