"""`Auto`: wrr's rules, with the devices that pay."""

from __future__ import annotations

from ddlp.schedule.states import HostCopy
from ddlp.schedule.strategies.wrr import Wrr


class Auto(Wrr):
    """Training takes any batch that is ready, and devices that bring nothing rest: they are given no leases.

    Which ones rest, `Rates.resting` says. `ddlp.auto.controller` measures that and changes it while training goes on. The
    host makes what a resting device has still to make. So the device soon rests indeed, and nothing waits for it.
    """

    name = "auto"
    line = "wrr with the devices that make training faster; the others rest. It measures, decides, and takes a decision back"
    decides = True

    def free_for_host(self) -> int | None:
        resting = self.rates.resting
        if resting:
            late = [entry for entry in self.ledger.leased() if entry.device in resting and entry.host is HostCopy.NONE]
            if late:
                return min(late, key=lambda entry: entry.progress).position
        return super().free_for_host()

    def free_for_device(self, device: str) -> int | None:
        return None if device in self.rates.resting else super().free_for_device(device)
