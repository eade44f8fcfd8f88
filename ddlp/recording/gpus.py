"""The use of this process's GPUs, sampled while an epoch is recorded."""

from __future__ import annotations

import time

from ddlp.errors import DDLPError
from ddlp.process.nvml import Nvml, visible_gpus
from ddlp.recording.events import GpuUse

__all__ = ["SampledGpus"]


class SampledGpus:
    """The GPUs that NVML shows to this process from now until `close`; none where there is no NVML."""

    def __init__(self) -> None:
        try:
            self._nvml: Nvml | None = Nvml(visible_gpus())
        except DDLPError:
            self._nvml = None

    def __len__(self) -> int:
        return 0 if self._nvml is None else len(self._nvml.gpus)

    def sample(self) -> list[GpuUse]:
        """One event of each GPU. A GPU that does not tell is left out: a MIG slice's, or one that is lost."""
        if self._nvml is None:
            return []
        library, events = self._nvml.library, []
        for name, handle in self._nvml.gpus:
            try:
                busy = int(library.nvmlDeviceGetUtilizationRates(handle).gpu)
            except library.NVMLError:
                continue
            try:
                memory = library.nvmlDeviceGetMemoryInfo(handle)
                used, whole = int(memory.used), int(memory.total)
            except library.NVMLError:
                used = whole = 0  # it shares the computer's memory
            events.append(GpuUse(name, time.monotonic(), busy, used, whole))
        return events

    def close(self) -> None:
        """Let NVML go."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None
