"""What `ddlp doctor` says of the way from a spool into GPU memory, and what would make it direct."""

from __future__ import annotations

from collections.abc import Iterator

from ddlp.deploy.findings import Finding, ok, warn
from ddlp.transfer.gds.probe import Probe

__all__ = ["of_probe"]


def of_probe(spool: str, found: Probe) -> Iterator[Finding]:
    """Say how batch files of a spool get into GPU memory."""
    if not found.gpu:
        yield ok("no NVIDIA GPU here: batches stay in the host's memory")
        return
    speed = "" if found.gb_per_s is None else f", {found.gb_per_s:g} GB/s in one read"
    if found.kind == "gds":
        yield ok(f"gds: {spool} is read straight into GPU memory ({found.reason}{speed})")
        return
    how = "cuFile copies through" if found.kind == "cufile-compat" else "files are read into"
    way_out = "; and ".join(found.ways_out)
    what = f"{found.kind}: no GPUDirect Storage from {spool}; {how} the host's memory{speed}"
    yield warn(what, found.reason, way_out[:1].upper() + way_out[1:])
