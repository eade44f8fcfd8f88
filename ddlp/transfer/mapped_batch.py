"""A published batch as a mapping of its file: verified where it lies, in the page cache, and not copied.

What a copy costs beside the checksum is a third of all that a batch costs the host: it is read once more and written, both
past the caches. But a mapping shows the file as it is now, and reading beyond the end of one that was cut short ends the
process (SIGBUS). So only files of an engine of our own are mapped: nobody else writes there, and what it has published changes
only once no process has it open or mapped any more (`csd_engine.service.file_recycling`). Until the batch is dropped its
pages stay, whether the file has a name or not. And only on a file system of this machine: over a network a removed
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
    """A published batch, verified as `read_batch` does; its arrays may be written to, the file is not.

    Returns:
        The batch; None where this file system maps no files.

    Raises:
        MissingBatch, DamagedBatch: as `read_batch`.
    """
    import torch  # here: who asks may_map about an engine that it starts, as ddlp bench engine, has no use for it

    with open_batch(path, layout) as descriptor:
        promised = promised_checksum(descriptor, expect_identity, expect_lease, layout)
        try:
            # Private and writable, as mmap's own could be; but that keeps a descriptor until the batch is dropped, and whoever
            # keeps a thousand batches has none left.
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
    if not layout.boxes:
        return Batch(images, None)
    boxes = data[layout.image_bytes :].view("<i4").reshape(layout.batch, layout.boxes, 4)
    return Batch(images, boxes.astype(np.int32, copy=False))
