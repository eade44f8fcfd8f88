"""The plots of an epoch as HTML: title, what it shows in words, the picture, and the figures as a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape

from ddlp.observe.analysis import Analysis
from ddlp.observe.happened import happened
from ddlp.observe.profile import Profile
from ddlp.observe.report import pictures, series
from ddlp.observe.report.pictures import Level
from ddlp.observe.report.series import DEVICE, GPU, HOST, TRAINING, TRANSFER, UNUSED, Curve
from ddlp.observe.report.words import Cell, bar, number, percent, seconds, table
from ddlp.observe.run import EpochTrace
from ddlp.observe.spans import Span
from ddlp.recording.events import Decided, Joined, Lost, Retires

__all__ = ["NO_GPU", "at_work", "buffers", "decisions", "engines", "figure", "prongs", "rates", "resources", "timeline"]

KINDS = {
    HOST: "host makes a batch",
    DEVICE: "device makes a batch",
    TRANSFER: "transfer",
    TRAINING: "training",
    UNUSED: "work not used: taken back, made twice, failed",
}
_SIDES = {
    HOST: "host's workers", DEVICE: "device's workers", GPU: "accelerator, by NVML",
    TRAINING: "accelerator, by torch's profile",
}  # fmt: skip
NO_GPU = "No use of a GPU was recorded. That takes an NVIDIA GPU and nvidia-ml-py: pip install nvidia-ml-py."
_FAR, _QUOTA_FAR = 3.0, 8.0  # a bound is not drawn above so many times the highest value
_CHANGES = 20  # of an engine, in the table
_SAMPLES = 12  # moments in the tables under curves


def figure(name: str, title: str, says: str, drawing: str, figures: str, summary: str) -> str:
    """One plot; ``drawing`` is an element of the page, ``figures`` the same as a table, called ``summary``."""
    return (
        f'<figure data-plot="{name}"><figcaption><h3>{escape(title)}</h3><p>{escape(says)}</p></figcaption>{drawing}'
        f"<details><summary>{escape(summary)}</summary>{figures}</details></figure>"
    )


def prongs(trace: EpochTrace) -> str:
    """Which batch was made when: the host comes from the head, the device from the tail."""
    made = series.made_where(trace)
    last = max((position for dots in made.values() for _, position in dots), default=0)
    batches = max(trace.began.batches, last + 1)
    if not any(made.values()):
        return nothing("prongs", "Which batch was made when", "No batch was made in this epoch.")
    sides = [side for side in (HOST, DEVICE) if made[side]]
    names = {side: KINDS[side].replace("makes", "made") for side in sides}
    drawing = pictures.prongs(made, names, trace.wall_s, batches)
    rows: list[list[Cell]] = []
    for side in sides:
        times, positions = zip(*made[side], strict=True)
        rows.append([side, str(min(positions)), str(max(positions)), seconds(min(times)), seconds(max(times))])
    both = len(sides) == 2
    says = "Each mark is a finished batch." + (
        " The host comes from the epoch's head, the device from its tail; they meet where their speeds say." if both else ""
    )
    label = f"{says} {batches} batches over {seconds(trace.wall_s)}."
    return figure(
        "prongs", "Which batch was made when", says, pictures.element(drawing, label),
        table(["made by", "lowest batch", "highest batch", "first at", "last at"], rows), "First and last batch of each side",
    )  # fmt: skip


def timeline(trace: EpochTrace) -> str:
    """Who was at work when."""
    found = series.tracks(trace)
    moments = [one.at for one in happened(trace) if one.kind in ("joined", "retires", "lost")]
    exact = not any(track.shares for track in found)
    says = "Each box is a piece of work; a lane that is empty waits or has nothing to do."
    if not exact:
        says = f"A lane's height is the part of each {seconds(trace.wall_s / series.BINS)} at work; what is missing is waiting."
    used = [kind for kind in KINDS if any(kind in track.pieces or kind in track.shares for track in found)]
    rows: list[list[Cell]] = []
    for track in found:
        for kind in KINDS:
            at_work = sum(b - a for a, b in track.pieces.get(kind, ()))
            at_work += sum(track.shares.get(kind, ())) * trace.wall_s / series.BINS
            if at_work:
                rows.append([track.name, KINDS[kind], seconds(at_work), percent(at_work, trace.wall_s)])
    if not used and not moments:
        return nothing("timeline", "Who was at work when", "Nobody had begun anything when this epoch ended.")
    label = f"Timeline of {len(found)} tracks over {seconds(trace.wall_s)}: {', '.join(track.name for track in found)}."
    drawing = pictures.element(pictures.timeline(found, KINDS, trace.wall_s, moments), label)
    return figure(
        "timeline", "Who was at work when", says, drawing,
        table(["track", "doing", "time", "of the epoch"], rows), "Time at work of each track",
    )  # fmt: skip


def decisions(trace: EpochTrace) -> str:
    """What ddlp has decided by itself, and how long each decision held."""
    found = trace.of(Decided)
    if not found:
        return ""
    lanes: dict[str, list[Span]] = {}
    rows: list[list[Cell]] = []
    for about in dict.fromkeys(one.about for one in found):
        of_it = [one for one in found if one.about == about]
        ends = [*(one.at for one in of_it[1:]), trace.wall_s]
        lanes[about] = [(max(0.0, one.at), end) for one, end in zip(of_it, ends, strict=True)]
        rows += [[about, f"{max(0.0, one.at):.1f} s", one.text] for one in of_it[:_CHANGES]]
    says = "Each box is a decision, from when it was taken to the next one about the same."
    label = f"{len(found)} decisions about {', '.join(lanes)}."
    drawing = pictures.element(pictures.lanes(lanes, trace.wall_s), label)
    told = table(["about", "from", "decision"], rows, "wrapped")
    return figure("decisions", "What was decided when", says, drawing, told, "Each decision in words")


def at_work(
    name: str, title: str, runs: Sequence[tuple[EpochTrace, Profile | None]], until_s: float, note: str = ""
) -> str:  # fmt: skip
    """How busy host, devices and accelerator were over time: the mean of these epochs. The axis ends at ``until_s``."""
    found = [series.at_work(trace, until_s, profile) for trace, profile in runs]
    if not any(any(values) for one in found for values in one.values()):
        return nothing(name, title, "Nothing was at work in this epoch.")
    sides = [side for side in _SIDES if any(side in one for one in found)]
    curves: list[Curve] = []
    rows: list[list[Cell]] = []
    for side in sides:
        bins = list(zip(*(one[side] for one in found if side in one), strict=True))
        low, mean, high = ([100 * of(values) for values in bins] for of in (min, statistics.fmean, max))
        curves.append(Curve(_SIDES[side], low, mean, high))
        wall_s = statistics.fmean(trace.wall_s for (trace, _), one in zip(runs, found, strict=True) if side in one)
        busy_s = statistics.fmean(mean) / 100 * until_s
        rows.append([f"{_SIDES[side]} at work", percent(busy_s, wall_s), bar(busy_s, wall_s, side)])
    told = ", ".join(f"{row[0]} {row[1]}" for row in rows)
    of_gpus = [(gpu, sample) for trace, _ in runs for gpu, samples in series.gpus(trace).items() for sample in samples]
    for gpu in sorted({gpu for gpu, sample in of_gpus if sample.memory_bytes}):
        used, whole = max((one.memory_used_bytes, one.memory_bytes) for name_, one in of_gpus if name_ == gpu)
        most = f"memory of {gpu} in use: at most {number(used / 1e9)} of {number(whole / 1e9)} GB"
        rows.append([most, percent(used, whole), bar(used, whole, GPU)])
    says = "The part of the workers at work"
    says += ", and of the time in which a kernel ran on the GPU, no matter whose." if GPU in sides else "."
    if len(runs) > 1:
        says += " Lines are means of the runs; the shade reaches from the least to the most."
    says += f" {note}" if note else ""
    drawn = pictures.curves(curves, sides, until_s, "per cent at work", most=102.0)
    drawing = pictures.element(drawn, f"{title}, at work over {seconds(until_s)}: {told}.")
    return figure(name, title, says, drawing, table(["", "part of the epoch, or memory", ""], rows), "In figures")


def rates(trace: EpochTrace, analysis: Analysis) -> str:
    """What each side makes and training gets, against their bounds."""
    curves, bounds = series.rates_over_time(trace), analysis.rates
    rows: list[list[Cell]] = [["host, all its workers at work", number(bounds.host)]]
    rows += [[f"{name}, all its workers at work", number(rate)] for name, rate in bounds.devices.items()]
    rows += [["both sides together (r_cpu + r_csd)", number(bounds.both_sides)]]
    rows += [["transfer of a device's batches", number(bounds.transfer)]] if bounds.transfer else []
    rows += [["training, were data always ready", number(bounds.training)], ["achieved", number(analysis.images_per_s)]]
    fastest = max((float(rate) for rate in (bounds.both_sides, bounds.training, analysis.images_per_s) if rate), default=1.0)
    figures = [[*row, bar(value, fastest)] for row, value in zip(rows, _values(analysis), strict=True)]
    told = table(["", "images/s", ""], figures)
    title = "Rates against their bounds"
    if not curves:
        return nothing("rates", title, "No batch was delivered in this epoch.", told)
    # A bound far above all curves would press them flat: such a bound is named, not drawn.
    top = max(max(curve.mean) for curve in curves)
    levels = []
    for name, rate in (("both sides together, r_cpu + r_csd", bounds.both_sides), ("training alone", bounds.training)):
        if rate and rate <= _FAR * top:
            levels.append(Level(f"bound: {name}, {number(rate)}", rate))
        elif rate:
            levels.append(Level(f"bound, above this plot: {name}, {number(rate)}", None))
    styles = {"host makes": HOST, "device makes": DEVICE, "training gets": TRAINING}
    achieved, able = number(analysis.images_per_s), number(bounds.both_sides)
    label = f"Images a second over {seconds(trace.wall_s)}; {achieved} achieved, {able} the bound of both sides."
    says = "What each side made and training got, moment by moment, and the most that both sides can make together."
    drawn = pictures.curves(curves, [styles[curve.name] for curve in curves], trace.wall_s, "images/s", levels)
    told += _curves_table(curves, trace.wall_s, "images/s")
    return figure("rates", title, says, pictures.element(drawn, label), told, "Rates in figures")


def _values(analysis: Analysis) -> list[float | None]:
    """The rates, in the order of their table."""
    bounds = analysis.rates
    transfer = [bounds.transfer] if bounds.transfer else []
    return [bounds.host, *bounds.devices.values(), bounds.both_sides, *transfer, bounds.training, analysis.images_per_s]


def buffers(trace: EpochTrace) -> str:
    """Ready batches and the spool's fill."""
    curves = series.buffers(trace)
    quota = sum(device.quota for device in series.device_times(trace))
    title = "Ready batches and spool" if trace.began.devices else "Ready batches"
    if not curves:
        return nothing("buffers", title, "No batch was delivered in this epoch.")
    most = max([*(max(curve.high) for curve in curves), 1])
    near = quota <= _QUOTA_FAR * most
    where = "" if near else "above this plot: "
    levels = [Level(f"the spool's quota, {where}{quota} batches", quota if near else None)] if quota else []
    drawn = pictures.curves(curves, [HOST, DEVICE, TRANSFER, "held"], trace.wall_s, "batches", levels)
    says = "Batches that wait for training. Where all are at 0, training waits; with the spool at its quota, the device does."
    if not trace.began.devices:
        says = "Batches that wait for training. Where none is ready, training waits."
    means = ", ".join(f"{curve.name} {sum(curve.mean) / len(curve.mean):.1f} on average" for curve in curves)
    return figure(
        "buffers", title, says, pictures.element(drawn, f"Batches over time: {means}."),
        _curves_table(curves, trace.wall_s, "batches"), "Figures over time",
    )  # fmt: skip


def engines(trace: EpochTrace, analysis: Analysis) -> str:
    """How many engines were at work over time, and each one's node, rate, and why it came or went."""
    curves = series.engines(trace)
    if not curves:
        return ""
    drawn = pictures.curves(curves, [DEVICE, "held"], trace.wall_s, "engines")
    nodes = {event.device: event.node for event in trace.of(Joined)}
    changes = series.changes(trace)
    rows: list[list[Cell]] = []
    for name in dict.fromkeys(event.device for event in changes):
        told = [_change(event) for event in changes if event.device == name][:_CHANGES]
        rows.append([name, nodes.get(name) or "-", number(analysis.rates.devices.get(name)), "; ".join(told)])
    says = "Engines that take work, and engines that finish what they have before they go."
    means = ", ".join(f"{curve.name} {sum(curve.mean) / len(curve.mean):.1f} on average" for curve in curves)
    told_all = table(["engine", "node", "images/s", "came and went"], rows, "wrapped")
    return figure(
        "engines", "Engines over time", says, pictures.element(drawn, f"Engines: {means}."),
        told_all + _curves_table(curves, trace.wall_s, "engines"), "Each engine, and figures over time",
    )  # fmt: skip


def _change(event: Joined | Retires | Lost) -> str:
    if isinstance(event, Joined):
        return f"{event.at:.1f} s joined"
    return f"{event.at:.1f} s {'retires: ' if isinstance(event, Retires) else ''}{event.reason}"


def _curves_table(curves: Sequence[Curve], wall_s: float, unit: str) -> str:
    rows: list[list[Cell]] = []
    for k in range(_SAMPLES):
        parts = [
            curve.mean[k * len(curve.mean) // _SAMPLES : max(1, (k + 1) * len(curve.mean) // _SAMPLES)] or [curve.mean[-1]]
            for curve in curves
        ]
        until = f"{wall_s * k / _SAMPLES:.2f} to {wall_s * (k + 1) / _SAMPLES:.2f} s"
        rows.append([until, *(number(sum(part) / len(part)) for part in parts)])
    return table([f"mean, {unit}", *(curve.name for curve in curves)], rows)


def resources(analysis: Analysis) -> str:
    """Busy, waiting, idle of each resource."""
    names = {
        "busy": "busy (high)", "waiting": "waiting: it could have worked, others held it up (half)",
        "idle": "idle: not there yet, or nothing left to do (low)",
    }  # fmt: skip
    parts = {
        style: (name, [max(0.0, 100 * getattr(one, f"{style}_s") / max(one.wall_s, 1e-9)) for one in analysis.resources])
        for style, name in names.items()
    }
    rows: list[list[Cell]] = []
    for one in analysis.resources:
        named = f"{one.name} x {one.lanes}" if one.lanes > 1 else one.name
        times = (one.busy_s, one.waiting_s, one.idle_s, one.unaccounted_s)
        rows.append([named, *(percent(part_s, one.wall_s) for part_s in times), seconds(one.wall_s)])
    drawn = pictures.stacked([str(row[0]) for row in rows], parts, 100.0, "per cent of its time")
    label = "; ".join(f"{row[0]}: {row[1]} busy, {row[2]} waiting, {row[3]} idle" for row in rows)
    says = "What each was at for the whole epoch. The one that is busy nearly always is the one to make faster."
    return figure(
        "resources", "Busy, waiting, idle", says, pictures.element(drawn, label + "."),
        table(["resource", "busy", "waiting", "idle", "unaccounted", "of"], rows), "Figures",
    )  # fmt: skip


def nothing(name: str, title: str, why: str, figures: str = "") -> str:
    """In a plot's place, where there is nothing to draw."""
    return f'<section class="nothing" data-no-plot="{name}"><h3>{escape(title)}</h3><p>{escape(why)}</p>{figures}</section>'
