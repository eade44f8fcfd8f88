"""Messages: each goes round, and nothing malformed comes in."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import zlib

import numpy as np
import pytest

from csd_engine.errors import BadMessage
from csd_engine.protocol import codec as say
from csd_engine.protocol import fields

HEX = "0123456789abcdef" * 2
MESSAGES = [
    say.Hello(1, "0.1"),
    say.Welcome({"numpy": "2"}, 1, 2, "/spool", 1),
    say.Refused("", "no"),
    say.OpenJob("j-1", {"a": 1}, {}, {}),
    say.JobOpen("j-1", "job-1-ab"),
    say.NeedFile("manifest", HEX, 0),
    say.FilePart("array", HEX, 0, 10),
    say.Look(""),
    say.Look("files/a_1/look"),
    say.Seen("files/a_1/look", "", "here-1", HEX),
    say.Probe("j", -1, 0, ((1, 0), (2, 1))),
    say.ProbeDone("j", (HEX, "error: x \udcff"), {}),
    say.Lease("j", 3, HEX, 1 << 63, 4, ((1, 0),)),
    say.Published("j", 3, f"job-1/{HEX}.3.safetensors", 5, 0.5),
    say.Fetch(7, "j", 3, 4096, 1 << 20),
    say.Part(7, 4096),
    say.NoPart(7, 4096, "gone"),
    say.Failed("j", 3, "why", False),
    say.Cancel("j", 3),
    say.Cancelled("j", 3),
    say.Release("j", 3),
    say.Ping(("j",)),
    say.Pong((("j", 3, 4),), 0, 0, 0, ""),
    say.AskStatus(),
    say.Status(
        {"numpy": "2"}, 1.5, 2, 4, (say.JobStatus("0123abcd", "job-1-ab", 24, 8, 3, 12.5, 1, 2, "full"),), 24, 12.5,
        9, 8, 7, 6, 5, 4, 3, 2, 1, 0, None, (0.5, 0.25, 0.0), "",
    ),
    say.AskSensors(),
    say.Sensors((say.Reading("rapl/package-0", "cpu", 5.5, None, 262143.3), say.Reading("ina219/power1", "", None, -0.5))),
    say.CloseJob("j"),
    say.JobClosed("j"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_each_message_goes_round(message):
    payload = b"part" if isinstance(message, (say.FilePart, say.Part)) else None
    frames = say.encode(message, payload)
    assert say.decode(frames) == (message, payload or b"")
    data = json.loads(frames[0])
    for name in [one.name for one in dataclasses.fields(message)] + ["extra"]:
        broken = {**data, "extra": 1} if name == "extra" else {key: data[key] for key in data if key != name}
        with pytest.raises(BadMessage):
            say.decode([json.dumps(broken).encode(), *frames[1:]])
        if name != "extra":
            with pytest.raises(BadMessage, match=name):
                say.decode([json.dumps({**data, name: [None]}).encode(), *frames[1:]])


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\xff"],
        [b"[]"],
        [b"1"],
        [b'{"say":[]}'],
        [b'{"say":"Message"}'],
        [b'{"say":"Eval","code":"1"}'],
        [b"[" * 100000],
        [b'{"say":"Ping","waiting":NaN}'],
        [b'{"say":"Ping","waiting":[]}', b"frame"],
        [b'{"say":"Ping","waiting":[]}', b"", b""],
        [b'{"say":"Ping","waiting":["../x"]}'],
        [b" " * (say.MAX_FRAME_BYTES + 1)],
        [json.dumps({"say": "FilePart", "kind": "array", "fingerprint": HEX, "offset": 0, "total": 1}).encode()],
        [b'{"say":"Look","file":"files/../x"}'],
        [b'{"say":"Look","file":"files/x"}'],
        [b'{"say":"Fetch","number":1,"job":"j","lease":1,"offset":0,"length":1048577}'],
        [json.dumps({"say": "Cancel", "job": "j", "lease": True}).encode()],
        [json.dumps({"say": "Cancel", "job": "j", "lease": 1 << 63}).encode()],
        [json.dumps({"say": "Cancel", "job": "j\n", "lease": 1}).encode()],
    ],
)
def test_nonsense_is_refused(frames):
    with pytest.raises(BadMessage):
        say.decode(frames)


def test_the_longest_messages_of_honest_hosts_are_read():
    items = tuple((10**11 + number, 12) for number in range(fields.MAX_ITEMS))
    lease = say.Lease("j", 1, HEX, 1, 2, items)
    (frame,) = say.encode(lease)
    assert len(frame) < say.MAX_HOST_FRAME_BYTES and say.decode([frame])[0] == lease
    part = {
        "type": "parts", "upright": True,
        "files": {"type": "files", "root": "/data" * 100, "manifest": HEX, "count": 10**9},
        "table": {"type": "array", "path": "/data" * 100, "content": HEX, "shape": [10**9, 1, 24]},
    }  # fmt: skip
    job = say.OpenJob("j", {"ops": [{"op": "User", "parameters": list(range(4096))}] * 16}, {"parts": [part] * 1024}, {})
    assert say.decode(say.encode(job))[0] == job
    ping = say.Ping(tuple(f"{number:064}" for number in range(1024)))
    assert say.decode(say.encode(ping))[0] == ping
    message = say.FilePart("manifest", HEX, 0, 1)
    longest = zlib.compress(np.random.default_rng(1).bytes(say.MAX_PART_BYTES), 1)
    assert len(longest) > say.MAX_PART_BYTES and say.decode(say.encode(message, longest))[0] == message


def parsed_nothing(text):
    raise AssertionError("it was parsed")


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([b'{"say":"Ping","waiting":[%s]}' % (b'"x",' * 40000 + b'"x"')], id="long"),
        pytest.param([b'{"say":"OpenJob","pipeline":[%s]}' % (b"[]," * 300_000 + b"[]")], id="empty lists"),
        pytest.param([b'{"say":"Lease","items":[%s]}' % (b"{}," * 700_000 + b"{}")], id="empty objects"),
        pytest.param([b'{"say":"Lease","items":%s' % (b"[" * 700_000)], id="nested"),
        pytest.param([b'{"say":"OpenJob","pipeline":"%s"}' % (b"x" * say.MAX_HOST_FRAME_BYTES)], id="long text"),
        pytest.param([b'{"waiting":[%s],"say":"Ping"}' % (b"1," * 4000 + b"1")], id="its name comes last"),
        pytest.param([b'{"say":"Eval","code":[%s]}' % (b"1," * 4000 + b"1")], id="unknown"),
        pytest.param([b'{"say":"FilePart"}', bytes(say.MAX_PART_BYTES * 2)], id="long part"),
        pytest.param([b"{}"] * 1000, id="many frames"),
    ],
)
def test_what_is_too_long_is_refused_before_it_is_parsed(frames, monkeypatch):
    monkeypatch.setattr(say, "_FROM_JSON", parsed_nothing)
    with pytest.raises(BadMessage) as refusal:
        say.decode(frames)
    assert len(str(refusal.value)) < 500


def test_long_numbers_take_no_quadratic_time(monkeypatch):
    monkeypatch.setattr(say, "_LONG_NUMBER", re.compile(rb"[0-9]{400}"))  # as in Pythons that have no limit of their own
    monkeypatch.setattr(say, "_FROM_JSON", parsed_nothing)
    with pytest.raises(BadMessage, match="digits"):
        say.decode([b'{"say":"Lease","lease":%s}' % (b"1" * 1_000_000)])


def test_a_refusal_quotes_no_more_than_it_looks_at():
    deep = json.dumps({"say": "OpenJob", "x": [[[["text" * 100] * 10] * 10] * 10] * 10}, separators=(",", ":"))
    with pytest.raises(BadMessage) as refusal:
        say.decode([deep.encode()])
    assert len(str(refusal.value)) < 500


PAIRS = [
    [], [[1, 0]], [(1, 0), [2, 3]], ((0, (1 << 63) - 1),), [[k, 1] for k in range(300)],
    [[]], [[1]], [[1, 2, 3]], [[1, 2], [3]],
    [[1, -1]], [[1, 1 << 63]], [[1, True]], [[1, 1.0]], [["1", 2]], ["ab"], [b"ab"], [{1: 2, 3: 4}], [None], "ab", None, 3,
    [[1, 2], 5], [[[1], 2]], [[1, None]], {1: 2}, [[enum.IntEnum("One", "a b").a, 2]], [[1, 2]] * 301,
]  # fmt: skip


@pytest.mark.parametrize("value", PAIRS)
def test_pairs_are_checked_as_one_by_one(value):
    def outcome(check):
        try:
            return check(value)
        except ValueError as error:
            return str(error)

    expected = outcome(fields.list_of(fields.tuple_of(fields.count, fields.count), 300))
    assert outcome(fields.pairs(300)) == expected
    assert isinstance(expected, str) or all(type(one) is tuple for one in expected)


def test_a_status_is_told_in_checked_numbers():
    status = next(message for message in MESSAGES if isinstance(message, say.Status))
    assert say.decode(say.encode(status))[0].jobs[0].images_per_s == 12.5
    for change in (
        {"temperature_c": float("nan")},
        {"temperature_c": 1e6},
        {"temperature_c": "hot"},
        {"load": (1.0, 2.0)},
        {"images_per_s": -1.0},
        {"jobs": (status.jobs[0]._replace(host="the host's name"),)},
        {"jobs": (status.jobs[0]._replace(batch=True),)},
        {"jobs": (status.jobs[0][:-1],)},
    ):
        with pytest.raises(BadMessage, match=next(iter(change))):
            say.encode(dataclasses.replace(status, **change))
    assert say.decode(say.encode(dataclasses.replace(status, temperature_c=45)))[0].temperature_c == 45.0


def test_a_file_name_cannot_leave_the_spool():
    for name in (
        f"../{HEX}.3.safetensors",
        f"/{HEX}.3.safetensors",
        f"a/../{HEX}.3.safetensors",
        f"a/{HEX}.3.safetensors\n",
    ):
        with pytest.raises(BadMessage, match="file"):
            say.encode(say.Published("j", 3, name, 5, 0.5))
