"""The shape of a batch, its identity, and the name and header of its file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Dict, Sequence, Tuple

import numpy as np

from csd_engine.errors import EngineError, quote

__all__ = ["DATA_OFFSET", "Layout", "file_name", "header", "identity", "safetensors_head"]

DATA_OFFSET = 4096
FORMAT = "ddlp-batch-1"

_BOX_BYTES = 16  # four int32
_TO_JSON = json.JSONEncoder(separators=(",", ":")).encode  # made once, not at each dumps


@dataclass(frozen=True)
class Layout:
    """Shape of a batch: uint8 images (batch, height, width, channels) and int32 boxes (batch, boxes, 4).

    With ``bad_rows`` the file also has uint8 (batch,): 1 for a row that its writer leaves to the host, else 0.
    """

    batch: int
    height: int
    width: int
    channels: int
    boxes: int = 0
    bad_rows: bool = False

    def __post_init__(self) -> None:
        limits = (("batch", 1, 1 << 24), ("height", 1, 1 << 16), ("width", 1, 1 << 16), ("channels", 1, 4))
        for name, low, high in limits + (("boxes", 0, 64),):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise EngineError(f"layout: {name} is {quote(value)}; it must be an integer from {low} to {high}.")
        if not isinstance(self.bad_rows, bool):
            raise EngineError(f"layout: bad_rows is {quote(self.bad_rows)}; it must be true or false.")

    @property
    def row_bytes(self) -> int:
        """Bytes of one image."""
        return self.height * self.width * self.channels

    @property
    def image_bytes(self) -> int:
        """Bytes of all images."""
        return self.batch * self.row_bytes

    @property
    def bad_offset(self) -> int:
        """Bytes of images and boxes, which is where the marks of bad rows begin."""
        return self.image_bytes + self.batch * self.boxes * _BOX_BYTES

    @property
    def most_bad_rows(self) -> int:
        """How many rows may be left to the host; beyond, the batch is not worth its way."""
        return max(1, self.batch // 2)

    @property
    def data_bytes(self) -> int:
        """Bytes of images, boxes and marks of bad rows."""
        return self.bad_offset + (self.batch if self.bad_rows else 0)

    @property
    def file_bytes(self) -> int:
        """Bytes of the batch file."""
        return DATA_OFFSET + self.data_bytes

    @property
    def image_shape(self) -> Tuple[int, int, int, int]:
        """(batch, height, width, channels)."""
        return (self.batch, self.height, self.width, self.channels)

    def to_data(self) -> Dict[str, int]:
        """Return plain data for JSON. An engine that knows no bad rows refuses a layout that has them."""
        data = {name: getattr(self, name) for name in ("batch", "height", "width", "channels", "boxes")}
        return {**data, "bad_rows": True} if self.bad_rows else data

    @staticmethod
    def parse(data: Any) -> "Layout":
        """Make a layout from `to_data`'s result.

        Raises:
            EngineError: a field is missing, unknown or out of range.
        """
        names = ["batch", "boxes", "channels", "height", "width"]
        if not isinstance(data, dict) or sorted(set(data) - {"bad_rows"}) != names:
            raise EngineError(f"layout: {quote(data)} is not an object with exactly the fields {names}.")
        return Layout(**data)


def identity(
    pipeline_digest: str, dataset_fingerprint: str, seed: int, epoch: int, items: Sequence[Tuple[int, int]]
) -> str:
    """Return the batch's identity: 32 hex digits, blake2b-128 over all that decides its content.

    Args:
        pipeline_digest: 32 hex digits.
        dataset_fingerprint: 32 hex digits.
        seed: any integer.
        epoch: any integer.
        items: ordered (source index, occurrence) pairs, both from 0 to 2**63 - 1.
    """
    digest = hashlib.blake2b(digest_size=16, person=b"ddlp batch")
    digest.update(f"{pipeline_digest} {dataset_fingerprint} {int(seed)} {int(epoch)} {len(items)}\n".encode("ascii"))
    digest.update(np.asarray(items, dtype="<i8").reshape(-1, 2).tobytes())
    return digest.hexdigest()


def file_name(batch_identity: str, lease: int) -> str:
    """Return the name of a published batch file.

    Raises:
        EngineError: the identity is not 32 hex digits, or the lease's number is negative.
    """
    if len(batch_identity) != 32 or not set(batch_identity) <= set("0123456789abcdef"):
        raise EngineError(f"batch identity {batch_identity!r:.80} is not 32 lower-case hex digits.")
    if not 0 <= lease < 1 << 63:
        raise EngineError(f"lease {lease!r} is not a number from 0 to 2**63 - 1.")
    return f"{batch_identity}.{lease}.safetensors"


def header(layout: Layout, batch_identity: str, lease: int, checksum: str) -> bytes:
    """Return the file's first DATA_OFFSET bytes. There is one spelling only, so a reader can compare bytes."""
    tensors: Dict[str, Any] = {
        "__metadata__": {"format": FORMAT, "identity": batch_identity, "lease": str(lease), "checksum": checksum},
        "images": {"dtype": "U8", "shape": list(layout.image_shape), "data_offsets": [0, layout.image_bytes]},
    }
    if layout.boxes:
        tensors["boxes"] = {
            "dtype": "I32",
            "shape": [layout.batch, layout.boxes, 4],
            "data_offsets": [layout.image_bytes, layout.bad_offset],
        }
    if layout.bad_rows:
        offsets = [layout.bad_offset, layout.data_bytes]
        tensors["bad_rows"] = {"dtype": "U8", "shape": [layout.batch], "data_offsets": offsets}
    return safetensors_head(tensors)


def safetensors_head(tensors: Dict[str, Any]) -> bytes:
    """Return the head of a safetensors file, padded to DATA_OFFSET bytes, from its JSON data in ASCII, which must fit."""
    text = _TO_JSON(tensors).encode("ascii")
    length = DATA_OFFSET - 8
    return length.to_bytes(8, "little") + text.ljust(length)
