import numpy as np
import pytest

from csd_engine.checksum import BLOCK_BYTES, MULTIPLIER


def horner(acc, data, blocks):
    words = data[: blocks * BLOCK_BYTES].view("<u4").reshape(blocks, BLOCK_BYTES // 4)
    for block in words:
        acc = acc * np.uint32(MULTIPLIER) + block
    return acc


@pytest.mark.parametrize("blocks", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("offset", [0, 1, 6])
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


@pytest.mark.parametrize(
    "acc, size, blocks",
    [(np.zeros(4096, np.uint32), 32767, 2), (np.zeros(4096, np.int64), 16384, 1), (np.zeros(9, np.uint32), 16384, 1),
     (np.zeros(4096, np.uint32), 16384, -1)],
)  # fmt: skip
def test_what_does_not_fit_is_an_error(kernel, acc, size, blocks):
    with pytest.raises(ValueError, match="blocks of 16384"):
        kernel.add_blocks(acc, bytes(size), blocks)
