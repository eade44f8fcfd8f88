"""The engines and other devices of an epoch, as a person sees them: where each is, what it does, and why their number changed.

Pure: called under the epoch's lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ddlp.schedule.ledger import Account, Ledger
from ddlp.schedule.rates import Rates

__all__ = ["MOST_CHANGES", "STATES", "Change", "DeviceLive", "devices_live", "rows"]

STATES = ("starting", "at work", "resting", "retiring", "gone")
MOST_CHANGES = 64  # that an epoch keeps: the last ones
_MOST_ROWS = 8  # engines, and changes, in the text of a report


@dataclass(frozen=True)
class DeviceLive:
    """A device at this moment.

    Attributes:
        name: its name.
        alive: it is at work.
        held: batches of its ``quota`` in use, those being written included.
        quota: batches that its spool, or a source of the user's own, can hold; 0: it has not joined.
        rate: samples a second, as far as they are this rank's; None: not known yet.
        workers: at work at once; 0: it has not joined.
        state: one of `STATES`. resting: ``auto`` gives it no work; retiring: it finishes what it has.
        node: the computer that an engine of a pool runs on; empty: not known (yet), or it is no pool's.
    """

    name: str
    alive: bool
    held: int
    quota: int
    rate: float | None
    workers: int = 0
    state: str = ""
    node: str = ""


@dataclass(frozen=True)
class Change:
    """The number of engines has changed, or another one is wanted.

    Attributes:
        at_s: seconds since the epoch began.
        engines: how many are at work from then on.
        device: the one that came or went; "pool": ``strategy="auto"`` wants another number of them.
        reason: why, for people.
    """

    at_s: float
    engines: int
    device: str
    reason: str

    def __str__(self) -> str:
        return f"{self.engines} at work after {self.at_s:.1f} s: {self.device}: {self.reason}"


def _state(name: str, account: Account, resting: Collection[str]) -> str:
    if not account.alive:
        return "gone" if account.left_s and not account.joining else "starting"
    if account.retiring:
        return "retiring"
    return "resting" if name in resting else "at work"


def devices_live(ledger: Ledger, rates: Rates, full_batch: int) -> tuple[DeviceLive, ...]:
    """Each device of an epoch. The caller holds the epoch's lock."""
    devices = []
    for name, account in ledger.devices.items():
        speed = rates.devices.get(name)
        rate = None if speed is None or speed.per_s is None else speed.per_s * full_batch
        workers = speed.parallel if speed is not None and account.quota else 0
        state, node = _state(name, account, rates.resting), account.node
        devices.append(DeviceLive(name, account.alive, account.held, account.quota, rate, workers, state, node))
    return tuple(devices)


def rows(devices: Sequence[DeviceLive], changes: Sequence[Change]) -> Iterator[tuple[str, str]]:
    """The rows of a report about a pool's engines, a name and a text each; none where no engine is a pool's."""
    engines = [device for device in devices if device.node]
    if not engines:
        return
    states = Counter(engine.state for engine in engines)
    yield "engines", ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
    for engine in engines[:_MOST_ROWS]:
        rate = "" if engine.rate is None else f", {engine.rate:,.0f} samples/s"
        yield "", f"{engine.name} on {engine.node}: {engine.state}{rate}"
    if len(engines) > _MOST_ROWS:
        yield "", f"and {len(engines) - _MOST_ROWS} more"
    for change in changes[-_MOST_ROWS:]:
        yield "changed", str(change)
