"""Progressive JPEG files with scans of every kind, to test decoders: Pillow writes only one order of scans.

The coefficients are random, not those of a picture. The files follow ITU T.81 Annex G. Their Huffman tables have codes of up to
16 bits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Scan", "progressive_jpeg", "random_scans"]

Factors = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Scan:
    """One scan: its components, its band of coefficients, and the number of missing bits before (0: a first scan) and after."""

    components: tuple[int, ...]
    first: int
    last: int
    high: int
    low: int


def random_scans(rng: np.random.Generator, components: int) -> list[Scan]:
    """Return scans that have all coefficients, divided and ordered at random within the standard's rules."""
    low = int(rng.integers(0, 4))
    parts: list[tuple[int, ...]] = [tuple(range(components))]
    if components > 1 and rng.random() < 0.5:
        divisions: list[list[tuple[int, ...]]] = [[(0,), (1, 2)], [(0, 1), (2,)], [(0,), (1,), (2,)]]
        parts = divisions[int(rng.integers(3))]
    scans = [Scan(part, 0, 0, 0, low) for part in parts]
    waiting = [[Scan(part, 0, 0, bits, bits - 1) for bits in range(low, 0, -1)] for part in parts]
    for component in range(components):
        cuts = sorted({1, *map(int, rng.integers(2, 64, int(rng.integers(0, 4))))})
        for first, after in zip(cuts, [*cuts[1:], 64], strict=True):
            low = int(rng.integers(0, 4))
            band = [(0, low), *((bits, bits - 1) for bits in range(low, 0, -1))]
            waiting.append([Scan((component,), first, after - 1, *bits) for bits in band])
    while any(waiting):
        queue = waiting[int(rng.integers(len(waiting)))]
        if queue:
            scans.append(queue.pop(0))
    return scans


def _coefficients(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return int (rows, columns, 64) in coded order: random DC, and AC coefficients that get rarer with their frequency."""
    strength = rng.choice([0.02, 0.15, 0.6]) * rng.uniform(0, 1.5, (rows, columns, 1))
    there = rng.random((rows, columns, 64)) < strength * np.exp(-np.arange(64) / rng.choice([6, 25, 200]))
    values = np.round(rng.laplace(0, rng.choice([1, 4, 40]), (rows, columns, 64)) * there).clip(-1023, 1023).astype(int)
    values[..., 0] = rng.normal(0, 120, (rows, columns)).clip(-1000, 1000)
    return values


@dataclass
class _Writer:
    """The symbols and bits of a scan. Its Huffman table is made afterwards, from the symbols."""

    events: list[tuple[int, int]] = field(default_factory=list)  # (symbol, -1), (bits, how many), (0, -2): restart
    empty: int = 0  # number of blocks in the run that has no further coefficient (EOBRUN)
    behind: list[int] = field(default_factory=list)  # correction bits that follow the code of the run

    def bits(self, value: int, count: int) -> None:
        if count:
            self.events.append((value & ((1 << count) - 1), count))

    def value(self, symbol: int, value: int, size: int) -> None:
        self.events.append((symbol, -1))
        self.bits(value if value > 0 else value - 1, size)

    def flush(self) -> None:
        if not self.empty:
            return
        size = self.empty.bit_length() - 1
        self.events.append((size << 4, -1))
        self.bits(self.empty, size)
        self.empty = 0
        self.correct(self.behind)
        self.behind = []

    def correct(self, bits: list[int]) -> None:
        self.events += [(bit, 1) for bit in bits]

    def dc(self, difference: int) -> None:
        size = abs(difference).bit_length()
        self.value(size, difference, size)

    def first_ac(self, values: list[int]) -> None:
        run = 0
        for value in values:
            if not value:
                run += 1
                continue
            self.flush()
            while run > 15:
                self.events.append((0xF0, -1))
                run -= 16
            size = abs(value).bit_length()
            self.value(run << 4 | size, value, size)
            run = 0
        self.end(run > 0, [])

    def refine_ac(self, values: list[int]) -> None:
        run = 0
        bits: list[int] = []
        last = max((k for k, value in enumerate(values) if abs(value) == 1), default=-1)
        for k, value in enumerate(values):
            if not value:
                run += 1
                continue
            while run > 15 and k <= last:
                self.flush()
                self.events.append((0xF0, -1))
                self.correct(bits)
                run, bits = run - 16, []
            if abs(value) > 1:
                bits.append(abs(value) & 1)
                continue
            self.flush()
            self.events += [(run << 4 | 1, -1), (int(value > 0), 1)]
            self.correct(bits)
            run, bits = 0, []
        self.end(run > 0 or bool(bits), bits)

    def end(self, ends: bool, bits: list[int]) -> None:
        if ends:
            self.empty += 1
            self.behind += bits
            if self.empty == 0x7FFF:
                self.flush()

    def restart(self) -> None:
        self.flush()
        self.events.append((0, -2))


def _codes(rng: np.random.Generator, symbols: list[int]) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """Return (the table in DHT's form, {symbol: (code, bits)}). A few of the commonest symbols get short codes, others long."""
    short = int(rng.integers(0, min(len(symbols), 7)))
    long = short + max(1, (len(symbols) - short).bit_length())
    long = int(rng.integers(long, 17)) if rng.random() < 0.3 else long
    lengths = [min(k + 1, long) if k < short else long for k in range(len(symbols))]
    table, code, last = {}, 0, 0
    for symbol, length in zip(symbols, lengths, strict=True):
        code <<= length - last
        table[symbol] = code, length
        code, last = code + 1, length
    return bytes([lengths.count(k) for k in range(1, 17)]) + bytes(symbols), table


def _entropy_coded(writer: _Writer, table: dict[int, tuple[int, int]]) -> bytes:
    out, restarts = bytearray(), 0
    pending: list[str] = []

    def whole() -> None:
        text = "".join(pending)
        text += "1" * (-len(text) % 8)
        coded = int(text, 2).to_bytes(len(text) // 8, "big") if text else b""
        out.extend(coded.replace(b"\xff", b"\xff\x00"))
        pending.clear()

    for value, count in writer.events:
        if count == -2:
            whole()
            out.extend([0xFF, 0xD0 | restarts])
            restarts = (restarts + 1) & 7
        else:
            code, length = table[value] if count == -1 else (value, count)
            pending.append(f"{code:0{length}b}")
    whole()
    return bytes(out)


def progressive_jpeg(
    rng: np.random.Generator, width: int, height: int, factors: Factors, scans: list[Scan] | None = None, interval: int = 0
) -> bytes:
    """Return a file of drawn coefficients.

    Args:
        rng: draws them, the scans if none are given, and the Huffman tables.
        width, height: in pixels.
        factors: (horizontal, vertical) of each component, one or three.
        scans: in the order of the file.
        interval: MCUs between restart markers; 0: none.
    """
    across, down = (max(f[axis] for f in factors) for axis in (0, 1))
    mcus = math.ceil(height / 8 / down), math.ceil(width / 8 / across)
    blocks = [_coefficients(rng, mcus[0] * v, mcus[1] * h) for h, v in factors]
    alone = [(math.ceil(math.ceil(height * v / down) / 8), math.ceil(math.ceil(width * h / across) / 8)) for h, v in factors]

    def units(scan: Scan) -> Iterator[list[tuple[int, np.ndarray]]]:
        """Yield the MCUs: blocks, each with its component."""
        if len(scan.components) == 1:
            (c,) = scan.components
            for row, column in np.ndindex(alone[c]):
                yield [(c, blocks[c][row, column])]
            return
        for row, column in np.ndindex(mcus):
            yield [
                (c, blocks[c][row * factors[c][1] + y, column * factors[c][0] + x])
                for c in scan.components
                for y, x in np.ndindex(factors[c][1], factors[c][0])
            ]

    def coded(scan: Scan) -> bytes:
        writer, last = _Writer(), Counter[int]()
        for number, unit in enumerate(units(scan)):
            if interval and number and number % interval == 0:
                writer.restart()
                last.clear()
            for c, block in unit:
                if scan.first == 0 and scan.high:
                    writer.bits(int(block[0]) >> scan.low & 1, 1)
                elif scan.first == 0:
                    writer.dc((int(block[0]) >> scan.low) - last[c])
                    last[c] = int(block[0]) >> scan.low
                else:
                    band = block[scan.first : scan.last + 1].tolist()
                    values = [(abs(v) >> scan.low) * (1 if v > 0 else -1) for v in band]
                    (writer.refine_ac if scan.high else writer.first_ac)(values)
        writer.flush()
        counts = Counter(symbol for symbol, count in writer.events if count == -1)
        header, table = _codes(rng, [symbol for symbol, _ in counts.most_common()] or [0])
        slots = bytes(part for c in scan.components for part in (c + 1, 0))
        start = bytes([len(scan.components)]) + slots + bytes([scan.first, scan.last, scan.high << 4 | scan.low])
        tables = segment(0xC4, bytes([0x10 if scan.first else 0]) + header)
        return tables + segment(0xDA, start) + _entropy_coded(writer, table)

    frame = b"".join(bytes([c + 1, h << 4 | v, 0]) for c, (h, v) in enumerate(factors))
    size = b"\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big") + bytes([len(factors)])
    quantisation = bytes(rng.integers(1, 12, 64).astype(np.uint8))
    parts = [b"\xff\xd8", segment(0xDB, b"\0" + quantisation), segment(0xC2, size + frame)]
    if interval:
        parts.append(segment(0xDD, interval.to_bytes(2, "big")))
    return b"".join([*parts, *map(coded, scans or random_scans(rng, len(factors))), b"\xff\xd9"])


def segment(marker: int, content: bytes) -> bytes:
    """Return a JPEG segment's bytes."""
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content
