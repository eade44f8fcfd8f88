"""The landing for a torch device: which ones take copies beside their work, and how files come there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from ddlp.errors import DDLPError
from ddlp.transfer.device_stream import CudaStream, DeviceStream
from ddlp.transfer.file_readers import FileReader, GpuDirectReader, MappedReader, PinnedReader
from ddlp.transfer.gpu_transfer import GpuTransfer

__all__ = ["WAYS", "transfer_to"]

WAYS = ("gds", "pinned", "mmap")  # by name, into a GPU's memory, from a spool that this host sees
_COPIES_ASKED_FOR = ("ON", "TRUE", "YES", "1")  # of $KVIKIO_COMPAT_MODE


def transfer_to(device: torch.device | str | int | None, transfer: str | None) -> GpuTransfer | None:
    """Where batches for a GPU land; None for any other device, which gets them by a plain copy in the training thread.

    ``transfer``: one of `WAYS`, else the fastest is taken. Raises DDLPError: there is no GPU.
    """
    wanted = None if device is None else torch.device(device)
    if wanted is None or wanted.type != "cuda":
        return None
    if not torch.cuda.is_available():
        raise DDLPError(
            f"device={str(wanted)!r}: torch {torch.__version__} finds no GPU here. See what `nvidia-smi` says, and whether "
            "this torch was built for CUDA (torch.version.cuda); or leave device= out."
        )
    stream = CudaStream(wanted)
    return GpuTransfer(stream, ways(stream, transfer))


def ways(stream: DeviceStream, transfer: str | None) -> Callable[[Path, bool], list[FileReader]]:
    """What a `GpuTransfer` asks for: the way that the user wants, or those to choose from."""

    def open_ways(spool: Path, mapped: bool) -> list[FileReader]:
        if transfer == "mmap" and not mapped:
            raise DDLPError(
                f"transfer='mmap': the files in {spool} may not be mapped: while one is copied from a mapping, its removal on "
                "a network file system, or somebody cutting it short, would end this process (SIGBUS). So only those of an "
                "engine that the loader itself starts (without csd=) are, on a file system of this machine (ext4, XFS, "
                "tmpfs, ...). Take transfer='pinned', or leave transfer= out, for the fastest other way."
            )
        if transfer == "pinned":
            return [PinnedReader(stream)]
        if transfer == "mmap":
            return [MappedReader(stream)]
        if transfer == "gds":
            return [_gds(stream, spool)]
        return [PinnedReader(stream), *([MappedReader(stream)] if mapped else []), *_gds_if_likely(stream, spool)]

    return open_ways


def _gds(stream: DeviceStream, spool: Path) -> FileReader:
    """Direct reads, proven; or kvikio's copies, where the user has asked for these."""
    from ddlp.transfer.gds.probe import probe
    from ddlp.transfer.gds.reader import GdsReader  # late, as the next: most loaders never want them

    if os.environ.get("KVIKIO_COMPAT_MODE", "").upper() not in _COPIES_ASKED_FOR:
        found = probe(spool, stream.device.index or 0)
        if found.kind != "gds":
            raise DDLPError(
                f"transfer='gds': files in {spool} can't be read straight into the GPU's memory, only by way of the "
                f"host's ({found.kind}): {found.reason}. {'; '.join(found.ways_out) or 'See docs/gpu.md'}. Or leave "
                "transfer= out, for the fastest other way."
            )
    return GpuDirectReader(GdsReader.open())


def _gds_if_likely(stream: DeviceStream, spool: Path) -> list[FileReader]:
    """Where nothing is seen that stands in its way: no process should start cuFile, and be kept from forking, for nothing."""
    from ddlp.transfer.gds.needs import ways_out, why_not
    from ddlp.transfer.gds.reader import GdsReader

    if stream.device.type != "cuda" or why_not() is not None or ways_out(spool):
        return []
    try:
        reader = GdsReader.open()
    except DDLPError:
        return []
    return [GpuDirectReader(reader)] if reader.through == "cufile" else []
