"""A stream of work on an accelerator beside the training's stream, and events in it.

Threads of the loader put copies, sums and epilogues on this stream. Nothing here makes the training thread wait for the device:
the device itself orders the training's work after a batch's event.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor

__all__ = ["CudaStream", "DeviceStream", "StreamEvent", "NoRoom"]

NoRoom = torch.cuda.OutOfMemoryError  # work on a stream raises it if the device has no memory left


class StreamEvent:
    """A point in the work of a stream: one that is passed already, as where an operation that has returned is done."""

    def passed(self) -> bool:
        """Whether the device has reached this point."""
        return True

    def wait(self) -> None:
        """Block this thread until the device has reached it, without the GIL and without spinning."""

    def before_use(self, result: Tensor) -> None:
        """Make the current stream wait for this event before its next work. ``result`` may be used and dropped there."""


class DeviceStream:
    """A queue of work on a device. Any thread may put work on it.

    This one is of a device without streams: when an operation returns, it is done, or queued in order with all others.

    Attributes:
        device: the device.
        pinned: whether copies want page-locked memory on the host's side.
    """

    pinned = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def work(self) -> AbstractContextManager[object]:
        """Return a context: operations within it go to this stream, in order."""
        return contextlib.nullcontext()

    def event(self) -> StreamEvent:
        """Return an event that comes after all work put there so far."""
        return StreamEvent()


class CudaStream(DeviceStream):
    """A CUDA stream of high priority: its short kernels don't queue behind those of a training step.

    A thread begins with GPU 0 as its device. A call of CUDA then makes a context on GPU 0, which takes half a GB of its memory
    for each rank. Even the question whether an event has passed does that, and so does torch.cuda.stream when it goes back to
    GPU 0. So each of our calls is made on the stream's own device.
    """

    pinned = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index))
        self._stream = torch.cuda.Stream(self.device, priority=-1)

    @contextlib.contextmanager
    def work(self) -> Iterator[None]:
        """As `DeviceStream`."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            yield

    def event(self) -> StreamEvent:
        """As `DeviceStream`."""
        event = torch.cuda.Event(blocking=True)  # else a waiting thread keeps a core busy that should decode
        with torch.cuda.device(self.device):
            event.record(self._stream)
        return _CudaEvent(event, self.device)


class _CudaEvent(StreamEvent):
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
        result.record_stream(stream)  # else our stream might use its memory again while the step still reads it
