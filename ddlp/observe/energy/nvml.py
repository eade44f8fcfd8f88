"""NVIDIA's GPUs: the energy counter since Volta, power for those that lack it. Through nvidia-ml-py, imported late."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from csd_engine.machine.sensors import Reading
from ddlp.errors import DDLPError
from ddlp.observe.energy.sources import Absent
from ddlp.observe.energy.tally import interval_s

__all__ = ["Gpus", "find_gpus"]

_POWER_INTERVAL_S = 0.1  # the driver averages over about as long


class Gpus:
    """The GPUs that this process may use, each a sensor ``gpuINDEX NAME``.

    Args:
        wanted: the entries of CUDA_VISIBLE_DEVICES; None: all GPUs.
    """

    name = "NVML"
    prompt = True

    def __init__(self, wanted: Sequence[str] | None) -> None:
        self._wanted = wanted
        self._nvml: Any = None
        self._gpus: list[tuple[str, Any, bool]] = []  # name, handle, whether it has the counter
        self.one_of_several_kinds = False  # some GPUs are left out, and not all are of one kind; set by `open`
        self.interval_s = _POWER_INTERVAL_S

    def open(self) -> None:
        """Initialise NVML. Raises DDLPError where it is not there, or none of its GPUs tells anything."""
        try:
            import pynvml
        except ImportError:
            raise DDLPError("nvidia-ml-py is not installed; pip install nvidia-ml-py") from None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DDLPError(str(error)) from None
        self._nvml = pynvml
        self._gpus = []
        kinds, count = set(), pynvml.nvmlDeviceGetCount()
        for number in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(number)
                kind = _text(pynvml.nvmlDeviceGetName(handle))
                kinds.add(kind)
                self._add(number, kind, handle)
            except pynvml.NVMLError:
                continue  # e.g. one that has fallen off the bus
        self.one_of_several_kinds = len(kinds) > 1 and len(self._gpus) < count
        if not self._gpus:
            self.close()
            raise DDLPError("none of its GPUs tells energy or power" if self._wanted is None else "no GPU that it knows is "
                            f"among CUDA_VISIBLE_DEVICES={','.join(self._wanted)}")  # fmt: skip
        self.interval_s = interval_s(0.0) if all(counts for _, _, counts in self._gpus) else _POWER_INTERVAL_S

    def _add(self, number: int, kind: str, handle: Any) -> None:
        nvml = self._nvml
        uuid = _text(nvml.nvmlDeviceGetUUID(handle))
        if self._wanted is not None and not any(_is_it(one, number, uuid) for one in self._wanted):
            return
        name = f"gpu{number} {kind}"
        try:
            nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            self._gpus.append((name, handle, True))
        except nvml.NVMLError:
            nvml.nvmlDeviceGetPowerUsage(handle)
            self._gpus.append((name, handle, False))

    def read(self) -> list[Reading]:
        """Joules since the driver was loaded, or watts now; a GPU that doesn't answer is left out."""
        readings = []
        for name, handle, counts in self._gpus:
            ask: Callable[[Any], int] = (
                self._nvml.nvmlDeviceGetTotalEnergyConsumption if counts else self._nvml.nvmlDeviceGetPowerUsage
            )
            try:
                value = ask(handle) / 1000  # mJ, mW
            except self._nvml.NVMLError:
                continue
            readings.append(Reading(name, "gpu", value if counts else None, None if counts else value))
        return readings

    def close(self) -> None:
        """Shut NVML down."""
        if self._nvml is not None:
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                pass
            self._nvml, self._gpus = None, []


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # bytes before nvidia-ml-py 11.5


def _is_it(wanted: str, number: int, uuid: str) -> bool:
    """Whether an entry of CUDA_VISIBLE_DEVICES means this GPU: its number, or its UUID or the beginning of it."""
    return wanted == str(number) or (wanted.startswith("GPU-") and uuid.startswith(wanted))


def find_gpus() -> tuple[Gpus | None, Absent | None]:
    """The GPUs, or why there are none. Both, if CUDA may use another GPU than the one that is measured."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if visible is None else [one.strip() for one in visible.split(",") if one.strip()]
    if wanted and all(one.startswith("MIG-") for one in wanted):
        wanted = None  # a MIG slice has no meter of its own, but its GPU has
    gpus = Gpus(wanted)
    try:
        gpus.open()
    except DDLPError as error:
        why, _, todo = str(error).partition("; ")
        return None, Absent("NVML", why, todo)
    finally:
        gpus.close()
    numbers = [one for one in wanted or () if one.isdigit()]
    if numbers and gpus.one_of_several_kinds and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        why = "the GPUs here differ, CUDA counts them from the fastest on, the driver by their PCI bus, and so did the meter"
        todo = "CUDA_DEVICE_ORDER=PCI_BUS_ID makes CUDA count as the meter does"
        return gpus, Absent(f"NVML, of CUDA_VISIBLE_DEVICES={visible}", why, todo)
    return gpus, None
