"""Chooses the transfer to a torch device: which devices take copies beside their work, and how files come there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from ddlp.errors import DDLPError
from ddlp.transfer.device_stream import CudaStream, DeviceStream
from ddlp.transfer.file_readers import FileReader, GpuDirectReader, MappedReader, PinnedReader
from ddlp.transfer.gpu_transfer import GpuTransfer

__all__ = ["TRANSFERS", "WAYS", "transfer_to"]

WAYS = ("gds", "pinned", "mmap")  # names of the ways from a spool that this host sees into a GPU's memory
TRANSFERS = ("auto", "shared", *WAYS, "stream")  # what ``transfer=`` may be
_COPIES_ASKED_FOR = ("ON", "TRUE", "YES", "1")  # of $KVIKIO_COMPAT_MODE


def transfer_to(device: torch.device | str | int | None, transfer: str | None) -> GpuTransfer | None:
    """The transfer of batches to a GPU. None for any other device: the training thread copies batches there.

    ``transfer``: one of `WAYS`; for any other value the fastest is taken. Raises DDLPError if there is no GPU.
    """
    target = None if device is None else torch.device(device)
    if target is None or target.type != "cuda":
        return None
    if not torch.cuda.is_available():
        raise DDLPError(
            f"device={str(target)!r}: torch {torch.__version__} finds no GPU here. See what `nvidia-smi` says, and whether "
            "this torch was built for CUDA (torch.version.cuda); or leave device= out."
        )
    stream = CudaStream(target)
    return GpuTransfer(stream, ways(stream, transfer))


def ways(stream: DeviceStream, transfer: str | None) -> Callable[[Path, bool], list[FileReader]]:
    """Return what opens the readers of a `GpuTransfer`: the one that the user wants, or those to choose from."""

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
    """Return a reader whose direct reads are proven, or kvikio's copies if the user has asked for these."""
    from ddlp.transfer.gds.probe import probe
    from ddlp.transfer.gds.reader import GdsReader  # imported here: most loaders never need it

    if os.environ.get("KVIKIO_COMPAT_MODE", "").upper() not in _COPIES_ASKED_FOR:
        probed = probe(spool, stream.device.index or 0)
        if probed.kind != "gds":
            raise DDLPError(
                f"transfer='gds': files in {spool} can't be read straight into the GPU's memory, only by way of the "
                f"host's ({probed.kind}): {probed.reason}. {'; '.join(probed.ways_out) or 'See docs/gpu.md'}. Or leave "
                "transfer= out, for the fastest other way."
            )
    return GpuDirectReader(GdsReader.open())


def _gds_if_likely(stream: DeviceStream, spool: Path) -> list[FileReader]:
    """Return a reader for direct reads if no obstacle is seen: a process that starts cuFile can't fork any more."""
    from ddlp.transfer.gds.needs import ways_out, why_not
    from ddlp.transfer.gds.reader import GdsReader

    if stream.device.type != "cuda" or why_not() is not None or ways_out(spool):
        return []
    try:
        reader = GdsReader.open()
    except DDLPError:
        return []
    return [GpuDirectReader(reader)] if reader.through == "cufile" else []
