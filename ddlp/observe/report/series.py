"""What is drawn of an epoch: tracks and curves over its time, of a bounded number of pieces however many batches it had."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ddlp.observe.engine_time import DeviceTime, device_times, on_workers
from ddlp.observe.profile import Profile
from ddlp.observe.run import EpochTrace, training_spans
from ddlp.observe.spans import Span, clip
from ddlp.recording.events import Fetched, GpuUse, HostBatch, Joined, Lost, Published, Retires, Step

__all__ = ["Curve", "Track", "at_work", "buffers", "changes", "engines", "gpus", "made_where", "rates_over_time", "tracks"]

HOST, DEVICE, TRANSFER, TRAINING, UNUSED, GPU = "host", "device", "transfer", "training", "unused", "gpu"
MOST_PIECES = 300  # a track draws so many one by one; of more it draws the part of the time that they take
BINS = 400
MOST_DOTS = 1200
MOST_TRACKS = 16  # of a kind; if there are more, one track shows their mean
RATE_BINS = 60


@dataclass
class Track:
    """What one thread or worker did.

    ``pieces``: spans by kind. If they are too many, there are ``shares``: by kind, the part (0 to 1) of each bin's time.
    """

    name: str
    kind: str
    pieces: dict[str, list[Span]] = field(default_factory=dict)
    shares: dict[str, list[float]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Pieces of work."""
        return sum(map(len, self.pieces.values()))


@dataclass(frozen=True)
class Curve:
    """A value over the epoch: ``low``, ``mean`` and ``high`` within each bin; the bins are equally long and cover the epoch."""

    name: str
    low: list[float]
    mean: list[float]
    high: list[float]


def tracks(trace: EpochTrace) -> list[Track]:
    """Host workers, the devices' workers, fetchers, the training thread: from the top."""
    host = [Track(f"host worker {k}", HOST) for k in range(trace.began.workers)]
    for batch in trace.of(HostBatch):
        _add(host[batch.worker], HOST if batch.outcome == "made" else UNUSED, batch.began_at, batch.ended_at)
    engines: list[Track] = []
    devices = device_times(trace)
    for device in devices:
        engines += _device_tracks(device, device.device if len(devices) > 1 else "device")
    fetchers = [Track(f"transfer {k}", TRANSFER) for k in range(trace.began.fetchers)]
    for fetch in trace.of(Fetched):
        _add(fetchers[fetch.fetcher], UNUSED if fetch.trouble else TRANSFER, fetch.began_at, fetch.ended_at)
    training = Track("training thread", TRAINING)
    for step, (begin, end) in zip(trace.of(Step), training_spans(trace), strict=False):
        _add(training, TRANSFER, step.got_at, step.handed_at)
        _add(training, TRAINING, begin, end)
    found: list[Track] = []
    for group in (host, engines, fetchers, [training]):
        found += [_together(group, trace.wall_s)] if len(group) > MOST_TRACKS else group
    if any(track.shares or track.count > MOST_PIECES for track in found):
        for track in found:
            if not track.shares:
                _share(track, trace.wall_s)
    return found


def _device_tracks(device: DeviceTime, name: str) -> list[Track]:
    result = [Track(f"{name} worker {k}", DEVICE) for k in range(device.workers)]
    for number, work in on_workers(device):
        _add(result[number], DEVICE if work.published else UNUSED, *work.span)
    return result


def _add(track: Track, kind: str, begin: float, end: float) -> None:
    if end > begin:
        track.pieces.setdefault(kind, []).append((begin, end))


def _share(track: Track, wall_s: float) -> None:
    track.shares = {kind: in_bins(((*span, 1.0) for span in spans), wall_s, BINS) for kind, spans in track.pieces.items()}
    track.pieces = {}


def _together(group: Sequence[Track], wall_s: float) -> Track:
    """All tracks of a kind as one: the mean of their shares."""
    whole = Track(f"{group[0].kind}: {len(group)} workers, mean", group[0].kind)
    for track in group:
        for kind, spans in track.pieces.items():
            whole.pieces.setdefault(kind, []).extend(spans)
    _share(whole, wall_s)
    whole.shares = {kind: [share / len(group) for share in shares] for kind, shares in whole.shares.items()}
    return whole


def in_bins(weighted: Iterable[tuple[float, float, float]], wall_s: float, bins: int) -> list[float]:
    """The mean weight in each bin, from spans (from, to, weight). Time without a span counts as 0."""
    sums = [0.0] * bins
    width = wall_s / bins
    if width <= 0:
        return sums
    for begin, end, weight in weighted:
        begin, end = max(0.0, begin), min(wall_s, end)
        if begin >= end:  # it lies outside the epoch
            continue
        first, last = int(begin / width), min(bins - 1, int(end / width))
        for number in range(first, last + 1):
            inside = min(end, (number + 1) * width) - max(begin, number * width)
            sums[number] += weight * max(0.0, inside) / width
    return sums


def made_where(trace: EpochTrace) -> dict[str, list[tuple[float, int]]]:
    """When (seconds) which batch (position in the epoch) was finished, by the host and by the devices."""
    found = {
        HOST: [(b.ended_at, b.position) for b in trace.of(HostBatch) if b.outcome == "made"],
        DEVICE: [(e.at, e.position) for e in trace.of(Published) if e.position >= 0],
    }
    return {side: sorted(dots)[:: -(-len(dots) // MOST_DOTS) or 1] for side, dots in found.items()}


def rates_over_time(trace: EpochTrace) -> list[Curve]:
    """Images a second: made by the host, by the devices, and got by the training thread."""
    steps = trace.of(Step)
    if not steps or trace.wall_s <= 0:
        return []
    bins = min(RATE_BINS, max(4, len(steps) // 2))
    a_batch = sum(step.samples for step in steps) / len(steps)

    def curve(name: str, spans: Iterable[tuple[float, float, float]]) -> Curve:
        rates = in_bins(((begin, end, count / (end - begin)) for begin, end, count in spans if end > begin), trace.wall_s, bins)
        return Curve(name, rates, rates, rates)

    host = ((b.began_at, b.ended_at, a_batch) for b in trace.of(HostBatch) if b.outcome == "made")
    devices = ((*work.span, a_batch) for device in device_times(trace) for work in device.work if work.published)
    before = [0.0, *(step.got_at for step in steps)]
    got = ((since, step.got_at, float(step.samples)) for since, step in zip(before, steps, strict=False))
    found = [curve("host makes", host), curve("device makes", devices), curve("training gets", got)]
    return found if trace.began.devices else [found[0], found[2]]


def buffers(trace: EpochTrace) -> list[Curve]:
    """Batches that are ready and that the spools hold, as they were at each step and until the next."""
    steps = trace.of(Step)
    if not steps or trace.wall_s <= 0:
        return []
    values = {"ready, made by the host": [step.ready_host for step in steps]}
    if trace.began.devices:
        values["ready, from the device"] = [step.ready_csd for step in steps]
        values["published in the spool"] = [step.in_spool for step in steps]
        values["spool held, those being written included"] = [max(step.held, step.in_spool) for step in steps]
    at = [step.got_at for step in steps]
    return [_curve(name, at, counts, trace.wall_s) for name, counts in values.items()]


def changes(trace: EpochTrace) -> list[Joined | Retires | Lost]:
    """Devices that came or went, in the order of time."""
    found = [event for event in trace.events if isinstance(event, (Joined, Retires, Lost))]
    return sorted(found, key=lambda event: event.at)


def gpus(trace: EpochTrace) -> dict[str, list[GpuUse]]:
    """The samples of each GPU that was busy in any of them; of all GPUs, if none was."""
    found: dict[str, list[GpuUse]] = {}
    for sample in trace.of(GpuUse):
        found.setdefault(sample.gpu, []).append(sample)
    return {gpu: those for gpu, those in found.items() if any(one.busy_percent for one in those)} or found


def at_work(trace: EpochTrace, until_s: float, profile: Profile | None = None) -> dict[str, list[float]]:
    """The part (0 to 1) of the host's workers and of the devices' workers that is at work, by bins from 0 to ``until_s``.

    And of the accelerator, if there is a profile of torch of this time (`TRAINING`), or if NVML was sampled: the mean of
    `gpus` (`GPU`). A sample counts for the time since the one before it.
    """
    devices = device_times(trace)
    busy = {HOST: [(b.began_at, b.ended_at) for b in trace.of(HostBatch)]}
    lanes = {HOST: max(1, trace.began.workers)}
    if devices:
        busy[DEVICE] = [work.span for device in devices for work in device.work]
        lanes[DEVICE] = sum(device.workers for device in devices)
    clock = trace.began.clock
    computed = [] if profile is None else clip([(a - clock, b - clock) for a, b in profile.busy], 0.0, trace.wall_s)
    if computed:
        busy[TRAINING], lanes[TRAINING] = computed, 1
    weighted = {side: [(*span, 1 / lanes[side]) for span in spans] for side, spans in busy.items()}
    sampled = gpus(trace)
    for samples in sampled.values():
        since = [0.0, *(one.at for one in samples)]
        weighted.setdefault(GPU, []).extend(
            (begin, min(one.at, trace.wall_s), one.busy_percent / 100 / len(sampled))
            for begin, one in zip(since, samples, strict=False)
        )
    shares = {side: in_bins(spans, until_s, RATE_BINS) for side, spans in weighted.items()}
    return {side: [min(1.0, share) for share in those] for side, those in shares.items()}  # a device's spans may just overlap


def engines(trace: EpochTrace) -> list[Curve]:
    """How many engines take leases, and how many finish what they have; nothing where there is one device that stays."""
    there, retiring = set[str](), set[str]()
    at, working, finishing = [0.0], [0], [0]
    for event in changes(trace):
        there.discard(event.device)
        retiring.discard(event.device)
        if not isinstance(event, Lost):
            (there if isinstance(event, Joined) else retiring).add(event.device)
        at.append(min(event.at, trace.wall_s))
        working.append(len(there))
        finishing.append(len(retiring))
    of_a_pool = any(event.node for event in trace.of(Joined))
    if trace.wall_s <= 0 or not (of_a_pool or max(working) > 1 or any(finishing)):
        return []
    return [_curve("at work", at, working, trace.wall_s), _curve("retiring", at, finishing, trace.wall_s)]


def _curve(name: str, at: Sequence[float], values: Sequence[int], wall_s: float) -> Curve:
    """A value that holds until the next, 0 before the first, by bins."""
    until = [*at[1:], wall_s]
    mean = in_bins(((a, b, float(value)) for a, b, value in zip(at, until, values, strict=True)), wall_s, BINS)
    low, high = list(mean), list(mean)
    for moment, value in zip(at, values, strict=True):
        number = min(BINS - 1, int(min(1.0, max(0.0, moment / wall_s)) * BINS))  # a moment may lie outside the epoch
        low[number], high[number] = min(low[number], value), max(high[number], value)
    return Curve(name, low, mean, high)
