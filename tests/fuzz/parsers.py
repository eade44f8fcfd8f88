#!/usr/bin/env python3
"""Feed changed files, descriptions and messages to their parsers: a parser may raise only the error that it documents.

    python -m tests.fuzz.parsers --seconds 60                       # all parsers, a minute each
    python -m tests.fuzz.parsers --only pipeline --inputs 2000000 --seed 7

Each input is a valid one with a few changes. At the first input at which a parser raises another exception, the script prints
the input and ends with status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import itertools
import json
import os
import random
import sys
import tarfile
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.transforms import ToTensor

from csd_engine.arithmetic.keyed import Keyed
from csd_engine.batchfile.reader import BatchReceiver, Layout, read_batch
from csd_engine.batchfile.writer import BatchWriter
from csd_engine.cache.segments import Sample, SegmentWriter, open_segment
from csd_engine.data.arrays import ArraySet
from csd_engine.data.base import Origin, fingerprint, open_reader
from csd_engine.data.carried import CarriedReader, CarriedSet, pack_parcel
from csd_engine.data.concat import ConcatSet
from csd_engine.data.files import FileSet
from csd_engine.data.image_files import content as file_content
from csd_engine.data.kinds import parse_dataset
from csd_engine.data.manifest import Manifest, write_manifest
from csd_engine.data.objects.dataset import ObjectSet
from csd_engine.data.parts import PartSet
from csd_engine.data.safe_open import OpenFile
from csd_engine.errors import BadMessage, DamagedBatch, DamagedSegment, DatasetError, EngineError, PipelineError, SampleError
from csd_engine.machine.directory import Directory
from csd_engine.protocol import codec as say
from csd_engine.protocol.aead import CHACHA, NotAuthentic
from csd_engine.protocol.cards import Card
from csd_engine.protocol.schema import Misfit
from csd_engine.protocol.sealed import HEAD_BYTES, PART, READY, REASON, Opener, Place, Sealer
from csd_engine.transforms.pipeline import Pipeline
from ddlp import DDLPLoader, ImageArrays
from ddlp.data.objects.manifest import Manifest as ObjectManifest
from ddlp.data.objects.manifest import parse_index
from ddlp.data.tars import IMAGES, OpenedShard, find_index
from ddlp.sampling.state_schema import check_state
from ddlp.sources.usercode.tree import DamagedTree, Encoded, decode, encode

_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a disk writes each input out, which takes most of the time
_SIZE = (40, 30)  # (width, height) of the images for which a pipeline draws
_HEX = "0123456789abcdef" * 2
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 255, 1 << 31, 1 << 53, 1 << 63, 1 << 64, 1 << 200, 0.0, -0.0, 0.5, 1e-320, 1e308, -1e308,
    float("inf"), float("nan"), "", "a", "\0", "..", "/", "/etc/passwd", "\ud800", "x" * 5000, _HEX, [], {}, [[]], [{}], [0, 1],
    [1, 0], [0.08, 1.0], [1e308, -1e308], [-1, -1], [1 << 40, 1 << 40], [224, 224], "RGB", "bilinear", [None], {"op": "User"},
)  # fmt: skip


# -- how an input is changed


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of each value in plain data."""
    waiting = [data]
    while waiting:
        one = waiting.pop()
        for key in list(one) if isinstance(one, dict) else range(len(one)):
            yield one, key
            if isinstance(one[key], (dict, list)):
                waiting.append(one[key])


def _nested(rng: random.Random, value: Any) -> Any:
    depth = rng.choice((2, 9, 60, 400))
    as_operators = rng.random() < 0.5
    for _ in range(depth):
        value = {"op": "RandomOrder", "groups": [[value]]} if as_operators else [value]
    return value


def changed_data(rng: random.Random, data: Any) -> Any:
    """Return plain data with a few values replaced, left out, moved, doubled or nested."""
    whole = [copy.deepcopy(data)]
    for _ in range(rng.choice((1, 1, 1, 1, 2, 4))):
        places = list(_places(whole))
        at, key = rng.choice(places)
        other, other_key = rng.choice(places)
        what = rng.randrange(8)
        if what < 3:
            at[key] = copy.deepcopy(rng.choice(_VALUES))
        elif what == 3:
            at[key] = copy.deepcopy(other[other_key])
        elif what == 4 and at is not whole:
            del at[key]
        elif what == 5:
            at[key] = _nested(rng, at[key]) if rng.random() < 0.3 else [at[key]] * rng.choice((0, 1, 2, 300))
        elif what == 6 and isinstance(at, dict):
            at[rng.choice(("x", "op", "type", "say", "p", "", "__class__"))] = copy.deepcopy(rng.choice(_VALUES))
        elif isinstance(at[key], (int, float)) and not isinstance(at[key], bool):
            at[key] = rng.choice((at[key] + 1, -at[key], at[key] * 1000, str(at[key]), float(at[key]) / 3))
        elif isinstance(at[key], str):
            at[key] = at[key][: rng.randrange(len(at[key]) + 1)] + rng.choice(("", "\0", "A", "9", "/..", "\U0001f600"))
    return whole[0]


def changed_bytes(rng: random.Random, content: bytes) -> bytes:
    """Return a file's bytes with a few changed, inserted, left out or cut off, mostly near its beginning."""
    new = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(min(len(new), rng.choice((16, 128, 1 << 30))) or 1) if new else 0
        what = rng.randrange(6)
        if what == 0 and new:
            new[at] ^= 1 << rng.randrange(8)
        elif what == 1 and new:
            new[at] = rng.choice((0, 1, 9, 10, 32, 0x7F, 0x80, 0xFF, *b"(){}[]',:-0129eE"))
        elif what == 2:
            new[at : at + 8] = rng.choice((0, 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)).to_bytes(8, "little")
        elif what == 3:
            new[at:at] = rng.choice((b"(" * 300, b"\0" * 8, b"'", b"[[", b"-", b"1" * 400, rng.randbytes(5)))
        elif what == 4:
            del new[at : at + rng.choice((1, 8, 100))]
        else:
            del new[rng.randrange(len(new) + 1) :]
    return bytes(new)


# -- the parsers and their inputs


@dataclass(frozen=True)
class Parser:
    """A parser with examples of its input. `allowed`: the errors that it documents."""

    allowed: tuple[type[Exception], ...]
    examples: Callable[[Path], list[Any]]
    read: Callable[[Path, Any], None]
    changed: Callable[[random.Random, Any], Any] = changed_data


def _crop(size: int) -> dict[str, Any]:
    drawn = {"scale": [0.08, 1.0], "ratio": [0.75, 4 / 3], "interpolation": "bilinear"}
    return {"op": "RandomResizedCrop", "size": [size, size], **drawn}


_FLIP = {"op": "RandomHorizontalFlip", "p": 0.5}


def _pipelines(_: Path) -> list[Any]:
    """Return pipelines with every operator. Each field has the last of some values that its check accepts."""
    from csd_engine.transforms.parse import LEAVES

    usual = (
        *_VALUES, [0.1, 0.9], 1.5, [0.5, 1.5], "reflect", "rand", [[0.1, 0.2]], 30.0, [8, 8], [1, 1], 5, 1, None, [0] * 4, 16,
        0, [0], [16, 16], "imagenet", 0.5, [0.5], False,
    )  # fmt: skip
    resize = {"op": "Resize", "size": [16, 16], "max_size": None, "interpolation": "bicubic"}
    groups: list[list[Any]] = [[_crop(16), _FLIP], [resize]]
    for name, operator in LEAVES.items():
        values: dict[str, Any] = {"op": name}
        for field, check in operator.FIELDS.items():
            for value in usual[::-1]:
                with contextlib.suppress(ValueError):
                    check(copy.deepcopy(value))
                    values[field] = value
                    break
        groups.append([_crop(16), values] if "Crop" not in name else [values])
    groups.append([{"op": "RandomApply", "ops": [_FLIP, _crop(16)], "p": 0.5}, _crop(16)])
    groups.append([{"op": "RandomChoice", "groups": [[_FLIP], [_crop(8)]], "p": [0.5, 0.5]}, _crop(16)])
    groups.append([{"op": "RandomOrder", "groups": [[_FLIP], [_crop(8)]]}, _crop(16)])
    groups.append([{"op": "Views", "groups": [[_crop(16)], [_FLIP, _crop(16)]]}])
    groups.append([{"op": "SizedViews", "groups": [[_crop(16)], [_FLIP, _crop(8)]]}])
    return [{"format": 1, "order": "pillow13", "mode": mode, "ops": ops} for ops in groups for mode in ("RGB", "L")]


def _read_pipeline(_: Path, data: Any) -> None:
    pipeline = Pipeline.parse(data)
    assert Pipeline.parse(pipeline.to_data()) == pipeline and len(pipeline.digest) == 32
    pipeline.output_shape(None)
    pipeline.draw_row(_SIZE, Keyed(1, 2, 3, 0), True)


def _datasets(_: Path) -> list[Any]:
    files = FileSet("/data/images", _HEX, 7)
    array, table = ArraySet("/data/a.npy", _HEX, (5, 32, 32, 3)), ArraySet("/data/t.npy", _HEX, (9, 1, 24))
    objects = ObjectSet("s3://bucket/train/", files, ArraySet("/data/o.npy", _HEX, (7, 1, 16)), table)
    sets = (
        files, array, table, PartSet(files, table, True), ConcatSet((files, array, PartSet(files, table))), CarriedSet(_HEX, 7),
        objects, ConcatSet((files, objects)),
    )  # fmt: skip
    return [one.to_data() for one in sets]


def _read_dataset(_: Path, data: Any) -> None:
    dataset = parse_dataset(data)
    assert parse_dataset(dataset.to_data()) == dataset and len(fingerprint(dataset)) == 32
    assert len(dataset) >= 0 and len(dataset.uploads("/spool/arrays")) + len(dataset.host_paths("/spool/arrays")) < 5000
    dataset.image_size()


def _messages(_: Path) -> list[Any]:
    """Return a message of each kind, as plain data. Each field has the first of some values that its check accepts."""
    usual = (
        0, 1, 0.5, True, "a", "", _HEX, "manifest", f"a/{_HEX}.1.safetensors", [], [[0, 0], [5, 1]], {}, {"a": "3"}, None,
        "aes-256-gcm", *([[one] for one in (["a", 1, 2], ["a", 1.0], ["job", 1, 2], [1, 0.5], "a" * 32, "text")]),
    )  # fmt: skip
    found = []
    for kind, checks in say._CHECKS.items():
        data: dict[str, Any] = {"say": kind.__name__}
        for field, check in checks.items():
            for value in usual:
                with contextlib.suppress(ValueError):
                    check(value)
                    data[field] = value
                    break
        found.append(data)
    return found


def _changed_message(rng: random.Random, data: Any) -> Any:
    """Return the bytes of the message, changed. Deep nesting goes as deep as JSON's parser allows."""
    if rng.random() < 0.05:
        depth = rng.randrange(sys.getrecursionlimit() // 2, sys.getrecursionlimit())
        key = rng.choice(list(data))
        whole = json.dumps({**data, key: "here"}).replace('"here"', "[" * depth + "]" * depth).encode()
    else:
        whole = json.dumps(changed_data(rng, data)).encode("utf-8", "backslashreplace")
    return changed_bytes(rng, whole) if rng.random() < 0.3 else whole


def _read_message(_: Path, content: bytes) -> None:
    kinds = (b"FilePart", b"ParcelPart", b"Part", b"AskStream", b"StreamOpen")
    two = any(b'"%s"' % kind in content for kind in kinds)
    frames: list[bytes] = [content, b"payload"][: 2 if two else 1]
    message, payload = say.decode(frames)
    again = say.encode(message, payload if len(frames) == 2 else None)
    assert say.decode(again)[0] == message


def _of_file(name: str, read: Callable[[Path], None]) -> Callable[[Path, bytes], None]:
    def write_and_read(directory: Path, content: bytes) -> None:
        path = directory / name
        path.write_bytes(content)
        read(path)

    return write_and_read


def _manifests(directory: Path) -> list[Any]:
    found = []
    for names in ([], ["a"], ["a/b/c.jpg", "a/d.jpg", "e é/f"], [f"n{k % 3}/{k}.jpg" for k in range(40)]):
        write_manifest(directory / "m", names)
        found.append((directory / "m").read_bytes())
    return found


def _read_manifest(path: Path) -> None:
    with Manifest.open(path) as manifest:
        for index in range(min(len(manifest), 50)):
            name = manifest[index]
            assert not name.startswith("/") and ".." not in name.split("/")


_SHAPES = ((3, 4, 5, 3), (2, 6, 7), (1, 1, 1, 3))


def _arrays(directory: Path) -> list[Any]:
    found = []
    for number, shape in enumerate(_SHAPES):
        with open(directory / "a", "wb") as stream:
            np.lib.format.write_array(stream, np.zeros(shape, np.uint8), version=(1 + number % 2, 0))
        found.append((directory / "a").read_bytes())
    return found


def _read_array(path: Path) -> None:
    shape = _SHAPES[zlib.crc32(path.read_bytes()) % len(_SHAPES)]  # what the host promised; mostly another
    reader = open_reader(ArraySet(str(path), _HEX, shape), str, str)
    try:
        for index in range(len(reader)):
            assert np.asarray(reader.open(index)).shape == shape[1:]
    finally:
        reader.close()


def _parcels(directory: Path) -> list[Any]:
    for number in range(3):
        (directory / str(number)).write_bytes(b"image" * number)
    write_manifest(directory / "m", [str(number) for number in range(3)])
    reader = open_reader(FileSet(str(directory), _HEX, 3), str, lambda _: directory / "m")
    try:
        return [pack_parcel(reader, indices, 1 << 20) for indices in ((0, 1, 2), (2, 1), ())]
    finally:
        reader.close()


def _read_parcel(path: Path) -> None:
    reader = CarriedReader(open_reader(CarriedSet(_HEX, 3), str, str))
    try:
        reader.take(os.open(path, os.O_RDONLY), str(path))
        for index in range(3):
            with contextlib.suppress(SampleError):
                source = reader.open(index)
                assert isinstance(source, OpenFile) and 0 <= len(file_content(source)) <= path.stat().st_size
        places = reader.places([0, 1, 2])
        if places is not None and places.parts is not None:
            assert int((places.parts.offsets + places.parts.sizes).max()) <= path.stat().st_size
    finally:
        reader.close()


_LAYOUT = Layout(3, 4, 5, 3, 2)


def _read_layout(_: Path, data: Any) -> None:
    layout = Layout.parse(data)
    assert Layout.parse(layout.to_data()) == layout and layout.file_bytes > 0


def _batches(directory: Path) -> list[Any]:
    writer = BatchWriter(Directory(str(directory)), _HEX, 7, _LAYOUT)
    writer.write_rows(0, np.ones(_LAYOUT.image_shape, np.uint8), np.zeros((3, 2, 4), np.int32))
    path = writer.publish()
    content = path.read_bytes()
    path.unlink()
    return [content]


def _read_batch(path: Path) -> None:
    content = path.read_bytes()
    receiver = BatchReceiver(_HEX, 7, _LAYOUT)
    taken = None
    with contextlib.suppress(DamagedBatch):
        for at in range(0, len(content), 1000):
            receiver.take(content[at : at + 1000])
        taken = receiver.batch()
    batch = read_batch(path, _HEX, 7, _LAYOUT)
    assert taken is not None and (batch.images == 1).all() and (taken.images == 1).all()


def _segments(directory: Path) -> list[Any]:
    home = Directory(str(directory))
    found = []
    for channels, sizes in ((3, ((4, 5), (1, 1), (9, 2))), (1, ((3, 3),))):
        writer = SegmentWriter(home, _HEX, channels, 1 << 16)
        made = [np.full((*size, channels), number, np.uint8) for number, size in enumerate(sizes)]
        writer.keep([Sample(number, Origin(number, 9, 9), image) for number, image in enumerate(made)], 0.5)
        writer.publish()
        found.append((directory / writer.name).read_bytes())
        home.unlink(writer.name)
    return found


def _read_segment(path: Path) -> None:
    segment = open_segment(Directory(str(path.parent)), path.name, _HEX)
    segment.check()
    for image, source in zip(segment.images(segment.entries), segment.entries["source"], strict=True):
        assert (image == source).all()


_accepted = itertools.count()
_fresh: list[DDLPLoader] = []  # a loader that has loaded no state, kept over the states that it refuses


def _loader() -> DDLPLoader:
    images = ImageArrays(np.zeros((12, 8, 8, 3), np.uint8), list(range(12)), transform=ToTensor())
    return DDLPLoader(images, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(3))


def _states(_: Path) -> list[Any]:
    """Return states of a loader before, in, and after an epoch."""
    loader, found = _loader(), []
    for batches in (0, 1, 3, 6):
        found += [loader.state_dict() for _ in itertools.islice(loader, batches)][-1:] or [loader.state_dict()]
    whole: list[Any] = json.loads(json.dumps([*found, loader.state_dict()]))
    return whole


def _read_state(_: Path, data: Any) -> None:
    check_state(data)
    loader = _fresh[0] if _fresh else _loader()
    _fresh[:] = [loader]
    try:
        loader.load_state_dict(data)
        _fresh.clear()
        if next(_accepted) % 200 == 0:  # an epoch takes as long as hundreds of checks
            assert sum(len(images) for images, *_ in loader) <= 12
    except ValueError:
        pass  # a state of another loader


def _indexes(_: Path) -> list[Any]:
    return [b"12 cat/1.jpg\n7 dog/a b \xc3\xbc/2.PNG\n0 x.txt\n", b"5 a/1.jpg\r\n\n6 a/2.jpg\r\n"]


def _read_index(_: Path, content: bytes) -> None:
    objects = parse_index(content, "index.txt")
    assert all(one.size >= 0 and ".." not in one.key.split("/") and one.key[0] != "/" for one in objects)
    found = ObjectManifest.of(objects)
    assert len(found.targets) == len(found.objects) <= len(objects) and len(found.fingerprint()) == 32


def _shards(_: Path) -> list[Any]:
    made, long = [], f"{'b' * 99}/\u00fc"
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=kind) as tar:
            for name, data in (("a.jpg", b"x" * 700), ("a.cls", b"3"), (f"{long}.png", b""), (f"{long}.cls", b"4")):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        made.append(stream.getvalue()[:8192])
    return made


def _changed_shard(rng: random.Random, content: bytes) -> bytes:
    """Change bytes in the blocks of headers too, with the checksum set right again: else no change there gets far."""
    new = bytearray(content)
    for at in rng.sample(range(0, len(new), tarfile.BLOCKSIZE), rng.choice((0, 1, 2))):
        block = bytearray(new[at : at + tarfile.BLOCKSIZE])
        if block[257:262] != b"ustar":
            continue
        place = rng.choice((0, 100, 124, 124, 156, 157, 345, rng.randrange(500)))  # name, mode, size, type, link, prefix
        numbers = b"\x80" + bytes(7) + rng.randbytes(4), b"\xff" * 12, b"%011o\0" % rng.getrandbits(rng.choice((9, 33)))
        block[place : place + 12] = rng.choice((*numbers, rng.randbytes(12)))
        if rng.random() < 0.5:
            block[156:157] = rng.choice(b"01234567gxLKSDVMN").to_bytes(1, "little")
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        new[at : at + tarfile.BLOCKSIZE] = block
    return bytes(new) if rng.random() < 0.7 else changed_bytes(rng, bytes(new))


def _read_shard(_: Path, content: bytes) -> None:
    opened = (OpenedShard("x.tar", io.BytesIO(content), len(content)) for _ in range(1))
    index = find_index([["x.tar", None]], opened, IMAGES, "cls", None)
    for at, size in zip(index.offsets.tolist(), index.sizes.tolist(), strict=True):
        assert 0 <= at <= at + size <= len(content), (at, size)


def _cards(_: Path) -> list[Any]:
    signs = ".:+=^!/*?&<>()[]{}@%$#-0aZ0aZ0aZ0aZ0aZbc"  # of Z85, as many as a key has
    cards = (Card("tcp://node7:5555", "a" * 40, "node7", 1), Card("ipc:///run/e/s", signs, "a-b", 0))
    return [json.dumps(asdict(card)).encode() for card in cards]


def _read_card(_: Path, content: bytes) -> None:
    card = Card.parse(content)
    assert Card.parse(json.dumps(asdict(card)).encode()) == card and len(card.key) == 40


def _records(_: Path) -> list[Any]:
    """Return the next record after none, of each kind, for the place that `_read_record` expects."""
    found = []
    for kind, body in ((READY, b""), (PART, b"7" * 100), (REASON, b"there is none")):
        record = bytearray(HEAD_BYTES) + body
        Sealer(CHACHA, bytes(32)).seal(kind, _PLACE, record, len(body))
        found.append(bytes(record))
    return found


_PLACE = Place(1, "job", 2, 1 << 20, (1 << 20) + 100)


def _read_record(_: Path, content: bytes) -> None:
    head, body = content[:HEAD_BYTES].ljust(HEAD_BYTES, b"\0"), bytearray(content[HEAD_BYTES:])
    opener = Opener(CHACHA, bytes(32))
    kind = opener.kind(head, _PLACE)
    opener.begin(head, _PLACE)
    opener.decrypt(body)
    opener.check(head)
    assert bytes(body) == {READY: b"", PART: b"7" * 100, REASON: b"there is none"}[kind]


def _trees(_: Path) -> list[Any]:
    images = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4)
    batch = {"x": [images, images.numpy()], 3: ("a", b"bytes", -1, 1.5, 1j, None), True: {}}
    made = [encode(batch), encode(images)]
    return [b"|".join([one.header, *(bytes(part.numpy()) for part in one.buffers)]) for one in made]


def _read_tree(_: Path, content: bytes) -> None:
    header, *parts = content.split(b"|")
    buffers = [torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts if part]
    encode(decode(Encoded(header, buffers)))


PARSERS = {
    "tree": Parser((DamagedTree,), _trees, _read_tree, changed_bytes),
    "record": Parser((NotAuthentic,), _records, _read_record, changed_bytes),
    "index": Parser((ValueError,), _indexes, _read_index, changed_bytes),
    "shard": Parser((ValueError,), _shards, _read_shard, _changed_shard),
    "card": Parser((BadMessage,), _cards, _read_card, changed_bytes),
    "state": Parser((Misfit,), _states, _read_state),
    "message": Parser((BadMessage,), _messages, _read_message, _changed_message),
    "pipeline": Parser((PipelineError,), _pipelines, _read_pipeline),
    "dataset": Parser((DatasetError,), _datasets, _read_dataset),
    "layout": Parser((EngineError,), lambda _: [_LAYOUT.to_data()], _read_layout),
    "manifest": Parser((DatasetError,), _manifests, _of_file("manifest", _read_manifest), changed_bytes),
    "parcel": Parser((DatasetError,), _parcels, _of_file("parcel", _read_parcel), changed_bytes),
    "npy": Parser((DatasetError,), _arrays, _of_file("a.npy", _read_array), changed_bytes),
    "batch": Parser((DamagedBatch,), _batches, _of_file("batch", _read_batch), changed_bytes),
    "segment": Parser((DamagedSegment,), _segments, _of_file("segment", _read_segment), changed_bytes),
}


@dataclass
class Found:
    """The number of inputs, the number that was accepted, and the first input that raised another exception."""

    inputs: int = 0
    taken: int = 0
    bad: Any = None
    told: str = ""

    def quoted(self) -> str:
        """Return the bad input, cut to a length that a person can read."""
        try:
            return f"{self.bad!r:.2000}"
        except RecursionError:
            return "nested too deep to be shown"


def fuzz(name: str, seed: int, enough: Callable[[int], bool]) -> Found:
    """Feed the parser of this name until it raises an undocumented error, or until `enough(inputs)`."""
    parser, rng, found = PARSERS[name], random.Random(f"{name} {seed}"), Found()
    with tempfile.TemporaryDirectory(dir=_MEMORY) as directory:
        place = Path(directory)
        examples = parser.examples(place)
        while not enough(found.inputs):
            try:
                given = parser.changed(rng, rng.choice(examples))
            except RecursionError:
                continue  # nested too deep to be written
            found.inputs += 1
            try:
                parser.read(place, given)
                found.taken += 1
            except parser.allowed:
                pass
            except Exception:
                found.bad, found.told = given, traceback.format_exc()
                break
    return found


def after(seconds: float) -> Callable[[int], bool]:
    """Return a function that returns true after `seconds` seconds."""
    until = time.monotonic() + seconds
    return lambda _: time.monotonic() > until


def progress(name: str, inputs: int) -> Callable[[int], bool]:
    """Return a function that returns true after `inputs` inputs. It prints the progress now and then."""
    began = told = time.monotonic()

    def enough(done: int) -> bool:
        nonlocal told
        if time.monotonic() > told + 10:
            told = time.monotonic()
            print(f"{name:10} {done:8} of {inputs}, {done / (told - began):.0f} a second", file=sys.stderr, flush=True)
        return done >= inputs

    return enough


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, metavar="N", help="seconds of each parser (default %(default)s)")
    parser.add_argument("--inputs", type=int, metavar="N", help="inputs of each parser instead; prints the progress")
    parser.add_argument("--only", choices=sorted(PARSERS), help="feed this parser alone")
    parser.add_argument("--seed", type=int, default=0, help="seed of all draws (default %(default)s)")
    options = parser.parse_args(arguments)
    status = 0
    for name in [options.only] if options.only else PARSERS:
        enough = progress(name, options.inputs) if options.inputs else after(options.seconds)
        found = fuzz(name, options.seed, enough)
        print(f"{name:10} {found.inputs:8} inputs, {found.taken} taken, the others refused as documented", flush=True)
        if found.told:
            print(f"input {found.inputs} of seed {options.seed}: {found.quoted()}\n{found.told[-3000:]}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
