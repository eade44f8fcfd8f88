"""How long a lost device is left alone before it is tried again."""

from __future__ import annotations

from ddlp.process.pauses import next_pause_s


def test_the_pause_doubles_up_to_a_limit_and_begins_anew_for_a_device_that_has_lived():
    pauses = [0.0]
    for _ in range(7):
        pauses.append(next_pause_s(pauses[-1], lived_s=0.5))
    assert pauses[1:] == [1, 2, 4, 8, 16, 30, 30]
    assert next_pause_s(30.0, lived_s=30.5) == 1.0
