"""No file names the host of a package registry: which one is used is for pip, apt and the user's settings to say."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOSTS = re.compile(
    r"\b(pypi|pythonhosted|npmjs|anaconda|rubygems|golang|debian|ubuntu)\.(org|com)\b|\bdownload\.pytorch\.org\b"
    r"|\b(crates|ghcr|quay|docker)\.io\b"
)
UBUNTU, DEBIAN = "Ubuntu|Ubuntu|http://a/ubuntu/", "Debian|Debian|http://d/debian/"
MIRROR = "set -euo pipefail; die() { echo \"$*\" >&2; exit 1; }; source scripts/csd_emulator/base.sh; mirror"


def tracked() -> list[str]:
    """The project's files: git's, or all but what git would ignore where there is no repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode == 0:
        return os.fsdecode(listed.stdout).rstrip("\0").split("\0")
    return [str(path.relative_to(ROOT)) for path in ROOT.glob("[!.]*/**/*.*") if path.is_file()]


def test_no_file_names_a_registrys_host() -> None:
    found = []
    for name in tracked():
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            found += [f"{name}: {one[0]}" for one in HOSTS.finditer(path.read_bytes().decode("utf-8", "replace"))]
    assert not found


@pytest.mark.parametrize(
    "listed, debootstrap, given, wanted",
    [
        (f"{UBUNTU}\nDebian|Debian-Security|http://s/\n{DEBIAN}", True, "", "http://d/debian/"),
        ("||http://b/security/\n||http://b/debian/", True, "", "http://b/debian/"),
        (UBUNTU, True, "", "http://own/debian"),
        (DEBIAN, True, "http://user/debian", "http://user/debian"),
        (UBUNTU, False, "", None),
    ],
)
def test_the_emulators_mirror(tmp_path: Path, listed: str, debootstrap: bool, given: str, wanted: str | None) -> None:
    """The user's, else this machine's, else debootstrap's own; else a line says what to do."""
    programs = {"apt-get": f"#!/bin/sh\ncat <<'END'\n{listed}\nEND\n"}
    if debootstrap:
        programs["debootstrap"] = '#!/bin/sh\nDEF_MIRROR="http://own/debian"\n'
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(stat.S_IRWXU)
    for name in ("sed", "head", "cat", "sh"):
        (tmp_path / name).symlink_to(next(path for path in (Path("/bin", name), Path("/usr/bin", name)) if path.exists()))
    settings = {"PATH": str(tmp_path), "DDLP_CSD_MIRROR": given}
    done = subprocess.run(["/bin/bash", "-c", MIRROR], cwd=ROOT, env=settings, capture_output=True, text=True)
    assert done.stdout.strip() == (wanted or "") and (done.returncode == 0) == (wanted is not None), done.stderr
    assert wanted is not None or "DDLP_CSD_MIRROR=URL" in done.stderr
