"""Events of epochs with whole seconds, written by hand, and the file in which they would have been recorded."""

from __future__ import annotations

from pathlib import Path

from ddlp.recording.events import (
    FORMAT,
    Decided,
    EpochBegan,
    EpochEnded,
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
    to_line,
)

BEGAN = EpochBegan(FORMAT, "0", 1000.0, 1, 0, 0, "wrr", 4, 2, 1, 1, ["d"], "cpu")

# A host batch takes 4 s, 1 s of them reading. The device's takes 6 s, and 1 s to fetch. A step takes 2 s.
TWO_SIDES = [
    HostBatch(0, 0, 0.0, 4.0, 1.0, 3.0, "made"),
    Joined("d", 1.0, 1, 2, 1),
    LeaseGiven("d", 1, 3, 2.0),
    LeaseGiven("d", 2, 2, 2.0),
    Step(0, "cpu", 2, 0.0, 4.0, 4.5, 0, 0, 0, 2),
    HostBatch(0, 1, 5.0, 9.0, 1.0, 3.0, "made"),
    Rested("host", 0, 4.0, 5.0, False),
    Published("d", 1, 3, 8.5, 6.0),
    Rested("transfer", 0, 0.0, 8.5, False),
    Fetched(0, "d", 1, 3, 8.5, 9.0, 9.5, ""),
    Step(1, "cpu", 2, 6.5, 9.0, 9.0, 0, 0, 1, 2),
    Step(3, "csd", 2, 11.0, 11.0, 11.5, 0, 0, 0, 1),
    LeaseCancelled("d", 2, 13.0),
    HostBatch(0, 2, 11.0, 15.0, 1.0, 3.0, "made"),
    Step(2, "cpu", 2, 13.5, 15.0, 15.0, 0, 0, 0, 0),
    Rested("host", 0, 9.0, 11.0, False),
    Rested("host", 0, 15.0, 17.5, True),
    Rested("transfer", 0, 9.5, 17.5, True),
    Exhausted(17.0, 17.0),
    EpochEnded(18.0, 0),
]


# The same, with engines of a pool that come and go: one from 1 to 6 and from 12 s on, one from 3 s until it is lost at 9 s.
A_POOL = [
    *TWO_SIDES[:-1], Joined("pool engine 1", 1.0, 1, 2, 1, "node7"), Joined("pool engine 2", 3.0, 1, 2, 1, "node8"),
    Retires("pool engine 1", 6.0, "it is not in the pool any more"), Lost("pool engine 1", 7.0, "it has retired"),
    Lost("pool engine 2", 9.0, "<killed>"), Lost("pool engine 2", 10.0, "it has left the pool"),
    Joined("pool engine 1", 12.0, 1, 2, 1, "node7"), TWO_SIDES[-1],
]  # fmt: skip

# The same with decisions: two that hold from the beginning, and one that is changed twice.
DECIDED = [
    Decided("cache", "pixels after decoding, in /tmp", -0.01), Decided("devices", "auto measures the host alone", 0.0),
    *TWO_SIDES[:-1], Decided("devices", "auto: with <d>", 6.0), Decided("devices", "auto: it rests", 12.0), TWO_SIDES[-1],
]  # fmt: skip

GB = 10**9

# The same with GPUs: one at half its time until 9 s, and then at all of it; one that did nothing.
WITH_GPUS = [
    *TWO_SIDES[:-1], GpuUse("gpu0 H100", 9.0, 50, 20 * GB, 80 * GB), GpuUse("gpu1 H100", 9.0, 0, 1, 80 * GB),
    GpuUse("gpu0 H100", 18.0, 100, 30 * GB, 80 * GB), TWO_SIDES[-1],
]  # fmt: skip


def written(path: Path, events: list, began: EpochBegan = BEGAN) -> Path:
    path.write_text("".join(to_line(event, 0.0) + "\n" for event in [began, *events]))
    return path
