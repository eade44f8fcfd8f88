"""Our decoder of progressive files gives Pillow's pixels for all possible scans. Unusual files are left to libjpeg."""

import io

import numpy as np
import pytest
from PIL import Image

from csd_engine import kernels
from tests.fuzz.pixels import encoded, noise, region
from tests.progressive_jpeg import Scan, progressive_jpeg, segment

FACTORS = {
    "4:2:0": ((2, 2), (1, 1), (1, 1)),
    "4:2:2": ((2, 1), (1, 1), (1, 1)),
    "4:4:4": ((1, 1), (1, 1), (1, 1)),
    "4:4:0": ((1, 2), (1, 1), (1, 1)),
    "4:1:1": ((4, 1), (1, 1), (1, 1)),
    "2x2 2x1 1x2": ((2, 2), (2, 1), (1, 2)),
    "chroma finer": ((1, 1), (2, 2), (1, 1)),
    "grey": ((1, 1),),
    "grey 2x2": ((2, 2),),
}
ALL = (0, 1, 2)


@pytest.fixture
def decode(kernel):
    """decode(data, box, reduce) -> (the kernel's pixels, None if it leaves the file to Pillow; whether our decoder read it)."""

    def decode(data, box, reduce=1):
        context = kernel.context()
        left, top, right, bottom = box
        out = np.zeros((bottom - top, right - left, 3), np.uint8)
        job = region(left, top, right - left, bottom - top, reduce)
        done = context.take(data) is not None and context.sample(job, out)
        return (out if done else None), context.own_entropy

    return decode


def by_pillow(data, box=None, reduce=1):
    image = Image.open(io.BytesIO(data))
    if reduce > 1:
        image.draft(None, (max(image.width // reduce, 1), max(image.height // reduce, 1)))
    return np.asarray(image.convert("RGB").crop(box) if box else image.convert("RGB"))


def random_box(rng, width, height):
    left, top = int(rng.integers(width)), int(rng.integers(height))
    return left, top, int(rng.integers(left, width)) + 1, int(rng.integers(top, height)) + 1


@pytest.mark.parametrize("kind", FACTORS)
def test_any_scans(decode, kind):
    rng = np.random.default_rng(len(kind))
    for number in range(12):
        width, height = (int(side) for side in rng.integers(1, (33, 121)[number % 2], 2))
        data = progressive_jpeg(rng, width, height, FACTORS[kind], interval=int(rng.integers(0, 6)) * (number % 3 == 0))
        for box in ((0, 0, width, height), *(random_box(rng, width, height) for _ in range(3))):
            ours, own = decode(data, box)
            assert own and np.array_equal(ours, by_pillow(data, box)), (number, box)


@pytest.mark.parametrize("reduce", [2, 4, 8])
def test_scaled(decode, reduce):
    rng = np.random.default_rng(reduce)
    for kind in ("4:2:0", "4:2:2", "4:4:4", "grey"):
        data = progressive_jpeg(rng, 128, 96, FACTORS[kind])
        for _ in range(6):
            box = random_box(rng, 128 // reduce, 96 // reduce)
            ours, own = decode(data, box, reduce)
            assert own and np.array_equal(ours, by_pillow(data, box, reduce))


def test_pillows_own_files_and_runs_of_thousands_of_empty_blocks(decode):
    rng = np.random.default_rng(4)
    pictures = {
        "noise": noise(rng, 203, 171),
        "flat": Image.new("RGB", (2100, 1300), (9, 99, 200)),
        "all coefficients": Image.fromarray(rng.integers(0, 256, (90, 120, 3)).astype(np.uint8)),
    }
    for name, picture in pictures.items():
        for options in ({}, {"subsampling": 0, "quality": 100}, {"quality": 3}, {"restart_marker_rows": 1}):
            data = encoded(picture, progressive=True, **options)
            box = random_box(rng, *picture.size)
            ours, own = decode(data, box)
            assert own and np.array_equal(ours, by_pillow(data, box)), (name, options)


def test_several_images_and_jobs_one_after_the_other(decode):
    """Nothing of a large image or of another file's tables may affect the next image."""
    rng = np.random.default_rng(5)
    files = [progressive_jpeg(rng, *size, FACTORS["4:2:0"]) for size in ((120, 100), (9, 9), (60, 200))]
    files.append(encoded(noise(rng, 60, 50)))  # a baseline file
    for number in (0, 1, 3, 2, 2, 0, 3, 1):
        pixels = by_pillow(files[number])
        ours, own = decode(files[number], (0, 0, pixels.shape[1], pixels.shape[0]))
        assert own and np.array_equal(ours, pixels)


def markers(data):
    """(marker, position) of each segment, those between scans as well."""
    at, found = 2, []
    while at < len(data) - 1:
        if data[at] == 0xFF and data[at + 1] not in (0, 0xFF) and not 0xD0 <= data[at + 1] <= 0xD7:
            found.append((data[at + 1], at))
            at += 2 if data[at + 1] == 0xD9 else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        else:
            at += 1
    return found


def complete(low=1):
    """Scans that bring all coefficients."""
    first = [Scan(ALL, 0, 0, 0, low), *(Scan((c,), 1, 63, 0, low) for c in ALL)]
    return first + [Scan(ALL, 0, 0, 1, 0), *(Scan((c,), 1, 63, 1, 0) for c in ALL)] * low


UNUSUAL = {
    "a bit of the DC is missing": [s for s in complete() if not (s.high and not s.last)],
    "low frequencies are missing": [s for s in complete() if s.components != (1,)],
    "a bit of one component is missing": complete()[:-1],
    "sent twice": [*complete(0), Scan((0,), 1, 63, 0, 0)],
    "many bits missing at first": [Scan(ALL, 0, 0, 0, 0)] + [
        Scan((c,), 1, 63, high, low) for c in ALL for high, low in ((0, 6), *((k, k - 1) for k in range(6, 0, -1)))
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_libjpegs(decode, name):
    rng = np.random.default_rng(6)
    data = progressive_jpeg(rng, 90, 80, FACTORS["4:2:0"], scans=UNUSUAL[name])
    for box in ((0, 0, 90, 80), (31, 40, 60, 71)):
        ours, own = decode(data, box)
        assert not own and np.array_equal(ours, by_pillow(data, box))


def test_high_frequencies_may_be_missing(decode):
    scans = [Scan(ALL, 0, 0, 0, 0), *(Scan((c,), 1, 9, 0, 0) for c in ALL), Scan((0,), 10, 40, 0, 2)]
    data = progressive_jpeg(np.random.default_rng(7), 90, 80, FACTORS["4:2:0"], scans=scans)
    ours, own = decode(data, (0, 0, 90, 80))
    assert own and np.array_equal(ours, by_pillow(data))


def test_segments_between_scans(decode):
    data = progressive_jpeg(np.random.default_rng(8), 60, 50, FACTORS["4:2:0"], scans=complete())
    at = [at for marker, at in markers(data) if marker == 0xC4][3]
    filled = data[:at] + b"\xff\xff" + data[at:]
    interval = data[:at] + segment(0xDD, b"\0\0") + data[at:]
    for changed in (filled, interval):
        ours, own = decode(changed, (0, 0, 60, 50))
        assert own and np.array_equal(ours, by_pillow(data))
    others = segment(0xDB, b"\0" + bytes([7] * 64)), segment(0xFE, b"a comment"), segment(0xE1, b"Exif\0\0")
    for other in others:
        changed = data[:at] + other + data[at:]
        ours, own = decode(changed, (0, 0, 60, 50))
        assert not own and np.array_equal(ours, by_pillow(changed))


def test_what_is_cut_off_is_left_to_pillow(decode):
    data = progressive_jpeg(np.random.default_rng(9), 40, 40, FACTORS["4:2:0"], scans=complete(), interval=3)
    places = {*range(20, len(data), 29), *(at + more for _, at in markers(data) for more in range(6)), len(data) - 1}
    for end in sorted(place for place in places if place < len(data)):
        assert decode(data[:end], (0, 0, 40, 40))[0] is None, end
        assert decode(data[:end], (3, 0, 9, 2))[0] is None, end


def test_a_restart_marker_out_of_turn(decode):
    data = progressive_jpeg(np.random.default_rng(10), 40, 40, FACTORS["4:2:0"], interval=2)
    assert decode(data, (0, 0, 40, 40))[1]
    assert decode(data.replace(b"\xff\xd1", b"\xff\xd2", 1), (0, 0, 40, 40))[0] is None


def test_a_huffman_code_of_all_ones_is_left_to_pillow_which_refuses_it(decode):
    """Apart from that code the table is valid, and no scan uses the code."""
    rng, tried = np.random.default_rng(12), set()
    for _ in range(6):
        data = progressive_jpeg(rng, 40, 40, FACTORS["4:2:0"], scans=complete())
        for at in (place for mark, place in markers(data) if mark == 0xC4):
            end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
            lengths, symbols = data[at + 5 : at + 21], data[at + 21 : end]
            longest = max(bits for bits in range(1, 17) if lengths[bits - 1])
            room = (1 << longest) - sum(count << (longest - bits) for bits, count in enumerate(lengths[:longest], 1))
            if room + len(symbols) > 256:
                continue
            for more in (room - 1, room):
                changed = lengths[: longest - 1] + bytes([lengths[longest - 1] + more]) + lengths[longest:]
                table = segment(0xC4, data[at + 4 : at + 5] + changed + symbols + bytes(more))
                file = data[:at] + table + data[end:]
                ours, own = decode(file, (0, 0, 40, 40))
                try:
                    pixels = by_pillow(file)
                except OSError:
                    assert more == room and ours is None
                    tried.add(longest)
                else:  # a scan that refines the DC reads no codes
                    assert own and np.array_equal(ours, pixels)
    assert len(tried) > 3


def test_a_file_of_very_many_scans_is_left_to_pillow(need_kernel):
    """An engine can break off Pillow's decoding, and not the kernel's."""
    whole = io.BytesIO()
    photograph = np.random.default_rng(2).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(photograph).save(whole, "JPEG", progressive=True)
    content = whole.getvalue()
    last = content.rindex(b"\xff\xda")
    context, out = kernels.kernel().context(), np.empty((16, 16, 3), np.uint8)
    job = region(0, 0, 16, 16)
    assert context.take(content) == (16, 16) and context.sample(job, out)
    assert context.take(content[:-2] + content[last:-2] * 100 + content[-2:]) == (16, 16)
    assert not context.sample(job, out) and context.refusal == 3
