"""How long what was lost is left alone before it is tried again."""

from __future__ import annotations

__all__ = ["next_pause_s"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


def next_pause_s(before_s: float, lived_s: float) -> float:
    """Return how long to wait before a device, an engine or a node that was lost is tried again.

    The pause doubles each time, from `FIRST_PAUSE_S` to `LONGEST_PAUSE_S`. It begins anew once what was lost has lived longer
    than the longest pause.

    Args:
        before_s: the pause before the last try; 0: there was none.
        lived_s: seconds from the last try to the loss.
    """
    return FIRST_PAUSE_S if not before_s or lived_s > LONGEST_PAUSE_S else min(2 * before_s, LONGEST_PAUSE_S)
