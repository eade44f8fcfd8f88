"""cuFile's settings: read with their comments, made strict, and followed by the libcufile that torch brings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ddlp.transfer.gds.cufile import quiet_log, read_settings, strict, wants_p2pdma
from ddlp.transfer.gds.needs import why_not

SETTINGS = """{
    // "logging": {"dir": "/nowhere"},
    "logging": {"level": "ERROR" /* or TRACE */},
    "properties": {
        "max_direct_io_size_kb": 16384,  // in "KB"
        "allow_compat_mode": true, "rdma_dev_addr_list": ["http://10.0.0.1"]
    }
}
"""
NO_CUDA_SYMBOLS = 5033  # a CUfileOpError
LIBRARY = next((Path(torch.__file__).parents[1] / "nvidia").glob("*/lib/libcufile.so.0"), None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cufile.json"
    path.write_text(SETTINGS)
    return path


def test_settings_are_read_and_made_strict(file: Path, tmp_path: Path) -> None:
    settings = read_settings({"CUFILE_ENV_PATH_JSON": str(file)})
    assert settings == read_settings({}, str(file))
    assert settings["properties"]["rdma_dev_addr_list"] == ["http://10.0.0.1"] and settings["logging"] == {"level": "ERROR"}
    made = strict(settings)
    assert made["properties"]["allow_compat_mode"] is False and settings["properties"]["allow_compat_mode"] is True
    assert made["properties"]["max_direct_io_size_kb"] == 16384 and not wants_p2pdma(made, {})
    assert wants_p2pdma(strict(settings, p2pdma=True), {})
    assert wants_p2pdma({}, {"CUFILE_USE_PCIP2PDMA": "true"})
    assert not wants_p2pdma(strict({}, p2pdma=True), {"CUFILE_USE_PCIP2PDMA": "false"})
    file.write_text("[1]")
    assert read_settings({}, str(file)) == {} == read_settings({}, str(tmp_path / "none"))
    file.write_text("{")
    assert read_settings({}, str(file)) == {}
    assert strict({"properties": None}) == {"properties": {"allow_compat_mode": False}}


def test_the_log_goes_nowhere_unless_the_user_says(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUFILE_ENV_PATH_JSON", str(file))
    monkeypatch.setenv("CUFILE_LOGFILE_PATH", "/my/log")
    quiet_log()
    assert os.environ["CUFILE_LOGFILE_PATH"] == "/my/log"
    monkeypatch.delenv("CUFILE_LOGFILE_PATH")
    file.write_text('{"logging": {"dir": "/var/log"}}')
    quiet_log()
    assert "CUFILE_LOGFILE_PATH" not in os.environ
    monkeypatch.setenv("CUFILE_LOGFILE_PATH", "")
    monkeypatch.delenv("CUFILE_LOGFILE_PATH")  # monkeypatch restores both at the end, whatever is set in between
    file.write_text("{}")
    quiet_log()
    assert os.environ["CUFILE_LOGFILE_PATH"] == os.devnull


OPEN = """
import ctypes, json, os, sys, threading, time
from ddlp.transfer.gds.cufile import Error, in_force, quiet_log
quiet_log()
assert in_force() is None  # not loaded
library = ctypes.CDLL(sys.argv[1])
# Without a driver this spins for ever where the compatibility mode is allowed, else it ends; what it goes by can be asked
# all the same, once it has read the file: before, it says nothing or what it would go by without.
library.cuFileDriverOpen.restype = Error
errors = []
opening = threading.Thread(target=lambda: errors.append(library.cuFileDriverOpen().err), daemon=True)
opening.start()
end = time.monotonic() + 20
while time.monotonic() < end and opening.is_alive() and (sys.argv[2] == "strict" or in_force() == (False, False)):
    time.sleep(0.01)
with open(sys.argv[3], "w") as answer:  # some versions of the library write what they miss to standard output
    json.dump([in_force(), opening.is_alive(), os.listdir(), errors], answer)
os._exit(0)
"""


@pytest.mark.skipif(LIBRARY is None, reason="this torch brings no libcufile")
@pytest.mark.parametrize("made_strict", [True, False])
def test_the_real_library_obeys_the_file(made_strict: bool, file: Path, tmp_path: Path) -> None:
    """The proof that a read was direct depends on this."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("CUFILE_")}
    variables |= {"CUFILE_ENV_PATH_JSON": str(file), "PYTHONPATH": os.getcwd()}
    if made_strict:
        file.write_text(json.dumps(strict(read_settings(variables))))
    work = tmp_path / "work"
    work.mkdir()
    answer = tmp_path / "answer"
    command = [sys.executable, "-c", OPEN, str(LIBRARY), "strict" if made_strict else "allowed", str(answer)]
    subprocess.run(command, env=variables, cwd=work, timeout=300, check=True)
    found, spins, left, errors = json.loads(answer.read_text())
    assert left == []  # no cufile.log was written
    if errors == [NO_CUDA_SYMBOLS]:
        pytest.skip("this libcufile (before 1.16) wants CUDA's driver before it reads the file")
    assert found == [not made_strict, False]
    if (why_not() or ("",))[0].startswith("NVIDIA's driver is not here"):
        assert spins != made_strict
