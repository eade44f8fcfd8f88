"""NVIDIA's GPUs that this process may use, as the driver's NVML tells of them. Through nvidia-ml-py, imported late."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ddlp.errors import DDLPError

__all__ = ["Nvml", "visible_gpus"]


def visible_gpus() -> list[str] | None:
    """The entries of CUDA_VISIBLE_DEVICES; None: all GPUs, also where it names MIG slices, which have no meter of their own."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    entries = None if visible is None else [entry.strip() for entry in visible.split(",") if entry.strip()]
    return None if entries and all(entry.startswith("MIG-") for entry in entries) else entries


class Nvml:
    """NVML from now until `close`.

    Args:
        wanted: the GPUs that this process may use, see `visible_gpus`.

    Attributes:
        library: pynvml.
        gpus: name, ``gpuINDEX MODEL``, and NVML's handle of each GPU that is wanted and answers.
        models: of all GPUs that answer.
        count: of all GPUs here.

    Raises DDLPError where nvidia-ml-py or the driver is missing.
    """

    def __init__(self, entries: Sequence[str] | None) -> None:
        try:
            import pynvml
        except ImportError:
            raise DDLPError("nvidia-ml-py is not installed; pip install nvidia-ml-py") from None
        self.library: Any = pynvml
        self.gpus: list[tuple[str, Any]] = []
        self.models: set[str] = set()
        try:
            pynvml.nvmlInit()
            self.count: int = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise DDLPError(str(error)) from None
        for number in range(self.count):
            try:
                self._add(number, entries)
            except pynvml.NVMLError:
                continue  # e.g. one that has fallen off the bus

    def _add(self, number: int, entries: Sequence[str] | None) -> None:
        handle = self.library.nvmlDeviceGetHandleByIndex(number)
        model = _text(self.library.nvmlDeviceGetName(handle))
        self.models.add(model)
        uuid = _text(self.library.nvmlDeviceGetUUID(handle))
        if entries is None or any(_is_it(entry, number, uuid) for entry in entries):
            self.gpus.append((f"gpu{number} {model}", handle))

    def close(self) -> None:
        """Let NVML go. Call it once."""
        try:
            self.library.nvmlShutdown()
        except self.library.NVMLError:
            pass


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # bytes before nvidia-ml-py 11.5


def _is_it(entry: str, number: int, uuid: str) -> bool:
    """Whether an entry of CUDA_VISIBLE_DEVICES means this GPU: its number, or its UUID or the beginning of it."""
    return entry == str(number) or (entry.startswith("GPU-") and uuid.startswith(entry))
