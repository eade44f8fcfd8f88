"""A JPEG's index: the same pixels from fewer bytes, and no index that is damaged or another file's is used."""

from __future__ import annotations

import io
import os
import random
import tempfile

import numpy as np
import pytest
from PIL import Image

from csd_engine.kernels.library import Job
from scripts.check_kernel import KINDS, encoded, noise, random_job, sampled

BASELINE = [kind for kind in KINDS if "rogressive" not in kind and "scans" not in kind]


def crop(left, top, width, height):
    """A job that resizes nothing."""
    return Job(left=left, top=top, width=width, height=height, full_width=width, full_height=height, out_width=width,
               out_height=height, reduce=1, channels=3)  # fmt: skip


def index_of(context, jpeg):
    """The index that a sample of the file's first pixel makes."""
    context.want_index(True)
    try:
        context.take(jpeg)
        job = crop(0, 0, 1, 1)
        assert context.sample(job, np.empty((1, 1, 3), np.uint8))
        return context.made_index()
    finally:
        context.want_index(False)


def made(context, job, refused=False):
    out = np.empty((job.out_height, job.out_width, job.channels), np.uint8)
    assert context.sample(job, out) is not refused
    return out


class Opened:
    """A file with some bytes before and behind the JPEG."""

    def __init__(self, jpeg):
        self._file = tempfile.TemporaryFile()
        self._file.write(b"x" * 77 + jpeg + b"y" * 9)
        self._file.flush()
        self.about = self._file.fileno(), len(jpeg)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


@pytest.mark.parametrize("kind", BASELINE)
def test_the_pixels_are_those_without_it(kernel, kind):
    context, generator, rng = kernel.context(), np.random.default_rng(3), random.Random(kind)
    for width, height in ((1, 1), (17, 40), (200, 9), (333, 250)):
        jpeg = KINDS[kind](generator, width, height)
        size = context.take(jpeg)
        job, _ = random_job(rng, *size)
        plain = made(context, job)
        context.want_index(True)
        assert np.array_equal(made(context, job), plain)
        index = context.made_index()
        context.want_index(False)
        assert index is not None and index == index_of(context, jpeg)  # whatever part was decoded
        for _ in range(6):
            reduce = rng.choice((1, 1, 1, 2, 4, 8))
            job, _ = random_job(rng, *(-(-side // reduce) for side in size))
            job.reduce = reduce
            context.take(jpeg)
            plain = made(context, job)
            assert context.take(jpeg) and context.use_index(index) and np.array_equal(made(context, job), plain)
            with Opened(jpeg) as file:
                assert context.read_indexed(*file.about, index, 77) == size
                assert np.array_equal(made(context, job), plain)
                assert context.content() == b""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in BASELINE])
def test_other_kinds_have_none(kernel, kind):
    jpeg = KINDS[kind](np.random.default_rng(3), 100, 80)
    assert index_of(kernel.context(), jpeg) is None


def photograph(width=500, height=375, **options):
    return encoded(noise(np.random.default_rng(5), width, height), quality=90, **options)


def test_it_is_small_and_saves_most_of_the_decoding(kernel):
    context, jpeg = kernel.context(), photograph()
    index = index_of(context, jpeg)
    assert 0.005 * len(jpeg) < len(index) < 0.015 * len(jpeg)
    job = crop(300, 250, 100, 80)
    context.take(jpeg)
    made(context, job)
    all_bits = context.coded_bits
    context.take(jpeg)
    context.use_index(index)
    made(context, job)
    assert 0 < context.coded_bits < 0.25 * all_bits
    context.take(jpeg)
    made(context, crop(0, 0, 500, 375))
    every = context.coded_bits
    assert all_bits < every
    context.take(jpeg)
    context.use_index(index)
    made(context, crop(0, 0, 500, 375))
    assert context.coded_bits == every


def test_what_lies_beside_the_needed_part_is_not_read(kernel):
    """Bytes from the file's middle on are another file's: a part above is the same, and one below is not."""
    context, jpeg = kernel.context(), photograph()
    index = index_of(context, jpeg)
    half = len(jpeg) // 2
    above = crop(40, 8, 200, 90)
    context.take(jpeg)
    plain = made(context, above)
    with Opened(jpeg[:half] + b"\xff\xd9" * ((len(jpeg) - half) // 2) + b"\0" * ((len(jpeg) - half) % 2)) as file:
        assert context.read_indexed(*file.about, index, 77)
        assert np.array_equal(made(context, above), plain)
        above.top = 250
        made(context, above, refused=True)


def test_what_lies_behind_the_needed_part_need_not_be_there(kernel):
    context, jpeg = kernel.context(), photograph()
    index, above = index_of(context, jpeg), crop(40, 8, 200, 90)
    context.take(jpeg)
    plain = made(context, above)
    with Opened(jpeg[: len(jpeg) // 2]) as file:
        assert context.read_indexed(file.about[0], len(jpeg), index, 77)
        assert np.array_equal(made(context, above), plain)
        made(context, crop(40, 300, 20, 20), refused=True)


def test_a_file_with_another_header_is_refused(kernel):
    """Of the same length: a value of the quantisation, by which the coded data are as good as before."""
    context, jpeg = kernel.context(), photograph(90, 70)
    other, index = bytearray(jpeg), index_of(context, jpeg)
    other[jpeg.index(b"\xff\xdb") + 9] += 1
    context.take(bytes(other))
    made(context, crop(0, 0, 9, 9))
    context.use_index(index)
    made(context, crop(0, 0, 9, 9), refused=True)
    with Opened(other) as file:
        context.read_indexed(*file.about, index, 77)
        made(context, crop(0, 0, 9, 9), refused=True)


def test_a_file_with_other_coded_data_is_refused(kernel):
    """Of the same header and length: where the index has a point, other DC values stand."""
    context, files = kernel.context(), [encoded(noise(np.random.default_rng(seed), 500, 375), quality=90) for seed in (1, 2)]
    first, second = (jpeg + bytes(max(map(len, files)) - len(jpeg)) for jpeg in files)
    index, job = index_of(context, first), crop(40, 80, 200, 90)
    context.take(second)
    assert context.use_index(index)
    made(context, job, refused=True)
    with Opened(second) as file:
        assert context.read_indexed(*file.about, index, 77)
        made(context, job, refused=True)


def test_a_damaged_file_has_none(kernel):
    """Though the sample, which lies above the damage, can be made."""
    context, jpeg = kernel.context(), photograph()
    damaged = bytearray(jpeg)
    damaged[-400:-300] = b"\0" * 100
    assert index_of(context, jpeg) is not None
    assert index_of(context, bytes(damaged)) is None


def test_a_changed_byte_or_length_is_refused(kernel):
    context, jpeg, rng = kernel.context(), photograph(90, 70), random.Random(1)
    index = index_of(context, jpeg)
    with Opened(jpeg) as file:
        for at in range(len(index)):
            wrong = bytearray(index)
            wrong[at] ^= 1 << rng.randrange(8)
            for bad in (bytes(wrong), index[:at], index + bytes(at + 1)):
                assert context.take(jpeg) and not context.use_index(bad)
                assert context.read_indexed(*file.about, bad, 77) is None


@pytest.mark.parametrize(
    "other", [photograph(90, 71), photograph(90, 70, subsampling=0), photograph(90, 70, optimize=True), photograph(90, 70)[:-3]]
)
def test_another_files_is_refused(kernel, other):
    context, index = kernel.context(), index_of(kernel.context(), photograph(90, 70))
    job = crop(0, 0, 9, 9)
    context.take(other)
    if context.use_index(index):
        made(context, job, refused=True)
    with Opened(other) as file:
        if context.read_indexed(*file.about, index, 77) is not None:
            made(context, job, refused=True)


def test_an_image_of_one_row_of_mcus_or_of_very_many(kernel):
    context = kernel.context()
    for jpeg in (sampled(np.random.default_rng(1), 3000, 8, ((1, 1), (1, 1), (1, 1))), photograph(8, 3000)):
        width, height = context.take(jpeg)
        plain, index = made(context, crop(0, 0, width, height)), index_of(context, jpeg)
        for left, top, across, down in ((width // 2, height // 3, 5, 7), (0, height - 1, width, 1), (width - 1, 0, 1, height)):
            down, across = min(down, height - top), min(across, width - left)
            job = crop(left, top, across, down)
            context.take(jpeg)
            context.use_index(index)
            assert np.array_equal(made(context, job), plain[top : top + down, left : left + across])


def test_pillow_agrees(kernel):
    context, jpeg = kernel.context(), photograph()
    index, image = index_of(context, jpeg), Image.open(io.BytesIO(jpeg))
    for seed in range(20):
        job, reference = random_job(random.Random(seed), *image.size)
        with Opened(jpeg) as file:
            context.read_indexed(*file.about, index, 77)
            assert np.array_equal(made(context, job), np.asarray(reference(image)))


def test_a_file_that_became_shorter_is_refused(kernel, tmp_path):
    context, jpeg = kernel.context(), photograph()
    index, path = index_of(context, jpeg), tmp_path / "image.jpg"
    path.write_bytes(jpeg)
    with path.open("rb") as stream:
        assert context.read_indexed(stream.fileno(), len(jpeg), index)
        os.truncate(path, len(jpeg) // 2)
        job = crop(9, 300, 9, 9)
        made(context, job, refused=True)
