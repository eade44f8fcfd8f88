"""A map-style data set of images in tar shards, with WebDataset's names. Images are read by their place, in any order.

One pass over the shards' headers finds the places. They are kept in a file, the index. `ddlp.data.objects.tars` uses the same
index for shards in object storage.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
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
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import Image

from csd_engine.data.image_files import content, open_sample
from csd_engine.errors import SampleError
from csd_engine.machine.file_locks import fcntl
from ddlp.data.images import TargetedImages, image_in_memory
from ddlp.errors import as_raised_by_the_dataset
from ddlp.process.cache_directory import cache_directory

__all__ = ["IMAGES", "OpenedShard", "TarImages", "TarIndex", "TarTargets", "expand_numbers", "find_index"]

IMAGES = ("jpg", "jpeg", "png", "webp")
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

    def where(self, shards: Sequence[str], k: int) -> str:
        """Return the place of sample k for messages: its shard, which has a name in ``shards``, and its image's name."""
        return f"{shards[int(self.shards[k])]}, member {self.name(k)}"

    def key(self, k: int) -> str:
        """Return the key of sample k."""
        matched = _NAME.fullmatch(self.name(k))
        assert matched
        return matched[1]

    def target(self, k: int) -> bytes:
        """Return the content of sample k's target."""
        return _piece(self.target_ends, self.targets, k)


class OpenedShard(NamedTuple):
    """A shard for the pass over its headers: its path or URL for messages, a seekable stream, its size in bytes."""

    name: str
    stream: BinaryIO
    size: int


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
        image: Sequence[str] = IMAGES,
        index_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        self.paths = _expand(paths)
        stats = [(path, os.stat(path)) for path in self.paths]
        shards = [[os.path.basename(path), stat.st_size, stat.st_mtime_ns] for path, stat in stats]
        beside = os.path.dirname(self.paths[0])
        self.index = find_index(shards, _opened(self.paths), image, target, index_dir, beside)
        super().__init__(TarTargets(self.paths, self.index, target), transform, target_transform)

    def image(self, index: int) -> Image.Image:
        """Return the sample's image, RGB."""
        index = range(len(self))[index]
        place, path = self.index, self.paths[int(self.index.shards[index])]
        try:
            data = content(open_sample(path, offset=int(place.offsets[index]), size=int(place.sizes[index])))
        except SampleError as error:
            raise as_raised_by_the_dataset(error, self.where(index))  # noqa: B904  its cause is set
        return image_in_memory(data, self.where(index))

    def where(self, index: int) -> str:
        """Return a sample's place for messages: its shard, and the image's name in the shard."""
        return self.index.where(self.paths, index)

    def key(self, index: int) -> str:
        """Return a sample's key."""
        return self.index.key(index)


class TarTargets(Sequence):
    """The targets of samples in shards. Each is decoded from its member's content when it is asked for.

    Args:
        shards: paths or URLs, for messages.
        index: has the contents.
        target: the extension of the target's member, or ``__key__``.
    """

    def __init__(self, shards: Sequence[str], index: TarIndex, target: str) -> None:
        self._shards, self._index = shards, index
        self._decode = _DECODERS.get(target.rpartition(".")[2])

    def __len__(self) -> int:
        return len(self._index.shards)

    def __getitem__(self, index: Any) -> Any:
        index = range(len(self))[index]
        if self._decode is None:
            return self._index.key(index)
        target = self._index.target(index)
        try:
            return self._decode(target)
        except (ValueError, RecursionError) as error:
            where = self._index.where(self._shards, index)
            raise ValueError(f"{where}: its target is {target[:80]!r}: {error}. Correct the shard.") from error


def expand_numbers(text: str) -> list[str]:
    """Return ``train-{000..146}.tar`` as 147 names; a text without braces as it is."""
    some = [text]
    while ranges := _RANGE.search(some[0]):
        first, last = ranges.groups()
        numbers = [str(k).zfill(len(first)) for k in range(int(first), int(last) + 1)]
        some = [_RANGE.sub(number, name, count=1) for name in some for number in numbers]
    return some


def _expand(paths: Any) -> list[str]:
    """Return the shards' absolute paths. Raises ValueError if there are none."""
    if isinstance(paths, (str, os.PathLike)):
        some = expand_numbers(os.fspath(paths))
        expanded = [match for path in some for match in (sorted(glob.glob(path)) if glob.has_magic(path) else [path])]
    else:
        expanded = [os.fspath(path) for path in paths]
    if not expanded:
        raise ValueError(f"TarImages: no shards at {paths!r}.")
    if (urls := [path for path in expanded if "://" in path]) and not os.path.exists(urls[0]):
        raise ValueError(f"TarImages: {urls[0]} is a URL, and these are files. ddlp.TarObjects has shards in object storage.")
    return [os.path.abspath(path) for path in expanded]


def _opened(paths: list[str]) -> Iterator[OpenedShard]:
    for path in paths:
        with open(path, "rb") as stream:
            yield OpenedShard(path, stream, os.path.getsize(path))


def find_index(
    shards: list[list[Any]],
    opened: Iterator[OpenedShard],
    image: Sequence[str],
    target: str,
    directory: str | os.PathLike[str] | None,
    beside: str | None = None,
) -> TarIndex:
    """Return the index: the one that was kept, or a new one, which is kept now.

    Args:
        shards: of each its name, and what changes with its content, as plain data for JSON. With a None nothing is kept.
        opened: the shards in this order, each until the next one is asked for. Nothing is asked for without need.
        image, target: see `TarImages`.
        directory: for the index; None: ``beside`` if it is given and can be written, else ddlp's cache directory.

    Raises:
        ValueError: there is no such target; or a shard is not as it must be, see `TarImages`.
        OSError: a shard can't be read, or ``directory`` can't be written.
    """
    if target != KEY and target.rpartition(".")[2] not in _DECODERS:
        raise ValueError(f"target={target!r} is none of {', '.join(_DECODERS)} or {KEY}.")
    about = {"format": _FORMAT, "image": sorted(image), "target": target, "shards": shards}
    names = json.dumps([about["image"], target, [shard[0] for shard in shards]])
    name = f".ddlp-{hashlib.blake2b(names.encode(), digest_size=8).hexdigest()}.index"
    usual = [place for place in (beside, cache_directory()) if place is not None]
    places: list[Any] = usual if directory is None else [directory]
    if any(None in shard for shard in shards):
        places = []

    def kept() -> TarIndex | None:
        return next((index for place in places if (index := _read(Path(place, name), about)) is not None), None)

    if (index := kept()) is not None:
        return index
    # Files are read again in little time. From a storage one process reads them for all of a computer, such as its ranks.
    lock = Path(places[0], f"{name}.lock") if places and beside is None else None
    with contextlib.nullcontext() if lock is None else _alone(lock, directory is not None):
        if beside is None and (index := kept()) is not None:
            return index
        new_index = _make(opened, len(shards), frozenset(image), target)
        for place in places:
            try:
                os.makedirs(place, exist_ok=True)
                _write(Path(place, name), about, new_index)
                break
            except OSError:
                if directory is not None:
                    raise
    return new_index


@contextlib.contextmanager
def _alone(path: Path, must: bool) -> Iterator[None]:
    """Wait until no other process holds this lock, and hold it. If it can't be made: OSError if it ``must``, else go on."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        if must:
            raise
        descriptor = -1
    if descriptor < 0:
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("ddlp: index of tar shards: another process makes it, this one waits", file=sys.stderr, flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)  # who waits for it still finds the index
        os.close(descriptor)


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
            description = json.loads(header)
            arrays = description.pop("arrays")
            if description != about or len(arrays) != len(TarIndex._fields):
                return None
            columns = [
                np.memmap(stream, kind, "r", at, (count,)) if count else np.zeros(0, kind)
                for at, (kind, count) in _sections(header, arrays)
            ]
            return TarIndex(*columns)
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


def _make(opened: Iterator[OpenedShard], count: int, image: frozenset[str], target: str) -> TarIndex:
    samples: list[_Sample] = []
    which: list[int] = []
    printed_s = time.monotonic()
    with contextlib.closing(opened):  # type: ignore[type-var]  # a generator
        for number, shard in enumerate(opened):
            for sample in _samples(shard, image, target):
                samples.append(sample)
                which.append(number)
                if time.monotonic() - printed_s > _QUIET_S:
                    printed_s = time.monotonic()
                    print(
                        f"ddlp: index of tar shards: {number + 1} of {count}, {len(samples):,} samples (made once, then kept)",
                        file=sys.stderr, flush=True,
                    )  # fmt: skip
    names = [os.fsencode(sample.name) for sample in samples]
    targets = [sample.target for sample in samples]
    offsets, sizes = (np.array([sample[column] for sample in samples], dtype=np.int64) for column in (1, 2))
    return TarIndex(np.array(which, dtype=np.int64), offsets, sizes, *_blob(names), *_blob(targets))


def _blob(pieces: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.array(list(itertools.accumulate(map(len, pieces))), dtype=np.int64)
    return ends, np.frombuffer(b"".join(pieces), dtype=np.uint8)


def _samples(shard: OpenedShard, image: frozenset[str], target: str) -> Iterator[_Sample]:
    """Yield the samples of one shard. Raises ValueError; the message names the shard and the member."""
    path = shard.name
    for key, some in itertools.groupby(_members(shard), lambda member: member[0]):
        members: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
        for _, extension, info, read in some:
            if extension in members:
                raise ValueError(f"{path}: it has {info.name} twice. Write the shard again, each member once.")
            members[extension] = info, read() if extension == target else b""
        images = sorted(image & set(members))
        if len(images) != 1:
            names = " and ".join(images) or f"none among {', '.join(members)}"
            raise ValueError(
                f"{path}: sample {key} needs one image ({', '.join(sorted(image))}), it has {names}. Say in image= which it is."
            )
        if target != KEY and target not in members:
            raise ValueError(
                f"{path}: sample {key} has no {target}, only {', '.join(members)}. Say in target= what its target is."
            )
        info, _ = members[images[0]]
        yield _Sample(info.name, info.offset_data, info.size, members[target][1] if target != KEY else b"")


def _members(shard: OpenedShard) -> Iterator[tuple[str, str, tarfile.TarInfo, Callable[[], bytes]]]:
    """Yield key, extension, place and content of each member that belongs to a sample, by WebDataset's rules."""
    path, stream, size = shard
    last = "its beginning"

    def step(take: Callable[[], Any]) -> Any:
        try:
            return take()
        except (tarfile.TarError, ValueError, OverflowError, RecursionError, MemoryError) as error:  # of damaged numbers
            raise ValueError(
                f"{path} can't be read as an uncompressed tar file: {error}, behind {last}. Unpack it if it is compressed, "
                "else write or copy it again."
            ) from error

    with step(lambda: tarfile.open(fileobj=stream, mode="r:")) as tar:
        while (info := step(tar.next)) is not None:
            tar.members.clear()  # tarfile keeps all members it has read, and there are many
            end = info.offset_data + info.size
            if info.size < 0 or info.offset_data < 0:
                raise ValueError(f"{path} is damaged behind {last}: {info.name} has {info.size} bytes. Write or copy it again.")
            if end > size:
                raise ValueError(
                    f"{path} breaks off: its member {info.name} ends at byte {end}, the file at {size}. Write or copy it again."
                )
            last = info.name
            matched = _NAME.fullmatch(info.name)
            if not info.isreg() or not matched or _META.match(info.name):
                continue
            if info.issparse():
                raise ValueError(f"{path}: {info.name} is a sparse file, which has no one place. Write the shard again.")

            def read(info: tarfile.TarInfo = info) -> bytes:
                return step(lambda: tar.extractfile(info).read())

            yield matched[1], matched[2].lower(), info, read
        step(lambda: stream.seek(tar.offset))  # tarfile takes a damaged header for the end of the file
        if any(stream.read(_BLOCK)):
            raise ValueError(f"{path} is damaged at byte {tar.offset}, behind {last}. Write or copy it again.")
