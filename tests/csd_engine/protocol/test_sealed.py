"""Records of sealed parts: only the next one, in its place, is opened."""

from __future__ import annotations

import struct

import pytest

from csd_engine.protocol import sealed
from csd_engine.protocol.aead import AES, Aead, NotAuthentic
from csd_engine.protocol.sealed import HEAD_BYTES, NO_PLACE, PART, READY, REASON, Opener, Place, Sealer, part_bytes

KEY = bytes(range(32))
SIZE = (2 << 20) + 100
PLACES = [Place(1, "job-1", 7, offset, SIZE) for offset in range(0, SIZE, 1 << 20)]


def records(places=PLACES, kind=PART):
    """The sealed records of a batch file whose bytes are the numbers of its parts."""
    sealer, found = Sealer(AES, KEY), []
    for number, place in enumerate(places):
        size = part_bytes(place)
        record = bytearray(HEAD_BYTES) + bytes([number]) * size
        sealer.seal(kind, place, record, size)
        found.append(record)
    return found


def opened(opener, record, place):
    """The record's body, received in two pieces."""
    assert opener.kind(record[:HEAD_BYTES], place) == PART
    body = record[HEAD_BYTES:]
    assert opener.begin(record[:HEAD_BYTES], place) == len(body)
    opener.decrypt(memoryview(body)[:1000])
    opener.decrypt(memoryview(body)[1000:])
    opener.check(record[:HEAD_BYTES])
    return body


def test_they_come_as_they_were():
    opener = Opener(AES, KEY)
    for number, (record, place) in enumerate(zip(records(), PLACES)):
        assert bytes([number]) * 10 not in record
        assert opened(opener, record, place) == bytes([number]) * part_bytes(place)
    assert [part_bytes(place) for place in PLACES] == [1 << 20, 1 << 20, 100] and opener.bytes == SIZE


def test_swapped_repeated_left_out_and_changed_ones_are_refused():
    for order in ([1], [0, 0], [0, 2]):
        opener, all_of_them = Opener(AES, KEY), records()
        for at, number in enumerate(order[:-1]):
            opened(opener, all_of_them[number], PLACES[at])
        last = PLACES[len(order) - 1] if order[-1] != 2 else PLACES[2]  # of its own length, where that tells it from others
        with pytest.raises(NotAuthentic):
            opened(opener, all_of_them[order[-1]], last)
    for byte in (1, 4, 5, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 99):
        record = records(PLACES[2:])[0]
        record[byte] ^= 1
        with pytest.raises(NotAuthentic):
            opened(Opener(AES, KEY), record, PLACES[2])


@pytest.mark.parametrize("field", Place._fields)
def test_the_place_is_sealed_too(field):
    place = PLACES[0]._replace(size=SIZE)
    other = place._replace(**{field: "job-2" if field == "job" else getattr(place, field) + (1 if field != "offset" else 4096)})
    record = records([place])[0]
    with pytest.raises(NotAuthentic):
        opened(Opener(AES, KEY), record, other)
    opened(Opener(AES, KEY), record, place)


def test_no_nonce_comes_twice():
    sealer, bodies = Sealer(AES, KEY), set()
    for _ in range(300):
        record = bytearray(HEAD_BYTES + 100)
        sealer.seal(PART, PLACES[2], record, 100)
        bodies.add(bytes(record[HEAD_BYTES:]))
    assert len(bodies) == 300


def test_another_key_opens_nothing():
    with pytest.raises(NotAuthentic):
        opened(Opener(AES, KEY[::-1]), records()[0], PLACES[0])


def test_heads_are_judged_before_their_bodies_come():
    place = PLACES[2]
    heads = {(PART, 100): PART, (READY, 0): READY, (REASON, 0): REASON, (REASON, 4096): REASON}
    for kind in range(6):
        for size in (0, 1, 99, 100, 101, 4096, 4097, 1 << 20, (1 << 32) - 1):
            head = bytes([kind]) + size.to_bytes(4, "big") + bytes(16)
            if (kind, size) in heads or (kind == REASON and size <= 4096):
                assert Opener.kind(head, place) == kind
            else:
                with pytest.raises(NotAuthentic):
                    Opener.kind(head, place)


def test_a_part_is_no_reason():
    """The kind is sealed: who changes it in the head gains nothing."""
    record, opener = records(PLACES[2:])[0], Opener(AES, KEY)
    record[0] = REASON
    opener.begin(record[:HEAD_BYTES], PLACES[2])
    opener.decrypt(record[HEAD_BYTES:])
    with pytest.raises(NotAuthentic):
        opener.check(record[:HEAD_BYTES])


def test_a_key_is_used_up(monkeypatch):
    monkeypatch.setattr(sealed, "MOST_BYTES", SIZE)
    sealer, opener = Sealer(AES, KEY), Opener(AES, KEY)
    for record, place in zip(records(), PLACES):
        opened(opener, record, place)
        sealer.seal(PART, place, record, part_bytes(place))
    with pytest.raises(OSError, match="used"):
        sealer.seal(PART, PLACES[2], bytearray(HEAD_BYTES + 100), 100)
    with pytest.raises(OSError, match="used"):
        opened(opener, records(PLACES[2:])[0], PLACES[2])


def test_a_record_has_the_bytes_that_the_format_says():
    """kind, length, tag, body. The tag is of these, of the place, and of the record's number."""
    sealer, opener, place = Sealer(AES, KEY), Opener(AES, KEY), Place(2, "job-1", 7, 1 << 20, (1 << 20) + 3)
    all_of_them = (1, Place(0, "", 0, 0, 0), b""), (2, place, b"abc"), (3, place, b"gone")
    for number, (kind, at, body) in enumerate(all_of_them, start=1):
        record = bytearray(HEAD_BYTES) + body
        sealer.seal(kind, at, record, len(body))
        head = struct.pack("!BI", kind, len(body))
        about = head + struct.pack("!QQQQ", at.fetch, at.lease, at.offset, at.size) + at.job.encode()
        sealed_body, tag = bytearray(body), bytearray(16)
        Aead(AES, KEY, sealing=True).seal(number.to_bytes(12, "big"), about, sealed_body, tag)
        assert record == head + tag + sealed_body
        assert opener.kind(record, at) == kind and opener.begin(record, at) == len(body)
        opener.decrypt(sealed_body)
        opener.check(record)
        assert sealed_body == body
    assert (READY, PART, REASON, NO_PLACE) == (1, 2, 3, Place(0, "", 0, 0, 0))
    assert (sealed.TICKET_BYTES, sealed.MAX_REASON_BYTES, sealed.MOST_BYTES) == (32, 4096, 1 << 36)
