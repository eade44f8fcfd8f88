"""Reads by cuFile itself, in threads of our own.

kvikio's reads are ordered after the CUDA default stream: before its first byte each read waits for all training steps that are
queued there (since kvikio's pull request 437; its bindings before 796 hold the GIL meanwhile). C++ callers can switch that off,
Python callers can't. kvikio's read for a stream of one's own does not help either, if cuFile has no settings file. cuFile's own
reads wait for nothing. torch.cuda.gds is no choice: it holds the GIL as long as a read takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

from ddlp.transfer.gds.cufile import SONAME, Error

__all__ = ["DirectReader"]

# cufile.h and cuda.h
_OPAQUE_FD = 1  # CU_FILE_HANDLE_TYPE_OPAQUE_FD
_CUFILE_ERRORS = 5000  # CUFILEOP_BASE_ERR
_Size = ctypes.c_size_t
_Offset = ctypes.c_int64  # off_t
_Pointer = ctypes.c_uint64  # CUdeviceptr


class _File(ctypes.Union):
    """CUfileDescr_t's handle."""

    _fields_ = [("fd", ctypes.c_int), ("handle", ctypes.c_void_p)]


class _Description(ctypes.Structure):
    """CUfileDescr_t."""

    _fields_ = [("type", ctypes.c_int), ("handle", _File), ("fs_ops", ctypes.c_void_p)]


class DirectReader:
    """Reads files into one GPU's memory. Any thread may.

    Args:
        device: the GPU's number, as CUDA has it in this process.
        threads: how many read at once.
        piece_bytes: how much each of them reads at a time.

    Raises:
        OSError: the libraries, or the GPU's context, can't be had.
    """

    def __init__(self, device: int, threads: int, piece_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self._cufile = ctypes.CDLL(SONAME, use_errno=True)  # the one that torch or kvikio has loaded
        self._cufile.cuFileHandleRegister.restype = Error
        self._cufile.cuFileHandleRegister.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(_Description)]
        self._cufile.cuFileHandleDeregister.restype = None
        self._cufile.cuFileHandleDeregister.argtypes = [ctypes.c_void_p]
        self._cufile.cuFileRead.restype = ctypes.c_ssize_t
        self._cufile.cuFileRead.argtypes = [ctypes.c_void_p, ctypes.c_void_p, _Size, _Offset, _Offset]
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._cuda.cuCtxSetCurrent.argtypes = [ctypes.c_void_p]
        self._cuda.cuMemGetAddressRange_v2.argtypes = [ctypes.POINTER(_Pointer), ctypes.POINTER(_Size), _Pointer]
        number = ctypes.c_int()
        _check_cuda("cuDeviceGet", self._cuda.cuDeviceGet(ctypes.byref(number), device))
        # The context in which torch works. It is kept for good, as torch keeps it.
        self._context = ctypes.c_void_p()
        retained = self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), number)
        _check_cuda("cuDevicePrimaryCtxRetain", retained)
        self._threads = ThreadPoolExecutor(threads, "ddlp-gds")

    def read(self, path: str | os.PathLike[str], address: int, offset: int, size: int) -> int:
        """Read the bytes [offset, offset + size) of a file to an address in the GPU's memory, and wait for this read alone.

        Returns how many bytes came: less than ``size`` where the file ends before. Raises OSError.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        try:
            size = max(0, min(size, os.fstat(descriptor).st_size - offset))
            with self._registered(descriptor, path) as handle:
                step = self._piece_bytes
                parts = [
                    self._threads.submit(self._piece, path, handle, address, start, offset, min(step, size - start))
                    for start in range(0, size, step)
                ]
                wait(parts)  # for all, even if one has failed: they write to the memory
                return sum(part.result() for part in parts)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _registered(self, descriptor: int, path: str | os.PathLike[str]) -> Iterator[int]:
        description = _Description(_OPAQUE_FD, _File(fd=descriptor), None)
        handle = ctypes.c_void_p()
        error = self._cufile.cuFileHandleRegister(ctypes.byref(handle), ctypes.byref(description))
        if error.err:
            raise _cufile_error(error.err, path)
        try:
            assert handle.value is not None
            yield handle.value
        finally:
            self._cufile.cuFileHandleDeregister(handle)

    def _piece(self, path: str | os.PathLike[str], handle: int, address: int, start: int, offset: int, size: int) -> int:
        """Read one part, which begins ``start`` bytes after the beginning of the read."""
        _check_cuda("cuCtxSetCurrent", self._cuda.cuCtxSetCurrent(self._context))
        # Counted from the beginning of the allocation, as kvikio registers it: cuFile looks a buffer up by its beginning.
        base, whole = _Pointer(), _Size()
        status = self._cuda.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(whole), address)
        _check_cuda("cuMemGetAddressRange", status)
        place, done = address - base.value + start, 0
        if place + size > whole.value:
            why = "the GPU's memory lies in pieces. Take expandable_segments out of $PYTORCH_CUDA_ALLOC_CONF for direct reads"
            raise OSError(errno.EINVAL, why, os.fspath(path))
        while done < size:
            count = self._cufile.cuFileRead(handle, base.value, size - done, offset + start + done, place + done)
            if count == -1:
                number = ctypes.get_errno() or errno.EIO
                raise OSError(number, os.strerror(number), os.fspath(path))
            if count < 0:
                raise _cufile_error(-count, path)
            if count == 0:
                break
            done += count
        return done

    def close(self) -> None:
        """End the threads. Nothing may be read any more."""
        self._threads.shutdown()


def _check_cuda(name: str, result: int) -> None:
    if result:
        raise OSError(errno.EIO, f"{name} of CUDA's driver failed with CUresult {result}")


def _cufile_error(number: int, path: str | os.PathLike[str]) -> OSError:
    what = f"CUfileOpError {number}" if number > _CUFILE_ERRORS else f"error {number}"
    return OSError(errno.EIO, f"cuFile can't read it ({what})", os.fspath(path))
