import numpy as np
import pytest

from csd_engine.batchfile.checksum import BLOCK_BYTES, MULTIPLIER
from csd_engine.cache.segments import _checksum


def horner(acc, data, blocks):
    words = data[: blocks * BLOCK_BYTES].view("<u4").reshape(blocks, BLOCK_BYTES // 4)
    for block in words:
        acc = acc * np.uint32(MULTIPLIER) + block
    return acc


@pytest.mark.parametrize("blocks", [0, 1, 5, 9])
@pytest.mark.parametrize("offset", [0, 6])
def test_blocks_are_added_as_numpy_adds_them(kernel, variant, blocks, offset):
    random = np.random.RandomState(blocks)
    data = random.randint(0, 256, 9 * BLOCK_BYTES + 8).astype(np.uint8)[offset:]
    begin = random.randint(0, 2**32, BLOCK_BYTES // 4, dtype=np.uint32)
    guarded = np.concatenate([[7] * 16, begin, [7] * 16]).astype(np.uint32)
    kernel.add_blocks(guarded[16:-16], data, blocks)
    assert np.array_equal(guarded[16:-16], horner(begin, np.ascontiguousarray(data), blocks))
    assert (guarded[:16] == 7).all() and (guarded[-16:] == 7).all()


def test_any_bytes_will_do(kernel):
    content = bytes(range(256)) * 512
    sums = []
    for data in (content, bytearray(content), memoryview(content)):
        acc = np.zeros(BLOCK_BYTES // 4, dtype=np.uint32)
        kernel.add_blocks(acc, data, 2)
        sums.append(acc.tobytes())
    assert sums == [horner(np.zeros(BLOCK_BYTES // 4, dtype=np.uint32), np.frombuffer(content, np.uint8), 2).tobytes()] * 3


@pytest.mark.parametrize("size", [0, 9, 16384, 16385, 150528])
def test_an_images_checksum_is_that_without_a_kernel(kernel, variant, size):
    memory = np.random.RandomState(size).randint(0, 256, (2, size + 3)).astype(np.uint8)
    images = [memory[0, 3:], memory[1, 1 : size + 1]]
    assert kernel.image_sums(images).tolist() == [_checksum(image) for image in images]


@pytest.mark.parametrize("image", [np.zeros(8, np.int8), np.zeros(8, np.uint8)[::2]])
def test_an_image_with_gaps_or_of_another_type_is_refused(kernel, image):
    assert kernel.image_sums([]).tolist() == []
    with pytest.raises(ValueError, match="contiguous uint8"):
        kernel.image_sums([image])


@pytest.mark.parametrize(
    "acc, size, blocks",
    [(np.zeros(4096, np.uint32), 32767, 2), (np.zeros(4096, np.int64), 16384, 1), (np.zeros(9, np.uint32), 16384, 1),
     (np.zeros(4096, np.uint32), 16384, -1)],
)  # fmt: skip
def test_what_does_not_fit_is_an_error(kernel, acc, size, blocks):
    with pytest.raises(ValueError, match="blocks of 16384"):
        kernel.add_blocks(acc, bytes(size), blocks)


@pytest.mark.parametrize("blocks", [1, 16, 53])
@pytest.mark.parametrize("offset", [0, 5])
def test_a_file_is_read_and_added_piece_by_piece(kernel, variant, tmp_path, blocks, offset):
    random = np.random.RandomState(blocks)
    content = random.randint(0, 256, 100 + blocks * BLOCK_BYTES).astype(np.uint8)
    path = tmp_path / "file"
    path.write_bytes(content.tobytes())
    begin = random.randint(0, 2**32, BLOCK_BYTES // 4, dtype=np.uint32)
    acc, memory = begin.copy(), np.full(offset + (blocks + 1) * BLOCK_BYTES, 7, np.uint8)
    with open(path, "rb", buffering=0) as file:
        file.seek(100)
        assert kernel.read_blocks(file.fileno(), memory[offset:-9].data, acc) == blocks * BLOCK_BYTES
        assert file.tell() == len(content)
    assert np.array_equal(acc, horner(begin, content[100:].copy(), blocks))
    end = offset + blocks * BLOCK_BYTES
    assert np.array_equal(memory[offset:end], content[100:])
    assert (memory[:offset] == 7).all() and (memory[end:] == 7).all()


def test_a_file_that_ends_early_is_read_as_far_as_it_goes(kernel, variant, tmp_path):
    content = np.random.RandomState(1).randint(0, 256, 18 * BLOCK_BYTES + 77).astype(np.uint8)
    (tmp_path / "file").write_bytes(content.tobytes())
    acc, memory = np.zeros(BLOCK_BYTES // 4, np.uint32), np.empty(40 * BLOCK_BYTES, np.uint8)
    with open(tmp_path / "file", "rb", buffering=0) as file:
        assert kernel.read_blocks(file.fileno(), memory.data, acc) == len(content)
    assert np.array_equal(memory[: len(content)], content)
    assert np.array_equal(acc, horner(np.zeros_like(acc), content, 18))


@pytest.mark.parametrize("size", [0, 1, 4096, 100_000])
def test_memory_that_is_given_its_pages_keeps_what_it_holds(kernel, size):
    memory = np.full(size + 9000, 7, np.uint8)
    for offset in (0, 1, 4095):
        kernel.populate(memory[offset : offset + size])
    assert (memory == 7).all()
    with pytest.raises(ValueError, match="without gaps"):
        kernel.populate(memory[::2])
