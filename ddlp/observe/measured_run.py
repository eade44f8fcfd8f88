"""A recorded epoch as the figures of a set-up, for `ddlp plan --from-run`."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from ddlp.auto.decide import TYPICAL_OCYCLE
from ddlp.errors import DDLPError
from ddlp.observe.analysis import analyse
from ddlp.observe.engine_time import DeviceTime, DeviceWork, device_times, on_workers
from ddlp.observe.play import Played
from ddlp.observe.run import EpochTrace
from ddlp.observe.setup import Fields
from ddlp.observe.spans import length, union
from ddlp.recording.events import Exhausted, Fetched, HostBatch, LeaseGiven, Rested, Step
from ddlp.schedule.strategies import DATALOADER

__all__ = ["IMAGE_BYTES", "MeasuredRun", "measured_run"]

IMAGE_BYTES = 224 * 224 * 3  # of an image in a device's batch, which no recording has: that of ImageNet's usual crop


@dataclass(frozen=True)
class MeasuredRun:
    """What a recorded epoch tells.

    Attributes:
        fields: as `ddlp.observe.setup` has them.
        assumed: what has been assumed of others.
        strategy: of the epoch, or "dataloader".
        played: the epoch as it was, from its first request for a batch to its last.
    """

    fields: Fields
    assumed: tuple[str, ...]
    strategy: str
    played: Played


def measured_run(trace: EpochTrace, batch_bytes: float | None = None) -> MeasuredRun:
    """Read the figures of an epoch, all for full batches.

    Rates are those of ``ddlp analyse``: all workers at work and nothing else in the way. But what a side takes between two
    batches counts as well: to hand one in, and to get to the next one. A step is the time from having a batch until the next
    one is asked for, and to get one that is ready.

    Args:
        trace: the epoch.
        batch_bytes: of a batch as a device sends it. It is not recorded, so None assumes images of 224 x 224.

    Raises:
        DDLPError: nobody trained on a batch of it.
    """
    began, steps = trace.began, trace.of(Step)
    asked = [step.asked_at for step in steps[1:]] + [end.asked_at for end in trace.of(Exhausted)][:1]
    trained = list(zip(steps, asked, strict=False))
    if not trained:
        raise DDLPError(f"{trace.path}: no training step is recorded whole, so nothing can be planned from it. Record an epoch "
                        "that runs to its end.")  # fmt: skip
    full = max(began.batch_size, *(step.samples for step in steps), 1)
    rates = analyse(trace).rates
    step_s = sum(at - step.got_at for step, at in trained) / max(1, sum(step.samples for step, _ in trained)) * full
    step_s += _getting_s(trace, steps)
    fields: Fields = {
        "step_s": max(step_s, 1e-9), "workers": max(1, began.workers), "batches": began.batches or len(steps),
        "batch_bytes": batch_bytes or full * IMAGE_BYTES,
    }  # fmt: skip
    assumed = []
    if began.processors:
        fields["processors"] = began.processors
    elif began.devices:
        assumed.append("the recording does not say how many processors the host has (processors)")
    if rates.host is not None:
        fields["host_rate"] = fields["workers"] / (fields["workers"] * full / rates.host + _between_s(trace))
        batches = [batch for batch in trace.of(HostBatch) if batch.outcome == "made"]
        images = fmean(step.samples for step in steps)
        fields["host_cpu_s"] = max(1e-9, fmean(batch.cpu_s for batch in batches) / images * full)
    if began.strategy == DATALOADER:
        assumed.append("the host goes on with torch's own DataLoader; loader.explain() says whether a device can take part")
    elif not began.travels:
        assumed.append("no device takes part: user code prepares the batches, and that does not travel")
    if began.itself:
        assumed.append("one worker prepares beside training; the recorded training thread did both itself (num_workers=0)")
    if batch_bytes is None:
        assumed.append(f"a batch has {full} images of 224 x 224 pixels in bytes (batch_bytes)")
    engines = []
    for device in device_times(trace):
        if device.device not in rates.devices:
            assumed.append(f"{device.device} published nothing, so its rate is not known, and it is left out (--engine)")
            continue
        period_s = _period_s(trace, device)
        rate = max(1, device.workers) / period_s if period_s else rates.devices[device.device] / full
        engines.append(_engine(trace, device, rate, fields, assumed))
    return MeasuredRun(fields | {"engine": engines}, tuple(assumed), began.strategy, _played(trace, trained, engines))


def _played(trace: EpochTrace, trained: list[tuple[Step, float]], engines: list[Fields]) -> Played:
    """The epoch as it was. ``trained``: each step, and when training asked for the next batch."""
    taken = Counter(fetched.device for fetched in trace.of(Fetched) if not fetched.trouble)
    return Played(
        batches=len(trained),
        seconds=max(trained[-1][1] - trained[0][0].asked_at, 1e-9),
        waiting_s=sum(step.got_at - step.asked_at for step, _ in trained),
        taken={engine["name"]: taken[engine["name"]] for engine in engines},
    )


def _getting_s(trace: EpochTrace, steps: list[Step]) -> float:
    """Mean seconds in which training got a batch that was ready when it asked."""
    ready_at = {batch.position: batch.ended_at for batch in trace.of(HostBatch)}
    ready_at |= {fetched.position: fetched.ended_at for fetched in trace.of(Fetched)}
    took = [step.got_at - step.asked_at for step in steps if ready_at.get(step.position, math.inf) <= step.asked_at]
    return fmean(took) if took else 0.0


def _between_s(trace: EpochTrace) -> float:
    """Mean seconds of a host's worker from the end of a batch to the beginning of the next one, without its rests."""
    done = [(batch.worker, batch.began_at, batch.ended_at, True) for batch in trace.of(HostBatch)]
    done += [(rest.number, rest.began_at, rest.ended_at, False) for rest in trace.of(Rested) if rest.who == "host"]
    took = [
        after[1] - before[2] for before, after in pairwise(sorted(done)) if before[0] == after[0] and before[3] and after[3]
    ]
    return max(0.0, fmean(took)) if took else 0.0


def _period_s(trace: EpochTrace, device: DeviceTime) -> float | None:
    """Mean seconds from a batch of one of a device's workers to its next one, whose lease was there before; None: no such."""
    given_at = {lease.lease: lease.at for lease in trace.of(LeaseGiven) if lease.device == device.device}
    took: list[float] = []
    before: dict[int, DeviceWork] = {}
    for lane, work in on_workers(device):
        last = before.get(lane)
        if last is not None and last.published and work.published and given_at[work.lease] <= last.span[1]:
            took.append(work.span[1] - last.span[1])
        before[lane] = work
    return fmean(took) if took else None


def _engine(trace: EpochTrace, device: DeviceTime, rate: float, fields: Fields, assumed: list[str]) -> Fields:
    """A device's fields. Its link is taken to be as fast as its batches came while any was on its way."""
    name = device.device
    fetched = [fetch for fetch in trace.of(Fetched) if fetch.device == name and not fetch.trouble]
    engine: Fields = {
        "name": name, "rate": rate, "workers": max(1, device.workers), "room": max(1, device.quota),
    }  # fmt: skip
    if not fetched:
        return engine
    assumed.append(f"whether batches of {name} came by spool or stream is not recorded; it is called stream")
    reading_s = length(union((fetch.began_at, fetch.read_at) for fetch in fetched))
    engine["bandwidth"] = fields["batch_bytes"] * len(fetched) / max(reading_s, 1e-6)
    if "host_cpu_s" in fields:
        took_s = fmean(fetch.ended_at - fetch.began_at for fetch in fetched)
        engine["host_cpu_s"] = min(took_s, TYPICAL_OCYCLE["stream"] * fields["host_cpu_s"])
        assumed.append(
            f"taking a batch of {name} costs the host {engine['host_cpu_s']:.3g} s of a processor: the time of a fetch, "
            f"{took_s:.3g} s, and {TYPICAL_OCYCLE['stream']:.0%} of making one at most (host_cpu_s)"
        )
    return engine
