"""ddlp's decision compared with FastFlow's and Cachew's rules, on random workloads with noisy measurements.

    python -m benchmarks.papers.decisions --seed 0 --workloads 1000

Prints a table of all workloads, and one for each stage that limits the best candidate. No time is measured: the figures follow
from the seed.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.papers.rules import CACHEW_CODE, CACHEW_PAPER, FASTFLOW_CODE, FASTFLOW_PAPER, Cachew, FastFlow
from ddlp.auto.decide import Estimate, all_sets, decide, estimate
from ddlp.auto.measured import Measured, OffloadPath, Transport
from ddlp.observe.play import play_epoch

__all__ = ["RULES", "Comparison", "compare", "measure", "oracle", "play", "random_workload", "table"]

STEPS = 100  # batches that are measured
NOISE = 0.05  # relative spread of a batch's time
RULES: dict[str, FastFlow | Cachew | None] = {  # None: `decide`
    "ddlp": None,
    "FastFlow, paper": FASTFLOW_PAPER,
    "FastFlow, code": FASTFLOW_CODE,
    "Cachew, paper": CACHEW_PAPER,
    "Cachew, code": CACHEW_CODE,
}


def random_workload(rng: random.Random) -> Measured:
    """Draw the true figures of a workload with 1 to 4 sources.

    The host makes 0.1 to 2 batches in the time of a training step, a source 0.02 to 4 in the time of the host's. Three in four
    links carry far more than their source makes, and three in four spools have room for 20 to 1,000 batches, others for 1 to 3.
    One host in two has no processor free. Taking a batch costs 2 to 60 % of making it, one time in ten more than making it.
    """

    def between(low: float, high: float) -> float:  # log-uniform
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    step_s = between(0.01, 1.0)
    host = between(0.1, 2.0) / step_s
    busy = rng.randint(1, 16)  # processors that prepare
    processors = busy + 1 + (rng.randint(1, 8) if rng.random() < 0.5 else 0)
    p_cycle, size = busy / host, between(1e6, 1e8)
    paths = []
    for number in range(rng.randint(1, 4)):
        rate = host * between(0.02, 4.0)
        room = rng.randint(20, 1000) if rng.random() < 0.75 else rng.randint(1, 3)
        transport: Transport = rng.choice(("spool", "stream"))
        taking = rng.uniform(0.02, 0.15) if transport == "spool" else rng.uniform(0.2, 0.6)
        taking *= 4.0 if rng.random() < 0.1 else 1.0
        wide = between(3.0, 100.0) if rng.random() < 0.75 else between(0.1, 3.0)
        paths.append(OffloadPath(
            f"source {number}", rate, transport, host_cpu_s_per_batch=taking * p_cycle, bytes_per_batch=size,
            bandwidth_bytes_per_s=wide * rate * size, spool_bytes=(room + 0.5) * size,
        ))  # fmt: skip
    return Measured(step_s, host, p_cycle, processors, paths=tuple(paths))


def measure(truth: Measured, rng: random.Random, *, noise: float = NOISE) -> Measured:
    """Return what the first steps of a run show of it: means of batches whose times vary independently.

    ``noise`` is the standard deviation of a batch's time, as a part of it; so that of the mean of n batches is noise / sqrt(n).
    Of the training step and of the host there are `STEPS` batches. Of a source, there are as many as it makes in the time of
    these, at least 4. A loader that need not wait shows the step's rate, not its own.
    """
    assert truth.step_s is not None and truth.host_batches_per_s is not None

    def mean(seconds: float | None, batches: float = STEPS) -> float:
        assert seconds is not None
        return seconds * max(0.01, rng.gauss(1.0, noise / math.sqrt(batches)))

    seconds = STEPS * max(truth.step_s, 1 / truth.host_batches_per_s)
    paths = []
    for path in truth.paths:
        assert path.bytes_per_batch is not None and path.bandwidth_bytes_per_s is not None
        n = max(4, min(STEPS, int(seconds * path.batches_per_s)))
        paths.append(replace(
            path, batches_per_s=1 / mean(1 / path.batches_per_s, n),
            host_cpu_s_per_batch=mean(path.host_cpu_s_per_batch, n),
            bandwidth_bytes_per_s=1 / mean(1 / path.bandwidth_bytes_per_s, n),
        ))  # fmt: skip
    step_s, host_s = mean(truth.step_s), mean(1 / truth.host_batches_per_s)
    return replace(
        truth, step_s=step_s, host_batches_per_s=1 / max(step_s, host_s),
        host_cpu_s_per_batch=mean(truth.host_cpu_s_per_batch), paths=tuple(paths),
    )  # fmt: skip


def oracle(truth: Measured) -> Estimate:
    """Return the fastest of all candidates by the true figures; of several, one with the fewest sources."""
    candidates = (estimate(truth, paths) for paths in all_sets(truth.paths))
    return min(candidates, key=lambda candidate: (candidate.value("time"), len(candidate.paths)))


@dataclass(frozen=True)
class Comparison:
    """What one rule chose for one workload, by the true figures.

    Attributes:
        rule: its name in `RULES`.
        limit: the stage that limits the best candidate; "no stall" if training never waits for the host alone.
        slower: its time / the best candidate's time - 1.
        engine_s: seconds of engines a batch, in training steps; an engine counts for the whole time.
        best_engine_s: the same of the best candidate.
        sources: how many sources it chose.
    """

    rule: str
    limit: str
    slower: float
    engine_s: float
    best_engine_s: float
    sources: int


def compare(rng: random.Random, count: int) -> Iterator[Comparison]:
    """Draw so many workloads, and yield for each what every rule chooses from its noisy measurements."""
    for seed in [rng.getrandbits(64) for _ in range(count)]:  # so that no rule's measurements change the next workload
        yield from _compare_one(random.Random(seed))


def _compare_one(rng: random.Random) -> Iterator[Comparison]:
    truth = random_workload(rng)
    assert truth.step_s is not None
    best = oracle(truth)
    limit = best.limit if best.paths or best.limit != "training" else "no stall"
    measured = measure(truth, rng)
    own = dict(zip(measured.paths, truth.paths, strict=True))

    def true(paths: tuple[OffloadPath, ...]) -> Estimate:
        return estimate(truth, tuple(own[path] for path in paths))

    def window_s(paths: tuple[OffloadPath, ...]) -> float:
        return true(paths).value("time") * rng.gauss(1.0, NOISE / math.sqrt(STEPS))

    for name, rule in RULES.items():
        if rule is None:
            chosen = decide(measured).chosen.paths
        else:
            chosen = rule.choose(measured) if isinstance(rule, FastFlow) else rule.choose(measured, window_s)
        outcome = true(chosen)
        slower = outcome.value("time") / best.value("time") - 1
        yield Comparison(name, limit, slower, outcome.engine_s / truth.step_s, best.engine_s / truth.step_s, len(chosen))


def play(truth: Measured, paths: tuple[OffloadPath, ...], rng: random.Random) -> float:
    """Play an epoch of 400 batches by wrr, with durations that vary (`play_epoch`), and return its seconds a batch.

    It means nothing if the host makes no batch. A spool has 4 places at most: before a slow link `wrr` fills a large
    spool, and the epoch's end waits for it. The host may take as many batches at once as `estimate` takes for granted.
    """

    def about(seconds: float) -> float:
        return seconds * max(0.01, rng.gauss(1.0, NOISE))

    slots = 4, 2 + 2 * len(paths)
    return play_epoch(truth, paths, batches=400, about=about, slots=slots, room=4).seconds / 400


def table(rows: Sequence[Comparison]) -> str:
    """Return `compare`'s rows as a Markdown table, a line for each rule.

    "Cheaper" counts workloads for which the rule takes fewer engine seconds than ddlp; and how much slower than the best
    candidate it then is, in the mean.
    """
    ours = [row for row in rows if row.rule == "ddlp"]
    lines = [
        "| rule | slower, mean | at worst | by over 3 % | sources | engine s a step | cheaper | then slower by |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for rule in RULES:
        its = [row for row in rows if row.rule == rule]
        slower = [row.slower for row in its]
        cheaper = [row.slower for row, our in zip(its, ours, strict=True) if row.engine_s < our.engine_s * 0.999]
        lines.append(
            f"| {rule} | {fmean(slower):.2%} | {max(slower):.1%} | {sum(excess > 0.03 for excess in slower)} "
            f"| {fmean(row.sources for row in its):.2f} | {fmean(row.engine_s for row in its):.3f} "
            f"| {len(cheaper)} | {fmean(cheaper) if cheaper else 0.0:.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random workloads (default 0)")
    parser.add_argument("--workloads", type=int, default=1000, help="number of workloads (default 1000)")
    given = parser.parse_args()
    rows = list(compare(random.Random(given.seed), given.workloads))
    print(f"{given.workloads} workloads, seed {given.seed}\n\n{table(rows)}")
    for limit in sorted({row.limit for row in rows}):
        some = [row for row in rows if row.limit == limit]
        print(f"\n{limit}: {sum(row.rule == 'ddlp' for row in some)} workloads\n\n{table(some)}")


if __name__ == "__main__":
    main()
