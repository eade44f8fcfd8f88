"""csd_engine as one archive, the same bytes from the same code."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import csd_engine
from csd_engine.machine.build import source_files

__all__ = ["archive", "code_bytes"]


def code_bytes() -> int:
    """Bytes of all the files together, to see whether an unpacked copy is whole."""
    return sum(path.stat().st_size for path in source_files())


def archive() -> bytes:
    """A .tar.gz of the package's sources, including the kernel's C code, without owners, times and caches."""
    above = Path(csd_engine.__file__).resolve().parent.parent
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in source_files():
            content = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(above).as_posix())
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), mtime=0)
