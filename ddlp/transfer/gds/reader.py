"""GPUDirect Storage: batch files read straight into GPU memory, by NVIDIA's cuFile; kvikio finds it and registers memory.

kvikio is imported only when a reader is opened. Without the driver's libcuda nearly all calls of kvikio fail, and opening
cuFile spins for ever (kvikio 26.10, libcufile 1.17). `ddlp.transfer.gds.probe` finds out whether a read is direct.

After the first read this process must not fork workers that touch CUDA or read files by cuFile: neither works after a fork.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Any

from ddlp.errors import DDLPError
from ddlp.transfer.gds.cufile import quiet_log
from ddlp.transfer.gds.direct import DirectReader
from ddlp.transfer.gds.needs import why_not

if TYPE_CHECKING:
    import torch

__all__ = ["GdsReader", "as_os_error"]

# kvikio's own defaults are 1 thread and 4 MiB a task. That is one request at a time, but an NVMe drive wants many. Two batches
# of some tens of MB, read at once in pieces of 4 MiB, keep 16 threads busy. $KVIKIO_NTHREADS and $KVIKIO_TASK_SIZE take
# precedence.
_THREADS = 16
_TASK_BYTES = 4 << 20
_ENVIRONMENT = {"num_threads": ("KVIKIO_NTHREADS", "KVIKIO_NUM_THREADS"), "task_size": ("KVIKIO_TASK_SIZE",)}


class GdsReader:
    """Reads parts of files into GPU memory.

    Several threads may read at once, each into a buffer of its own. Direct reads obey no CUDA stream and wait for none
    (`ddlp.transfer.gds.direct`). Before one, all work that uses the buffer must have ended; after it, the bytes are there.
    kvikio's own reads ("posix") are copied on the default stream, so after all training steps that are queued there.

    Attributes:
        through: "cufile", or "posix" where kvikio goes round cuFile (its compatibility mode: $KVIKIO_COMPAT_MODE, no
            libcufile, no /run/udev, WSL). cuFile itself may still copy through the host's memory: see
            `ddlp.transfer.gds.probe`.
        not_registered: why the last buffer could not be registered, which makes reads slower; empty if all could.
    """

    def __init__(self, kvikio: Any) -> None:
        self._kvikio = kvikio
        self._process = os.getpid()
        self._registered: dict[int, torch.Tensor] = {}
        self._lock = threading.Lock()
        self._direct: dict[int, DirectReader] = {}  # by the GPU's number
        self.through = "posix" if kvikio.defaults.is_compat_mode_preferred() else "cufile"
        self.not_registered = ""

    @classmethod
    def open(cls, *, cufile: bool | None = None) -> GdsReader:
        """Load kvikio, and set its number of threads and its task size for this process where the user has not.

        Args:
            cufile: True: by cuFile or not at all; False: kvikio's POSIX path; None: as kvikio finds it.

        Raises:
            DDLPError: there is no driver, no GPU or no kvikio, or it can't be loaded; says which, and what to do.
        """
        reason = why_not()
        if reason is not None:
            raise DDLPError(f"GPUDirect Storage can't be used: {reason[0]}. {reason[1]}, or use another transfer.")
        import torch

        if not torch.cuda.is_available():
            raise DDLPError(
                f"GPUDirect Storage can't be used: torch {torch.__version__} sees no CUDA device. See nvidia-smi and "
                "$CUDA_VISIBLE_DEVICES, and that torch is built for CUDA; or use another transfer."
            )
        quiet_log()
        kvikio = _load()
        for name, value in (("num_threads", _THREADS), ("task_size", _TASK_BYTES)):
            if not any(variable in os.environ for variable in _ENVIRONMENT[name]):
                kvikio.defaults.set({name: value})
        if cufile is not None:
            kvikio.defaults.set({"compat_mode": kvikio.CompatMode.OFF if cufile else kvikio.CompatMode.ON})
        return cls(kvikio)

    def register(self, buffer: torch.Tensor) -> None:
        """Pin a buffer's memory for direct access, once for all reads into it. If that fails it is noted, and reads still work.

        cuFile registers the whole allocation that the tensor lies in, so the tensor should have one of its own: 20 MiB or more,
        made once and kept. The buffer is held until `deregister` or `close`: memory that is freed while registered can hang the
        driver.
        """
        _check(buffer, 0)
        try:
            self._kvikio.buffer.memory_register(buffer)
        except (RuntimeError, OSError, ValueError) as error:
            self.not_registered = str(error)
        else:
            self._registered[buffer.data_ptr()] = buffer

    def deregister(self, buffer: torch.Tensor) -> None:
        """Undo `register`. Does nothing for a buffer that is not registered."""
        if self._registered.pop(buffer.data_ptr(), None) is not None:
            try:
                self._kvikio.buffer.memory_deregister(buffer)
            except (RuntimeError, OSError, ValueError):
                pass  # two buffers in one allocation have one registration

    def read(self, path: str | os.PathLike[str], buffer: torch.Tensor, offset: int, size: int) -> int:
        """Read the bytes [offset, offset + size) of a file to the beginning of the buffer, and wait; without the GIL.

        Direct reads are whole blocks: offset and size should be multiples of 4096. Others work, but their ends are copied. If
        cuFile can't read a file, an error says so; nothing else is tried.

        Args:
            path: the file.
            buffer: uint8, contiguous, on a CUDA device, at least ``size`` long.
            offset: in bytes, in the file.
            size: in bytes.

        Returns:
            How many bytes were read: less than ``size`` where the file ends before.

        Raises:
            OSError: the file is missing (FileNotFoundError) or can't be read.
            ValueError: the buffer does not fit.
            DDLPError: this process was forked off the one that opened the reader.
        """
        if os.getpid() != self._process:
            raise DDLPError(
                f"process {os.getpid()} was forked off process {self._process}, which reads by cuFile: that does not "
                "survive a fork. Start workers before the first batch is read, or by forkserver or spawn."
            )
        _check(buffer, size)
        if self.through == "cufile":
            return self._direct_to(buffer).read(path, buffer.data_ptr(), offset, size)
        try:
            with self._kvikio.CuFile(os.fspath(path), "r") as file:
                # kvikio raises where a read goes past the end of the file.
                size = max(0, min(size, os.fstat(file.fileno()).st_size - offset))
                return int(file.pread(buffer, size, offset).get()) if size else 0
        except RuntimeError as error:
            raise as_os_error(error, path) from error

    def _direct_to(self, buffer: torch.Tensor) -> DirectReader:
        """Return the reader that reads directly into the memory of the buffer's GPU."""
        with self._lock:
            device = buffer.get_device()
            if device not in self._direct:
                threads, piece_bytes = map(self._kvikio.defaults.get, ("num_threads", "task_size"))
                self._direct[device] = DirectReader(device, threads, piece_bytes)
            return self._direct[device]

    def close(self) -> None:
        """End its threads, and deregister all buffers. May be called again."""
        with self._lock:
            direct, self._direct = self._direct, {}
        for reader in direct.values():
            reader.close()
        for buffer in list(self._registered.values()):
            self.deregister(buffer)


def as_os_error(error: RuntimeError, path: str | os.PathLike[str]) -> OSError:
    """kvikio's error with its errno, which kvikio tells only as text; EIO if it tells none and the file can be opened."""
    text = str(error)
    said = text.rpartition(": ")[2].strip().rstrip(".")
    for number in errno.errorcode:
        if said == os.strerror(number):
            return OSError(number, said, os.fspath(path))
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError as now:
        return now
    return OSError(errno.EIO, text, os.fspath(path))


def _load() -> Any:
    import torch  # noqa: F401 - first: it loads its own libcufile, which kvikio does not find where torch lies on a path of its own

    try:
        import kvikio
        import kvikio.buffer
        import kvikio.defaults
    except Exception as error:  # kvikio's own loading of libraries raises classes of several packages
        what = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DDLPError(
            f"GPUDirect Storage can't be used: kvikio is there and can't be loaded ({what}). Install the one for torch's "
            "CUDA version: pip install ddlp[gpu] (CUDA 13) or ddlp[gpu-cu12]; or use another transfer."
        ) from error
    return kvikio


def _check(buffer: torch.Tensor, size: int) -> None:
    import torch

    if buffer.dtype != torch.uint8 or not buffer.is_cuda or not buffer.is_contiguous():
        raise ValueError(
            f"a buffer of {buffer.dtype} on {buffer.device}, contiguous: {buffer.is_contiguous()}; it must be contiguous "
            "uint8 on a CUDA device. Use tensor.view(torch.uint8) for other types."
        )
    if size > buffer.numel():
        raise ValueError(f"{size} bytes do not fit into a buffer of {buffer.numel()}. Make it larger, or read less.")
