from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ddlp.process.cache_directory import cache_directory


def test_it_lies_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_directory() == tmp_path / ".cache/ddlp"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    assert cache_directory() == tmp_path / "elsewhere/ddlp"
    for wrong in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", wrong)
        assert cache_directory() == tmp_path / ".cache/ddlp"
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become a user that nobody knows")
def test_a_user_without_a_home_has_none():
    code = (
        "import os; from ddlp.process.cache_directory import cache_directory\n"
        "os.environ.clear(); os.setuid(54321); print(cache_directory())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
