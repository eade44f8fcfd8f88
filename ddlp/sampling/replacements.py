"""Which sample takes the place of one whose image is bad (``on_error="replace"``). Pure.

It is another sample of the same batch. Those are known at any time, on every rank, after each resume and for every sampler, and
none of them is a sample that the sampler leaves out: a training epoch gets no image of the validation part. The choice follows
from the seed, the epoch, the bad sample's index and its batch, so it is the same in every run and whoever makes the batch.
"""

from __future__ import annotations

from collections.abc import Iterable

from csd_engine.arithmetic.keyed import Keyed

__all__ = ["MOST_TRIES", "candidates"]

MOST_TRIES = 16  # samples that are tried in one's place, since those may be bad as well
_OF_REPLACING = 0xC2B2AE3D27D4EB4F  # makes the key different from that of the sample's own draws


def candidates(seed: int, epoch: int, bad: int, batch: Iterable[int]) -> list[int]:
    """Return the samples to try in the place of a bad one, in this order; none if its batch has no other sample.

    Args:
        seed, epoch: the epoch's.
        bad: the index of the bad sample.
        batch: the indices of all samples of its batch, in their order. If one comes twice, it counts once.
    """
    remaining = [index for index in dict.fromkeys(batch) if index != bad]
    keyed = Keyed(seed ^ _OF_REPLACING, epoch, bad, 0)
    chosen: list[int] = []
    while remaining and len(chosen) < MOST_TRIES:
        k = keyed.below(len(remaining))
        chosen.append(remaining[k])
        remaining[k] = remaining[-1]
        remaining.pop()
    return chosen
