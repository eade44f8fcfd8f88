"""What of a sample to keep, or nothing: what is predicted to take the least time in later epochs, the writing included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "ASSUMED_EPOCHS", "DECODED", "OFF", "PLAIN_BYTES_PER_S", "SampleCost", "best_point",
    "between_requests_s", "known_cost", "predicted_s",
]  # fmt: skip

ASSUMED_EPOCHS = 10  # where nobody has said how many there will be
OFF = "off"

# Measured on one core of an Intel Xeon, files of 110 kB: docs/cache.md. By the name of what is kept: the time of the
# epoch that keeps it, and the rate of later ones, against epochs without.
_KNOWN = {"prefix": (1.13, 11.3), "pixels": (1.87, 4.33)}
PLAIN_BYTES_PER_S = 105e6  # of JPEG files made into samples by RandomResizedCrop
_MORE = 1.25  # times the latency: by so much requests must take longer, or it was all that they took
DECODED = 5.1  # times the bytes of a JPEG file of a photograph: those of its pixels


@dataclass(frozen=True)
class SampleCost:
    """What one sample takes on one core of this host, if something of it is kept.

    Attributes:
        fill_s: seconds, made from its file, when it is kept as well, with the writing.
        cached_s: seconds, made with what is kept, with reading that.
        kept_bytes: of what is kept, on average.
    """

    fill_s: float
    cached_s: float
    kept_bytes: float


def known_cost(point: str, plain_s: float, kept_bytes: float) -> SampleCost:
    """Return what a sample takes by the measured ratios, where what is kept is in memory.

    Args:
        point: "prefix" or "pixels".
        plain_s: seconds of a sample, made from its file.
        kept_bytes: as of `SampleCost`.
    """
    fill, rate = _KNOWN[point]
    return SampleCost(fill * plain_s, plain_s / rate, kept_bytes)


def between_requests_s(alone_s: float, all_s: float, count: int, at_once: int) -> float:
    """Return the seconds from one object of a storage to the next, where that is what limits it, and not its latency.

    Latency is no limit, since requests in flight become more for as long as that is faster. Where the objects came in the time
    that latency takes by itself, the storage's limit is not known: 0.

    Args:
        alone_s: of one request with none beside it.
        all_s: of ``count`` requests, with ``at_once`` in flight.
    """
    latency_s = alone_s * -(-count // at_once)
    return max(0.0, all_s - alone_s) / count if all_s > _MORE * latency_s else 0.0


def predicted_s(
    plain_s: float, cost: SampleCost | None, samples: int, quota_bytes: int, epochs: int, request_s: float = 0.0
) -> float:
    """Return the seconds of so many epochs on one core; ``cost`` None: without a cache.

    The first epoch fills it, as far as the quota has room. In all epochs the samples that are not kept are made from their
    files, which a storage gives one each ``request_s`` while others are made: an epoch takes what takes longer.
    """
    if epochs < 1:
        return 0.0
    kept, fill_s, cached_s = 0, 0.0, 0.0
    if cost is not None:
        kept = min(samples, int(quota_bytes / max(1.0, cost.kept_bytes)))
        fill_s, cached_s = cost.fill_s, cost.cached_s
    others = samples - kept
    first_s = max(samples * request_s, kept * fill_s + others * plain_s)
    return first_s + (epochs - 1) * max(others * request_s, kept * cached_s + others * plain_s)


def best_point(
    plain_s: float, costs: Mapping[str, SampleCost], samples: int, quota_bytes: int, epochs: int = ASSUMED_EPOCHS,
    request_s: float = 0.0,
) -> str:  # fmt: skip
    """Return the name of what takes the least time to keep; `OFF` if all take as long as without a cache, or longer.

    Args:
        plain_s: seconds of a sample, made from its file without a cache.
        costs: of what can be kept, by name.
        samples: of the data set.
        quota_bytes: that may be kept.
        epochs: to come.
        request_s: seconds from one object to the next, where files are objects of a storage; as many times as long, where
            several cores share the work.
    """
    given = samples, quota_bytes, epochs, request_s
    times = {name: predicted_s(plain_s, cost, *given) for name, cost in {OFF: None, **costs}.items()}
    return min(times, key=times.__getitem__)
