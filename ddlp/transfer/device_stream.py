"""A stream of work on an accelerator beside the training's, and marks in it.

Threads of the loader put copies, sums and epilogues on a lane; nothing here makes the training thread wait for the device: what
it gets is ordered after its mark on the device itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["CudaStream", "DeviceStream", "StreamEvent", "NoRoom", "PlainStream"]

NoRoom = torch.cuda.OutOfMemoryError  # what work on a lane raises where the device has no memory for it


class StreamEvent(Protocol):
    """A place in a lane's work."""

    def passed(self) -> bool:
        """Whether the device has got here."""

    def wait(self) -> None:
        """Block this thread, without the GIL and without spinning, until it has."""

    def before_use(self, result: Tensor) -> None:
        """Order what the current stream does from now on after the mark; ``result`` may be used and dropped there."""


class DeviceStream(Protocol):
    """Where work is put. Any thread may."""

    device: torch.device
    pinned: bool  # whether copies want page-locked memory on the host's side

    def work(self) -> AbstractContextManager[object]:
        """Within it, operations go to the lane, in order."""

    def event(self) -> StreamEvent:
        """After all that was put there so far."""


class CudaStream:
    """A CUDA stream of high priority: its short kernels don't queue behind those of a training step.

    A thread begins on GPU 0. What it asks of CUDA while that is its device, even whether an event has passed, and
    torch.cuda.stream's way back there, makes a context on that GPU, half a GB of it for each rank: so each of our calls is made
    on the lane's own device.
    """

    pinned = True

    def __init__(self, device: torch.device) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self._stream = torch.cuda.Stream(self.device, priority=-1)

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """As `DeviceStream`."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            yield

    def event(self) -> StreamEvent:
        """As `DeviceStream`."""
        event = torch.cuda.Event(blocking=True)  # else a thread that waits burns the core that should decode
        with torch.cuda.device(self.device):
            event.record(self._stream)
        return _CudaMark(event, self.device)


class _CudaMark:
    def __init__(self, event: torch.cuda.Event, device: torch.device) -> None:
        self._event, self._device = event, device

    def passed(self) -> bool:
        with torch.cuda.device(self._device):
            return self._event.query()

    def wait(self) -> None:
        with torch.cuda.device(self._device):
            self._event.synchronize()

    def before_use(self, result: Tensor) -> None:
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(self._event)
        result.record_stream(stream)  # else its memory might be used again on the lane while the step still reads it


class PlainStream:
    """A device without streams: each operation is done, or in order with all others, when it returns."""

    pinned = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def work(self) -> AbstractContextManager[object]:
        """As `DeviceStream`."""
        return contextlib.nullcontext()

    def event(self) -> StreamEvent:
        """As `DeviceStream`."""
        return _PlainMark()


class _PlainMark:
    def passed(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def before_use(self, result: Tensor) -> None:
        pass
