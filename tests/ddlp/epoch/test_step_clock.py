"""Measuring training steps on a device that works while the training thread goes on: a thread, or a GPU."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms

from ddlp import DDLPLoader, ImageArrays
from ddlp.epoch import executor
from ddlp.epoch.step_clock import EventClock, cuda_clock

STEP_S = 0.02


class Device:
    """Runs what it is given, in order, in a thread of its own. So it is asynchronous like a GPU."""

    def __init__(self) -> None:
        self.work: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while (one := self.work.get()) is not None:
            one()

    def event(self) -> Event:
        return Event(self)

    def close(self) -> None:
        self.work.put(None)
        self.thread.join()


class Event:
    def __init__(self, device: Device) -> None:
        self._device, self._reached_s = device, 0.0

    def record(self) -> None:
        self._device.work.put(self._reach)

    def _reach(self) -> None:
        self._reached_s = time.monotonic()

    def query(self) -> bool:
        return self._reached_s > 0

    def elapsed_time(self, end: Event) -> float:
        assert self.query() and end.query(), "elapsed_time() before both events were reached"
        return 1000 * (end._reached_s - self._reached_s)


@pytest.fixture
def device() -> Iterator[Device]:
    one = Device()
    yield one
    one.close()


def test_steps_are_measured_on_the_device_and_nobody_waits(device: Device) -> None:
    clock, found, held = EventClock(device.event), [], threading.Event()
    device.work.put(held.wait)  # what waited for the device would hang
    for number in range(10):
        clock.begins()
        device.work.put(lambda: time.sleep(STEP_S))
        clock.ends(0.5 if number == 9 else 1.0)
        found += clock.done()
    assert not found
    held.set()
    device.close()  # after it has done everything
    found += clock.done()
    assert [part for _, part in found] == [1.0] * 9 + [0.5]
    assert all(seconds >= STEP_S for seconds, _ in found)
    assert clock.done() == []


def test_it_keeps_few_events_of_a_device_that_hangs() -> None:
    class Hanging(Event):
        made = 0

        def __init__(self) -> None:
            Hanging.made += 1

        def record(self) -> None:
            pass

        def query(self) -> bool:
            return False

    clock = EventClock(Hanging)
    for _ in range(1000):
        clock.begins()
        clock.ends(1.0)
        assert clock.done() == []
    assert Hanging.made == 2 * 64


def test_a_loader_rates_training_by_the_devices_time(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "cuda_clock", lambda: EventClock(device.event))
    images = ImageArrays(np.zeros((30, 8, 8, 3), np.uint8), range(30), transforms.ToTensor())
    loader: Any = DDLPLoader(images, 1, strategy="cpu")
    for _ in loader:
        device.work.put(lambda: time.sleep(STEP_S))  # like launching a kernel: it returns at once
        time.sleep(STEP_S / 2)
    training = loader._parts.life.rates.training
    assert training.count >= 5 and training.seconds >= STEP_S


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpus_steps_take_as_long_as_the_gpu_does() -> None:
    torch.zeros(1, device="cuda")
    clock = cuda_clock()
    assert clock is not None
    for _ in range(5):
        clock.begins()
        torch.cuda._sleep(20_000_000)
        clock.ends(1.0)
    torch.cuda.synchronize()
    assert [seconds > 0.005 for seconds, _ in clock.done()] == [True] * 5


def test_without_a_gpu_there_is_no_clock() -> None:
    if not torch.cuda.is_initialized():
        assert cuda_clock() is None
