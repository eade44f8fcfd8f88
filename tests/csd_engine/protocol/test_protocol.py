"""Messages: each survives encoding and decoding, and nothing malformed is accepted."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import importlib.util
import json
import re
import sys
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
    say.Seen("", "here-1", HEX),
    say.Probe("j", -1, 0, ((1, 0), (2, 1))),
    say.ProbeDone("j", (HEX, "error: x \udcff")),
    say.Lease("j", 3, HEX, 1 << 63, 4, ((1, 0),)),
    say.NeedParcel("j", say.OF_PROBE, 1 << 20),
    say.ParcelPart("j", 3, 0, 10, HEX),
    say.Published("j", 3, f"job-1/{HEX}.3.safetensors", 0.5),
    say.Fetch(7, "j", 3, 4096, 1 << 20),
    say.Part(7, 4096),
    say.NoPart(7, 4096, "gone"),
    say.AskStream("aes-256-gcm"),
    say.StreamOpen(17711),
    say.NoStream("why"),
    say.FetchSealed(7, "j", 3, 1 << 25),
    say.Failed("j", 3, "why", False),
    say.Release("j", 3),
    say.Ping(("j",)),
    say.Pong((("j", 3, 4),), ""),
    say.Retires((("j", 3),)),
    say.AskStatus(),
    say.Status(
        {"numpy": "2"}, 1.5, 2, 4, (say.JobStatus("0123abcd", "job-1-ab", 24, 8, 3, 12.5, 1, 2, "full"),), 24, 12.5,
        9, 8, 7, 6, 5, 4, 3, 2, 1, 0, None, (0.5, 0.25, 0.0), "",
    ),
    say.AskSensors(),
    say.Sensors((say.Reading("rapl/package-0", "cpu", 5.5, None, 262143.3), say.Reading("ina219/power1", "", None, -0.5))),
    say.AskCache(),
    say.CacheState(1 << 40, 2 << 40, 3, 4),
    say.CloseJob("j"),
    say.JobClosed("j"),
]

WITH_PAYLOAD = (say.FilePart, say.ParcelPart, say.Part, say.AskStream, say.StreamOpen)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_each_message_goes_round(message):
    payload = b"part" if isinstance(message, WITH_PAYLOAD) else None
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
        [b'{"say":"NeedParcel","job":"j","lease":-2,"offset":0}'],
        [json.dumps({"say": "ParcelPart", "job": "j", "lease": 1, "offset": 0, "total": 1, "digest": HEX}).encode()],
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


@pytest.mark.parametrize("limited", [True, False])
def test_long_numbers_are_looked_for_only_where_python_has_no_limit_of_its_own(limited, monkeypatch):
    if limited:
        monkeypatch.setattr(sys, "get_int_max_str_digits", lambda: 4300, raising=False)
    else:
        monkeypatch.delattr(sys, "get_int_max_str_digits", raising=False)
    found = importlib.util.find_spec(say.__name__)
    codec = importlib.util.module_from_spec(found)
    found.loader.exec_module(codec)
    with pytest.raises(BadMessage) as refusal:
        codec.decode([b'{"say":"Lease","lease":%s}' % (b"1" * 400) + b" " * 5000])
    assert ("a number of more than 400 digits" in str(refusal.value)) is not limited


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
        {"jobs": (status.jobs[0]._replace(batch=True),)},
        {"jobs": (status.jobs[0][:-1],)},
    ):
        with pytest.raises(BadMessage, match=next(iter(change))):
            say.encode(dataclasses.replace(status, **change))
    assert say.decode(say.encode(dataclasses.replace(status, temperature_c=45)))[0].temperature_c == 45.0


def refusal_of(*frames):
    with pytest.raises(BadMessage) as refusal:
        say.decode(list(frames))
    return str(refusal.value)


def test_a_refusal_says_what_is_wrong():
    ping = b'{"say":"Ping","waiting":[]}'
    assert refusal_of() == "0 frames of [] bytes are not a message."
    assert refusal_of(b"1", b"22", b"", b"", b"") == "5 frames of [1, 2, 0, 0] bytes are not a message."
    assert refusal_of(b'{"say":"Part"}', bytes((1 << 20) + (64 << 10) + 1)) == (
        f"the second frame has {(1 << 20) + (64 << 10) + 1} bytes; at most {(1 << 20) + (64 << 10)} are allowed."
    )
    assert re.fullmatch(r"the first frame is not JSON \(.+\): b'{'\.", refusal_of(b"{"))
    assert "NaN is not allowed" in refusal_of(b'{"say":"Ping","waiting":NaN}')
    same = " does not say which message it is. Do both sides run the same version?"
    assert refusal_of(b"[]") == f"[]{same}" and refusal_of(b'{"say":"Eval"}') == f"{{'say': 'Eval'}}{same}"
    assert refusal_of(b'{"say":"Ping","b":1,"a":2}') == "message Ping has fields ['a', 'b'], expected were ['waiting']."
    assert refusal_of(ping, b"") == "message Ping came with 2 frames."
    part = say.encode(say.Part(7, 4096), b"x")
    assert refusal_of(part[0]) == "message Part came with 1 frames."
    longest = bytes((1 << 20) + (64 << 10))
    assert say.decode([part[0], longest]) == (say.Part(7, 4096), longest)
    assert refusal_of(b'{"say":"Ping","waiting":3}') == "message Ping: waiting is 3; it must be a list of at most 1024."
    with pytest.raises(BadMessage, match=r"message Ping: waiting is 3; it must be a list of at most 1024\."):
        say.encode(say.Ping(3))


def test_a_message_is_as_short_as_json_can_be_and_its_texts_are_kept():
    assert say.encode(say.Ping(("j", "k"))) == [b'{"say":"Ping","waiting":["j","k"]}']
    payload = memoryview(b"part")
    frames = say.encode(say.Part(7, 4096), payload)
    assert frames == [b'{"say":"Part","number":7,"offset":4096}', payload] and say.decode(frames)[1] is payload
    assert say.decode([b' { "say" : "Ping" , "waiting" : [] } '])[0] == say.Ping(())
    with pytest.raises(ValueError):
        say.encode(say.OpenJob("j", {"a": float("nan")}, {}, {}))


def long_message(name, most):
    """A message of `most` bytes that is valid except for its field "x", and for those that are missing."""
    about = {b"OpenJob": b'"job":"j",', b"Lease": b'"job":"j","lease":1,'}.get(name, b"")
    head = b'{"say":"%s",%s"x":"' % (name, about)
    return head + b"x" * (most - len(head) - 2) + b'"}'


@pytest.mark.parametrize(
    "name, most", [(b"Ping", 128 << 10), (b"OpenJob", 4 << 20), (b"Lease", 4 << 20), (b"Pong", 8 << 20), (b"Hello", 128 << 10)]
)
def test_each_message_has_its_greatest_length(name, most):
    assert re.search(r"has fields \[('job', )?('lease', )?'x'\]", refusal_of(long_message(name, most)))
    too_long = refusal_of(long_message(name, most + 1))
    if most == say.MAX_FRAME_BYTES:
        assert too_long == f"1 frames of [{most + 1}] bytes are not a message."
    else:
        assert too_long == f"message {name.decode()} has {most + 1} bytes; at most {most} are allowed."


def test_a_long_message_says_first_which_it_is():
    text = b'{"waiting":[%s"x"],"say":"Ping"}'
    short = b'"x",' * 5
    assert say.decode([text % short])[0] == say.Ping(("x",) * 6), "in a short message `say` need not come first"
    padded = b" " * (4096 - len(text % short))
    assert say.decode([(text % short) + padded])[0] == say.Ping(("x",) * 6)
    refused = refusal_of((text % short) + padded + b" ")
    assert refused.startswith("b'{\"waiting\":[") and "does not say first which message it is. Do both sides" in refused
    assert len(refused) < 250
    spaced = b' \n{ "say" : "Ping", "waiting":[]}' + b" " * 5000
    assert say.decode([spaced])[0] == say.Ping(())
    assert "does not say first" in refusal_of(b'{"say":"%s"}' % (b"x" * 33) + b" " * 5000)


def test_a_long_message_says_which_job_it_is_for_before_it_is_parsed():
    lease = say.Lease("1-j_", 7, "0" * 32, 1, 1, tuple((index, 0) for index in range(1000)))
    job = say.OpenJob("k", {"ops": ["x" * 5000]}, {}, {})
    assert say.announced(say.encode(lease)) == ("1-j_", 7, 1000)
    assert say.announced(say.encode(job)) == ("k", None, 0)
    assert say.announced([memoryview(say.encode(lease)[0])]) == ("1-j_", 7, 1000)
    short = (dataclasses.replace(lease, items=lease.items[:9]), say.Ping(()))
    odd = ([], [b"{" * 5000], [b'{"say":"Ping","waiting":[%s"x"]}' % (b'"x",' * 2000)], [b" " * (say.MAX_FRAME_BYTES + 1)])
    assert [say.announced(frames) for frames in (*map(say.encode, short), *odd)] == [None] * 6
    for text in (
        b'{"say":"Lease","lease":7,"job":"j","items":[%s]}',
        b'{"say":"Lease","job":"j","items":[%s]}',
        b'{"say":"OpenJob","pipeline":[%s],"job":"j"}',
        b'{"say":"OpenJob","job":"j/","pipeline":[%s]}',
    ):
        assert say.announced([text % (b"[1,2]," * 1000)]) is None
        assert "does not say first which job it is for" in refusal_of(text % (b"[1,2]," * 1000))


@pytest.mark.parametrize("kind, allowed", [("OpenJob", 1 << 18), ("Lease", (1 << 18) + 3 * (1 << 17))])
def test_a_message_has_so_many_values_at_most(kind, allowed, monkeypatch):
    head, tail = b'{"say":"%s","x":[' % kind.encode(), b"]}"
    other = (head + tail).count(b":") + head.count(b",") + head.count(b"[") + head.count(b"{")
    for between in (b",", b":", b"[", b"{"):
        text = head + between * (allowed - other) + tail
        assert "values" not in refusal_of(text)
        assert refusal_of(text + between) == f"message {kind} has {allowed + 1} values; at most {allowed} are allowed."


def test_a_number_of_399_digits_is_no_long_one(monkeypatch):
    monkeypatch.setattr(say, "_LONG_NUMBER", re.compile(rb"[0-9]{400}"))
    message = b'{"say":"Lease","job":"j","lease":1,"epoch":%s}' + b" " * 5000
    assert "has fields ['epoch', 'job', 'lease']" in refusal_of(message % (b"1" * 399))
    assert refusal_of(message % (b"1" * 400)) == "message Lease has a number of more than 400 digits."


def test_a_text_is_cut_to_what_a_message_may_hold():
    assert say.shorten("x" * 4096) == "x" * 4096
    assert say.shorten("x" * 4097) == "x" * 4093 + "..."


LIMITS = [
    (say.Ping(("j",) * 1024), {"waiting": ("j",) * 1025}),
    (say.Pong((("j", 3, 4),) * 4096, ""), {"progress": (("j", 3, 4),) * 4097}),
    (say.Probe("j", 1, 0, ((1, 0),) * 256), {"items": ((1, 0),) * 257}),
    (say.ProbeDone("j", ("x",) * 256), {"digests": ("x",) * 257}),
    (say.Measured("j", ((1, 0.5),) * 256), {"batches": ((1, 0.5),) * 257}),
    (say.Fetch(7, "j", 3, 0, 1), {"length": 0}),
    (say.Refused("x" * 64, ""), {"job": "x" * 65}),
    (say.Refused("aZ09_-", ""), {"job": "a b"}),
    (
        say.Sensors((say.Reading("a", "cpu", 0.0, -1e6, 1.0),) * 256),
        {"readings": (say.Reading("a", "cpu", 0.0, -1e6, 1.0),) * 257},
    ),
    (say.Sensors((say.Reading("a", "", 0.0, 0.0, 1.0),)), {"readings": (say.Reading("a", "toaster", 0.0, 0.0, 1.0),)}),
    (say.Sensors((say.Reading("a", "", 0.0, 0.0, 1.0),)), {"readings": (say.Reading("a", "", -1.0, 0.0, 1.0),)}),
    *(
        (say.Sensors((say.Reading("a", "gpu", 1e18, 1e9, 1e18),)), {"readings": (say.Reading("a", "gpu", *beyond),)})
        for beyond in ((1.1e18, 0.0, 0.0), (0.0, 1.1e9, 0.0), (0.0, -1.1e9, 0.0), (0.0, 0.0, 1.1e18), (0.0, 0.0, None))
    ),
    (say.Retires((("j", 3),) * 4096), {"begun": (("j", 3),) * 4097}),
    (say.NeedParcel("j", -1, 0), {"lease": -2}),
    (say.ParcelPart("j", -1, 0, 1, HEX), {"lease": -2}),
    (say.AskStream("chacha20-poly1305"), {"cipher": "aes-128-gcm"}),
    (say.StreamOpen(1), {"port": 0}),
    (say.StreamOpen(65535), {"port": 65536}),
]


@pytest.mark.parametrize("message, more", LIMITS, ids=lambda one: type(one).__name__)
def test_lists_and_numbers_end_where_the_protocol_says(message, more):
    payload = b"part" if isinstance(message, WITH_PAYLOAD) else None
    assert say.decode(say.encode(message, payload))[0] == message
    with pytest.raises(BadMessage, match=next(iter(more))):
        say.encode(dataclasses.replace(message, **more))


def test_a_refusal_of_what_is_inside_says_what_it_must_be():
    status = next(message for message in MESSAGES if isinstance(message, say.Status))
    named = dataclasses.replace(status, jobs=(status.jobs[0]._replace(host="the host's name"),))
    with pytest.raises(BadMessage, match=r"^message Status: jobs is .*; it must be at most 8 hex digits\.$"):
        say.encode(named)
    with pytest.raises(BadMessage, match=r"^message Sensors: readings is .*; it must be a part of a computer\.$"):
        say.encode(say.Sensors((say.Reading("a", "toaster", 0.0, 0.0, 1.0),)))
    with pytest.raises(BadMessage, match=r"^message AskStream: cipher is .*; it must be a cipher\.$"):
        say.encode(say.AskStream("rot13"))


def test_a_status_has_its_limits():
    status = next(message for message in MESSAGES if isinstance(message, say.Status))
    job = status.jobs[0]
    for good, bad in (
        ({"temperature_c": -273.15}, {"temperature_c": -273.16}),
        ({"temperature_c": 1000}, {"temperature_c": 1000.1}),
        ({"jobs": (job,) * 1024}, {"jobs": (job,) * 1025}),
        ({"jobs": (job._replace(host=""),)}, {"jobs": (job._replace(host="0" * 9),)}),
    ):
        again = say.decode(say.encode(dataclasses.replace(status, **good)))[0]
        assert again == dataclasses.replace(status, **good) and isinstance(again.jobs[0], say.JobStatus)
        with pytest.raises(BadMessage):
            say.encode(dataclasses.replace(status, **bad))


def test_each_message_is_of_one_side_and_named_to_the_other():
    assert set(say.MESSAGES) == {type(message) for message in MESSAGES} | {say.Measured}
    assert all(getattr(say, kind.__name__) is kind for kind in say.MESSAGES)


def test_other_messages_are_another_protocol():
    """Each side refuses fields that it does not know: who changes a message's fields raises PROTOCOL, here too. A new message
    that is sent only to a peer whose Welcome names it, or as the answer to one, is no other protocol. So does who changes a
    file that is sent.
    """
    names = {kind.__name__: [one.name for one in dataclasses.fields(kind)] for kind in say.MESSAGES}
    digest = hashlib.sha256(json.dumps(names, sort_keys=True).encode()).hexdigest()
    assert (say.PROTOCOL, digest[:16]) == (7, "5cf6033beb2b885c")
