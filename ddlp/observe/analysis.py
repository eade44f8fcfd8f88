"""`ddlp analyse RUN`: where the time of a recorded run went, and which stage limits it.

RUN is the directory of `DDLPLoader(..., record=RUN)`, or one of its files.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddlp.observe.engine_time import DeviceTime, device_times
from ddlp.observe.run import EpochTrace, epoch_files, read_epoch, training_spans
from ddlp.observe.spans import Span, both, clip, length, less, union, within
from ddlp.recording.events import (
    EpochBegan,
    Exhausted,
    Fetched,
    GpuUse,
    HostBatch,
    Joined,
    LeaseCancelled,
    LeaseGiven,
    Lost,
    Published,
    Rested,
    Retires,
    Step,
)
from ddlp.schedule.ledger import RETIRED
from ddlp.stats.waiting import WaitingVerdict, judge
from ddlp.stats.words import aligned, number, percent, seconds

__all__ = ["ADVICE", "Analysis", "Resource", "StageRates", "add_arguments", "analyse", "run"]

READ, CPU, CSD, TRANSFER, TRAINING, WAITING = (
    "read", "host", "csd", "transfer", "training", "waiting",
)  # fmt: skip
SPOOL, START = "spool", "start"
OUTSIDE = "before and after"
COMPLETE = "complete"  # the state of an epoch that ran to its end
LIMIT = 0.05  # part of the epoch: if training waits less than this for batches, training limits

ADVICE = {
    READ: "faster storage for the data set, more of it in memory, or files opened by more workers (num_workers=)",
    CPU: "more host cores (num_workers=), smaller images on disk, decode='fast', or a device that takes its part (csd=)",
    CSD: "a faster device or more of its workers, or a strategy in which the host helps (wrr, ordered)",
    TRANSFER: "a shared spool instead of the socket, a faster link or disk, output='uint8'",
    TRAINING: "nothing here: data are ready when training asks. A faster accelerator, or larger batches",
    SPOOL: "a larger spool (spool_bytes=, --quota-bytes): the device rests since nothing drains it",
    START: "longer epochs: training waited for the first batches most",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("run_directory", metavar="RUN")
    parser.add_argument("--all", action="store_true", help="every epoch, not only the one recorded last")
    parser.add_argument("--json", action="store_true", help="as JSON: a list of epochs")


def run(options: argparse.Namespace) -> int:
    """Print it."""
    files = epoch_files(options.run_directory)
    analyses = [analyse(read_epoch(file)) for file in (files if options.all else files[-1:])]
    if options.json:
        print(json.dumps([analysis.to_data() for analysis in analyses], indent=2))
        return 0
    print("\n\n".join(map(str, analyses)))
    if len(files) > len(analyses):
        print(f"\n{len(files)} epochs were recorded; this is the last one. --all prints every one.")
    return 0


@dataclass(frozen=True)
class Resource:
    """The seconds of one resource, summed over its ``lanes`` (workers, threads): wall_s is lanes times the epoch's.

    busy: at work on a batch. waiting: it could have worked, but had to wait for others. idle: it had nothing (left) to do.
    """

    name: str
    lanes: int
    wall_s: float
    busy_s: float
    waiting_s: float
    idle_s: float

    @property
    def unaccounted_s(self) -> float:
        """Seconds that are none of the three: book-keeping, messages, a device's other jobs."""
        return self.wall_s - self.busy_s - self.waiting_s - self.idle_s


@dataclass(frozen=True)
class StageRates:
    """Images a second of each stage if all its workers work and nothing else delays them. None: it made nothing."""

    host: float | None
    devices: dict[str, float]  # that published something; if several ranks share one, this rank's part
    transfer: float | None  # of the devices' batches, by the fetchers
    training: float | None

    @property
    def both_sides(self) -> float | None:
        """Host and devices together: r_cpu + r_csd."""
        return (self.host or 0.0) + sum(self.devices.values()) or None


@dataclass(frozen=True)
class Analysis:
    """An epoch's seconds. As a string it is the report for people.

    Attributes:
        path: the file that it was read from.
        began: what ran.
        state: complete; broken off; end not recorded.
        stages: work of each stage in seconds, over all workers together; more than the wall's where they work side by side.
        seconds: each second of the wall once, from training's point of view: training, transfer (targets joined, copies begun),
            waiting for a stage, and the time before it asked for the first batch and after the last one.
        resources: host workers, engine, transfer, training thread.
        overlap: seconds in which two stages were at work at once; a stage with itself: all its seconds at work.
        limit: the stage that limits the epoch; ``advice`` says how to make it faster.
        rates: each stage's, in images a second.
        bound_s: the least time for these samples at the measured rates: n / (r_cpu + r_csd), or training alone if that is more.
        host_cpu_s: processor seconds of the host's workers.
        gpus: of each GPU that NVML was asked about the part (0 to 1) of the epoch in which it was busy, and the most bytes of
            its memory in use and all of them (0: not known).
        verdict: whether training waits for data, by the training thread's time between two batches.
    """

    path: Path
    began: EpochBegan
    state: str
    wall_s: float
    batches: dict[str, int]
    samples: int
    stages: dict[str, float]
    seconds: dict[str, float]
    resources: tuple[Resource, ...]
    overlap: dict[str, dict[str, float]]
    limit: str
    advice: str
    rates: StageRates
    bound_s: float | None
    host_cpu_s: float
    gpus: dict[str, tuple[float, int, int]]
    counts: dict[str, int]
    notes: tuple[str, ...]
    verdict: WaitingVerdict

    @property
    def epoch(self) -> int:
        """Its number."""
        return self.began.epoch

    @property
    def strategy(self) -> str:
        """Its strategy's name."""
        return self.began.strategy

    @property
    def images_per_s(self) -> float:
        """Samples delivered a second."""
        return self.samples / self.wall_s if self.wall_s else 0.0

    @property
    def of_bound(self) -> float | None:
        """The part of the bound that was reached, at most 1; None: no bound is known."""
        return None if self.bound_s is None or not self.wall_s else min(self.bound_s / self.wall_s, 1.0)

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data = asdict(self) | {"path": str(self.path), "began": self.began._asdict()}
        data |= {"epoch": self.epoch, "strategy": self.strategy, "images_per_s": self.images_per_s}
        for given, resource in zip(data["resources"], self.resources, strict=True):
            given["unaccounted_s"] = resource.unaccounted_s
        data["verdict"]["text"] = str(self.verdict)
        return data

    def __str__(self) -> str:
        return "\n".join([*self._head(), "", *self._tables(), *(f"note: {note}" for note in self.notes)])

    def _head(self) -> Iterable[str]:
        began, cpu, csd = self.began, self.batches["cpu"], self.batches["csd"]
        bound = "" if self.bound_s is None else f", at best {seconds(self.bound_s)} at these rates"
        yield (
            f"epoch {began.epoch}, {began.strategy}: {seconds(self.wall_s)}, {self.samples} images, "
            f"{number(self.images_per_s)} images/s; {cpu} batches by the host, {csd} by the device{bound}"
        )
        workers = "the training thread prepares" if began.itself else f"host workers: {began.workers}"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(began.clock))
        yield (
            f"setting: {began.batches or 'an unknown number of'} batches of {began.batch_size}, {workers}, "
            f"devices: {', '.join(began.devices) or 'none'}, to {began.target}; {when}, ddlp {began.ddlp}, {self.state}"
        )
        alone = self.rates
        named = {"host": alone.host, **alone.devices, "transfer": alone.transfer, "training": alone.training}
        rates = ", ".join(f"{name} {number(rate)}" for name, rate in named.items() if rate is not None)
        yield f"rates: {f'{rates} images/s, each alone' if rates else 'none: nothing was made'}"
        yield f"limit: {self.limit}. What would move it: {self.advice}."
        yield f"verdict: {self.verdict}"
        for gpu, (busy, used, whole) in self.gpus.items():
            memory = f", at most {number(used / 1e9)} of {number(whole / 1e9)} GB in use" if whole else ""
            yield f"{gpu}: busy {percent(busy)} of the time, by NVML{memory}"

    def _tables(self) -> Iterable[str]:
        # Most first; waiting comes after the work.
        by_size = sorted(self.seconds.items(), key=lambda item: (item[0].startswith(WAITING), -item[1]))
        rows = [["where each second went", "time", "part"]]
        rows += [[f"  {name}", seconds(spent), percent(spent, self.wall_s)] for name, spent in by_size]
        yield from aligned(rows)
        rows = [["of its time", "busy", "waiting", "idle", "unaccounted"]]
        for resource in self.resources:
            name = f"  {resource.name} x {resource.lanes}" if resource.lanes > 1 else f"  {resource.name}"
            times = resource.busy_s, resource.waiting_s, resource.idle_s, resource.unaccounted_s
            rows.append([name, *(percent(s, resource.wall_s) for s in times)])
        yield from ("", *aligned(rows), "")
        yield "work of each stage, all its workers: " + ", ".join(f"{name} {seconds(s)}" for name, s in self.stages.items())
        rows = [["at work at once", *self.overlap]]
        rows += [[f"  {name}", *map(seconds, beside.values())] for name, beside in self.overlap.items()]
        yield from ("", *aligned(rows))
        if counts := ", ".join(f"{count} {name}" for name, count in self.counts.items() if count):
            yield from ("", counts)


def analyse(trace: EpochTrace) -> Analysis:
    """Where the time of an epoch went."""
    return _Epoch(trace).analysis()


class _Epoch:
    """One epoch's spans by stage."""

    def __init__(self, trace: EpochTrace) -> None:
        self.trace, self.wall_s = trace, trace.wall_s
        self.host, self.steps, self.fetched = trace.of(HostBatch), trace.of(Step), trace.of(Fetched)
        self.devices: list[DeviceTime] = device_times(trace)
        self.training = training_spans(trace)
        self.handing = [(step.got_at, step.handed_at) for step in self.steps]
        self.host_spans = union((b.began_at, b.ended_at) for b in self.host)
        self.csd_spans = union(work.span for device in self.devices for work in device.work)
        self.fetch_spans = union((f.began_at, f.ended_at) for f in self.fetched)
        took = sum(b.ended_at - b.began_at for b in self.host)
        self.read_part = min(1.0, sum(b.read_s for b in self.host) / took) if took else 0.0
        self.waits: dict[str, float] = {}  # what training waited for
        self.first_waits: dict[str, float] = {}  # what training waited for before its first batch

    def analysis(self) -> Analysis:
        trace, seconds, rates = self.trace, self._seconds(), self._rates()
        limit = self._limit(seconds)
        sides = {"cpu": 0, "csd": 0}
        for step in self.steps:
            sides[step.side] += 1
        return Analysis(
            path=trace.path,
            began=trace.began,
            state="end not recorded" if not trace.whole else COMPLETE if trace.of(Exhausted) else "broken off",
            wall_s=self.wall_s,
            batches=sides,
            samples=sum(step.samples for step in self.steps),
            stages=self._stages(seconds),
            seconds=seconds,
            resources=tuple(self._resources()),
            overlap=self._overlap(),
            limit=limit,
            advice=ADVICE[limit],
            rates=rates,
            bound_s=self._bound_s(rates),
            host_cpu_s=sum(batch.cpu_s for batch in self.host),
            gpus=self._gpus(),
            counts=self._counts(),
            notes=tuple(self._notes()),
            verdict=self._verdict(rates),
        )

    # -- stages --------------------------------------------------------------------------------------------------

    def _stages(self, seconds: dict[str, float]) -> dict[str, float]:
        read_s = sum(b.read_s for b in self.host)
        return {
            READ: read_s,
            CPU: sum(b.ended_at - b.began_at for b in self.host) - read_s,
            CSD: sum(device.busy_s for device in self.devices),
            TRANSFER: sum(f.ended_at - f.began_at for f in self.fetched) + length(self.handing),
            TRAINING: length(self.training),
            WAITING: sum(s for name, s in seconds.items() if name.startswith(WAITING)),
        }

    def _overlap(self) -> dict[str, dict[str, float]]:
        """How long each two stages ran side by side, as measured: the paper asks this. Reading counts as the host's."""
        stages = {
            CPU: self.host_spans,
            CSD: self.csd_spans,
            TRANSFER: union([*self.fetch_spans, *self.handing]),
            TRAINING: union(self.training),
        }
        return {a: {b: length(both(stages[a], stages[b])) for b in stages} for a in stages}

    # -- each second of the wall, as training saw it -------------------------------------------------------------

    def _seconds(self) -> dict[str, float]:
        seconds = {TRAINING: length(self.training), TRANSFER: length(self.handing)}
        waits = {READ: 0.0, CPU: 0.0, CSD: 0.0, TRANSFER: 0.0, START: 0.0}
        batches = {b.position: b for b in self.host if b.outcome == "made"}
        brought = {f.position: f for f in self.fetched if not f.trouble}
        leased = {(e.device, e.lease): e.at for e in self.trace.of(LeaseGiven)}
        published = {(e.device, e.lease): e.at for e in self.trace.of(Published)}
        for step in self.steps:
            wait = [(step.asked_at, step.got_at)]
            if step.side == "cpu" and step.position in batches:
                batch = batches[step.position]
                self._blame_host(waits, batch, clip(wait, batch.began_at, step.got_at))
                earlier = clip(wait, 0.0, batch.began_at)
            elif step.side == "csd" and step.position in brought:
                fetch = brought[step.position]
                key = fetch.device, fetch.lease
                out, back = leased.get(key, fetch.began_at), published.get(key, fetch.began_at)
                waits[TRANSFER] += length(clip(wait, back, step.got_at))
                waits[CSD] += length(clip(wait, out, back))
                earlier = clip(wait, 0.0, out)
            else:  # how it was made was not recorded
                earlier = wait
            self._blame_who_works(waits, earlier)
            if step is self.steps[0]:
                self.first_waits = dict(waits)
        self.waits = waits
        seconds |= {name if self._by_itself(name) else f"{WAITING} for {name}": s for name, s in waits.items()}
        at_end = sum(e.at - e.asked_at for e in self.trace.of(Exhausted)[:1])
        seconds[OUTSIDE] = at_end
        if self.steps:
            ended = self.trace.of(Exhausted)
            seconds[OUTSIDE] += self.steps[0].asked_at + (self.wall_s - ended[0].at if ended else 0.0)
        return seconds

    def _by_itself(self, name: str) -> bool:
        """Whether the training thread does this stage's work itself, while no batch is there."""
        return self.trace.began.itself and name in (READ, CPU)

    @staticmethod
    def _blame_host(waits: dict[str, float], batch: HostBatch, spans: list[Span]) -> None:
        """Count time in which a host batch was in work: reading gets its share of it."""
        took = batch.ended_at - batch.began_at
        part = min(1.0, batch.read_s / took) if took > 0 else 0.0
        waits[READ] += part * length(spans)
        waits[CPU] += (1.0 - part) * length(spans)

    def _blame_who_works(self, waits: dict[str, float], spans: list[Span]) -> None:
        """Count time before the delivered batch was begun: training waited for the stages at work on other batches."""
        left = spans
        for name, at_work in ((CPU, self.host_spans), (CSD, self.csd_spans), (TRANSFER, self.fetch_spans)):
            pieces = [piece for begin, end in left for piece in within(at_work, begin, end)]
            left = less(left, pieces)
            waits[name] += length(pieces) * (1.0 - self.read_part if name == CPU else 1.0)
            waits[READ] += length(pieces) * (self.read_part if name == CPU else 0.0)
        waits[START] += length(left)

    def _limit(self, seconds: dict[str, float]) -> str:
        """The stage that training waited for most; training itself if it hardly waited. The first batch's waits don't count."""
        waits = {name: self.waits[name] - s for name, s in self.first_waits.items()}
        first_s = sum(self.first_waits.values())
        if not any(waits.values()) or sum(waits.values()) < LIMIT * self.wall_s:
            if seconds[TRANSFER] > seconds[TRAINING]:
                return TRANSFER
            return START if first_s > seconds[TRAINING] else TRAINING
        most = max(waits, key=waits.__getitem__)
        return SPOOL if most in (CPU, CSD, READ) and self._spool_is_full() else most

    def _spool_is_full(self) -> bool:
        """Whether the devices rested for more than a tenth of the epoch, and the spool was full at most steps."""
        quota = sum(device.quota for device in self.devices)
        rested = sum(d.waiting_s for d in self.devices) > 0.1 * self.wall_s * sum(d.workers for d in self.devices)
        return bool(quota) and rested and 2 * sum(step.held >= quota for step in self.steps) > len(self.steps)

    # -- resources -----------------------------------------------------------------------------------------------

    def _resources(self) -> Iterable[Resource]:
        began = self.trace.began
        if not began.itself:
            work = ((b.worker, b.began_at, b.ended_at) for b in self.host)
            yield self._threads("host workers", "host", began.workers, work)
        if self.devices:
            yield Resource(
                "engine",
                sum(device.workers for device in self.devices),
                self.wall_s * sum(device.workers for device in self.devices),
                sum(device.busy_s for device in self.devices),
                sum(device.waiting_s for device in self.devices),
                sum(device.idle_s for device in self.devices),
            )
        if began.fetchers:
            fetches = ((f.fetcher, f.began_at, f.ended_at) for f in self.fetched)
            yield self._threads("transfer", "transfer", began.fetchers, fetches)
        asked = length((step.asked_at, step.got_at) for step in self.steps)
        handed, trained = length(self.handing), length(self.training)
        first, last = self._asking()
        idle = first + self.wall_s - last
        prepared = sum(self.waits[name] for name in (READ, CPU)) if began.itself else 0.0
        yield Resource("training thread", 1, self.wall_s, trained + handed + prepared, asked - prepared, idle)

    def _asking(self) -> tuple[float, float]:
        """When training asked for the first batch, and when it asked again after the last one."""
        if not self.steps:
            return self.wall_s, self.wall_s
        ended = self.trace.of(Exhausted)
        return self.steps[0].asked_at, ended[0].asked_at if ended else self.wall_s

    def _threads(self, name: str, who: str, lanes: int, work: Iterable[tuple[int, float, float]]) -> Resource:
        """A resource made of our own threads. The work and the rests of each thread were recorded."""
        rested = [e for e in self.trace.of(Rested) if e.who == who]
        done = list(work)
        first, last = [self.wall_s] * lanes, [0.0] * lanes
        for lane, began_at, ended_at in (*done, *((e.number, e.began_at, e.ended_at) for e in rested)):
            first[lane], last[lane] = min(first[lane], began_at), max(last[lane], ended_at)
        outside_s = sum(begin + max(0.0, self.wall_s - max(begin, end)) for begin, end in zip(first, last, strict=True))
        busy_s = sum(ended_at - began_at for _, began_at, ended_at in done)
        waiting_s = sum(e.ended_at - e.began_at for e in rested if not e.last)
        idle_s = sum(e.ended_at - e.began_at for e in rested if e.last) + outside_s
        return Resource(name, lanes, lanes * self.wall_s, busy_s, waiting_s, idle_s)

    # -- the rest ------------------------------------------------------------------------------------------------

    def _rates(self) -> StageRates:
        samples = sum(step.samples for step in self.steps)
        a_batch = samples / len(self.steps) if self.steps else 0.0

        def rate(workers: float, spans: Iterable[Span]) -> float | None:
            took = [end - begin for begin, end in spans]
            return workers * a_batch * len(took) / sum(took) if a_batch and sum(took) > 0 else None

        # If several ranks share a device, each counts a part of it, as a loader's own report does.
        devices = {d.device: rate(d.workers / d.ranks, (work.span for work in d.work if work.published)) for d in self.devices}
        return StageRates(
            host=rate(self.trace.began.workers, ((b.began_at, b.ended_at) for b in self.host if b.outcome == "made")),
            devices={name: device_rate for name, device_rate in devices.items() if device_rate is not None},
            transfer=rate(self.trace.began.fetchers, ((f.began_at, f.ended_at) for f in self.fetched if not f.trouble)),
            training=samples / length(self.training) if length(self.training) > 0 and samples else None,
        )

    def _bound_s(self, rates: StageRates) -> float | None:
        samples = sum(step.samples for step in self.steps)
        return max(samples / rates.both_sides, length(self.training)) if rates.both_sides else None

    def _verdict(self, rates: StageRates) -> WaitingVerdict:
        if not self.steps:
            return judge(0, 0.0, 0.0)
        first, batch = self.steps[0], sum(step.samples for step in self.steps) / len(self.steps) or 1.0
        by_host = any(step.side == "cpu" for step in self.steps)
        return judge(
            len(self.steps),
            self._asking()[1] - first.got_at,
            sum(step.got_at - step.asked_at for step in self.steps[1:]),
            start_s=first.got_at - first.asked_at,
            host_per_s=rates.host / batch if rates.host and by_host else None,
            devices_per_s={name: rate / batch for name, rate in rates.devices.items()},
            workers=(0 if self.trace.began.itself else self.trace.began.workers) if by_host else None,
            travels=self.trace.began.travels,
        )

    def _gpus(self) -> dict[str, tuple[float, int, int]]:
        """Each GPU's use: a sample counts for the time since the one before it."""
        by_gpu: dict[str, list[GpuUse]] = {}
        for sample in self.trace.of(GpuUse):
            by_gpu.setdefault(sample.gpu, []).append(sample)
        used = {}
        for gpu, samples in by_gpu.items():
            since = [0.0, *(sample.at for sample in samples)]
            busy_s = sum(
                (sample.at - before) * sample.busy_percent / 100 for sample, before in zip(samples, since, strict=False)
            )
            most, whole = max((sample.memory_used_bytes, sample.memory_bytes) for sample in samples)
            used[gpu] = max(0.0, min(1.0, busy_s / self.wall_s)) if self.wall_s > 0 else 0.0, most, whole
        return used

    @property
    def _lost(self) -> list[Lost]:
        return [event for event in self.trace.of(Lost) if event.reason != RETIRED]

    def _counts(self) -> dict[str, int]:
        return {
            "leases given": len(self.trace.of(LeaseGiven)),
            "leases taken back": len(self.trace.of(LeaseCancelled)),
            "host batches dropped": sum(b.outcome == "dropped" for b in self.host),
            "files not used": sum(bool(f.trouble) for f in self.fetched),
            "devices retired": len(self.trace.of(Retires)),
            "devices lost": len(self._lost),
        }

    def _notes(self) -> Iterable[str]:
        if not self.trace.whole:
            yield "the epoch's end was not recorded: its process ended before, or is still at it"
        if self.trace.left_out:
            yield f"{self.trace.left_out} events were left out: they came faster than they could be written"
        for event in self.trace.of(Retires):
            yield f"{event.device} retired after {event.at:.1f} s: {event.reason}"
        for lost in self._lost:
            yield f"{lost.device} was lost after {lost.at:.1f} s: {lost.reason}"
        delivered = len(self.steps)
        if self.trace.whole and not self.trace.of(Exhausted):
            yield f"the epoch was broken off after {delivered} of {self.trace.began.batches or 'its'} batches"
        joined = {event.device for event in self.trace.of(Joined)}
        for device in self.trace.began.devices:
            if device not in joined:
                yield f"{device} did not join while this epoch ran"
