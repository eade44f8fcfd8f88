"""Files to samples: every kind of JPEG against torchvision on Pillow; which files are left to Pillow; damaged files."""

import io
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from csd_engine.kernels.library import Context, Kernel
from tests.at_once import at_once
from tests.fuzz.pixels import (
    GENERATIONS,
    KINDS,
    ON_PILLOW,
    Reference,
    Tally,
    check,
    encoded,
    noise,
    random_size,
    region,
    segment,
    segments,
)

PLAIN, KIND, HEADER, DAMAGED, JOB = 0, 3, 2, 4, 5  # ddlp_refusal of src/ddlp.h


@pytest.fixture
def context(kernel):
    return kernel.context()


def whole(context: Context, jpeg: bytes):
    """The kernel's RGB pixels of the whole image, or None if it leaves the file to Pillow."""
    size = context.take(jpeg)
    if size is None:
        return None
    width, height = size
    out = np.empty((height, width, 3), dtype=np.uint8)
    return out if context.sample(region(0, 0, width, height), out) else None


def by_pillow(jpeg: bytes):
    """Pillow's RGB pixels, or None if it raises."""
    try:
        return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))
    except Exception:  # it raises nearly anything on a damaged file
        return None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.some(5)
def test_every_kind_has_torchvisions_bits(context, kind):
    rng, generator, tally = random.Random(kind), np.random.default_rng(len(kind)), Tally()
    for by in (ON_PILLOW, *map(Reference.on_tensors, GENERATIONS.values())):
        for _ in range(6 if by is not None else 0):
            check(context, KINDS[kind](generator, *random_size(rng)), rng, 8, tally, by)
    assert tally.samples >= 8 and (tally.differ, tally.refused) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.some(8)
def test_every_column_has_its_neighbours(context, kind):
    """Each first and each last column of a region, beside borders of MCUs and at the image's end."""
    for width in (16, 34, 65):
        jpeg = KINDS[kind](np.random.default_rng(width), width, 20)
        image = whole(context, jpeg)
        assert image is not None
        for left in range(width):
            for across in {1, 2, 3, 16 - left % 16, 17, width - left}:
                if left + across <= width:
                    out = np.empty((3, across, 3), dtype=np.uint8)
                    assert context.take(jpeg) and context.sample(region(left, 9, across, 3), out)
                    assert np.array_equal(out, image[9:12, left : left + across]), (width, left, across)


def test_grey_in_one_channel(context):
    jpeg = KINDS["grey"](np.random.default_rng(2), 90, 70)
    context.take(jpeg)
    assert context.components == 1
    out = np.empty((31, 40, 1), dtype=np.uint8)
    assert context.sample(region(21, 30, 40, 31, channels=1), out)
    assert np.array_equal(out[:, :, 0], np.asarray(Image.open(io.BytesIO(jpeg)))[30:61, 21:61])


def test_grey_of_a_colour_image_is_pillows(context):
    context.take(KINDS["4:2:0"](np.random.default_rng(2), 90, 70))
    assert not context.sample(region(0, 0, 8, 8, channels=1), np.empty((8, 8, 1), dtype=np.uint8))
    assert context.refusal == JOB


def test_rows_of_a_batch_are_written_and_nothing_else(context):
    jpeg = KINDS["4:4:4"](np.random.default_rng(3), 60, 50)
    batch = np.full((3, 20, 64, 3), 77, dtype=np.uint8)
    context.take(jpeg)
    assert context.sample(region(7, 9, 30, 20), batch[1, :, 4:34])
    assert np.array_equal(batch[1, :, 4:34], by_pillow(jpeg)[9:29, 7:37])
    batch[1, :, 4:34] = 77
    assert (batch == 77).all()


@pytest.mark.parametrize(
    "change",
    [{"left": -1}, {"left": 31}, {"top": 50}, {"width": 0}, {"width": 1 << 30}, {"left": 1 << 30, "top": 1 << 30},
     {"reduce": 3}, {"reduce": 2}, {"filter": 12}, {"full_width": 0, "filter": 2}, {"out_left": 1}],
)  # fmt: skip
def test_a_job_that_does_not_fit_is_refused(context, change):
    context.take(KINDS["4:2:0"](np.random.default_rng(3), 60, 50))
    job = region(0, 0, 30, 30)
    for name, value in change.items():
        setattr(job, name, value)
    assert not context.sample(job, np.empty((30, 30, 3), dtype=np.uint8))
    assert context.refusal == JOB


@pytest.mark.parametrize(
    "out",
    [np.empty((30, 30, 3)), np.empty((30, 29, 3), np.uint8), np.empty((30, 30), np.uint8), np.empty((30, 30, 4), np.uint8),
     np.empty((30, 60, 3), np.uint8)[:, ::2], np.empty((30, 30, 3), np.uint8)[::-1], np.zeros((30, 30, 3), np.uint8)],
)  # fmt: skip
def test_an_array_that_does_not_fit_is_an_error(context, out):
    context.take(KINDS["4:2:0"](np.random.default_rng(3), 60, 50))
    if out.shape == (30, 30, 3) and out.dtype == np.uint8 and out.strides[0] > 0:
        out.flags.writeable = False
    with pytest.raises(ValueError, match="expected uint8|to be writable"):
        context.sample(region(0, 0, 30, 30), out)


def patched(jpeg: bytes, marker: int, offset: int, value: int) -> bytes:
    """Change one byte of the first segment with this marker; offset 0 is the marker's second byte."""
    start = next(start for found, start, _ in segments(jpeg) if found == marker)
    at = start + 1 + offset
    return jpeg[:at] + bytes([value]) + jpeg[at + 1 :]


def _left_to_pillow():
    rng = np.random.default_rng(5)
    jpeg = KINDS["4:2:0"](rng, 64, 48)
    image = noise(rng, 64, 48)
    far = encoded(image, format="MPO", save_all=True, append_images=[image])
    no_tables = b"".join([b"\xff\xd8", *(jpeg[a:b] for marker, a, b in segments(jpeg) if marker != 0xDB)])
    scan = jpeg[[b for _, _, b in segments(jpeg)][-1] :]
    return {
        "nothing": (b"", HEADER),
        "a marker alone": (b"\xff\xd8\xff", HEADER),
        "PNG": (encoded(image, format="PNG"), HEADER),
        "CMYK": (encoded(image.convert("CMYK")), KIND),
        "12 bits": (patched(jpeg, 0xC0, 3, 12), KIND),
        "arithmetic": (patched(jpeg, 0xC0, 0, 0xC9), KIND),
        "lossless": (patched(jpeg, 0xC0, 0, 0xC3), KIND),
        "two components": (patched(jpeg, 0xC0, 8, 2), HEADER),
        "a bomb": (jpeg.replace(b"\x00\x30\x00\x40", b"\xff\xdc\xff\xdc", 1), KIND),
        "no height": (jpeg.replace(b"\x00\x30\x00\x40", b"\x00\x00\x00\x40", 1), HEADER),
        "several pictures": (far, HEADER),
        "a short JFIF segment": (b"\xff\xd8" + segment(0xE0, b"JFIF\0\1") + jpeg[2:], HEADER),
        "a short profile": (b"\xff\xd8" + segment(0xE2, b"ICC_PROFILE\0\1") + jpeg[2:], HEADER),
        "a resource's name cut off": (b"\xff\xd8" + segment(0xED, b"Photoshop 3.0\x008BIM\x03\xed") + jpeg[2:], HEADER),
        "other bytes between segments": (jpeg[:2] + b"\0" + jpeg[2:], HEADER),
        "no quantisation table": (no_tables + scan, DAMAGED),
    }


@pytest.mark.parametrize("name", _left_to_pillow())
def test_what_is_left_to_pillow(context, name):
    # Decode a valid file first: nothing of it may affect the next one.
    assert whole(context, KINDS["4:2:0"](np.random.default_rng(6), 64, 48)) is not None
    jpeg, refusal = _left_to_pillow()[name]
    assert whole(context, jpeg) is None
    assert context.refusal == refusal
    assert context.content() == jpeg


def test_photoshops_resources_are_walked_through_as_pillow_does(context):
    rng = np.random.default_rng(8)
    jpeg = KINDS["4:2:0"](rng, 20, 20)
    for count in range(60):
        resource = b"8BIM\x04\x04\x03abc\0\0\0\x05hello\0" + b"8BIM\x03\xed\0\0\0\0\0\x10" + bytes(16)
        mixed = jpeg[:2] + segment(0xED, b"Photoshop 3.0\0" + resource[:count]) + jpeg[2:]
        assert (whole(context, mixed) is None) == (by_pillow(mixed) is None), count


def test_a_file_that_breaks_off_is_never_taken_for_whole(context):
    """For every end of the file, and however little of it the region needs."""
    for kind in ("4:2:0", "progressive", "grey", "restart blocks", "three scans"):
        jpeg = KINDS[kind](np.random.default_rng(9), 80, 70)
        assert whole(context, jpeg) is not None
        for end in [*range(0, len(jpeg), 37), len(jpeg) - 2, len(jpeg) - 1]:
            part = jpeg[:end]
            taken = context.take(part) is not None
            assert not taken or not context.sample(region(3, 0, 9, 2), np.empty((2, 9, 3), dtype=np.uint8)), (kind, end)
            assert context.refusal


def test_reading_a_file(context, tmp_path):
    jpeg = KINDS["4:2:2"](np.random.default_rng(11), 70, 90)
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg)
    with open(path, "rb") as stream:
        stream.seek(5)  # the file is read from its start anyway
        assert context.read(stream.fileno(), len(jpeg)) == (70, 90)
        assert context.content() == jpeg
        out = np.empty((90, 70, 3), dtype=np.uint8)
        assert context.sample(region(0, 0, 70, 90), out) and np.array_equal(out, by_pillow(jpeg))
        # The file has become shorter since its size was asked for.
        assert context.read(stream.fileno(), len(jpeg) + 1) is None
        assert (context.refusal, context.content()) == (DAMAGED, jpeg)
        assert not context.sample(region(0, 0, 70, 90), out)
    with pytest.raises(OSError, match="Bad file descriptor"):
        context.read(1 << 20, 10)
    assert context.content() == b""


def test_a_context_for_each_thread(kernel):
    """Each thread has a context of its own, and threads decode at the same time."""
    rng = np.random.default_rng(12)
    files = [KINDS[kind](rng, 200, 150) for kind in ("4:2:0", "progressive", "grey", "optimised")]
    pixels = [by_pillow(jpeg) for jpeg in files]

    def work(turn):
        order = [(turn + count) % len(files) for count in range(40)]
        wrong = [k for k in order if not np.array_equal(whole(kernel.context(), files[k]), pixels[k])]
        return kernel.context(), wrong

    contexts, wrong = zip(*at_once(work, 4))
    assert len({id(context) for context in contexts}) == 4 and not any(wrong)


def test_progressive_files_with_scans_missing(context):
    """libjpeg smooths missing scans with neighbouring blocks. The whole image is decoded then, and the bits are the same."""
    rng = np.random.default_rng(13)
    jpeg = encoded(noise(rng, 150, 120), progressive=True, quality=40)
    scans = [at for at in range(len(jpeg)) if jpeg[at : at + 2] == b"\xff\xda"]
    assert len(scans) > 6
    for end in scans[1:]:
        part = jpeg[:end] + b"\xff\xd9"
        pixels = by_pillow(part)
        context.take(part)
        for left, top, width, height in ((50, 33, 40, 40), (0, 100, 150, 20), (149, 0, 1, 1)):
            out = np.empty((height, width, 3), dtype=np.uint8)
            assert context.sample(region(left, top, width, height), out), context.why()
            assert np.array_equal(out, pixels[top : top + height, left : left + width]), end


def test_libjpeg_of_interface_8_and_the_systems_own(kernel, tmp_path):
    """Ubuntu's Pillow uses libjpeg's interface 8, as in torchvision's wheel. Debian's uses an older 6.2."""
    import torchvision

    found = [*Path(torchvision.__file__).parents[1].glob("torchvision.libs/libjpeg*"), *Path("/usr/lib").glob("*/libjpeg.so.*")]
    libraries = sorted({library.resolve() for library in found})
    if not libraries:
        pytest.skip("needs another libjpeg than Pillow's")
    for number, library in enumerate(libraries):
        path = tmp_path / f"{number}.so"
        shutil.copy(kernel.path, path)  # a copy of the library, which has not loaded a libjpeg yet
        other = Kernel(str(path), str(library)).context()
        rng, generator, tally = random.Random(number), np.random.default_rng(number), Tally()
        for make in KINDS.values():
            check(other, make(generator, *random_size(rng)), rng, 6, tally)
        assert tally.samples > 60 and (tally.differ, tally.refused) == (0, 0), library
