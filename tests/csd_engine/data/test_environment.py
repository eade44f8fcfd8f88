"""The file with settings and credentials of storages: what is taken, what is refused, and that no value is ever told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from csd_engine.__main__ import main
from csd_engine.data.objects.environment import load_environment
from csd_engine.errors import StorageRefused
from tests.engine_process import EngineProcess, until

SECRET = "not/to+be=seen=anywhere=="


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the file adds is taken back."""
    environment = dict(os.environ)
    monkeypatch.setattr(os, "environ", environment)
    return environment


def written(directory: Path, text: str | bytes, mode: int = 0o600) -> str:
    path = directory / "environment"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return str(path)


def test_what_is_in_the_file(tmp_path: Path, unchanged: dict[str, str]) -> None:
    unchanged["AWS_REGION"] = "of the service"
    before = dict(unchanged)
    text = (
        f"# a comment = of ours\n; another\n\n AWS_SECRET_ACCESS_KEY={SECRET}\r\nAWS_REGION = 'eu north'\nNO_PROXY=\n"
        'https_proxy="http://u:p@proxy:3128"\nGOOGLE_SERVICE_ACCOUNT=/k.json\nAZURE_STORAGE_ACCOUNT_NAME="\nSSL_CERT_FILE=/ü.pem'
    )
    load_environment(written(tmp_path, text), [str(tmp_path / "data")])
    added = {
        "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu north", "NO_PROXY": "", "https_proxy": "http://u:p@proxy:3128",
        "GOOGLE_SERVICE_ACCOUNT": "/k.json", "AZURE_STORAGE_ACCOUNT_NAME": '"', "SSL_CERT_FILE": "/ü.pem",
    }  # fmt: skip
    assert unchanged == {**before, **added}
    load_environment("none", [])


@pytest.mark.parametrize(
    "line",
    [
        SECRET, f"{SECRET}=1", f"PATH=/{SECRET}", f"LD_PRELOAD={SECRET}", f"PYTHONPATH={SECRET}", f"export AWS_REGION={SECRET}",
        f"aws_region={SECRET}", f"AWS_={SECRET}", f"XAWS_REGION={SECRET}", f"AWS_A\0B={SECRET}", f"AWS_REGION={SECRET}\0",
        f"AWS_REGION={SECRET}\x1b[0m", f"AWS_REGION={SECRET}".encode() + b"\xff",
    ],
)  # fmt: skip
def test_a_line_that_is_refused_is_named_and_not_quoted(
    tmp_path: Path, line: str | bytes, unchanged: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = dict(unchanged)
    line = line if isinstance(line, bytes) else line.encode()
    path = written(tmp_path, b"AWS_ACCESS_KEY_ID=1\n\n" + line + b"\n")
    with pytest.raises(StorageRefused, match=r"environment, line 3: ") as caught:
        load_environment(path, [])
    assert SECRET[:8] not in str(caught.value)
    assert unchanged == before
    assert main(["--reach", "s3://bucket/", "--environment", path]) == 2
    told = "".join(capsys.readouterr())
    assert "line 3" in told and SECRET[:8] not in told


def test_a_file_that_others_could_read_or_write(tmp_path: Path) -> None:
    for mode in (0o640, 0o604, 0o620, 0o602, 0o777):
        with pytest.raises(StorageRefused, match=rf"others .* read or write it \(mode {mode:o}\).*chmod 600 {tmp_path}"):
            load_environment(written(tmp_path, "", mode), [])
    path = written(tmp_path, "")
    for above in (str(tmp_path), "/", path):
        with pytest.raises(StorageRefused, match="which hosts may read or write"):
            load_environment(path, ["/elsewhere", above])
    (tmp_path / "link").symlink_to(path)
    load_environment(str(tmp_path / "link"), [])
    (tmp_path / "data").mkdir()
    (tmp_path / "link into").symlink_to(tmp_path / "data")
    with pytest.raises(StorageRefused, match="which hosts may read or write"):
        load_environment(f"{tmp_path}/link into/environment", [str(tmp_path / "data")])


def test_a_file_that_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, why in ((tmp_path / "gone", "No such file"), (tmp_path, "Is a directory"), (tmp_path / "fifo", "is no file")):
        with pytest.raises(StorageRefused, match=why):
            load_environment(str(path), [])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_another_user_s_file(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    os.chown(path, 12345, 12345)
    with pytest.raises(StorageRefused, match=r"belongs to another user \(uid 12345\)"):
        load_environment(path, [])


def test_an_engine_s_workers_have_it(tmp_path: Path) -> None:
    """And its own process; nothing of it is told."""
    path = written(tmp_path, f"AWS_SECRET_ACCESS_KEY={SECRET}\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "engine").mkdir()
    engine = EngineProcess(tmp_path / "engine", "--root", str(tmp_path / "data"), "--environment", path, "--log-level", "debug")
    try:
        (worker,) = engine.children()
        told = f"AWS_SECRET_ACCESS_KEY={SECRET}\0".encode()
        until(lambda: told in Path(f"/proc/{worker}/environ").read_bytes(), 30, "it")  # not there before the worker's exec
    finally:
        engine.end()
    assert SECRET not in engine.log
