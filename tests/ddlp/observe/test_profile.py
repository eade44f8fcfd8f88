"""The accelerator's time, from a real torch profile on the CPU."""

from __future__ import annotations

import gzip
import json
import time

import numpy as np
import pytest
import torch
from torchvision import transforms

from ddlp import DDLPError, DDLPLoader, ImageArrays
from ddlp.observe import analyse, read_run
from ddlp.observe.analysis import TRAINING
from ddlp.observe.profile import find_profile, read_profile

STEPS, PAUSE_S = 10, 0.02


@pytest.fixture
def run(tmp_path):
    """Train a small model under torch's profiler, with a sleep in each step. Returns how long it really worked and slept."""
    directory = tmp_path / "run"
    images = ImageArrays(np.zeros((4 * STEPS, 16, 16, 3), np.uint8), [0] * 4 * STEPS, transforms.ToTensor())
    matrix = torch.rand(500, 500)

    def mixed(batch):  # the loader's own work, in its own scope: it must not count as the accelerator's
        for _ in range(5):
            torch.mm(matrix, matrix)
        return batch

    loader = DDLPLoader(images, 4, seed=0, record=directory, batch_transform=mixed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 1500), torch.nn.ReLU(), torch.nn.Linear(1500, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    worked = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}
    slept = 0.0

    def forward(images, labels):
        return torch.nn.functional.cross_entropy(model(images.repeat(32, 1, 1, 1)), labels.repeat(32))

    def update():
        optimizer.step()
        optimizer.zero_grad()

    def timed(part, work, *arguments):
        began = time.monotonic()
        result = work(*arguments)
        worked[part] += time.monotonic() - began
        return result

    forward(torch.zeros(4, 3, 16, 16), torch.zeros(4, dtype=torch.int64)).backward()  # what is done only once
    update()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for images, labels in loader:
            loss = timed("forward", forward, images, labels)
            timed("backward", loss.backward)
            timed("optimizer", update)
            began = time.monotonic()
            time.sleep(PAUSE_S)
            slept += time.monotonic() - began
    torch.set_num_threads(threads)
    profiler.export_chrome_trace(str(directory / "torch.json"))
    return directory, worked, slept


def test_the_accelerators_time(run):
    directory, worked, slept = run
    trace = read_run(directory)[0]
    analysis, without = analyse(trace, read_profile(find_profile(directory))), analyse(trace)
    for part, seconds in worked.items():
        # The profiler's times lie within ours. A busy machine may take the processor away between the two.
        assert 0.4 * seconds <= analysis.training_parts[part] <= seconds + 0.001 * STEPS, (part, worked)
    one = {r.name: r for r in analysis.resources}["accelerator"]
    assert one.busy_s == pytest.approx(sum(analysis.training_parts.values()), abs=0.001 * STEPS)
    assert one.idle_s >= slept  # neither working nor waiting for batches
    assert {r.name: r for r in without.resources}["accelerator"].busy_s >= one.busy_s + 0.95 * slept
    assert analysis.overlap[TRAINING][TRAINING] == pytest.approx(one.busy_s)
    assert any("profile of torch" in note for note in without.notes) and not analysis.notes


def test_gpu_kernels_are_the_accelerator(tmp_path):
    """A trace like a GPU's: the same format, but its kernels have another category. It is written by hand, not by a GPU."""
    images = ImageArrays(np.zeros((8, 4, 4, 3), np.uint8), range(8), transforms.ToTensor())
    for _ in DDLPLoader(images, 4, seed=0, record=tmp_path):
        time.sleep(0.02)
    trace = read_run(tmp_path)[0]
    clock_us = trace.began.clock * 1e6
    events = [
        {"ph": "X", "cat": cat, "name": "k", "ts": clock_us + ts, "dur": dur, "pid": 0, "tid": 7}
        for cat, ts, dur in (("kernel", 10_000, 5_000), ("kernel", 12_000, 5_000), ("gpu_memcpy", 20_000, 3_000),
                             ("cpu_op", 0, 90_000), ("kernel", -5_000_000, 4_000))
    ]  # fmt: skip
    path = tmp_path / "torch.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    analysis = analyse(trace, read_profile(path))
    one = {r.name: r for r in analysis.resources}["accelerator"]
    assert one.busy_s == pytest.approx(0.007, abs=1e-5) and analysis.training_parts == {}
    assert analysis.overlap["transfer"]["transfer"] >= 0.003
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events[-1:]}).encode()))
    other = analyse(trace, read_profile(path))
    assert other.resources == analyse(trace).resources and "not of this epoch" in other.notes[0]


def test_files_that_are_none(tmp_path):
    assert find_profile(tmp_path) is None
    for text in ("nonsense", "{}", '{"traceEvents": []}', '{"traceEvents": [{"ph": "X", "cat": "cpu_op"}]}', "[]"):
        path = tmp_path / "torch.json"
        path.write_text(text)
        with pytest.raises(DDLPError, match="export_chrome_trace"):
            read_profile(path)
