#!/usr/bin/env python3
"""ddlp's decision compared with FastFlow's and Cachew's rules, on random workloads with noisy measurements.

    .venv/bin/python -m benchmarks.papers.decision_rules --seed 0 --workloads 1000

Prints a table of all workloads, and one for each stage that limits the best candidate. No time is measured: the figures follow
from the seed.
"""

from __future__ import annotations

import argparse
import random

from benchmarks.papers.decisions import compare, table


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random workloads (default 0)")
    parser.add_argument("--workloads", type=int, default=1000, help="number of workloads (default 1000)")
    parser.add_argument("--steps", type=int, default=100, help="batches that are measured (default 100)")
    parser.add_argument("--noise", type=float, default=0.05, help="relative spread of a batch's time (default 0.05)")
    given = parser.parse_args()
    rows = list(compare(random.Random(given.seed), given.workloads, steps=given.steps, noise=given.noise))
    print(f"{given.workloads} workloads, seed {given.seed}\n\n{table(rows)}")
    for limit in sorted({row.limit for row in rows}):
        some = [row for row in rows if row.limit == limit]
        print(f"\n{limit}: {sum(row.rule == 'ddlp' for row in some)} workloads\n\n{table(some)}")


if __name__ == "__main__":
    main()
