"""Every kind of JPEG that a data set may hold, encoded from one picture: for tests that compare decoders.

Pillow writes the common kinds. The rare samplings (4:4:0, 4:1:1, 4:1:0, 4:4:1) it reads but does not write: `encode_baseline`
does, a small baseline encoder after ITU-T T.81.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence

import numpy as np
from PIL import Image

from ddlp.sampledata.photos import CLASSES, draw_box, draws_for, photograph

__all__ = ["FOR_PILLOW", "KINDS", "encode_baseline", "encode_kind", "picture"]

# Sampling factors (horizontal, vertical) of Y, Cb and Cr.
_RARE_SAMPLINGS: dict[str, tuple[tuple[int, int], ...]] = {
    "440": ((1, 2), (1, 1), (1, 1)),
    "411": ((4, 1), (1, 1), (1, 1)),
    "410": ((4, 2), (1, 1), (1, 1)),
    "441": ((1, 4), (1, 1), (1, 1)),
    "420 restart": ((2, 2), (1, 1), (1, 1)),
}
# Pillow's options of the others, and the mode that the picture is converted to before.
_BY_PILLOW: dict[str, tuple[str, dict[str, object]]] = {
    "420": ("RGB", {"subsampling": 2}),
    "422": ("RGB", {"subsampling": 1}),
    "444": ("RGB", {"subsampling": 0}),
    "grey": ("L", {}),
    "420 progressive": ("RGB", {"subsampling": 2, "progressive": True}),
    "444 progressive": ("RGB", {"subsampling": 0, "progressive": True}),
    "grey progressive": ("L", {"progressive": True}),
    "420 optimised": ("RGB", {"subsampling": 2, "optimize": True}),
    "cmyk": ("CMYK", {}),
}

#: All kinds that `encode_kind` knows.
KINDS: tuple[str, ...] = (*_BY_PILLOW, "rgb", *_RARE_SAMPLINGS)
#: Those of them that a kernel may leave to Pillow.
FOR_PILLOW: frozenset[str] = frozenset({"cmyk"})


def picture(number: int, size: tuple[int, int], seed: int = 0) -> Image.Image:
    """A crop of one of the sample photographs, RGB, of (width, height) `size`, with some noise; raises SampleDataError."""
    draws = draws_for(seed, "jpegkinds", number)
    photo = photograph(CLASSES[number % len(CLASSES)])
    crop = photo.resize(size, Image.Resampling.BICUBIC, box=draw_box(photo.size, size[0] / size[1], draws))
    noise = np.random.PCG64(number).random_raw((size[0] * size[1] * 3 + 7) // 8).view(np.uint8)[: size[0] * size[1] * 3]
    pixels = np.asarray(crop).astype(np.int16) + (noise.reshape(size[1], size[0], 3) % 25).astype(np.int16) - 12
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def encode_kind(kind: str, image: Image.Image, quality: int = 85) -> bytes:
    """The RGB image as a JPEG of that kind, one of `KINDS` (KeyError)."""
    if kind in _RARE_SAMPLINGS:
        planes = [np.asarray(plane) for plane in image.convert("YCbCr").split()]
        return encode_baseline(planes, _RARE_SAMPLINGS[kind], quality, restart=3 if kind.endswith("restart") else 0)
    if kind == "rgb":
        planes = [np.asarray(plane) for plane in image.split()]
        return encode_baseline(planes, ((1, 1),) * 3, quality, transform=False)
    mode, options = _BY_PILLOW[kind]
    stream = io.BytesIO()
    image.convert(mode).save(stream, "JPEG", quality=quality, **options)
    return stream.getvalue()


def encode_baseline(
    planes: Sequence[np.ndarray],
    samplings: Sequence[tuple[int, int]],
    quality: int = 85,
    *,
    transform: bool = True,
    restart: int = 0,
) -> bytes:
    """A baseline JPEG with any sampling factors.

    Args:
        planes: one to three uint8 (height, width) at full size; those of smaller sampling are averaged down here.
        samplings: (horizontal, vertical) factors, 1 to 4 each.
        quality: 1 to 100, scaling Annex K's luminance table as libjpeg does.
        transform: False: an Adobe marker says that the planes are R, G and B themselves.
        restart: MCUs between restart markers; 0 for none.
    """
    height, width = planes[0].shape
    across, down = max(h for h, _ in samplings), max(v for _, v in samplings)
    mcus = -(-width // (8 * across)), -(-height // (8 * down))
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    quantisers = np.clip((_LUMINANCE * scale + 50) // 100, 1, 255)
    components = []  # each (mcu rows, mcu columns, blocks of an MCU, 64) in zigzag order
    for plane, (h, v) in zip(planes, samplings, strict=True):
        edge = ((0, mcus[1] * 8 * down - height), (0, mcus[0] * 8 * across - width))
        full = np.pad(plane, edge, mode="edge").astype(np.float64)
        step_y, step_x = down // v, across // h
        small = full.reshape(full.shape[0] // step_y, step_y, full.shape[1] // step_x, step_x).mean((1, 3)) - 128
        blocks = small.reshape(mcus[1], v, 8, mcus[0], h, 8).transpose(0, 3, 1, 4, 2, 5)
        frequencies = np.rint(_DCT @ blocks @ _DCT.T / quantisers.reshape(8, 8)).astype(int)
        components.append(frequencies.reshape(mcus[1], mcus[0], h * v, 64)[..., _ZIGZAG])
    head = [b"\xff\xd8"]
    if not transform:
        head.append(_segment(0xEE, b"Adobe" + struct.pack(">HHHB", 100, 0, 0, 0)))
    head.append(_segment(0xDB, b"\0" + bytes(quantisers[_ZIGZAG].astype(np.uint8))))
    frame = b"".join(bytes([number + 1, h << 4 | v, 0]) for number, (h, v) in enumerate(samplings))
    head.append(_segment(0xC0, struct.pack(">BHHB", 8, height, width, len(planes)) + frame))
    for kind, (counts, symbols) in ((0x00, _DC_CODES), (0x10, _AC_CODES)):
        head.append(_segment(0xC4, bytes([kind]) + counts + symbols))
    if restart:
        head.append(_segment(0xDD, struct.pack(">H", restart)))
    scan = bytes([len(planes)]) + b"".join(bytes([number + 1, 0]) for number in range(len(planes)))
    head.append(_segment(0xDA, scan + bytes([0, 63, 0])))
    return b"".join(head) + _scan(components, restart) + b"\xff\xd9"


def _segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def _scan(components: Sequence[np.ndarray], restart: int) -> bytes:
    """The entropy-coded part: blocks MCU by MCU, component by component."""
    flat = [c.reshape(-1, c.shape[2], 64).tolist() for c in components]
    pieces: list[bytes] = []
    bits: list[str] = []
    before = [0] * len(flat)
    for mcu in range(len(flat[0])):
        if restart and mcu and mcu % restart == 0:
            pieces += [_packed(bits), bytes([0xFF, 0xD0 + (mcu // restart - 1) % 8])]
            bits, before = [], [0] * len(flat)
        for number, component in enumerate(flat):
            for block in component[mcu]:
                bits.append(_coded(block[0] - before[number], 0, _DC))
                before[number] = block[0]
                run = 0
                last = max((k for k in range(1, 64) if block[k]), default=0)
                for value in block[1 : last + 1]:
                    if value == 0:
                        run += 1
                        continue
                    bits += [_AC[0xF0]] * (run // 16)
                    bits.append(_coded(value, run % 16 << 4, _AC))
                    run = 0
                if last < 63:
                    bits.append(_AC[0])  # end of block
    return b"".join([*pieces, _packed(bits)])


def _coded(value: int, run: int, codes: dict[int, str]) -> str:
    """Code of (run, size of the value), then the value's bits: one less than itself where it is negative (T.81 F.1.2)."""
    size = abs(value).bit_length()
    if size == 0:
        return codes[run]
    return codes[run | size] + format(value if value > 0 else value + (1 << size) - 1, f"0{size}b")


def _packed(bits: list[str]) -> bytes:
    """Filled up with ones; a zero byte is stuffed after each 0xFF."""
    text = "".join(bits)
    text += "1" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0") if text else b""


def _codes(counts: bytes, symbols: bytes) -> dict[int, str]:
    """Canonical codes: as many of each length as `counts` says (T.81 Annex C)."""
    found, code, position = {}, 0, 0
    for length, count in enumerate(counts, 1):
        for symbol in symbols[position : position + count]:
            found[symbol] = format(code, f"0{length}b")
            code += 1
        position += count
        code <<= 1
    return found


def _ac_symbols() -> bytes:
    """All (run, size) pairs of T.81 table F.1, the most frequent first."""
    pairs = [run << 4 | size for run in range(16) for size in range(1, 11)]
    return bytes([0x00, 0x01, 0xF0, *(p for p in pairs if p != 0x01)])


_LUMINANCE = np.array([
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80,
    62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92, 49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98,
    112, 100, 103, 99,
])  # fmt: skip
_ZIGZAG = np.array(sorted(range(64), key=lambda k: (k // 8 + k % 8, k // 8 if (k // 8 + k % 8) % 2 else k % 8)))
_DCT = np.array([[np.sqrt((1 if k else 0.5) / 4) * np.cos((2 * n + 1) * k * np.pi / 16) for n in range(8)] for k in range(8)])
# DC sizes 0 to 11 as in Annex K; AC: two short codes (end of block, and a value of 1 at once), the others 8 and 9 bits long.
_DC_CODES = (bytes([0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]), bytes(range(12)))
_AC_CODES = (bytes([0, 2, 0, 0, 0, 0, 0, 80, 80, 0, 0, 0, 0, 0, 0, 0]), _ac_symbols())
_DC, _AC = _codes(*_DC_CODES), _codes(*_AC_CODES)
