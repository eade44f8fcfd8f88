"""What earlier runs have measured, in real files: whatever is wrong with them is one line, and neither an error nor a wait."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from csd_engine.protocol.schema import checked_fields
from ddlp.auto import store as stores
from ddlp.auto.store import Stored
from ddlp.process import user_warnings

OF = {"samples": ["photos", 900], "sources": [], "batch_size": 256}
FIGURES = {"step_s": 0.1}


def check(data: Any) -> dict[str, Any]:
    return checked_fields("figures", data, {"step_s": float}, {})


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(user_warnings, "SAID", set())
    return tmp_path / "cache/ddlp/measured"


def test_the_second_run_finds_what_the_first_one_measured(directory: Path, caplog: Any) -> None:
    first = Stored(OF, directory)
    assert first.read(check) is None and not directory.exists(), "reading alone makes nothing"
    first.write(FIGURES)
    assert os.listdir(directory) == [first.path.name] and stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert Stored(dict(reversed(OF.items())), directory).read(check) == FIGURES
    assert json.loads(first.path.read_text())["of"] == OF, "for people"
    first.write({"step_s": 0.2})
    assert Stored(OF, directory).read(check) == {"step_s": 0.2} and not caplog.messages


@pytest.mark.parametrize("name", OF)
def test_another_thing_has_other_figures(directory: Path, name: str) -> None:
    Stored(OF, directory).write(FIGURES)
    other = Stored({**OF, name: "x"}, directory)
    assert other.read(check) is None
    other.write({"step_s": 2.0})
    assert Stored(OF, directory).read(check) == FIGURES and other.read(check) == {"step_s": 2.0}


def test_what_is_there_already_is_not_written_again(directory: Path) -> None:
    Stored(OF, directory).write(FIGURES)
    second = Stored(OF, directory)
    second.read(check)
    second.path.unlink()
    second.write(FIGURES)
    assert not second.path.exists()


def test_it_lies_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Stored(OF).path.parent == tmp_path / "ddlp/measured"
    monkeypatch.setattr(stores, "cache_directory", lambda: None)
    homeless = Stored(OF)
    homeless.write(FIGURES)
    assert homeless.read(check) is None


def test_the_newest_are_kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_MOST", 5)
    all_of_them = [Stored({"number": number}, directory) for number in range(12)]
    for number, one in enumerate(all_of_them):
        one.write(FIGURES)
        os.utime(one.path, (1e9 + number, 1e9 + number))
    assert {one.path for one in all_of_them if one.path.exists()} == {one.path for one in all_of_them[-5:]}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"what a user wrote there", b'{"of": {}, "figures": {"step_s": 0.', b"\xff\x00", b"3", b"[]", b"{}",
        b'{"figures": {"step_s": "much"}}', b'{"figures": {"step": 1}}', b'{"figures": null}', b"[" * 200_000,
    ],
    ids=range(11),
)  # fmt: skip
def test_a_damaged_file_is_told_once_and_replaced(directory: Path, content: bytes, caplog: Any) -> None:
    place = Stored(OF, directory)
    place.write(FIGURES)
    place.path.write_bytes(content)
    again = Stored(OF, directory)
    assert again.read(check) is None
    (said,) = caplog.messages
    assert said.startswith(f"ddlp: the stored measurements in {place.path} can't be read: ") and len(said) < 500
    again.write(FIGURES)
    assert Stored(OF, directory).read(check) == FIGURES


def test_something_else_in_its_place_stays(directory: Path, caplog: Any) -> None:
    place = Stored(OF, directory)
    place.path.mkdir(parents=True)
    assert place.read(check) is None
    place.write(FIGURES)
    assert os.listdir(directory) == [place.path.name] and place.path.is_dir()
    assert caplog.messages == [f"ddlp: the stored measurements in {place.path} can't be read: Is a directory"]


def test_a_full_file_system(tmp_path: Path, directory: Path, caplog: Any) -> None:
    full = tmp_path / "full"
    full.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", full]).returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        place = Stored(OF, full)
        place.write(FIGURES)
        place.write({"step_s": 1.0, "more": "x" * 100_000})
        assert "No space left on device" in caplog.messages[0]
        assert place.read(check) == FIGURES and os.listdir(full) == [place.path.name]
    finally:
        subprocess.run(["umount", full], check=True)


WRITER = """
import sys
from pathlib import Path
from ddlp.auto.store import Stored
place = Stored({}, Path(sys.argv[1]))
for number in range(300):
    place.write({"step_s": number, "rest": [number] * 1000})
    found = Stored({}, Path(sys.argv[1])).read(dict)
    assert found is not None and found["rest"] == [found["step_s"]] * 1000
"""


def test_two_processes_write_at_once(directory: Path) -> None:
    started = [subprocess.Popen([sys.executable, "-c", WRITER, directory], stderr=subprocess.PIPE) for _ in "ab"]
    assert [one.communicate(timeout=300)[1] for one in started] == [b"", b""]
    assert len(os.listdir(directory)) == 1
