"""NVIDIA's GPUs: the energy counter since Volta, power for those that lack it. Through nvidia-ml-py, imported late."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from csd_engine.machine.sensors import Reading
from ddlp.errors import DDLPError
from ddlp.observe.energy.sources import Source
from ddlp.observe.energy.tally import interval_s
from ddlp.process.nvml import Nvml, visible_gpus

__all__ = ["Gpus", "find_gpus"]

_POWER_INTERVAL_S = 0.1  # the driver averages over about as long


class Gpus(Source):
    """The GPUs that this process may use, each a sensor ``gpuINDEX NAME``.

    Args:
        wanted: the entries of CUDA_VISIBLE_DEVICES; None: all GPUs.
    """

    name = "NVML"

    def __init__(self, wanted: Sequence[str] | None) -> None:
        self._wanted = wanted
        self._nvml: Nvml | None = None
        self._gpus: list[tuple[str, Any, bool]] = []  # name, handle, whether it has the counter
        self.one_of_several_kinds = False  # some GPUs are left out, and not all are of one kind; set by `open`
        self.interval_s = _POWER_INTERVAL_S

    def open(self) -> None:
        """Initialise NVML. Raises DDLPError where it is not there, or none of its GPUs tells anything."""
        self._nvml = nvml = Nvml(self._wanted)
        self._gpus = []
        for name, handle in nvml.gpus:
            for counts in (True, False):
                try:
                    self._ask(counts)(handle)
                except nvml.library.NVMLError:
                    continue
                self._gpus.append((name, handle, counts))
                break
        self.one_of_several_kinds = len(nvml.models) > 1 and len(self._gpus) < nvml.count
        if not self._gpus:
            self.close()
            raise DDLPError("none of its GPUs reports energy or power" if self._wanted is None else "no GPU that it knows is "
                            f"among CUDA_VISIBLE_DEVICES={','.join(self._wanted)}")  # fmt: skip
        self.interval_s = interval_s(0.0) if all(counts for _, _, counts in self._gpus) else _POWER_INTERVAL_S

    def _ask(self, counts: bool) -> Callable[[Any], int]:
        """What tells a GPU's energy in mJ, or its power in mW."""
        assert self._nvml is not None
        library = self._nvml.library
        ask: Callable[[Any], int] = library.nvmlDeviceGetTotalEnergyConsumption if counts else library.nvmlDeviceGetPowerUsage
        return ask

    def read(self) -> list[Reading]:
        """Joules since the driver was loaded, or watts now; a GPU that doesn't answer is left out."""
        readings = []
        for name, handle, counts in self._gpus:
            assert self._nvml is not None
            try:
                value = self._ask(counts)(handle) / 1000
            except self._nvml.library.NVMLError:
                continue
            readings.append(Reading(name, "gpu", value if counts else None, None if counts else value))
        return readings

    def close(self) -> None:
        """Shut NVML down."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml, self._gpus = None, []


def find_gpus() -> tuple[Gpus | None, str]:
    """The GPUs, or why there are none; with them a remark if CUDA may use another one than is measured, else ""."""
    visible = visible_gpus()
    gpus = Gpus(visible)
    try:
        gpus.open()
    except DDLPError as error:
        return None, f"NVML: {error}"
    finally:
        gpus.close()
    numbers = [gpu for gpu in visible or () if gpu.isdigit()]
    if numbers and gpus.one_of_several_kinds and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return gpus, (
            f"NVML, of CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}: the GPUs here differ, CUDA counts them from "
            "the fastest on, the driver by their PCI bus, and so did the meter. CUDA_DEVICE_ORDER=PCI_BUS_ID makes CUDA count "
            "as the meter does"
        )
    return gpus, ""
