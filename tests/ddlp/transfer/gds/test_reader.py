"""Reading by cuFile and kvikio: the errors without them; the real package's names and errors; and on a GPU the bytes."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from ddlp.errors import DDLPError
from ddlp.transfer.gds.needs import why_not
from ddlp.transfer.gds.probe import probe
from ddlp.transfer.gds.reader import GdsReader, as_os_error

need_kvikio = pytest.mark.skipif(importlib.util.find_spec("kvikio") is None, reason="kvikio is not installed")
need_gpu = pytest.mark.skipif(why_not() is not None or not torch.cuda.is_available(), reason="needs a GPU and kvikio")

# What kvikio 26.10 raises for a missing file.
MISSING = (
    "Unable to open file. Linux system/library function call error at: /__w/kvikio/kvikio/cpp/src/file_utils.cpp:160: "
    "No such file or directory"
)


@pytest.mark.skipif(why_not() is None and torch.cuda.is_available(), reason="all is there")
def test_what_is_missing_is_said_at_once() -> None:
    with pytest.raises(DDLPError, match=r"can't be used: .*(driver|kvikio|torch).*or use another transfer\.$"):
        GdsReader.open()


def test_importing_loads_neither_torch_nor_kvikio() -> None:
    code = "import sys, ddlp.transfer.gds.reader; print([name for name in ('torch', 'kvikio', 'cupy') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True).stdout == "[]\n"


def test_the_errno_in_a_text_is_found(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_bytes(b"x")
    error = as_os_error(RuntimeError(MISSING), there)
    assert isinstance(error, FileNotFoundError) and error.errno == errno.ENOENT and error.filename == str(there)
    denied = as_os_error(RuntimeError(MISSING.replace(os.strerror(errno.ENOENT), os.strerror(errno.EACCES))), there)
    assert isinstance(denied, PermissionError)
    said = "cuFile error at: file_handle.cpp:202: GPUDirect Storage not supported on current file"
    assert as_os_error(RuntimeError(said), there).errno == errno.EIO
    assert isinstance(as_os_error(RuntimeError(said), tmp_path / "gone"), FileNotFoundError)


def run_with_kvikio(code: str, *arguments: str) -> list:
    """Run code in another process on kvikio's POSIX path: opening cuFile without a driver would never end."""
    variables = {**os.environ, "KVIKIO_COMPAT_MODE": "ON", "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", "import json, sys, ddlp.transfer.gds.reader as gds; kvikio = gds._load()\n" + code, *arguments],
        env=variables, stdout=subprocess.PIPE, timeout=300, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@need_kvikio
def test_the_real_package_has_the_names_that_are_used() -> None:
    code = """
reader = gds.GdsReader(kvikio)
before = reader.through
kvikio.defaults.set({"compat_mode": kvikio.CompatMode.OFF, "num_threads": 5, "task_size": 1 << 20})
get = kvikio.defaults.get
print(json.dumps([before, gds.GdsReader(kvikio).through, get("num_threads"), get("task_size"),
    callable(kvikio.buffer.memory_register), callable(kvikio.buffer.memory_deregister), callable(kvikio.CuFile.pread),
    callable(kvikio.CuFile.__enter__)]))
"""
    assert run_with_kvikio(code) == ["posix", "cufile", 5, 1 << 20, True, True, True, True]


@need_kvikio
def test_the_real_packages_errors_keep_their_errno(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "loop").symlink_to("loop")
    code = """
said = []
for path in sys.argv[1:]:
    try:
        kvikio.CuFile(path, "r")
    except Exception as error:
        said.append([type(error).__name__, gds.as_os_error(error, path).errno])
print(json.dumps(said))
"""
    paths = [str(tmp_path / name) for name in ("missing", "file/below", "loop")]
    assert run_with_kvikio(code, *paths) == [
        ["RuntimeError", errno.ENOENT], ["RuntimeError", errno.ENOTDIR], ["RuntimeError", errno.ELOOP],
    ]  # fmt: skip


@need_kvikio
def test_a_fork_is_noticed() -> None:
    code = """
import os
from ddlp.errors import DDLPError
reader = gds.GdsReader(kvikio)
child = os.fork()
if child == 0:
    try:
        reader.read("/dev/null", None, 0, 0)
    except DDLPError as error:
        os._exit(7 if "forked off" in str(error) else 1)
    os._exit(2)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]))
"""
    assert run_with_kvikio(code) == [7]


@need_kvikio
def test_buffers_that_do_not_fit_are_refused() -> None:
    code = """
import torch
reader, said = gds.GdsReader(kvikio), []
for buffer, size in ((torch.zeros(8), 8), (torch.zeros(8, dtype=torch.uint8), 8)):
    try:
        reader.read("/dev/null", buffer, 0, size)
    except ValueError as error:
        said.append(str(error))
print(json.dumps(said))
"""
    first, second = run_with_kvikio(code)
    assert "torch.float32 on cpu" in first and "view(torch.uint8)" in first and "torch.uint8 on cpu" in second


@pytest.fixture(scope="module")
def kind(tmp_path_factory: pytest.TempPathFactory) -> str:
    return probe(tmp_path_factory.mktemp("probe")).kind


@need_gpu
@pytest.mark.parametrize("cufile", [True, False])
@pytest.mark.parametrize(
    ("offset", "size"), [(4096, 1 << 20), (4096, 150_529), (0, 1), (4097, 4095), (4096, (24 << 20) + 17), (4096, 64 << 20)]
)
def test_the_bytes_arrive(cufile: bool, offset: int, size: int, kind: str, tmp_path: Path) -> None:
    if cufile and kind == "posix":
        pytest.skip("cuFile can't read here")
    path = tmp_path / "batch"
    data = os.urandom(32 << 20)
    path.write_bytes(data)
    expected = data[offset : offset + size]
    buffer = torch.full((64 << 20,), 7, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    reader = GdsReader.open(cufile=cufile)
    try:
        assert reader.through == ("cufile" if cufile else "posix")
        reader.register(buffer)
        assert reader.read(path, buffer, offset, size) == len(expected)
        assert buffer[: len(expected)].cpu().numpy().tobytes() == expected
        assert bool((buffer[size:] == 7).all())
        with pytest.raises(FileNotFoundError):
            reader.read(tmp_path / "missing", buffer, offset, size)
        with pytest.raises(ValueError, match="do not fit"):
            reader.read(path, buffer, 0, buffer.numel() + 1)
        with pytest.raises(ValueError, match="contiguous: False"):
            reader.register(buffer.view(2, -1).t())
        reader.deregister(buffer)
        assert reader.read(path, buffer, 0, 4096) == 4096
    finally:
        reader.close()
        reader.close()


@need_gpu
def test_a_direct_read_waits_for_no_training_step(kind: str, tmp_path: Path) -> None:
    """The default stream is busy for seconds. A read ends before that."""
    if kind != "gds":
        pytest.skip("reads are not direct here: what copies them may wait")
    path, data = tmp_path / "batch", os.urandom(24 << 20)
    path.write_bytes(bytes(4096) + data)
    buffer = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
    back = torch.empty(len(data), dtype=torch.uint8, pin_memory=True)
    reader, beside = GdsReader.open(cufile=True), torch.cuda.Stream()
    try:
        reader.register(buffer)
        reader.read(path, buffer, 4096, len(data))  # what is done only once may wait
        buffer.zero_()
        with torch.cuda.stream(beside):
            back.copy_(buffer[: len(data)], non_blocking=True)
        torch.cuda.synchronize()
        torch.cuda._sleep(10_000_000_000)
        busy = torch.cuda.Event()
        busy.record()
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(reader.read, path, buffer, 4096, len(data)).result() == len(data)
        assert not busy.query(), "the read must not wait for the default stream"
        with torch.cuda.stream(beside):
            back.copy_(buffer[: len(data)], non_blocking=True)
        beside.synchronize()
        assert back.numpy().tobytes() == data and not busy.query()
    finally:
        reader.close()


@need_gpu
def test_no_log_in_the_working_directory(kind: str, tmp_path: Path) -> None:
    if kind == "posix":
        pytest.skip("cuFile can't read here")
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    work = tmp_path / "work"
    work.mkdir()
    code = """
import sys, torch
from ddlp.transfer.gds.reader import GdsReader
buffer = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
print(GdsReader.open().read(sys.argv[1], buffer, 0, 1 << 20))
"""
    variables = {name: value for name, value in os.environ.items() if name != "CUFILE_LOGFILE_PATH"}
    variables["PYTHONPATH"] = os.getcwd()
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "file")], env=variables, cwd=work, stdout=subprocess.PIPE, timeout=300
    )
    assert done.stdout == b"1048576\n" and os.listdir(work) == []


@need_gpu
def test_the_probe_names_a_kind_and_measures(tmp_path: Path) -> None:
    found = probe(tmp_path)
    assert found.gpu and found.kind in ("gds", "cufile-compat", "posix") and found.reason
    assert found.gb_per_s is not None and found.gb_per_s > 0
    assert (found.kind == "gds") == (not found.ways_out) and os.listdir(tmp_path) == []
