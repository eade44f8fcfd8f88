"""Reads by cuFile's own functions, here with a fake library. tests/ddlp/transfer/gds/test_reader.py does it on a GPU.

The fake is compiled with NVIDIA's header. It reads into the host's memory, and refuses what the real one refuses.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.needs import c_compiler

HEADERS = next((Path(torch.__file__).parents[1] / "nvidia").glob("*/include/cufile.h"), None)
pytestmark = pytest.mark.skipif(
    HEADERS is None or not (HEADERS.parent / "cuda.h").exists(), reason="this torch brings no cufile.h, or no cuda.h"
)

DRIVER = """
#include <cuda.h>
#include <stdint.h>
#include <stdlib.h>
static __thread CUcontext current;
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = 40 + ordinal; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  if (device != 42) return CUDA_ERROR_INVALID_DEVICE;
  *context = (CUcontext)0x7700000077; return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) { current = context; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = current; return CUDA_SUCCESS; }
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
  if (current != (CUcontext)0x7700000077) return CUDA_ERROR_INVALID_CONTEXT;
  *base = pointer & ~(CUdeviceptr)0xffff; *size = getenv("PIECES") ? 1 << 16 : 1 << 30; return CUDA_SUCCESS;
}
"""
CUFILE = """
#define _GNU_SOURCE
#include <cufile.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
CUfileError_t cuFileHandleRegister(CUfileHandle_t *handle, CUfileDescr_t *description) {
  CUfileError_t done = {CU_FILE_SUCCESS, CUDA_SUCCESS};
  int fd = description->handle.fd, flags = fcntl(fd, F_GETFL);
  if (description->type != CU_FILE_HANDLE_TYPE_OPAQUE_FD || description->fs_ops) done.err = CU_FILE_INVALID_VALUE;
  else if (!(flags & O_DIRECT)) done.err = CU_FILE_INVALID_FILE_OPEN_FLAG;
  else if (getenv("REFUSED")) done.err = CU_FILE_IO_NOT_SUPPORTED;
  fcntl(fd, F_SETFL, flags & ~O_DIRECT);  /* memory is not aligned here */
  *handle = (CUfileHandle_t)(long)(fd + 1000);
  return done;
}
void cuFileHandleDeregister(CUfileHandle_t handle) { if ((long)handle < 1000) abort(); }
ssize_t cuFileRead(CUfileHandle_t handle, void *base, size_t size, off_t file_offset, off_t offset) {
  CUcontext context;
  cuCtxGetCurrent(&context);
  if (context != (CUcontext)0x7700000077) return -CU_FILE_INVALID_CONTEXT_ERROR;
  if ((unsigned long)base & 0xffff) return -CU_FILE_CUDA_POINTER_INVALID;
  if (getenv("FAILS")) { errno = ENODATA; return -1; }
  return pread((long)handle - 1000, (char *)base + offset, size < 3000 ? size : 3000, file_offset);
}
"""
CODE = """
import ctypes, json, sys
from ddlp.transfer.gds.direct import DirectReader
path, content = sys.argv[1], open(sys.argv[1], "rb").read()
reader, said = DirectReader(2, 4, 5000), []
for offset, size in json.loads(sys.argv[2]):
    memory = ctypes.create_string_buffer(b"\\7" * 70000, 70000)
    try:
        done = reader.read(path, ctypes.addressof(memory) + 123, offset, size)
    except OSError as error:
        said.append([error.errno, error.strerror, error.filename])
        continue
    there, expected = memory.raw, content[offset : offset + size]
    around = there[:123] + there[123 + done :]
    said.append([done, there[123 : 123 + done] == expected, around == b"\\7" * len(around)])
try:
    reader.read(path + "-", 0, 0, 1)
except FileNotFoundError as error:
    said.append(error.filename)
reader.close()
print(json.dumps(said))
"""
SIZE = 61_234


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fakes with the names libcuda.so.1 and libcufile.so.0."""
    assert HEADERS is not None
    home = tmp_path_factory.mktemp("lib")
    for name, code, others in (("libcuda.so.1", DRIVER, []), ("libcufile.so.0", CUFILE, [str(home / "libcuda.so.1")])):
        source = home / f"{name}.c"
        source.write_text(code)
        command = [*c_compiler(), "-shared", "-fPIC", "-I", str(HEADERS.parent), f"-Wl,-soname,{name}"]
        subprocess.run([*command, "-o", str(home / name), str(source), *others], check=True)
    return home


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip(f"{tmp_path} is on a file system without O_DIRECT")
    return path


def read(libraries: Path, file: Path, reads: list[tuple[int, int]], **variables: str) -> list:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": os.getcwd(), **variables}
    command = [sys.executable, "-c", CODE, str(file), json.dumps(reads)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=300, check=True)
    *said, missing = json.loads(done.stdout)
    assert missing == f"{file}-"
    return said


def test_pieces_come_to_their_places(libraries: Path, file: Path) -> None:
    """Whole files, from the middle, past the end, no bytes. In pieces of 5000 bytes; a call of the fake reads at most 3000."""
    reads = [(0, SIZE), (4096, 20_000), (4096, 5000), (17, 1), (SIZE - 100, 5000), (SIZE + 5, 10), (0, 0)]
    counts = [SIZE, 20_000, 5000, 1, 100, 0, 0]
    assert read(libraries, file, reads) == [[count, True, True] for count in counts]


def test_memory_in_pieces_is_told(libraries: Path, file: Path) -> None:
    """torch's expandable segments are such memory. Here segments have 64 KB, so 66,000 bytes need two, wherever they begin."""
    with open(file, "ab") as stream:
        stream.write(bytes(66_000 - SIZE))
    ((number, why, path),) = read(libraries, file, [(0, 66_000)], PIECES="1")
    assert (number, path) == (errno.EINVAL, str(file)) and "expandable_segments" in why


def test_errors_are_the_systems_and_cufiles(libraries: Path, file: Path) -> None:
    assert read(libraries, file, [(0, 9000)], FAILS="1") == [[errno.ENODATA, os.strerror(errno.ENODATA), str(file)]]
    assert read(libraries, file, [(0, 9000)], REFUSED="1") == [
        [errno.EIO, "cuFile can't read it (CUfileOpError 5008)", str(file)]
    ]
