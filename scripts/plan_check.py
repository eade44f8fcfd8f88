"""The simulator of `ddlp plan` beside reality: epochs with real engines, predicted from one that was recorded before.

The set-ups are those of `scripts.auto_check`, but for the two in which an engine dies or becomes slow. In each, wrr's first
epoch is recorded. From that alone the second epochs of all fixed strategies are predicted, as `ddlp plan --from-run` does it,
and held against their measured seconds.

    python -m scripts.plan_check                      # 13 set-ups, three quarters of an hour
    python -m scripts.plan_check --setups third equal --rounds 1
"""

from __future__ import annotations

import argparse
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

from ddlp.planning.described import setup_of
from ddlp.planning.predict import predict
from ddlp.schedule.strategies import STRATEGIES
from scripts.auto_check import FIXED, SETUPS, add_arguments, by_strategy, median, run_to_end, trained

RECORDED = "wrr"
STEADY = [name for name, setup in SETUPS.items() if not setup.event]


def check(pool: ThreadPoolExecutor, options: argparse.Namespace) -> None:
    """Print of each set-up and strategy the measured seconds, and the predicted ones as a part of them."""
    print(f"| set-up | {' | '.join(FIXED)} |\n" + "| --- " * (1 + len(FIXED)) + "|", flush=True)
    errors = {}
    for name in options.setups or STEADY:
        jobs = by_strategy(name, FIXED, options.batches)
        jobs[RECORDED]["record"] = True
        ran = trained(pool, options.rounds, jobs)
        setups, cells = [setup_of(one["figures"]) for one in ran[RECORDED]], []
        for strategy in FIXED:
            measured_s = median(ran[strategy], 1)
            predicted_s = statistics.median(predict(setup, STRATEGIES[strategy]).seconds for setup in setups)
            errors[f"{name}, {strategy}"] = abs(predicted_s / measured_s - 1)
            cells.append(f"{measured_s:.2f} s, {predicted_s / measured_s:.3f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    worst = max(errors, key=errors.__getitem__)
    print(f"\noff by {statistics.median(errors.values()):.1%} in the median of {len(errors)} epochs, "
          f"at worst by {errors[worst]:.1%} ({worst})")  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Check the set-ups, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, STEADY)
    return run_to_end(check, parser.parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
