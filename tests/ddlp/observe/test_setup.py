from __future__ import annotations

import json

import pytest

from ddlp.auto.measured import OffloadPath
from ddlp.observe.setup import checked, engine_of, merged, read_file, setup_of

LEAST = {"step_s": 0.1, "host_rate": 4}
A, B, C = ({"name": name, "rate": 1} for name in "abc")


def described(**more):
    return setup_of(checked(LEAST | more, "the options"))


def test_an_engine_of_the_command_line():
    assert engine_of(" csd0 = 2.5") == {"name": "csd0", "rate": 2.5}
    for wrong in ("csd0", "csd0=", "csd0=fast"):
        with pytest.raises(ValueError, match="write NAME=RATE"):
            engine_of(wrong)


def test_an_engine_with_all_that_is_known():
    known = {"name": "csd0", "rate": 2.5, "transport": "spool", "workers": 4, "bytes": 2e6}
    setup = described(engine=[{**known, "bandwidth": 1.2e9, "room": 10, "host_cpu_s": 0.05}])
    assert setup.measured.paths == (OffloadPath(
        "csd0", 2.5, "spool", workers=4, host_cpu_s_per_batch=0.05,
        bytes_per_batch=2e6, bandwidth_bytes_per_s=1.2e9, spool_bytes=2e7,
    ),)  # fmt: skip


def test_what_is_missing_is_assumed_and_said():
    setup = described(engine=[{"name": "csd0", "rate": 2}])
    assert (setup.batches, setup.workers, setup.measured.host_cpu_s_per_batch) == (1000, 1, 0.25)
    said = "\n".join(setup.assumed)
    for one in ("1,000 batches", "one worker", "0.25 s", "no processor", "without delay (batch_bytes and bandwidth)",
                "1,024 batches", "taking a batch of csd0 by stream costs the host 38%"):  # fmt: skip
        assert one in said
    whole = described(
        workers=2, batches=5, processors=4, host_cpu_s=0.5, batch_bytes=1e6, bandwidth=1e9,
        engine=[{**A, "room": 9, "host_cpu_s": 0}],
    )
    assert whole.assumed == ()


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_a_file_and_what_counts_more(tmp_path, suffix):
    path = tmp_path / f"plan.{suffix}"
    if suffix == "json":
        path.write_text(json.dumps({**LEAST, "engine": [{**A, "rate": 2, "workers": 3}, B]}))
    else:
        pytest.importorskip("tomllib")
        a, b = '[[engine]]\nname = "a"\nrate = 2\nworkers = 3\n', '[[engine]]\nname = "b"\nrate = 1\n'
        path.write_text(f"step_s = 0.1\nhost_rate = 4\n{a}{b}")
    fields = merged(read_file(path), checked({"engine": [{**A, "rate": 5}, C], "host_rate": 8}, "the options"))
    setup = setup_of(fields)
    engines = setup.measured.paths
    assert [(one.source, one.batches_per_s, one.workers) for one in engines] == [("a", 5, 3), ("b", 1, 1), ("c", 1, 1)]
    assert (setup.measured.host_batches_per_s, setup.measured.step_s) == (8, 0.1)


@pytest.mark.parametrize("fields, said", [
    ({"step_s": "fast"}, "the options: step_s is 'fast'; it must be a number above 0"),
    ({"host_rate": 0}, "the options: host_rate is 0; it must be a number above 0"),
    ({"workers": 2.5}, "workers is 2.5; it must be a whole number of at least 1"),
    ({"batch_bytes": "many"}, "batch_bytes is 'many'; it must be a number above 0"),
    ({"speed": 1}, "the options has a field 'speed' that is not known"),
    ({"engine": [{**A, "speed": 1}]}, "engine 1 has a field 'speed' that is not known"),
    ({"engine": [{**A, "rate": "x"}]}, "engine 1: rate is 'x'; it must be a number above 0"),
    ({"engine": [{"rate": 1}]}, "engine 1 has no name"),
    ({"engine": [{"name": "a"}]}, "the rate of engine a is not known; give --engine a=RATE"),
    ({"engine": [{**A, "room": 9}]}, "engine a: room=9 is in batches, whose bytes are not known; give batch_bytes"),
    ({"engine": [{**A, "bytes": 20e9}]}, "the spool of engine a has no room for a batch"),
    ({"engine": [A, B, A]}, "engine a is there 2 times; give each a name of its own"),
    ({"step_s": None}, "the options: step_s is None"),
])  # fmt: skip
def test_what_is_wrong_is_said(fields, said):
    with pytest.raises(ValueError) as error:
        described(**fields)
    assert said in str(error.value)


def test_what_can_not_be_done_without_is_said():
    with pytest.raises(ValueError, match="give step_s in the file"):
        setup_of({"host_rate": 4.0})
    with pytest.raises(ValueError, match="give host_rate in the file"):
        setup_of({"step_s": 0.1})


def test_files_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="no.json can't be read: No such file"):
        read_file(tmp_path / "no.json")
    wrong = ("a.json", "{", "is no JSON"), ("a.toml", "=", "is no TOML"), ("b.json", "[]", "must be an object")
    for name, text, said in wrong:
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=said):
            read_file(tmp_path / name)
    (tmp_path / "c.json").write_text('{"step_s": true}')
    with pytest.raises(ValueError, match="c.json: step_s is True; it must be a number above 0"):
        read_file(tmp_path / "c.json")
