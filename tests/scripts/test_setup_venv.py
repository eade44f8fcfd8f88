"""Messages of scripts/setup_venv.sh if something is missing. .ci/run begins with a whole install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def set_up(venv: Path, extra: str = "quickstart", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts/setup_venv.sh", extra],
        env={**os.environ, "DDLP_VENV": str(venv), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def interpreter(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_old_python_is_named(tmp_path: Path) -> None:
    old = interpreter(tmp_path / "old", '[ "$1" = -V ] && echo "Python 3.9.2" && exit; exit 1')
    done = set_up(tmp_path / "venv", PYTHON=old)
    assert done.returncode == 1
    assert "no Python 3.10 or newer" in done.stderr and f"{old} (Python 3.9.2)" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_missing_ensurepip_tells_what_to_install(tmp_path: Path) -> None:
    bare = interpreter(tmp_path / "bare", f'case "$2" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"')
    done = set_up(tmp_path / "venv", PYTHON=bare)
    assert done.returncode == 1
    assert "apt-get install python3-venv" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    done = set_up(Path("/proc/venv"))
    assert done.returncode == 1
    assert "can't write /proc/venv" in done.stderr and "DDLP_VENV=" in done.stderr


def test_broken_environment_of_another_maker_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "venv/bin").mkdir(parents=True)
    python = interpreter(tmp_path / "venv/bin/python", "exit 1")
    done = set_up(tmp_path / "venv")
    assert done.returncode == 1
    assert "did not make it" in done.stderr
    assert Path(python).exists()


def test_ddlp_is_installed_once_and_then_what_further_extras_need(tmp_path: Path) -> None:
    """scripts/test.sh installs some of them while tests run. To install ddlp again would take its kernel away from them."""
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/.ddlp-made").touch()
    said = tmp_path / "said"
    pip = f'case "$2" in pip) echo "$*" >>{said}; exit;; "import torch") exit;; esac; exec {sys.executable} "$@"'
    interpreter(tmp_path / "venv/bin/python", pip)
    for extra in ("quickstart", "docs", "docs"):
        assert set_up(tmp_path / "venv", extra).returncode == 0
    whole, further = said.read_text().splitlines()
    constraints = f"-m pip install -c {ROOT}/constraints.txt"
    assert whole == f"{constraints} -e .[quickstart]"
    assert further.startswith(f"{constraints} mkdocs") and "mkdocstrings[python]" in further and "extra" not in further


@pytest.mark.parametrize("script", ["setup_venv.sh", "test.sh"])
def test_help_says_how_to_use_it(script: str) -> None:
    done = subprocess.run([ROOT / "scripts" / script, "--help"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and f"./scripts/{script}" in done.stdout


def test_the_environment_has_the_tested_versions() -> None:
    """constraints.txt lists the versions with which all tests have passed, so the tests must run with those."""
    if not all((Path(sys.prefix) / mark).exists() for mark in (".ddlp-made", ".ddlp-dev")):
        pytest.skip("scripts/test.sh did not make this environment")
    from packaging.requirements import Requirement

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    wanted = [Requirement(line) for line in lines if not line.startswith("#")]
    here = distributions(path=[sysconfig.get_path("purelib")])  # setuptools, once imported, puts others on sys.path
    installed = {re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(): one.version for one in here}
    known = [one for one in wanted if one.name in installed and (one.marker is None or one.marker.evaluate())]
    differ = {str(one): installed[one.name] for one in known if not one.specifier.contains(installed[one.name])}
    assert len(known) > 100 and not differ
