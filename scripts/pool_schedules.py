#!/usr/bin/env python3
"""Epochs in simulated time, while a pool's engines join, retire, are killed and come back: is each batch delivered once?

    python -m scripts.pool_schedules --schedules 2000      # of each strategy that gives leases; half an hour

The loader's own ledger and strategies play them, with engines that are slow or quick, copies that come late, twice or damaged,
leases that fail, and fetches that hang (`tests/ddlp/schedule/worlds.py`). Only schedules with at least ten joins and ten leaves
count. Everything follows from the seed. The exit status is 1 if a batch was lost or doubled.
"""

from __future__ import annotations

import argparse
import random
import sys

from ddlp.schedule.strategies import STRATEGIES
from tests.ddlp.schedule.worlds import MOVES, elastic


def main() -> int:
    """Play the schedules; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted(name for name, one in STRATEGIES.items() if one.uses_device)
    parser.add_argument("--schedules", type=int, default=2000, help="that count, of each strategy (default %(default)s)")
    parser.add_argument("--strategies", nargs="+", choices=names, default=names, help="(default: all that give leases)")
    parser.add_argument("--seed", type=int, default=0, help="(default %(default)s)")
    given = parser.parse_args()
    wrong = 0
    for name in given.strategies:
        seeds, played, joins, leaves, retired, lost, doubled = random.Random(given.seed), 0, 0, 0, 0, 0, 0
        while played < given.schedules:
            simulation, missing, twice = elastic(name, seeds.getrandbits(40))
            lost, doubled = lost + missing, doubled + twice
            if min(simulation.joins, simulation.leaves) >= MOVES:
                played, joins, leaves = played + 1, joins + simulation.joins, leaves + simulation.leaves
                retired += simulation.retired
        print(
            f"{name}: {played:,} schedules, {joins:,} joins, {leaves:,} leaves ({retired:,} of them in order): "
            f"{lost} batches lost, {doubled} doubled", flush=True,
        )  # fmt: skip
        wrong += lost + doubled
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
