"""Batch files are read into a device's memory in each way, and verified and finished there.

The device is this machine's CPU, without streams, and a GPU if there is one.
"""

from __future__ import annotations

import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from csd_engine.batchfile.checksum import BLOCK_BYTES, Checksum, digest
from csd_engine.batchfile.reader import Layout
from csd_engine.batchfile.writer import BatchWriter
from csd_engine.errors import DamagedBatch, MissingBatch
from csd_engine.machine.directory import Directory
from ddlp.transfer.device_checksum import padded, sum_blocks
from ddlp.transfer.device_stream import CudaStream, DeviceStream
from ddlp.transfer.epilogue import Epilogue
from ddlp.transfer.file_readers import MappedReader, PinnedReader
from ddlp.transfer.gpu_transfer import GpuTransfer

IDENTITY, LEASE = "5" * 32, 7
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
LANES = {"plain": lambda: DeviceStream(torch.device("cpu")), "cuda": lambda: CudaStream(torch.device("cuda"))}
WAYS = {
    "pinned": lambda stream: PinnedReader(stream, readers=3, block_bytes=5000),
    "mmap": MappedReader,
}
TABLE = torch.arange(256, dtype=torch.float32).div(255).repeat(3, 1)


@pytest.fixture(params=["plain", pytest.param("cuda", marks=NO_GPU)])
def stream(request):
    return LANES[request.param]()


@pytest.fixture(params=WAYS)
def gpu_transfer(request, stream):
    made = GpuTransfer(stream, lambda *_: [WAYS[request.param](stream)])
    yield made.open(Path(), mapped=True)
    made.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("ddlp-read")]


@dataclass
class File:
    """A published batch file and its content."""

    path: Path
    layout: Layout
    images: np.ndarray
    boxes: np.ndarray | None

    def read(self, gpu_transfer, epilogue, **options):
        return gpu_transfer.read(epilogue, self.path, IDENTITY, LEASE, self.layout, **options)


def write(directory, shape, boxes=0, seed=0):
    directory.mkdir(exist_ok=True)
    layout, random = Layout(*shape, boxes), np.random.default_rng(seed)
    images = random.integers(0, 256, shape, dtype=np.uint8)
    corners = random.integers(0, min(shape[1:3]), (shape[0], boxes, 4)).astype(np.int32) if boxes else None
    writer = BatchWriter(Directory(str(directory)), IDENTITY, LEASE, layout)
    writer.write_rows(0, images, corners)
    return File(writer.publish(), layout, images, corners)


def epilogue_for(file, dtype=torch.float32, layout=torch.contiguous_format):
    channels = file.layout.channels
    return Epilogue(TABLE[:channels], torch.zeros(file.layout.boxes, channels), dtype, layout)


# One pixel; less than a block of the checksum; exactly two blocks; a little more; a row that ends within a word, with boxes.
SHAPES = [(1, 1, 1, 1), (3, 7, 5, 3), (2, 64, 128, 2), (2, 64, 128, 3), (5, 61, 67, 3)]


@pytest.mark.parametrize("boxes", [0, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_lands_is_what_the_cpu_makes_of_the_file(tmp_path, gpu_transfer, shape, boxes):
    file = write(tmp_path, shape, boxes)
    epilogue = epilogue_for(file)
    landed, _, sample = file.read(gpu_transfer, epilogue, sample=shape[0] - 1)
    landed.event.before_use(landed.images)
    expected = epilogue(torch.from_numpy(file.images), None if file.boxes is None else torch.from_numpy(file.boxes))
    assert torch.equal(landed.images.cpu(), expected)
    image, corners = sample
    assert np.array_equal(image, file.images[-1])
    assert (corners is None) == (boxes == 0) and (corners is None or np.array_equal(corners, file.boxes[-1]))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
def test_memory_that_was_handed_out_is_never_read_into_again(tmp_path, gpu_transfer, dtype, layout):
    files = [write(tmp_path / str(k), (4, 33, 31, 3), seed=k) for k in range(3)]
    epilogue = epilogue_for(files[0], dtype, layout)
    landed = []
    for file in files * 2:
        one, _, sample = file.read(gpu_transfer, epilogue, sample=2)
        one.event.before_use(one.images)
        landed.append((one.images, sample[0]))
    for number, (result, sample) in enumerate(landed):
        images = files[number % 3].images
        assert torch.equal(result.cpu(), epilogue(torch.from_numpy(images))) and np.array_equal(sample, images[2])
        result.zero_()  # the caller may change it


def test_a_small_file_after_a_large_one_and_before_a_larger_one(tmp_path, gpu_transfer):
    """The memory that it is read into still holds earlier bytes, also after its end."""
    for number, samples in enumerate((9, 2, 30, 1)):
        file = write(tmp_path / str(number), (samples, 64, 64, 3), seed=number)
        epilogue = epilogue_for(file, torch.uint8)
        assert torch.equal(file.read(gpu_transfer, epilogue)[0].images.cpu(), epilogue(torch.from_numpy(file.images)))


@pytest.mark.parametrize("shape", SHAPES[1:4], ids=str)
def test_one_changed_bit_anywhere_is_found(tmp_path, gpu_transfer, shape):
    file = write(tmp_path, shape, boxes=1)
    content = file.path.read_bytes()
    for position in {4096, 4096 + 1, 4096 + BLOCK_BYTES, len(content) // 2 + 2048, len(content) - 17, len(content) - 1}:
        if position < len(content):
            damaged = bytearray(content)
            damaged[position] ^= 64
            file.path.write_bytes(damaged)
            with pytest.raises(DamagedBatch, match="its checksum is .*, its header promises"):
                file.read(gpu_transfer, epilogue_for(file))
    file.path.write_bytes(content)
    file.read(gpu_transfer, epilogue_for(file))  # the failed reads' memory is free again


def test_other_damage_is_told_as_on_the_cpu(tmp_path, gpu_transfer):
    file = write(tmp_path, (2, 64, 64, 3))
    content = file.path.read_bytes()
    with pytest.raises(DamagedBatch, match="it was made for lease"):
        gpu_transfer.read(epilogue_for(file), file.path, IDENTITY, LEASE + 1, file.layout)
    file.path.write_bytes(content[:9000])
    with pytest.raises(MissingBatch, match=f"it has 9000 bytes, expected were {len(content)}"):
        file.read(gpu_transfer, epilogue_for(file))
    file.path.unlink()
    with pytest.raises(MissingBatch, match="No such file"):
        file.read(gpu_transfer, epilogue_for(file))
    os.mkfifo(file.path)
    with pytest.raises(DamagedBatch, match="not a regular file"):
        file.read(gpu_transfer, epilogue_for(file))


def test_a_file_that_is_cut_short_while_it_is_read(tmp_path, stream):
    """Each block is read until it is complete. The rest of this file never comes."""
    file = write(tmp_path, (4, 64, 64, 3))

    class Cutting(PinnedReader):
        def read(self, path, descriptor, buffer, size):
            os.truncate(path, 4096 + 12000)
            return super().read(path, descriptor, buffer, size)

    gpu_transfer = GpuTransfer(stream, lambda *_: [Cutting(stream, readers=2, block_bytes=5000)])
    with pytest.raises(MissingBatch, match="the file ended early"):
        file.read(gpu_transfer.open(tmp_path, mapped=False), epilogue_for(file))
    gpu_transfer.close()


def test_many_threads_read_many_files(tmp_path, gpu_transfer):
    files = [write(tmp_path / str(k), (3, 40 + k, 41, 3), boxes=k % 2, seed=k) for k in range(8)]

    def check(number):
        file = files[number % 8]
        epilogue = epilogue_for(file)
        landed, _, _ = file.read(gpu_transfer, epilogue)
        landed.event.wait()
        boxes = None if file.boxes is None else torch.from_numpy(file.boxes)
        assert torch.equal(landed.images.cpu(), epilogue(torch.from_numpy(file.images), boxes))

    with ThreadPoolExecutor(5) as threads:
        list(threads.map(check, range(64)))


def test_the_fastest_way_is_taken_and_said(tmp_path, stream):
    """The slow one is really slow: it reads the file twenty times."""
    file = write(tmp_path, (8, 200, 200, 3))
    closed = []

    class Slow(PinnedReader):
        name = "slow"

        def read(self, *arguments):
            for _ in range(19):
                super().read(*arguments)
            return super().read(*arguments)

        def close(self):
            closed.append(self.name)
            super().close()

    gpu_transfer = GpuTransfer(stream, lambda *_: [Slow(stream, readers=1, block_bytes=5000), MappedReader(stream)])
    files = gpu_transfer.open(tmp_path, mapped=True)
    assert files.remark == ""
    epilogue = epilogue_for(file)
    assert torch.equal(file.read(files, epilogue)[0].images.cpu(), epilogue(torch.from_numpy(file.images)))
    assert files.remark.startswith("batches come by transfer='mmap', the fastest for the first one (slow 0.")
    assert closed == ["slow"]
    gpu_transfer.close()


def test_a_way_that_fails_is_not_taken(tmp_path, stream):
    file = write(tmp_path, (8, 30, 30, 3))

    class Failing(MappedReader):
        name = "failing"

        def read(self, *arguments):
            raise OSError(5, "Input/output error")

    gpu_transfer = GpuTransfer(stream, lambda *_: [Failing(stream), PinnedReader(stream, readers=2)])
    files = gpu_transfer.open(tmp_path, mapped=True)
    file.read(files, epilogue_for(file))
    assert files.remark.startswith("batches come by transfer='pinned', the fastest")
    assert "(failing failed, pinned 0." in files.remark
    gpu_transfer.close()


def test_each_file_system_has_its_way(tmp_path, stream):
    """Two devices' spools on different file systems. Then another directory on the first one, as after an engine's restart."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK) or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is one file system here")
    opened, closed = [], []

    class Named(PinnedReader):
        def __init__(self, name):
            super().__init__(stream, readers=1)
            self.name, self.files = name, []

        def read(self, path, *others):
            self.files.append(path)
            return super().read(path, *others)

        def close(self):
            closed.append(self.name)
            super().close()

    def open_ways(spool, mapped):
        opened.append(Named(f"{spool.name} {mapped}"))
        return opened[-1:]

    with tempfile.TemporaryDirectory(dir=shared) as other:
        spools = [tmp_path / "first", tmp_path / "again", Path(other)]
        files = [write(spool, (2, 20, 20, 3), seed=seed) for seed, spool in enumerate(spools)]
        gpu_transfer = GpuTransfer(stream, open_ways)
        found = [gpu_transfer.open(spool, mapped=False) for spool in spools]
        for file, one in zip(files, found, strict=True):
            epilogue = epilogue_for(file)
            assert torch.equal(file.read(one, epilogue)[0].images.cpu(), epilogue(torch.from_numpy(file.images)))
        assert [way.files for way in opened] == [[files[0].path, files[1].path], [files[2].path]]
        assert [one.remark for one in found] == [
            f"batches come by transfer='{name} False'" for name in ("first", "first", Path(other).name)
        ]
        assert gpu_transfer.open(spools[0], mapped=True) is not found[0]
        gpu_transfer.close()
    assert sorted(closed) == sorted(way.name for way in opened) and len(closed) == 3


def test_a_batch_of_the_hosts_own(stream):
    gpu_transfer = GpuTransfer(stream, lambda *_: [])
    images = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (4, 30, 31, 3), dtype=np.uint8))
    boxes = torch.tensor([[[0, 0, 9, 9]]] * 4, dtype=torch.int32)
    epilogue = Epilogue(TABLE, torch.zeros(1, 3))
    landed = gpu_transfer.bring(epilogue, images, boxes)
    landed.event.before_use(landed.images)
    assert landed.images.device == stream.device and torch.equal(landed.images.cpu(), epilogue(images, boxes))
    gpu_transfer.close()


@pytest.mark.parametrize("count", [1, *(BLOCK_BYTES + k for k in (-1, 0, 1)), 5 * BLOCK_BYTES + 77, 4097 * BLOCK_BYTES - 3])
def test_the_sum_is_the_engines(stream, count):
    """4097 blocks are more than are added at once."""
    data = np.random.default_rng(count).integers(0, 256, count, dtype=np.uint8)
    checksum = Checksum()
    checksum.update(data.data)
    memory = torch.zeros(padded(count), dtype=torch.uint8)
    memory[:count] = torch.from_numpy(data)
    assert digest(sum_blocks(memory.to(stream.device)).cpu().numpy().view(np.uint32)) == checksum.hexdigest()
