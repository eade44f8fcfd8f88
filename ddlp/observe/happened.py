"""What happened in an epoch beside its batches: devices that came and went, leases that were not fulfilled, files not used."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ddlp.observe.run import EpochTrace
from ddlp.recording.events import Decided, Fetched, HostBatch, Joined, LeaseCancelled, LeaseFailed, Lost, Retires, Step
from ddlp.schedule.ledger import RETIRED

__all__ = ["Happened", "happened"]


class Happened(NamedTuple):
    """A moment (seconds since the epoch's beginning), and what it was."""

    at: float
    kind: str  # joined, retires, lost, decided, taken back, failed, not used, not needed
    text: str


def happened(trace: EpochTrace) -> Iterator[Happened]:
    """All that happened, in the order in which it was recorded."""
    delivered = {step.position: step.got_at for step in trace.of(Step)}
    for event in trace.events:
        if isinstance(event, LeaseCancelled):
            yield Happened(event.at, "taken back", f"lease {event.lease} taken back from {event.device}")
        elif isinstance(event, LeaseFailed):
            reason = f": {event.reason}" if event.reason else ""
            yield Happened(event.at, "failed", f"lease {event.lease} failed on {event.device}{reason}")
        elif isinstance(event, Joined):
            where = f" on {event.node}" if event.node else ""
            yield Happened(event.at, "joined", f"{event.device} joined{where}")
        elif isinstance(event, Retires):
            yield Happened(event.at, "retires", f"{event.device} retires: {event.reason}")
        elif isinstance(event, Lost):
            yield Happened(event.at, "lost", f"{event.device} {'gone' if event.reason == RETIRED else 'lost'}: {event.reason}")
        elif isinstance(event, Decided):
            yield Happened(event.at, "decided", f"{event.about}: {event.text}")
        elif isinstance(event, Fetched) and event.trouble and delivered.get(event.position, math.inf) < event.ended_at:
            # The host's copy was delivered while this one was being fetched, so its file was released.
            text = f"batch {event.position} of {event.device} was not needed any more: the host's was first"
            yield Happened(event.ended_at, "not needed", text)
        elif isinstance(event, Fetched) and event.trouble:
            text = f"batch {event.position} of {event.device} could not be used: {event.trouble}"
            yield Happened(event.ended_at, "not used", text)
        elif isinstance(event, HostBatch) and event.outcome == "failed":
            yield Happened(event.ended_at, "failed", f"batch {event.position}: a sample could not be prepared")
