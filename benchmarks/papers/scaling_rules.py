#!/usr/bin/env python3
"""How many engines a pool has: ddlp's rule beside Cachew's and a rule by CPU use, on random workloads with noisy batches.

    .venv/bin/python -m benchmarks.papers.scaling_rules --seed 0 --workloads 1000      # half an hour

Each rule starts with a cold pool and decides while an epoch is played in simulated time. No time is measured: the figures
follow from the seed. ``--first`` skips workloads, so that several processes share them; with ``--rows`` they print what came of
each.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict

from benchmarks.papers.scaling import RULES, Scaled, compare, table


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random workloads (default 0)")
    parser.add_argument("--workloads", type=int, default=1000, help="number of workloads (default 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first of these workloads to play (default 0)")
    parser.add_argument("--batches", type=int, default=1000, help="batches of an epoch (default 1000)")
    parser.add_argument("--noise", type=float, default=0.05, help="relative spread of a batch's time (default 0.05)")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), help="rules to try (default: all)")
    parser.add_argument("--rows", action="store_true", help="print a line of JSON for each workload and rule, and no table")
    parser.add_argument("--read", action="store_true", help="play nothing, read such lines from standard input")
    given = parser.parse_args()
    if given.read:
        rows = [Scaled(**{**row, "counts": tuple(row["counts"])}) for row in map(json.loads, sys.stdin)]
    else:
        random_workloads = compare(
            random.Random(given.seed), given.workloads, first=given.first, batches=given.batches, noise=given.noise,
            rules=given.rules,
        )  # fmt: skip
        if given.rows:
            for row in random_workloads:
                print(json.dumps(asdict(row)), flush=True)
            return
        rows = list(random_workloads)
    print(f"{len(rows) // len(dict.fromkeys(row.rule for row in rows))} workloads\n\n{table(rows)}")
    for hidden, what in ((False, "nothing limits all engines together"), (True, "all engines together have a limit")):
        some = [row for row in rows if row.hidden == hidden]
        print(f"\n{what}: {sum(row.rule == some[0].rule for row in some)} workloads\n\n{table(some)}")


if __name__ == "__main__":
    main()
