"""Whether keeping decoded images pays: the predicted time of the epochs to come with and without it, the writing included."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ASSUMED_EPOCHS", "SampleCost", "kept_samples", "pays", "predicted_s"]

ASSUMED_EPOCHS = 10  # where nobody has said how many there will be


@dataclass(frozen=True)
class SampleCost:
    """What one sample takes on one core of this host, in seconds.

    Attributes:
        plain_s: made from its file.
        fill_s: made from its file, when its pixels are kept as well, with the writing.
        cached_s: made from its kept pixels, with reading them.
    """

    plain_s: float
    fill_s: float
    cached_s: float


def kept_samples(samples: int, sample_bytes: float, quota_bytes: int) -> int:
    """Return how many samples a quota has room for. ``sample_bytes``: of one sample's pixels, on average."""
    return min(samples, int(quota_bytes / max(1.0, sample_bytes)))


def predicted_s(cost: SampleCost, samples: int, kept: int, epochs: int) -> tuple[float, float]:
    """Return the seconds of so many epochs on one core: without a cache, and with one that keeps ``kept`` of the samples.

    The first epoch fills it. In the others the samples that are not kept are made from their files.
    """
    if epochs < 1:
        return 0.0, 0.0
    others = (samples - kept) * cost.plain_s
    return epochs * samples * cost.plain_s, kept * cost.fill_s + others + (epochs - 1) * (kept * cost.cached_s + others)


def pays(cost: SampleCost, samples: int, kept: int, epochs: int = ASSUMED_EPOCHS) -> bool:
    """Return whether the epochs are predicted to take less time with the cache."""
    without_s, with_s = predicted_s(cost, samples, kept, epochs)
    return with_s < without_s
