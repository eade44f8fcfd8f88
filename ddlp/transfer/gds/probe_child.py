"""The probe read: `python -m ddlp.transfer.gds.probe_child FILE OFFSET SIZE DIGEST MODE GPU`, started by `probe`.

It is a process of its own, since cuFile reads its settings once a process, can end the process (signals), and can hang for
ever. It prints one line of JSON with the fields of `Outcome`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import sys
import time

from ddlp.errors import DDLPError
from ddlp.transfer.gds.cufile import in_force

__all__ = ["Outcome"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a probe read.

    Attributes:
        ok: the file's bytes came, in the way that was asked for.
        why: the reason if not ok.
        gb_per_s: of the second read, from the drive and not from the page cache; None if there was none.
        usual: how kvikio reads here by default: "cufile" or "posix".
        no_gpu: torch sees no CUDA device.
    """

    ok: bool
    why: str = ""
    gb_per_s: float | None = None
    usual: str = ""
    no_gpu: bool = False


def main(arguments: list[str]) -> int:
    """Read, and print the outcome."""
    from csd_engine.service.worker_start import die_with_parent

    die_with_parent()
    path, offset, size, digest, mode, gpu = arguments
    try:
        outcome = _read(path, int(offset), int(size), digest, mode, int(gpu))
    except (DDLPError, OSError, RuntimeError, ValueError) as error:
        outcome = Outcome(False, _short(error))
    print(json.dumps(dataclasses.asdict(outcome)), flush=True)
    os._exit(0)  # what CUDA and cuFile do at exit must not change the outcome


def _read(path: str, offset: int, size: int, digest: str, mode: str, gpu: int) -> Outcome:
    from ddlp.transfer.gds.needs import why_not
    from ddlp.transfer.gds.reader import GdsReader

    missing = why_not()
    if missing is not None:
        return Outcome(False, missing[0])
    import torch

    if not torch.cuda.is_available():
        return Outcome(False, f"torch {torch.__version__} sees no CUDA device", no_gpu=True)
    usual = GdsReader.open().through
    reader = GdsReader.open(cufile=mode != "posix")
    if (reader.through == "cufile") != (mode != "posix"):
        return Outcome(False, f"kvikio reads by {reader.through} all the same", usual=usual)
    torch.cuda.set_device(gpu)
    buffer = torch.zeros(size, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    reader.register(buffer)
    try:
        done = reader.read(path, buffer, offset, size)
    except OSError as error:
        return Outcome(False, _short(error), usual=usual)
    if done != size or hashlib.blake2b(buffer.cpu().numpy().tobytes()).hexdigest() != digest:
        return Outcome(False, f"{done} of {size} bytes came, and they are not the file's", usual=usual)
    allowed = in_force()
    if mode == "strict" and allowed is not None and allowed != (False, False):
        return Outcome(False, "cuFile's compatibility mode could not be switched off, so the read proves nothing", usual=usual)
    _forget(path)
    began = time.perf_counter()
    reader.read(path, buffer, offset, size)
    gb_per_s = size / 1e9 / (time.perf_counter() - began)
    reader.close()
    return Outcome(True, "", round(gb_per_s, 2), usual)


def _short(error: Exception) -> str:
    """The first sentence, without the place in kvikio's sources: "... at: /x/file_handle.cpp:202: what is wrong"."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return re.sub(r"^.*\.[ch]pp:\d+: ", "", text, flags=re.DOTALL).partition("\n")[0].partition(". ")[0]


def _forget(path: str) -> None:
    """Drop the file's pages from the cache; it was synced when it was written."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
