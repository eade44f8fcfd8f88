"""Recording: what is in the files, and what recording must not disturb."""

from __future__ import annotations

import gc
import pickle
import threading
import time
import warnings
from collections import Counter

import pytest
import torch

from ddlp import DDLPError, DDLPLoader
from ddlp.epoch.hooks import EpochHooks
from ddlp.observe import Recorder, analyse, read_epoch, read_run
from ddlp.observe.run import epoch_files
from ddlp.recording.events import (
    EpochEnded,
    Exhausted,
    Fetched,
    HostBatch,
    LeaseGiven,
    Published,
    Rested,
    Step,
    to_line,
)
from ddlp.recording.recorder import Recording
from ddlp.sources.host.native import NativeHost
from tests.ddlp.observe.small_loader import small
from tests.engine_process import until


def test_without_a_recording_there_are_no_hooks_and_no_files(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    iterator = iter(small())
    assert type(iterator.executor.monitor.hooks) is EpochHooks
    assert len(list(iterator)) == 12 and not list(tmp_path.iterdir())


def test_an_epoch_of_both_sides(data, tmp_path):
    loader = DDLPLoader(data, 4, strategy="csd", seed=0, num_workers=2, record=tmp_path / "deep" / "run")
    plain = [images for images, _ in DDLPLoader(data, 4, seed=0)]
    for epoch in range(2):
        loader.set_epoch(0)
        assert all(torch.equal(a, b) for (a, _), b in zip(loader, plain, strict=True))
        trace = read_run(tmp_path / "deep" / "run")[epoch]
        assert trace.whole and trace.left_out == 0 and trace.wall_s > 0
        assert (trace.began.batches, trace.began.workers, trace.began.strategy) == (20, 2, "csd")
        steps = trace.of(Step)
        assert [step.position for step in steps] == list(range(20)) and {step.side for step in steps} == {"csd"}
        assert all(a.handed_at <= b.asked_at <= b.got_at <= b.handed_at for a, b in zip(steps, steps[1:]))
        assert sorted(e.position for e in trace.of(Fetched)) == list(range(20))
        assert {e.lease for e in trace.of(Published)} == {e.lease for e in trace.of(LeaseGiven)}
        assert all(0 < e.busy_s < trace.wall_s for e in trace.of(Published))
        assert len(trace.of(Exhausted)) == 1 and not trace.of(HostBatch)
        assert Counter((e.who, e.number) for e in trace.of(Rested) if e.last) == {
            (who, k): 1 for who in ("host", "transfer") for k in range(2)
        }


def test_host_batches(data, tmp_path):
    loader = DDLPLoader(data, 4, seed=0, num_workers=2, record=tmp_path)
    assert len(list(loader)) == 20
    made = read_run(tmp_path)[0].of(HostBatch)
    assert sorted(b.position for b in made) == list(range(20)) and {b.outcome for b in made} == {"made"}
    assert all(0 < b.read_s < b.ended_at - b.began_at for b in made)
    assert all(b.cpu_s > 0 for b in made)


def test_a_sample_that_can_not_be_read(data, tmp_path):
    data = type(data)([*data.paths[:6], str(tmp_path / "gone.jpg")], list(range(7)), data.transform)
    loader = DDLPLoader(data, 2, seed=0, record=tmp_path / "run")
    iterator, errors = iter(loader), 0
    while True:
        try:
            next(iterator)
        except StopIteration:
            break
        except FileNotFoundError:
            errors += 1
    assert errors == 1
    trace = read_run(tmp_path / "run")[0]
    assert Counter(b.outcome for b in trace.of(HostBatch)) == {"made": 3, "failed": 1} and len(trace.of(Step)) == 3


def test_an_epoch_that_is_broken_off(tmp_path):
    iterator = iter(small(200, record=tmp_path))
    next(iterator)
    del iterator
    gc.collect()
    until(lambda: '"EpochEnded"' in (tmp_path / "0000.jsonl").read_text(), 30, "the file's end")
    trace = read_run(tmp_path)[0]
    assert trace.whole and len(trace.of(Step)) == 1
    until(lambda: not [t for t in threading.enumerate() if t.name == "ddlp-record"], 30, "the writer's end")
    assert abs(analyse(trace).resources[0].unaccounted_s) < 0.02 * trace.wall_s + 0.01


def test_two_loaders_share_a_directory(tmp_path):
    first, second = iter(small(record=tmp_path)), iter(small(record=Recorder(tmp_path)))
    assert len(list(first)) == len(list(second)) == 12
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000.jsonl", "0001.jsonl"]
    assert [len(trace.of(Step)) for trace in read_run(tmp_path)] == [12, 12]


def test_epochs_come_in_the_order_of_their_numbers(tmp_path):
    for number in (10001, 9998, 10000, 9999):
        (tmp_path / f"{number:04d}.jsonl").touch()
    assert [file.stem for file in epoch_files(tmp_path)] == ["9998", "9999", "10000", "10001"]


def test_a_process_that_is_killed_leaves_what_was_written(tmp_path):
    list(small(record=tmp_path))
    path = tmp_path / "0000.jsonl"
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    trace = read_epoch(path)
    assert not trace.whole and 0 < trace.wall_s
    assert any("end was not recorded" in note for note in analyse(trace).notes)


def test_files_that_are_none(tmp_path):
    with pytest.raises(DDLPError, match="no recorded run"):
        read_run(tmp_path)
    path = tmp_path / "0000.jsonl"
    for text, said in (("", "does not begin"), ("nonsense\n", "line 1"), ('{"event":"Step"}\n', "line 1"),
                       (to_line(EpochEnded(1.0, 0), 0.0) + "\n", "does not begin")):  # fmt: skip
        path.write_text(text)
        with pytest.raises(DDLPError, match=said):
            read_epoch(path)


def test_its_memory_is_bounded(tmp_path):
    """Nothing is written yet, as on a disk that hangs."""
    recording = Recorder(tmp_path, limit=100).begin()
    for k in range(1000):
        recording.saw(Exhausted(float(k), float(k)))
    assert len(recording._events) == 100
    recording.start(
        epoch=0, strategy="cpu", batches=1, batch_size=1, workers=1, fetchers=0, devices=[], target="cpu"
    )
    recording.closed()
    trace = read_run(tmp_path)[0]
    assert (len(trace.of(Exhausted)), trace.left_out) == (100, 900)
    assert any("900 events were left out" in note for note in analyse(trace).notes)


def test_a_full_disk_ends_the_recording_alone(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = small(record=tmp_path)
        recording = Recording(open("/dev/full", "w"))
        loader._hooks, loader.record = recording, None
        assert len(list(loader)) == 12
    assert [str(w.message) for w in caught if "recording into /dev/full ended" in str(w.message)]


def test_a_directory_that_can_not_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        iter(small(record=tmp_path / "file" / "run"))


def test_an_epoch_that_can_not_begin_leaves_no_file(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError("no threads left")

    monkeypatch.setattr(NativeHost, "begin", fails)
    with pytest.raises(OSError, match="no threads"):
        iter(small(record=tmp_path))
    assert not list(tmp_path.iterdir())


def test_loaders_with_a_recorder_pickle(tmp_path):
    loader = pickle.loads(pickle.dumps(small(record=Recorder(tmp_path, limit=7))))
    assert (loader.record.directory, loader.record.limit) == (tmp_path, 7)
    assert len(list(loader)) == 12 and len(read_run(tmp_path)) == 1


def test_batch_transform_and_its_time(tmp_path):
    def slow(batch):
        time.sleep(0.01)
        return batch[0]

    loader = small(8, record=tmp_path, batch_transform=slow)
    assert all(isinstance(batch, torch.Tensor) for batch in loader)
    assert all(step.handed_at - step.got_at >= 0.01 for step in read_run(tmp_path)[0].of(Step))
