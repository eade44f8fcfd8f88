"""Maps the file of a published batch: it is verified where it lies, in the page cache, and not copied.

A copy takes, beside the checksum, a third of the time that a batch costs the host: the bytes are read once more and written,
both past the caches. But a mapping shows the file as it is now, and a read beyond the end of a file that was cut short ends the
process (SIGBUS). So only files of an embedded engine are mapped. Nobody else writes there, and the engine changes a published
file only once no process has it open or mapped any more (`csd_engine.service.file_recycling`). The pages stay until the batch
is dropped, whether the file has a name or not. Files are mapped only on a file system of this machine: over a network a removed
file that is open keeps a name (.nfs...), and pages get lost.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from csd_engine.batchfile.checksum import Checksum
from csd_engine.batchfile.layout import DATA_OFFSET
from csd_engine.batchfile.reader import Batch, Layout, check_sum, open_batch, promised_checksum
from ddlp.transfer.gds.needs import place_of

__all__ = ["map_batch", "may_map"]

_OF_THIS_MACHINE = {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "tmpfs", "overlay"}


def may_map(spool: str | os.PathLike[str], root: str | os.PathLike[str] = "/") -> bool:
    """Whether batch files of an engine of our own may be mapped in this directory. ``root``: where /proc is, for tests."""
    place = place_of(spool, root)
    return place is not None and place.kind in _OF_THIS_MACHINE


def map_batch(path: Path, expect_identity: str, expect_lease: int, layout: Layout) -> Batch | None:
    """Map a published batch, and verify it as `read_batch` does. Its arrays may be written to; the file does not change.

    Returns:
        The batch; None where this file system maps no files.

    Raises:
        MissingBatch, DamagedBatch: as `read_batch`.
    """
    import torch  # imported here: callers that need only may_map, as benchmarks.engine, have no use for it

    with open_batch(path, layout) as descriptor:
        promised = promised_checksum(descriptor, expect_identity, expect_lease, layout)
        try:
            # Private and writable. Python's mmap can do that too, but it keeps a descriptor until the batch is dropped: a
            # script that keeps a thousand batches would have none left.
            mapped = torch.from_file(
                f"/proc/self/fd/{descriptor}", shared=False, size=layout.file_bytes, dtype=torch.uint8
            )
        except RuntimeError:
            return None
        data = mapped.numpy()[DATA_OFFSET:]
        checksum = Checksum()
        checksum.update(data.data)
        check_sum(checksum.hexdigest(), promised)
    images = data[: layout.image_bytes].reshape(layout.image_shape)
    bad_rows = data[layout.bad_offset :] if layout.bad_rows else None
    if not layout.boxes:
        return Batch(images, None, bad_rows)
    boxes = data[layout.image_bytes : layout.bad_offset].view("<i4").reshape(layout.batch, layout.boxes, 4)
    return Batch(images, boxes.astype(np.int32, copy=False), bad_rows)
