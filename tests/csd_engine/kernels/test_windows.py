import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csd_engine.arithmetic.keyed import KeyedRows
from csd_engine.transforms.draws import DrawKind, Program, Step, drawn
from csd_engine.transforms.primitives import border_indices

HOLE = (DrawKind.HOLE, (0, 2, 4, 4), 0.0)
BOUNDS = st.one_of(st.integers(1, 40), st.just(1 << 20))
CHANCES = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
FAR = 40  # farther outside than any window drawn here


def by_numpy(rows, indices, tops, lefts, across, down, fill, shape, mode):
    """Pad each sample far on all sides, cut the window out, then mirror it."""
    _, height, width, channels = rows.shape
    out = np.empty((len(indices), *shape, channels), dtype=np.uint8)
    for i, index in enumerate(indices):
        if mode == "constant":
            padded = np.empty((height + 2 * FAR, width + 2 * FAR, channels), dtype=np.uint8)
            padded[...] = fill
            padded[FAR : FAR + height, FAR : FAR + width] = rows[index]
        else:
            padded = rows[index][border_indices(height, FAR, FAR, mode)][:, border_indices(width, FAR, FAR, mode)]
        top, left = FAR + tops[i], FAR + lefts[i]
        window = padded[top : top + shape[0], left : left + shape[1]]
        out[i] = window[:: -1 if down[i] else 1, :: -1 if across[i] else 1]
    return out


def as_planes(rows):
    """The same samples with one plane per channel in memory, like torchvision's CIFAR10.data."""
    return np.ascontiguousarray(rows.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)


def spread(rows):
    """The same samples with gaps in memory between rows, pixels and channels."""
    wide = np.zeros((rows.shape[0], rows.shape[1] + 1, 2 * rows.shape[2], rows.shape[3] + 2), dtype=np.uint8)
    view = wide[:, :-1, ::2, 1:-1]
    view[...] = rows
    return view


@pytest.mark.parametrize("layout", [np.ascontiguousarray, as_planes, spread])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.some(3)
def test_windows_are_numpys(kernel, mode, layout):
    @settings(max_examples=80, deadline=None, derandomize=True)
    @given(st.data())
    def check(data):
        def number(low, high):
            return data.draw(st.integers(low, high))

        height, width, channels = number(1, 12), number(1, 12), data.draw(st.sampled_from([1, 3, 3, 4]))
        shape, count, samples = (number(1, 15), number(1, 15)), number(0, 4), number(1, 5)
        random = np.random.RandomState(number(0, 999))
        rows = layout(random.randint(0, 256, (samples, height, width, channels)).astype(np.uint8))
        indices, across, down = random.randint(0, samples, count), random.rand(count) < 0.5, random.rand(count) < 0.5
        tops, lefts = random.randint(-20, height + 6, count), random.randint(-20, width + 6, count)
        fill = tuple(random.randint(0, 256, channels).tolist())
        memory = np.full(count * shape[0] * shape[1] * channels + 64, 0xA5, dtype=np.uint8)
        out = memory[32:-32].reshape(count, *shape, channels)
        kernel.windows(rows, shape, fill, mode).cut(indices, tops, lefts, across, down, out)
        assert np.array_equal(out, by_numpy(rows, indices, tops, lefts, across, down, fill, shape, mode))
        assert (memory[:32] == 0xA5).all() and (memory[-32:] == 0xA5).all()
        kind, last = data.draw(st.sampled_from([np.int16, np.int32])), data.draw(st.booleans())
        assert_same_through_a_table(kernel, rows, (indices, tops, lefts, across, down, fill), out, mode, kind, last)

    check()


def assert_same_through_a_table(kernel, rows, drawn, windows, mode, kind, channels_last):
    """Assert that cutting windows with a table gives the same as cutting first and applying the table then."""
    n, height, width, channels = windows.shape
    table = np.random.RandomState(1).randint(0, 2**15, (channels, 256)).astype(kind)
    shape = windows.shape if channels_last else (n, channels, height, width)
    expected, memory = np.zeros(shape, dtype=kind), np.full(windows.size + 64, 0x5A, dtype=kind)
    out = memory[32:-32].reshape(shape)
    kernel.table(windows, table, expected, channels_last)
    *corners, fill = drawn
    kernel.windows(rows, (height, width), fill, mode).cut(*corners, out, table, channels_last)
    assert np.array_equal(out, expected)
    assert (memory[:32] == 0x5A).all() and (memory[-32:] == 0x5A).all()


@pytest.mark.parametrize("layout", [np.ascontiguousarray, as_planes, spread])
@pytest.mark.parametrize("side", [32, 64])  # the kernel treats a small sample as a whole, a large one line by line
def test_many_samples_as_those_of_a_batch(kernel, variant, layout, side):
    random = np.random.RandomState(side)
    rows, n = layout(random.randint(0, 256, (9, side, side, 3)).astype(np.uint8)), 40
    drawn = (random.randint(0, 9, n), *random.randint(-4, 5, (2, n)), random.rand(n) < 0.5, random.rand(n) < 0.5, (0, 0, 0))
    out = np.zeros((n, side, side, 3), dtype=np.uint8)
    kernel.windows(rows, (side, side), drawn[-1]).cut(*drawn[:-1], out)
    assert np.array_equal(out, by_numpy(rows, *drawn, (side, side), "constant"))
    for kind in (np.int16, np.int32):
        for last in (False, True):
            assert_same_through_a_table(kernel, rows, drawn, out, "constant", kind, last)


@pytest.mark.parametrize("table", [np.zeros((3, 255), np.int32), np.zeros((1, 256), np.int32), np.zeros((3, 256), np.int8)])
def test_what_is_no_table_is_an_error(kernel, table):
    rows, out = np.ones((3, 4, 4, 3), dtype=np.uint8), np.zeros((2, 3, 4, 4), dtype=table.dtype)
    with pytest.raises(ValueError, match="a table is"):
        kernel.windows(rows, (4, 4), (0,) * 3).cut(*np.zeros((3, 2), int), None, None, out, table)


def test_no_flags_mean_no_mirroring(kernel):
    rows = np.random.RandomState(0).randint(0, 256, (5, 8, 8, 3)).astype(np.uint8)
    out = np.zeros_like(rows)
    zeros = np.zeros(5, dtype=np.int32)  # any integers
    kernel.windows(rows, (8, 8), (0, 0, 0)).cut(np.arange(5)[::-1], zeros, zeros, None, None, out)
    assert np.array_equal(out, rows[::-1])


@pytest.mark.parametrize("index", [-1, 3, 2**62])
def test_a_sample_that_is_none_is_an_error_and_nothing_is_written(kernel, index):
    rows, out = np.ones((3, 4, 4, 1), dtype=np.uint8), np.zeros((2, 4, 4, 1), dtype=np.uint8)
    indices, boxes = np.array([0, index]), np.zeros((2, 1, 4), dtype=np.int32)
    windows = kernel.windows(rows, (4, 4), (0,), steps=[HOLE], masks=1)
    with pytest.raises(IndexError, match=f"index {index} is none of 3 samples"):
        windows.cut(indices, *np.zeros((2, 2), int), None, None, out)
    with pytest.raises(IndexError, match=f"index {index} is none of 3 samples"):
        windows.draw(1, 2, indices, np.zeros(2, int), out, boxes)
    assert not out.any() and not boxes.any()


@pytest.mark.parametrize("far", [2**31, -(2**63)])
def test_a_window_far_away_is_an_error(kernel, far):
    rows, out, one = np.ones((3, 4, 4, 1), dtype=np.uint8), np.zeros((1, 4, 4, 1), dtype=np.uint8), np.zeros(1, int)
    with pytest.raises(IndexError, match="too far outside"):
        kernel.windows(rows, (4, 4), (0,)).cut(one, np.array([far]), one, None, None, out)
    with pytest.raises(IndexError, match="too far outside"):
        kernel.windows(rows, (4, 4), (0,), steps=[(DrawKind.MOVE, (0, 0, far, 0), 0.0)]).draw(1, 2, one, one, out)


def test_what_does_not_fit_is_an_error(kernel):
    rows, out, one = np.ones((3, 4, 4, 3), dtype=np.uint8), np.zeros((1, 4, 4, 3), dtype=np.uint8), np.zeros(1, int)
    black = (0, 0, 0)
    with pytest.raises(ValueError, match="need uint8"):
        kernel.windows(rows.astype(np.int8), (4, 4), black)
    with pytest.raises(ValueError, match="fill of 1"):
        kernel.windows(rows, (4, 4), (0,))
    with pytest.raises(ValueError, match="padding mode 'wrap': expected one of constant"):
        kernel.windows(rows, (4, 4), black, "wrap")
    windows = kernel.windows(rows, (4, 4), black, steps=[HOLE], masks=1)
    for wrong in (out[..., :1], out.astype(np.int8), np.zeros((1, 5, 4, 3), np.uint8), np.zeros((2, 4, 4, 3), np.uint8)):
        with pytest.raises(ValueError, match=r"1 windows go to uint8 \(1, 4, 4, 3\)"):
            windows.cut(one, one, one, None, None, wrong)
    with pytest.raises(ValueError, match="one a window"):
        windows.cut(one, np.zeros(2, int), one, None, None, out)
    with pytest.raises(ValueError, match="without gaps"):
        windows.cut(one, one, one, None, None, np.zeros((1, 4, 4, 6), np.uint8)[..., ::2])
    with pytest.raises(ValueError, match="1 samples, got"):
        windows.draw(1, 2, one, np.zeros(2, int), out, np.zeros((1, 1, 4), np.int32))
    for boxes in (None, np.zeros((1, 2, 4), np.int32), np.zeros((1, 1, 4), np.int64)):
        with pytest.raises(ValueError, match=r"boxes of 1 samples are int32 \(1, 1, 4\)"):
            windows.draw(1, 2, one, one, out, boxes)
    with pytest.raises(ValueError, match="without gaps"):
        windows.draw(1, 2, one, one, out, np.zeros((1, 1, 8), np.int32)[..., ::2])


@pytest.mark.parametrize("step", [(6, (0, 0, 4, 4), 0.0), (-1, (0,) * 4, 0.0), (DrawKind.ROW, (0,) * 4, 0.0),
                                  (DrawKind.COLUMN, (1 << 32, 0, 0, 0), 0.0), (DrawKind.HOLE, (1, 2, 4, 4), 0.0),
                                  (DrawKind.HOLE, (-1, 2, 4, 4), 0.0), (DrawKind.HOLE, (0, 2, 0, 4), 0.0)],
                         ids=str)  # fmt: skip
def test_a_step_that_is_none_is_an_error_and_nothing_is_written(kernel, step):
    rows, out, one = np.ones((3, 4, 4, 3), dtype=np.uint8), np.zeros((1, 4, 4, 3), dtype=np.uint8), np.zeros(1, int)
    boxes = np.zeros((1, 1, 4), np.int32)
    with pytest.raises(ValueError, match="a step that the kernel does not know"):
        kernel.windows(rows, (4, 4), (0,) * 3, steps=[HOLE, step], masks=1).draw(1, 2, one, one, out, boxes)
    assert not out.any() and not boxes.any()


def test_drawn_windows_are_those_that_the_definition_draws(kernel, variant):
    """For many programs, and for sample counts that fill one, a few or several groups of random streams."""

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(
        st.lists(
            st.one_of(
                st.builds(lambda *n: Step(DrawKind.MOVE, n), *[st.integers(-5, 5)] * 4),
                st.builds(lambda kind, n: Step(kind, (n, 0, 0, 0)), st.sampled_from([DrawKind.ROW, DrawKind.COLUMN]), BOUNDS),
                st.builds(lambda kind, p: Step(kind, chance=p), st.sampled_from([DrawKind.ACROSS, DrawKind.DOWN]), CHANCES),
                st.builds(lambda box, half: Step(DrawKind.HOLE, (box, half, 9, 7)), st.integers(0, 1), st.integers(0, 12)),
            ),
            max_size=12,
        ),
        st.sampled_from([0, 1, 3, 64, 65, 200]),
        st.integers(-3, 2**64 - 1),
    )
    def check(steps, count, seed):
        steps = [*steps, Step(DrawKind.HOLE, (0, 1, 9, 7)), Step(DrawKind.HOLE, (1, 2, 9, 7))]  # a step sets each box
        random = np.random.RandomState(count)
        rows = random.randint(0, 256, (11, 6, 5, 3)).astype(np.uint8)
        indices, occurrences = random.randint(0, 11, count), random.randint(0, 3, count)
        wanted = drawn(Program(9, 7, 3, tuple(steps)), KeyedRows(seed, 4, indices, occurrences), 2)
        windows = kernel.windows(rows, (9, 7), (1, 2, 3), "edge", [step[:3] for step in steps], 2)
        expected, out = np.zeros((2, count, 9, 7, 3), dtype=np.uint8)
        windows.cut(indices, wanted.top, wanted.left, wanted.across, wanted.down, expected)
        memory = np.full(count * 8 + 16, -77, dtype=np.int32)
        boxes = memory[8:-8].reshape(count, 2, 4)
        windows.draw(seed, 4, indices, occurrences, out, boxes)
        assert np.array_equal(out, expected) and np.array_equal(boxes, wanted.boxes)
        assert (memory[:8] == -77).all() and (memory[-8:] == -77).all()

    check()
