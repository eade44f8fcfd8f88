"""A trace of torch's profiler, as the analyser uses it: when the accelerator was at work, and at what.

    with torch.profiler.profile() as profiler:
        for images, labels in loader: ...
    profiler.export_chrome_trace("runs/x/torch.json")

Where the trace has kernels of a GPU, those are the accelerator's work. Else the CPU is the accelerator: torch's operators in
the training thread are its work, in three parts: the optimizer's (``Optimizer.step``, ``zero_grad``), autograd's (backward)
and the others (forward).
"""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlp.errors import DDLPError
from ddlp.observe.spans import Span, both, less, union

__all__ = ["Profile", "find_profile", "read_profile"]

_LOADER = "enumerate(DataLoader)"
_BACKWARD = "autograd::engine::evaluate_function"
_OPTIMIZER = ("Optimizer.step#", "Optimizer.zero_grad#")
_KERNELS, _COPIES = ("kernel",), ("gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class Profile:
    """Unions of spans, in Unix seconds."""

    path: Path
    kind: str  # gpu, cpu
    busy: list[Span]
    copies: list[Span]  # gpu: memory copied to and from it
    parts: dict[str, list[Span]]  # cpu: forward, backward, optimizer


def find_profile(run: str | os.PathLike[str]) -> Path | None:
    """The newest profile in a run's directory: torch*.json or torch*.json.gz."""
    found = [path for pattern in ("torch*.json", "torch*.json.gz") for path in Path(run).glob(pattern)]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def read_profile(path: str | os.PathLike[str]) -> Profile:
    """Read what ``export_chrome_trace`` has written. Raises DDLPError where it is nothing of that kind."""
    path = Path(path)
    try:
        data = path.read_bytes()
        trace = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        base_s = trace.get("baseTimeNanoseconds", 0) / 1e9
        events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
        return _profile(path, base_s, events)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DDLPError(
            f"{path} can't be read as a profile of torch ({type(error).__name__}: {error}). "
            'Write one with profiler.export_chrome_trace("torch.json").'
        ) from error


def _profile(path: Path, base_s: float, events: list[dict[str, Any]]) -> Profile:
    def spans(chosen: Iterable[dict[str, Any]]) -> list[Span]:
        return union((base_s + e["ts"] / 1e6, base_s + (e["ts"] + e.get("dur", 0)) / 1e6) for e in chosen)

    copies = spans(e for e in events if e.get("cat") in _COPIES)
    kernels = spans(e for e in events if e.get("cat") in _KERNELS)
    if kernels:
        return Profile(path, "gpu", kernels, copies, {})
    ops = [e for e in events if e.get("cat") == "cpu_op"]
    notes = [e for e in events if e.get("cat") == "user_annotation"]
    loading = [e for e in (*ops, *notes) if e["name"].startswith(_LOADER)]
    threads = Counter(e["tid"] for e in (loading or ops))
    if not threads:
        raise ValueError("it has no operators")
    tid = threads.most_common(1)[0][0]
    mine = [e for e in ops if e["tid"] == tid]
    in_loader = spans(loading)
    optimizer = spans(e for e in (*mine, *notes) if e["name"].startswith(_OPTIMIZER))
    every = spans(e for e in (*mine, *notes) if e["tid"] == tid and not e["name"].startswith(_LOADER) and _is_work(e))
    busy = less(every, in_loader)
    backward = less(both(spans(e for e in mine if e["name"].startswith(_BACKWARD)), busy), optimizer)
    optimizer = both(optimizer, busy)
    parts = {"forward": less(less(busy, backward), optimizer), "backward": backward, "optimizer": optimizer}
    return Profile(path, "cpu", busy, copies, parts)


def _is_work(event: dict[str, Any]) -> bool:
    """Whether this is an operator or an optimizer's step. Other annotations are the user's own, and may hold anything."""
    return event.get("cat") == "cpu_op" or event["name"].startswith(_OPTIMIZER)
