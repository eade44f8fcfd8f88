"""Describes Hugging Face's images as parts of the Arrow files that are mapped into memory, or as single files."""

from __future__ import annotations

import bisect
import os
from typing import Any, NamedTuple

import numpy as np

from ddlp.data.huggingface import HuggingFaceImages
from ddlp.errors import Untranslatable
from ddlp.translate.leaf import DictSample
from ddlp.translate.parts import PartLeaf

__all__ = ["hugging_face_images"]

_NAME = "HuggingFaceImages"
_SAVE = "save it and load it again, which maps it: dataset.save_to_disk(folder), datasets.load_from_disk(folder)"
_COLLECT = "give each image as bytes or as a file on this machine"
_OFFSETS = {"binary": np.int32, "large_binary": np.int64}


class _Mapping(NamedTuple):
    """A part of a file in memory."""

    start: int
    end: int
    offset: int
    path: str


class _Mapped:
    """The files that are mapped into this process's memory now."""

    def __init__(self) -> None:
        self._mappings: list[_Mapping] = []
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:  # start-end permissions offset device inode path
                fields = line.rstrip("\n").split(maxsplit=5)
                if len(fields) == 6 and fields[5].startswith("/") and not fields[5].endswith(" (deleted)"):
                    start, end = (int(number, 16) for number in fields[0].split("-"))
                    self._mappings.append(_Mapping(start, end, int(fields[2], 16), fields[5]))

    def place(self, address: int, size: int) -> tuple[str, int] | None:
        """The file of these bytes in memory, and their offset in it; None if they belong to no mapped file."""
        at = bisect.bisect_right(self._mappings, address, key=lambda mapping: mapping.start) - 1
        if at < 0 or address + size > self._mappings[at].end:
            return None
        return self._mappings[at].path, self._mappings[at].offset + address - self._mappings[at].start


class _Places:
    """The places of the images in files, collected chunk by chunk."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def number(self, path: str) -> int:
        return self.files.setdefault(path, len(self.files))

    def add_chunk(self, chunk: Any, mapped: _Mapped) -> None:
        """Add a chunk of the column, whose values are structs of bytes and path; raises Untranslatable."""
        count = len(chunk)
        if chunk.null_count:
            raise Untranslatable(_NAME, "some of its rows have no image", ("leave them out: dataset.filter(...)",))
        which, offsets, sizes = np.zeros(count, np.int64), np.zeros(count, np.int64), np.full(count, -1, np.int64)
        data, paths = chunk.field("bytes"), chunk.field("path")
        inside = np.asarray(data.is_valid())
        if inside.any():
            width = _OFFSETS.get(str(data.type))
            if width is None:
                raise Untranslatable(_NAME, f"its images are of Arrow's type {data.type}", (_SAVE,))
            _, ends, values = data.buffers()
            ends = np.frombuffer(ends, width)[data.offset : data.offset + count + 1].astype(np.int64)
            place = mapped.place(values.address + int(ends[0]), int(ends[-1] - ends[0]))
            if place is None:
                raise Untranslatable(_NAME, "its table is in memory, and no file has its images", (_SAVE,))
            path, offset = place
            which[inside] = self.number(path)
            offsets[inside] = (ends[:-1] - ends[0] + offset)[inside]
            sizes[inside] = np.diff(ends)[inside]
        if not inside.all():
            rows = np.flatnonzero(~inside).tolist()
            for row, path in zip(rows, paths.take(rows).to_pylist(), strict=True):
                if path is None or "://" in path:
                    raise Untranslatable(_NAME, f"an image of it lies at {path}, no file on this machine", (_COLLECT,))
                which[row] = self.number(os.path.abspath(path))
        self.columns.append((which, offsets, sizes))


def hugging_face_images(dataset: HuggingFaceImages) -> PartLeaf:
    """The leaf of a HuggingFaceImages; Untranslatable if its images lie in no files."""
    rows, name = dataset.dataset, dataset.image
    mode = getattr(rows.features[name], "mode", None)
    if mode not in (None, "RGB"):
        raise Untranslatable(_NAME, f"its images are of mode {mode}", (f"dataset.cast_column({name!r}, datasets.Image())",))
    places, mapped = _Places(), _Mapped()
    for chunk in rows.data.column(name).chunks:
        places.add_chunk(chunk, mapped)
    none = [(np.zeros(0, np.int64),) * 3]
    which, offsets, sizes = (np.concatenate(column) for column in zip(*none, *places.columns, strict=True))
    if rows._indices is not None:
        taken = np.asarray(rows._indices.column(0)).astype(np.int64)
        which, offsets, sizes = which[taken], offsets[taken], sizes[taken]
    files = list(places.files)
    return PartLeaf(
        _NAME, dataset.transform, dataset.others, None, files, which, offsets, sizes,
        lambda k: f"{files[int(which[k])]}, row {k} of the data set", True, DictSample(dataset.names, name),
    )  # fmt: skip
