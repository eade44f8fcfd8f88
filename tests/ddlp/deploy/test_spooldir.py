"""Which files in a spool directory belong to ddlp: the shell commands on a device agree with the engine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from csd_engine.errors import SpoolError
from csd_engine.service.spool import Spool
from ddlp.deploy.spooldir import FOREIGN, REMOVE
from ddlp.sources.engine.dataset_upload import DatasetUpload

HEX = "0123456789abcdef" * 2
OURS = (
    ".lock", ".large", f"here-{HEX[:16]}", "job-12-0a1b2c3d/1.safetensors", f"manifests/{HEX}", f"manifests/{HEX}.3.part",
    f"arrays/{HEX}.npy", f"files/0a1b2c3d-{HEX[:16]}/lock", f"files/0a1b2c3d-{HEX[:16]}/{HEX}.npy", f".ddlp-{HEX[:16]}",
    f".ddlp-{HEX[:16]}.back",
)  # fmt: skip
# A user's own files in there, with names that look like ddlp's.
OTHERS = (
    "thesis", "job-4711/result", "job-4711-0a1b2c3d.txt", "job-1-0a1b2c3de", "job-a-0a1b2c3d", "here-be-dragons",
    "files/photo.jpg", "files/tmp", "files/2024-05", "files/20240501-20240531", "arrays/a.npy", f"arrays/{HEX}",
    f"manifests/{HEX}.json", ".hidden", ".ddlp-notes", f".ddlp-{HEX[:16]}.txt", "with\nnewline", "ü",
)  # fmt: skip


def fill(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(name)


def everything(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if not path.is_dir())


def shell(directory: Path, script: str) -> str:
    done = subprocess.run(["/bin/sh", "-c", f"spool='{directory}'\n{script}"], capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout


def taken(directory: Path) -> str:
    """Why an engine rejects the directory; empty if it accepts it."""
    try:
        Spool(directory, 1, 1, 0).close()
    except SpoolError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", (*OTHERS, "ddlp-spool/x"))
def test_somebody_s_directory_is_refused_and_stays_as_it_is(tmp_path: Path, name: str) -> None:
    fill(tmp_path, *OURS, name)
    before = everything(tmp_path)
    found = shell(tmp_path, f"{FOREIGN}foreign").splitlines()[0].removeprefix("./")
    assert found and name.startswith(found)
    assert f"not ddlp's: {found}" in taken(tmp_path) and f"--spool, for example {tmp_path}/ddlp" in taken(tmp_path)
    shell(tmp_path, REMOVE)
    assert everything(tmp_path) == before


def test_a_spool_without_a_mark_is_taken_over_and_removed(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    fill(tmp_path, *OURS)
    assert shell(tmp_path, f"{FOREIGN}foreign") == "" == taken(tmp_path)
    assert everything(tmp_path) == sorted(("ddlp-spool", *OURS[4:]))
    fill(tmp_path, *OURS)
    (tmp_path / "ddlp-spool").unlink()
    shell(tmp_path, REMOVE)
    assert [path.name for path in tmp_path.iterdir()] == ["lost+found"]


def test_in_a_spool_goes_what_is_ours_and_all_else_stays(tmp_path: Path) -> None:
    assert taken(tmp_path) == ""
    fill(tmp_path, *OURS, *OTHERS)
    assert taken(tmp_path) == "" == shell(tmp_path, f"{FOREIGN}foreign")
    assert everything(tmp_path) == sorted(("ddlp-spool", *OURS[4:], *OTHERS))
    fill(tmp_path, *OURS)
    shell(tmp_path, REMOVE)
    assert everything(tmp_path) == sorted(OTHERS)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert shell(tmp_path / "new", f"{FOREIGN}foreign") == "" == shell(tmp_path / "new", REMOVE)
    assert not (tmp_path / "new").exists()


def test_what_a_host_that_was_killed_has_left_is_ours(tmp_path: Path) -> None:
    assert taken(tmp_path) == ""
    (tmp_path / "ddlp-spool").unlink()
    luggage = DatasetUpload.shared(tmp_path, str(tmp_path))
    luggage.show()
    assert [path.name for path in tmp_path.glob("files/*/*") if path.name == "look"]
    assert shell(tmp_path, f"{FOREIGN}foreign") == "" == taken(tmp_path)
    shell(tmp_path, REMOVE)
    assert list(tmp_path.iterdir()) == []
    luggage.close()
