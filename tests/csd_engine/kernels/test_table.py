import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

GUARD = 0xA5


def table_of(channels, dtype, seed=0):
    """Random bytes. Some are NaNs as floats: those must come through unchanged."""
    size = np.dtype(dtype).itemsize
    return np.random.RandomState(seed).randint(0, 256, (channels, 256 * size)).astype(np.uint8).view(dtype)


def looked_up(pixels, table, channels_last):
    wanted = np.stack([table[c][pixels[..., c]] for c in range(pixels.shape[-1])], axis=-1)
    return wanted if channels_last else np.moveaxis(wanted, -1, -3)


def through_kernel(kernel, pixels, table, channels_last, offset=0):
    """The result, written at `offset` elements into guarded memory."""
    n, height, width, channels = pixels.shape
    shape = (n, height, width, channels) if channels_last else (n, channels, height, width)
    memory = np.full((pixels.size + 48 + offset) * table.dtype.itemsize, GUARD, dtype=np.uint8).view(table.dtype)
    begin = 24 + offset
    out = memory[begin : begin + pixels.size].reshape(shape)
    kernel.table(pixels, table, out, channels_last)
    rest = np.concatenate([memory[:begin], memory[begin + pixels.size :]])
    assert (rest.view(np.uint8) == GUARD).all(), "written beside the result"
    return out


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_each_value_becomes_its_entry(kernel, variant, dtype, channels_last):
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.integers(1, 3), st.integers(1, 90), st.integers(1, 90), st.sampled_from([1, 2, 3, 3, 4, 5]), st.integers(0, 40))
    def check(n, height, width, channels, offset):
        pixels = np.random.RandomState(offset).randint(0, 256, (n, height, width, channels)).astype(np.uint8)
        table = table_of(channels, dtype)
        out = through_kernel(kernel, pixels, table, channels_last, offset)
        assert np.array_equal(out, looked_up(pixels, table, channels_last))

    check()


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("offset", [0, 15])
@pytest.mark.parametrize("shape", [(2, 301, 299, 3), (1, 513, 517, 1)])
def test_results_beyond_the_caches(kernel, dtype, channels_last, offset, shape):
    pixels = np.random.RandomState(1).randint(0, 256, shape).astype(np.uint8)
    table = table_of(shape[3], dtype)
    assert np.array_equal(through_kernel(kernel, pixels, table, channels_last, offset), looked_up(pixels, table, channels_last))


def test_one_image_and_floats(kernel):
    pixels = np.arange(2 * 128 * 3, dtype=np.uint32).astype(np.uint8).reshape(2, 128, 3)
    table = (np.arange(768).reshape(3, 256) / 7).astype(np.float32)
    out = np.zeros((3, 2, 128), dtype=np.float32)
    kernel.table(pixels, table, out)
    assert np.array_equal(out, looked_up(pixels, table, False))


@pytest.mark.parametrize(
    "pixels, table, out",
    [
        (np.zeros((4, 5, 3), np.uint8), np.zeros((3, 256), np.float32), np.zeros((3, 5, 4), np.float32)),
        (np.zeros((4, 5, 3), np.uint8), np.zeros((3, 256), np.float32), np.zeros((3, 4, 5), np.float16)),
        (np.zeros((4, 5, 3), np.uint8), np.zeros((1, 256), np.float32), np.zeros((3, 4, 5), np.float32)),
        (np.zeros((4, 5, 3), np.uint8), np.zeros((3, 256), np.float64), np.zeros((3, 4, 5), np.float64)),
        (np.zeros((4, 5, 3), np.int8), np.zeros((3, 256), np.float32), np.zeros((3, 4, 5), np.float32)),
        (np.zeros((4, 10, 3), np.uint8)[:, ::2], np.zeros((3, 256), np.float32), np.zeros((3, 4, 5), np.float32)),
        (np.zeros((4, 5, 3), np.uint8), np.zeros((3, 256), np.float32), np.zeros((3, 4, 10), np.float32)[:, :, ::2]),
    ],
)
def test_what_does_not_fit_is_an_error(kernel, pixels, table, out):
    with pytest.raises(ValueError, match="gaps"):
        kernel.table(pixels, table, out)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_planes(kernel, variant, channels):
    for n, height, width in [(1, 1, 1), (2, 5, 3), (3, 16, 16), (1, 224, 224), (2, 61, 47)]:
        pixels = np.random.RandomState(n).randint(0, 256, (n, height, width, channels)).astype(np.uint8)
        memory = np.full(pixels.size + 64, GUARD, dtype=np.uint8)
        out = memory[32 : 32 + pixels.size].reshape(n, channels, height, width)
        kernel.planes(pixels, out)
        assert np.array_equal(out, pixels.transpose(0, 3, 1, 2))
        assert (memory[:32] == GUARD).all() and (memory[32 + pixels.size :] == GUARD).all(), "written beside the result"


def test_what_is_no_place_for_planes(kernel):
    pixels = np.zeros((2, 4, 5, 3), np.uint8)
    gaps = np.zeros((2, 3, 4, 10), np.uint8)[..., ::2]
    for wrong in (np.zeros((2, 3, 5, 4), np.uint8), np.zeros((2, 3, 4, 5), np.int8), gaps):
        with pytest.raises(ValueError):
            kernel.planes(pixels, wrong)
