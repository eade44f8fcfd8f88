from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.papers.rules import CACHEW_CODE, CACHEW_PAPER, FASTFLOW_CODE, FASTFLOW_PAPER, CachewScaling
from ddlp.auto.measured import Measured, OffloadPath

PATHS = tuple(
    OffloadPath(name, rate, "spool", host_cpu_s_per_batch=0.01)
    for name, rate in (("a", 1.0), ("b", 3.0), ("c", 2.0))
)


def measured(speed_up, paths=PATHS):
    return Measured(step_s=0.1, host_batches_per_s=10 / speed_up, host_cpu_s_per_batch=0.1, paths=paths)


def names(paths):
    return "".join(path.source for path in paths)


def test_fastflow_offloads_above_its_threshold():
    for rule, threshold in ((FASTFLOW_PAPER, 1.1), (FASTFLOW_CODE, 1.3)):
        assert not rule.choose(measured(threshold - 0.01)) and rule.choose(measured(threshold + 0.01))
        assert not rule.choose(replace(measured(4), step_s=None)) and not rule.choose(measured(4, ()))


@pytest.mark.parametrize("speed_up, paper", [(1.25, "b"), (2.0, "bc"), (4.0, "bca")])
def test_fastflow_takes_ceil_of_what_lacks(speed_up, paper):
    """10 - 8, 10 - 5 and 10 - 2.5 batches a second lack, and the first worker makes 3: 1, 2 and 3 workers."""
    assert names(FASTFLOW_PAPER.choose(measured(speed_up))) == paper
    assert names(FASTFLOW_CODE.choose(measured(speed_up))) == ("b" if speed_up > 1.3 else "")


def test_cachew_adds_workers_while_that_wins_clearly():
    times = {0: 1.0, 1: 1.0, 2: 0.95, 3: 0.94}
    assert names(CACHEW_PAPER.choose(measured(2.0), lambda paths: times[len(paths)])) == "ab"
    assert names(CACHEW_CODE.choose(measured(2.0), lambda paths: times[len(paths)])) == "a"
    assert names(CACHEW_CODE.choose(measured(2.0), lambda paths: 1 / len(paths))) == "abc", "all"
    assert names(CACHEW_CODE.choose(measured(1.0), lambda paths: 1.0)) == "a", "it has no none"
    assert CACHEW_CODE.choose(measured(2.0, ()), lambda paths: 1.0) == ()


@pytest.mark.parametrize("rule", [CACHEW_PAPER, CACHEW_CODE])
def test_cachew_looks_again_after_stable_windows(rule):
    def rested(batch_s=(1.0, 0.5, 0.5)):
        scaling = CachewScaling(rule, most=5)
        for seconds in batch_s:
            scaling.window(seconds, queue=2.0)
        assert (scaling.workers, scaling.scaling) == (2, False)
        return scaling

    scaling = rested()
    for _ in range(3 * rule.stable_windows):
        scaling.window(0.5 * (1 + rule.growth) * 0.99, queue=2.0 * (1 + rule.growth) * 0.99)
    assert scaling.workers == 2, "neither has grown enough"
    scaling = rested()
    for k in range(rule.stable_windows + 1):
        assert scaling.workers == 2, k
        scaling.window(0.5 * (1 + rule.growth) * 1.01, queue=2.0)
    assert (scaling.workers, scaling.scaling) == (3, True), "slower: one more"
    scaling.window(0.4)
    assert scaling.workers == 4
    scaling = rested()
    for _ in range(rule.stable_windows + 1):
        scaling.window(0.5, queue=2.0 * (1 + rule.growth) * 1.01)
    assert scaling.workers == 1, "batches pile up: one less"
    scaling.window(0.5 * (1 + rule.loss) * 0.99)
    assert (scaling.workers, scaling.scaling) == (1, False), "hardly slower, and the last one stays"
    scaling = rested()
    for _ in range(rule.stable_windows + 1):
        scaling.window(0.5, queue=2.0 * (1 + rule.growth) * 1.01)
    scaling.window(0.5 * (1 + rule.loss) * 1.01)
    assert (scaling.workers, scaling.scaling) == (2, False), "too slow: back"
