"""`ddlp trace RUN`: a recorded epoch as a Chrome trace, which Perfetto (https://ui.perfetto.dev) opens.

One track a host worker, engine worker, fetcher and for the training thread; counters of ready batches, of the spool
and of a GPU's use; marks where a lease was taken back, a device was lost or joined.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddlp.errors import DDLPError
from ddlp.observe.engine_time import device_times, on_workers
from ddlp.observe.happened import happened
from ddlp.observe.run import EpochTrace, epoch_files, read_epoch, training_spans
from ddlp.recording.events import Fetched, GpuUse, HostBatch, Rested, Step

__all__ = ["add_arguments", "chrome_trace", "run"]

_TRAINING, _HOST, _TRANSFER, _DEVICES = 0, 100, 200, 300  # tracks: their order from the top
_MOST_LANES = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("run_directory", metavar="RUN", help="a recorded run's directory: its last epoch; or a file there")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: beside the epoch's file, .trace.json")


def run(options: argparse.Namespace) -> int:
    """Write it."""
    file = epoch_files(options.run_directory)[-1]
    output = Path(options.output) if options.output else file.with_suffix(".trace.json")
    text = json.dumps(chrome_trace(read_epoch(file)), separators=(",", ":"))
    try:
        output.write_text(text)
    except OSError as error:
        raise DDLPError(f"{output} can't be written: {error.strerror}. -o FILE chooses another place.") from None
    print(f"{output}: open it at https://ui.perfetto.dev")
    return 0


def chrome_trace(trace: EpochTrace) -> dict[str, Any]:
    """The trace as the JSON object of the Chrome trace format (times in microseconds)."""
    began = trace.began
    return {
        "traceEvents": [*_tracks(trace), *_spans(trace), *_marks(trace), *_counters(trace)],
        "displayTimeUnit": "ms",
        "otherData": {**began._asdict(), "devices": ", ".join(began.devices), "wall_s": trace.wall_s},
    }


def _tracks(trace: EpochTrace) -> Iterator[dict[str, Any]]:
    names = {_TRAINING: "training thread"}
    names |= {_HOST + k: f"host worker {k}" for k in range(trace.began.workers)}
    names |= {_TRANSFER + k: f"transfer {k}" for k in range(trace.began.fetchers)}
    for number, device in enumerate(device_times(trace)):
        for lane in range(device.workers):
            names[_DEVICES + _MOST_LANES * number + lane] = f"engine {device.device}, worker {lane}"
    what = f"epoch {trace.began.epoch}, {trace.began.strategy}"
    yield {"ph": "M", "name": "process_name", "pid": trace.began.pid, "args": {"name": f"ddlp: {what}"}}
    for tid, name in names.items():
        yield {"ph": "M", "name": "thread_name", "pid": trace.began.pid, "tid": tid, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": trace.began.pid, "tid": tid, "args": {"sort_index": tid}}


def _spans(trace: EpochTrace) -> Iterator[dict[str, Any]]:
    pid = trace.began.pid

    def span(tid: int, name: str, kind: str, begin: float, end: float, **arguments: Any) -> dict[str, Any]:
        ts = round(begin * 1e6, 1)
        dur = max(0.0, round(round(end * 1e6, 1) - ts, 1))
        return {"ph": "X", "name": name, "cat": kind, "ts": ts, "dur": dur, "pid": pid, "tid": tid, "args": arguments}

    for e in trace.of(HostBatch):
        more = {"read_ms": round(1e3 * e.read_s, 3), "cpu_ms": round(1e3 * e.cpu_s, 3), "outcome": e.outcome}
        yield span(_HOST + e.worker, f"batch {e.position}", "host", e.began_at, e.ended_at, **more)
    for rest in trace.of(Rested):
        tid = (_HOST if rest.who == "host" else _TRANSFER) + rest.number
        yield span(tid, "idle" if rest.last else "waiting", "waiting", rest.began_at, rest.ended_at)
    for f in trace.of(Fetched):
        tid, more = _TRANSFER + f.fetcher, {"lease": f.lease, **({"trouble": f.trouble} if f.trouble else {})}
        yield span(tid, f"batch {f.position}", "transfer", f.began_at, f.ended_at, device=f.device, **more)
        yield span(tid, "read and verify", "transfer", f.began_at, f.read_at)
        yield span(tid, "convert", "transfer", f.read_at, f.ended_at)
    for number, device in enumerate(device_times(trace)):
        for lane, work in on_workers(device):
            tid = _DEVICES + _MOST_LANES * number + lane
            name = f"batch {work.position}" if work.published else f"batch {work.position}, not published"
            yield span(tid, name, "engine", *work.span, lease=work.lease)
    for step, training in zip(trace.of(Step), training_spans(trace), strict=True):
        name, kind = ("preparing", "host") if trace.began.itself else ("waiting", "waiting")
        yield span(_TRAINING, name, kind, step.asked_at, step.got_at, batch=step.position, side=step.side)
        yield span(_TRAINING, "targets, device", "transfer", step.got_at, step.handed_at)
        yield span(_TRAINING, f"training on {step.position} ({step.side})", "training", *training)


def _marks(trace: EpochTrace) -> Iterator[dict[str, Any]]:
    """Points in time, drawn over all tracks."""
    for moment in happened(trace):
        at = round(moment.at * 1e6, 1)
        yield {"ph": "i", "s": "p", "name": moment.text, "ts": at, "pid": trace.began.pid, "tid": _TRAINING, "cat": "event"}


def _counters(trace: EpochTrace) -> Iterator[dict[str, Any]]:
    for step in trace.of(Step):
        for name, values in (
            ("ready batches", {"host": step.ready_host, "device": step.ready_csd}),
            ("spool, batches", {"published": step.in_spool, "being written": max(0, step.held - step.in_spool)}),
        ):
            yield {"ph": "C", "name": name, "ts": round(step.got_at * 1e6, 1), "pid": trace.began.pid, "args": values}
    for sample in trace.of(GpuUse):
        at, values = round(sample.at * 1e6, 1), {"busy": sample.busy_percent}
        yield {"ph": "C", "name": f"{sample.gpu}, % of the time", "ts": at, "pid": trace.began.pid, "args": values}
