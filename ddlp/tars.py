"""A map-style data set of images in tar shards, with WebDataset's names. Images are read by their place, in any order.

One pass over the shards' headers finds the places. They are kept in a file, the index.
"""

from __future__ import annotations

import glob
import hashlib
import io
import itertools
import json
import os
import re
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from csd_engine.data.image_files import content, open_sample, pillow_open
from ddlp.cache_directory import cache_directory
from ddlp.datasets import TargetedImages

__all__ = ["TarImages"]

KEY = "__key__"
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("cls", "cls2", "id", "index", "inx"), int),
    **dict.fromkeys(("txt", "text", "transcript"), lambda data: data.decode("utf-8")),
    **dict.fromkeys(("json", "jsn"), json.loads),
}
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)  # WebDataset's key and extensions
_META = re.compile(r"__[^/]*__($|/)")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_FORMAT = 1
_ALIGN = 64
_QUIET_S = 3  # if making the index takes longer, it prints its progress at this interval
_BLOCK = 512  # of a tar file


class TarIndex(NamedTuple):
    """The places of the images in shards, and the targets: one of each for every sample.

    Attributes:
        shards: int64 (n,), the place of the sample's shard in the list of paths.
        offsets, sizes: int64 (n,), in bytes, of the image in the shard.
        name_ends, names: int64 (n,) and uint8: the names of the image members, one after the other, and where each ends.
        target_ends, targets: the same for the contents of the target members.
    """

    shards: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    name_ends: np.ndarray
    names: np.ndarray
    target_ends: np.ndarray
    targets: np.ndarray

    def name(self, k: int) -> str:
        """Return the name of sample k's image."""
        return os.fsdecode(_piece(self.name_ends, self.names, k))

    def target(self, k: int) -> bytes:
        """Return the content of sample k's target."""
        return _piece(self.target_ends, self.targets, k)


def _piece(ends: np.ndarray, blob: np.ndarray, k: int) -> bytes:
    return blob[int(ends[k - 1]) if k else 0 : int(ends[k])].tobytes()


class TarImages(TargetedImages):
    """A map-style data set of JPEG, PNG or WebP files in tar shards with WebDataset's names. Samples are (image, target).

    The members of a sample follow each other and have one key: ``0001.jpg`` and ``0001.cls`` are the image and the target of
    sample ``0001``. A sample is read by its place in the shard, so it works with any sampler, and a device can read it too.

    Args:
        paths: the shards, uncompressed tar files: a list, or a string like ``"train-{000..146}.tar"`` or ``"train-*.tar"``.
        transform: is called with the PIL image (RGB). torchvision's operators travel to the device, see ``loader.explain()``.
        target_transform: is called with the target, on the host.
        target: the extension of the target's member: ``cls``, ``id`` and ``index`` are numbers, ``txt`` is text, and ``json``
            is anything. ``"__key__"``: the target is the sample's key.
        image: the extensions of images. A sample must have exactly one member with one of these.
        index_dir: the directory for the index. By default the index is kept beside the first shard. If that directory can't be
            written, it is kept in ``~/.cache/ddlp`` ($XDG_CACHE_HOME).

    The index is made once, and again if a shard's size or modification time has changed. That takes about 25 us a member.

    Raises:
        ValueError: if a shard is not a tar file, is damaged or breaks off, or if a sample has no image, several images, or no
            target. The message names the shard and the member.
        OSError: if a shard can't be read.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        transform: Callable | None = None,
        target_transform: Callable | None = None,
        *,
        target: str = "cls",
        image: Sequence[str] = ("jpg", "jpeg", "png", "webp"),
        index_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        decode = _DECODERS.get(target.rpartition(".")[2])
        if decode is None and target != KEY:
            raise ValueError(f"TarImages: target={target!r} is none of {', '.join(_DECODERS)} or {KEY}.")
        self.paths = _expand(paths)
        self.index = _index(self.paths, frozenset(image), target, index_dir)
        super().__init__(_Targets(self, decode), transform, target_transform)

    def image(self, index: int) -> Image.Image:
        """Return the sample's image, RGB."""
        index = range(len(self))[index]
        place, path = self.index, self.paths[int(self.index.shards[index])]
        opened = open_sample(path, offset=int(place.offsets[index]), size=int(place.sizes[index]))
        return pillow_open(io.BytesIO(content(opened))).convert("RGB")

    def where(self, index: int) -> str:
        """Return a sample's place for messages: its shard, and the image's name in the shard."""
        return f"{self.paths[int(self.index.shards[index])]}, member {self.index.name(index)}"

    def key(self, index: int) -> str:
        """Return a sample's key."""
        matched = _NAME.fullmatch(self.index.name(index))
        assert matched
        return matched[1]


class _Targets(Sequence):
    """The targets. Each is decoded from its member's content when it is asked for."""

    def __init__(self, dataset: TarImages, decode: Callable[[bytes], Any] | None) -> None:
        self._dataset, self._decode = dataset, decode

    def __len__(self) -> int:
        return len(self._dataset.index.shards)

    def __getitem__(self, index: Any) -> Any:
        index = range(len(self))[index]
        if self._decode is None:
            return self._dataset.key(index)
        found = self._dataset.index.target(index)
        try:
            return self._decode(found)
        except ValueError as error:
            where = self._dataset.where(index)
            raise ValueError(f"{where}: its target is {found[:80]!r}: {error}. Correct the shard.") from error


def _expand(paths: Any) -> list[str]:
    """Return the shards' absolute paths. Raises ValueError if there are none."""
    if isinstance(paths, (str, os.PathLike)):
        some = [os.fspath(paths)]
        while ranges := _RANGE.search(some[0]):
            first, last = ranges.groups()
            numbers = [str(k).zfill(len(first)) for k in range(int(first), int(last) + 1)]
            some = [_RANGE.sub(number, path, count=1) for path in some for number in numbers]
        found = [one for path in some for one in (sorted(glob.glob(path)) if glob.has_magic(path) else [path])]
    else:
        found = [os.fspath(path) for path in paths]
    if not found:
        raise ValueError(f"TarImages: no shards at {paths!r}.")
    return [os.path.abspath(path) for path in found]


def _index(paths: list[str], image: frozenset[str], target: str, directory: Any) -> TarIndex:
    """Return the index: the one that was kept, or a new one, which is kept now."""
    stats = [os.stat(path) for path in paths]
    shards = [[os.path.basename(path), stat.st_size, stat.st_mtime_ns] for path, stat in zip(paths, stats, strict=True)]
    about = {"format": _FORMAT, "image": sorted(image), "target": target, "shards": shards}
    names = json.dumps([about["image"], target, [shard[0] for shard in shards]])
    name = f".ddlp-{hashlib.blake2b(names.encode(), digest_size=8).hexdigest()}.index"
    cache = cache_directory()
    usual: list[Any] = [os.path.dirname(paths[0]), *([] if cache is None else [cache])]
    places = usual if directory is None else [directory]
    for place in places:
        found = _read(Path(place, name), about)
        if found is not None:
            return found
    made = _make(paths, image, target)
    for place in places:
        try:
            if directory is not None or place != places[0]:
                os.makedirs(place, exist_ok=True)
            _write(Path(place, name), about, made)
            break
        except OSError:
            if directory is not None:
                raise
    return made


def _sections(header: bytes, arrays: Any) -> Iterator[tuple[int, Any]]:
    """Yield each array with the byte at which it begins in the file."""
    at = len(header)
    for array in arrays:
        at += -at % _ALIGN
        yield at, array
        at += array[1] * np.dtype(array[0]).itemsize


def _read(path: Path, about: dict[str, Any]) -> TarIndex | None:
    """Map and return the index in this file. None unless it is an index of these shards as they are now."""
    try:
        with path.open("rb") as stream:
            header = stream.readline()
            told = json.loads(header)
            arrays = told.pop("arrays")
            if told != about or len(arrays) != len(TarIndex._fields):
                return None
            found = [
                np.memmap(stream, kind, "r", at, (count,)) if count else np.zeros(0, kind)
                for at, (kind, count) in _sections(header, arrays)
            ]
            return TarIndex(*found)
    except (OSError, ValueError, KeyError, TypeError):  # there is no such file, or it is damaged
        return None


def _write(path: Path, about: dict[str, Any], index: TarIndex) -> None:
    """Write the index to this path, atomically. Raises OSError."""
    arrays = [[array.dtype.str, len(array)] for array in index]
    header = json.dumps({**about, "arrays": arrays}).encode() + b"\n"
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".part", delete=False) as stream:
        try:
            stream.write(header)
            for (at, _), array in zip(_sections(header, arrays), index, strict=True):
                stream.write(bytes(at - stream.tell()))
                stream.write(array.tobytes())
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            os.replace(stream.name, path)
        except BaseException:
            os.unlink(stream.name)
            raise


class _Sample(NamedTuple):
    """The place of an image's member, and the content of the target's member."""

    name: str
    offset: int
    size: int
    target: bytes


def _make(paths: list[str], image: frozenset[str], target: str) -> TarIndex:
    samples: list[_Sample] = []
    counts = []
    told = time.monotonic()
    for number, path in enumerate(paths):
        before = len(samples)
        samples += _samples(path, image, target)
        counts.append(len(samples) - before)
        if time.monotonic() - told > _QUIET_S:
            told = time.monotonic()
            print(
                f"ddlp: index of tar shards: {number + 1} of {len(paths)}, {len(samples):,} samples (made once, then kept)",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    names = [os.fsencode(sample.name) for sample in samples]
    targets = [sample.target for sample in samples]
    offsets, sizes = (np.array([sample[column] for sample in samples], dtype=np.int64) for column in (1, 2))
    return TarIndex(np.repeat(np.arange(len(paths)), counts), offsets, sizes, *_blob(names), *_blob(targets))


def _blob(pieces: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.array(list(itertools.accumulate(map(len, pieces))), dtype=np.int64)
    return ends, np.frombuffer(b"".join(pieces), dtype=np.uint8)


def _samples(path: str, image: frozenset[str], target: str) -> Iterator[_Sample]:
    """Yield the samples of one shard. Raises ValueError; the message names the shard and the member."""
    for key, some in itertools.groupby(_members(path), lambda one: one[0]):
        members: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
        for _, extension, info, read in some:
            if extension in members:
                raise ValueError(f"{path}: it has {info.name} twice. Write the shard again, each member once.")
            members[extension] = info, read() if extension == target else b""
        images = sorted(image & set(members))
        if len(images) != 1:
            found = " and ".join(images) or f"none among {', '.join(members)}"
            raise ValueError(
                f"{path}: sample {key} needs one image ({', '.join(sorted(image))}), it has {found}. Say in image= which it is."
            )
        if target != KEY and target not in members:
            raise ValueError(
                f"{path}: sample {key} has no {target}, only {', '.join(members)}. Say in target= what its target is."
            )
        info, _ = members[images[0]]
        yield _Sample(info.name, info.offset_data, info.size, members[target][1] if target != KEY else b"")


def _members(path: str) -> Iterator[tuple[str, str, tarfile.TarInfo, Callable[[], bytes]]]:
    """Yield key, extension, place and content of each member that belongs to a sample, by WebDataset's rules."""
    last = "its beginning"
    try:
        size = os.path.getsize(path)
        with tarfile.open(path, "r:") as tar:
            while (info := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all members it has read, and there are many
                if info.offset_data + info.size > size:
                    raise ValueError(
                        f"{path} breaks off: its member {info.name} ends at byte {info.offset_data + info.size}, the file at "
                        f"{size}. Write or copy it again."
                    )
                last = info.name
                matched = _NAME.fullmatch(info.name)
                if not info.isreg() or not matched or _META.match(info.name):
                    continue
                if info.issparse():
                    raise ValueError(f"{path}: {info.name} is a sparse file, which has no one place. Write the shard again.")

                def read(info: tarfile.TarInfo = info) -> bytes:
                    member = tar.extractfile(info)
                    assert member
                    return member.read()

                yield matched[1], matched[2].lower(), info, read
            with open(path, "rb") as stream:  # tarfile takes a damaged header for the end of the file
                stream.seek(tar.offset)
                if any(stream.read(_BLOCK)):
                    raise ValueError(f"{path} is damaged at byte {tar.offset}, behind {last}. Write or copy it again.")
    except tarfile.TarError as error:
        raise ValueError(
            f"{path} can't be read as an uncompressed tar file: {error}, behind {last}. Unpack it if it is compressed, else "
            "write or copy it again."
        ) from error
