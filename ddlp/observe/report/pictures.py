"""What matplotlib draws for the pages. Importing this needs matplotlib. An artist's gid names what it shows."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from ddlp.observe.analysis import TRAINING, TRANSFER, WAITING, Analysis
from ddlp.observe.engine_time import device_times, on_workers
from ddlp.observe.happened import happened
from ddlp.observe.report.comparison import Comparison
from ddlp.observe.run import EpochTrace, training_spans
from ddlp.recording.events import Fetched, GpuUse, HostBatch, Published, Step
from ddlp.stats.words import number

__all__ = ["comparison", "epoch"]

HOST, DEVICE, FETCH, TRAIN, UNUSED, WAIT = "host", "device", "transfer", "training", "not used", "waiting"
_COLOURS = {HOST: "#0969da", DEVICE: "#bc4c00", FETCH: "#1a7f6b", TRAIN: "#6e50b0", UNUSED: "#8c959f", WAIT: "#cf222e"}
_BINS = 60  # of the rates
_FAR = 3.0  # a bound is not drawn above so many times the highest rate


def epoch(trace: EpochTrace, analysis: Analysis) -> Figure:
    """Draw an epoch, one plot below another over the same seconds.

    Which batch was made when; who was at work when; images a second and their bounds; ready batches and the spool; the GPUs.
    """
    lanes = _lanes(trace)
    heights = [4.0, 1.0 + min(0.25 * len(lanes), 12.0), 3.0, 3.0, *([2.0] if analysis.gpus else [])]
    figure = Figure(figsize=(11, sum(heights)), dpi=110, layout="constrained")
    plots = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    _batches(plots[0], trace)
    _work(plots[1], trace, lanes)
    _rates(plots[2], trace, analysis)
    _ready(plots[3], trace)
    if analysis.gpus:
        _gpus(plots[4], trace)
    for axes in plots:
        axes.spines[["top", "right"]].set_visible(False)
        _legend(axes)
    plots[-1].set_xlabel("seconds since the epoch began")
    plots[-1].set_xlim(0, max(trace.wall_s, 1e-6))
    return figure


def _legend(axes: Any) -> None:
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if named:
        axes.legend(named.values(), named.keys(), loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)


def _batches(axes: Any, trace: EpochTrace) -> None:
    """A mark for each batch: the host comes from the head, the device from the tail."""
    axes.set_title("Which batch was made when", loc="left")
    axes.set_ylabel("batch of the epoch")
    points = {HOST: [(b.ended_at, b.position) for b in trace.of(HostBatch) if b.outcome == "made"],
            DEVICE: [(e.at, e.position) for e in trace.of(Published) if e.position >= 0]}  # fmt: skip
    for side, marker in ((HOST, "o"), (DEVICE, "s")):
        if points[side]:
            times, positions = zip(*points[side], strict=True)
            look = {"color": _COLOURS[side], "marker": marker, "s": 12, "linewidths": 0}
            axes.scatter(times, positions, label=f"made by the {side}", gid=f"dots {side}", **look)


def _lanes(trace: EpochTrace) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """What each worker and thread did, from the top: by its name and by the kind of work, (begin, length) of each piece."""
    lanes: dict[str, dict[str, list[tuple[float, float]]]] = {f"host worker {k}": {} for k in range(trace.began.workers)}

    def add(lane: str, kind: str, begin: float, end: float) -> None:
        lanes.setdefault(lane, {}).setdefault(kind, []).append((begin, max(0.0, end - begin)))

    for batch in trace.of(HostBatch):
        kind = HOST if batch.outcome == "made" else UNUSED
        add(f"host worker {batch.worker}", kind, batch.began_at, batch.ended_at)
    for device in device_times(trace):
        lanes |= {f"{device.device} worker {k}": {} for k in range(device.workers)}
        for number_, work in on_workers(device):
            add(f"{device.device} worker {number_}", DEVICE if work.published else UNUSED, *work.span)
    lanes |= {f"transfer {k}": {} for k in range(trace.began.fetchers)}
    for fetch in trace.of(Fetched):
        add(f"transfer {fetch.fetcher}", UNUSED if fetch.trouble else FETCH, fetch.began_at, fetch.ended_at)
    for step, (begin, end) in zip(trace.of(Step), training_spans(trace), strict=False):
        add("training thread", FETCH, step.got_at, step.handed_at)
        add("training thread", TRAIN, begin, end)
    return lanes


def _work(axes: Any, trace: EpochTrace, lanes: dict[str, dict[str, list[tuple[float, float]]]]) -> None:
    """A lane for each worker and thread, with a box for each piece of work, and a line where a device came or went."""
    axes.set_title("Who was at work when", loc="left")
    for row, pieces in enumerate(lanes.values()):
        for kind, spans in pieces.items():
            tall = 0.4 if kind == UNUSED else 0.8
            place, look = (row + 0.4 - tall, tall), {"facecolor": _COLOURS[kind], "linewidth": 0}
            axes.broken_barh(spans, place, label=kind, gid=f"box {kind}", **look)
    for moment in happened(trace):
        if moment.kind in ("joined", "retires", "lost", "decided"):
            label = "a decision, or a device came or went"
            axes.axvline(moment.at, color="black", linestyle="--", linewidth=0.8, label=label, gid="moment")
    axes.set_yticks(range(len(lanes)), lanes, fontsize=8 if len(lanes) <= 48 else 4)
    axes.set_ylim(len(lanes) - 0.5, -0.5)


def _rates(axes: Any, trace: EpochTrace, analysis: Analysis) -> None:
    """What the sides made and training got, and the bounds."""
    axes.set_title("Rates against their bounds", loc="left")
    axes.set_ylabel("images/s")
    steps, wall_s = trace.of(Step), max(trace.wall_s, 1e-6)
    a_batch = analysis.samples / len(steps) if steps else 0.0
    host = [(b.ended_at, a_batch) for b in trace.of(HostBatch) if b.outcome == "made"]
    device = [(e.at, a_batch) for e in trace.of(Published) if e.position >= 0]
    got = [(step.got_at, step.samples) for step in steps]
    bins = min(_BINS, max(4, len(steps) // 2))
    for kind, name, points in ((HOST, "host makes", host), (DEVICE, "device makes", device), (TRAIN, "training gets", got)):
        if points:
            times, samples = zip(*points, strict=True)
            look = {"histtype": "step", "color": _COLOURS[kind], "label": name, "gid": f"curve {kind}"}
            axes.hist(times, bins, range=(0, wall_s), weights=[count * bins / wall_s for count in samples], **look)
    top = axes.get_ylim()[1]
    for name, rate, line in (("both sides", analysis.rates.both_sides, ":"), ("training alone", analysis.rates.training, "-.")):
        if rate and rate <= _FAR * top:
            axes.axhline(rate, color="black", linestyle=line, linewidth=1, label=f"bound: {name}, {number(rate)}", gid="level")
        elif rate:
            axes.plot([], [], " ", label=f"bound, above this plot:\n{name}, {number(rate)}")


def _ready(axes: Any, trace: EpochTrace) -> None:
    """Batches that wait for training, at each step: where none is ready, training waits; with a full spool the device does."""
    axes.set_title("Ready batches and spool" if trace.began.devices else "Ready batches", loc="left")
    axes.set_ylabel("batches")
    steps = trace.of(Step)
    curves = [(HOST, "ready, made by the host", [step.ready_host for step in steps])]
    if trace.began.devices:
        curves.append((DEVICE, "ready, from the device", [step.ready_csd for step in steps]))
        curves.append((FETCH, "published in the spool", [step.in_spool for step in steps]))
        curves.append((UNUSED, "spool held, being written\nincluded", [max(step.held, step.in_spool) for step in steps]))
    for kind, name, counts in curves:
        at = [step.got_at for step in steps]
        axes.step(at, counts, where="post", color=_COLOURS[kind], label=name, gid=f"ready {kind}")
    quota = sum(device.quota for device in device_times(trace))
    if quota:
        axes.plot([], [], " ", label=f"the spool's quota: {quota}")


def _gpus(axes: Any, trace: EpochTrace) -> None:
    """How busy the GPUs were, by NVML."""
    axes.set_title("GPUs: part of the time in which a kernel ran", loc="left")
    axes.set_ylabel("%")
    for gpu in dict.fromkeys(sample.gpu for sample in trace.of(GpuUse)):
        samples = [sample for sample in trace.of(GpuUse) if sample.gpu == gpu]
        # A sample is of the time since the one before it.
        times, busy = [sample.at for sample in samples], [sample.busy_percent for sample in samples]
        axes.step(times, busy, where="pre", label=gpu, gid=f"gpu {gpu}")
    axes.set_ylim(0, 102)


def comparison(result: Comparison) -> Figure:
    """Draw for each group the time of an epoch, with a mark for each run, and below what training did in it."""
    groups = result.groups
    figure = Figure(figsize=(11, 3.0 + 0.8 * len(groups)), dpi=110, layout="constrained")
    times, spent = figure.subplots(2, 1, sharex=True)
    for row, group in enumerate(groups):
        walls = group.values(lambda analysis: analysis.wall_s)
        times.barh(row, sum(walls) / len(walls), height=0.4, color=_COLOURS[UNUSED], label="mean of the runs")
        times.scatter(walls, [row] * len(walls), s=22, color=_COLOURS[HOST], zorder=3, label="a run", gid="dots run")
    left = [0.0] * len(groups)
    for kind, name in ((TRAIN, TRAINING), (FETCH, TRANSFER), (WAIT, WAITING)):
        took = [
            group.spent(name) if name != WAITING else group.mean(lambda analysis: analysis.stages[WAITING]) for group in groups
        ]
        for bar in spent.barh(range(len(groups)), took, 0.6, left, color=_COLOURS[kind], label=kind):
            bar.set_gid(f"box {kind}")
        left = [a + b for a, b in zip(left, took, strict=True)]
    for axes, title in ((times, "Time of an epoch"), (spent, "What training did in it")):
        axes.set_title(title, loc="left")
        axes.set_yticks(range(len(groups)), [group.label for group in groups])
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.spines[["top", "right"]].set_visible(False)
        _legend(axes)
    spent.set_xlabel("seconds an epoch")
    spent.set_xlim(left=0)
    return figure
