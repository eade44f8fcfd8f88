"""The questions that people ask before they buy, each answered from a set-up.

Times are simulated (`predict`). How many workers or engines are enough is `estimate`'s, which knows no beginning and no end of
an epoch; the time with so many is simulated then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ddlp.planning.decide import TYPICAL_OCYCLE, estimate
from ddlp.planning.measured import OffloadPath
from ddlp.planning.predict import Epoch, predict
from ddlp.planning.setup import Setup
from ddlp.schedule.strategies import Cpu, Strategy, Wrr

__all__ = ["CACHE_COST", "ENGINES", "Answer", "Point", "answers", "curve", "seconds"]

CACHE_COST = TYPICAL_OCYCLE["spool"]  # what reading a finished batch costs the host, as a part of making it
ENGINES = 8  # of the curve, at most
_WORKERS, _POOL = 1024, 64  # looked through for the fewest


@dataclass(frozen=True)
class Answer:
    """An answer.

    Attributes:
        question: as people ask.
        text: the answer, whole sentences.
        epoch: with the change; None if nothing can be said.
        saves: the part of today's epoch that it saves; negative: it takes longer.
        by: "simulated", or "estimated, then simulated".
    """

    question: str
    text: str
    epoch: Epoch | None = None
    saves: float | None = None
    by: str = "simulated"


@dataclass(frozen=True)
class Point:
    """A point of the curve over the number of engines."""

    engines: int
    epoch: Epoch
    bound_s: float


def answers(
    setup: Setup, strategy: type[Strategy] = Wrr, *, pool: int = 4, cache_cost: float = CACHE_COST
) -> tuple[Answer, ...]:
    """Answer every question.

    Args:
        setup: what there is today.
        strategy: with which the engines work.
        pool: engines of the pool.
        cache_cost: what reading a batch from a cache costs the host, as a part of making it.
    """
    return tuple(_answers(setup, strategy, pool, cache_cost))


def curve(setup: Setup, strategy: type[Strategy] = Wrr, most: int = ENGINES) -> tuple[Point, ...]:
    """The epoch with 0 to ``most`` engines like the first; nothing without one."""
    points = []
    for count in range(most + 1) if setup.engines else ():
        with_them = _like_the_first(setup, count)
        time_s = estimate(with_them.measured, with_them.engines).time_s
        assert time_s is not None
        points.append(Point(count, predict(with_them, strategy), time_s * setup.batches))
    return tuple(points)


def seconds(value: float) -> str:
    """A duration for a person."""
    if value >= 7200:
        return f"{value / 3600:,.1f} h"
    return f"{value:,.0f} s" if value >= 1000 else f"{value:.4g} s"


def _answers(setup: Setup, strategy: type[Strategy], pool: int, cache_cost: float) -> Iterator[Answer]:
    today = predict(setup, strategy)

    def with_change(question: str, changed: Setup, lead: str, more: str = "") -> Answer:
        epoch = predict(changed, strategy)
        text = f"{lead}: {_instead(epoch, today)}{more}"
        return Answer(question, text, epoch, 1 - epoch.seconds / today.seconds)

    if setup.engines:
        first, *others = setup.engines
        second = setup.with_engines((*setup.engines, _named(first, setup, first.source)))
        yield with_change("a second device", second, f"With a second device like {first.source}")
        twice = setup.with_engines((_faster(first, 2.0), *others))
        yield with_change("a device twice as fast", twice, f"With {first.source} twice as fast")
    yield _twice_the_workers(setup, with_change)
    if setup.engines:
        instead = f", in place of {_names(setup)}" if others else ""
        lead = f"With a pool of {pool} engines like {first.source}{instead}"
        yield with_change(f"a pool of {pool}", _like_the_first(setup, pool), lead)
        yield _bytes_instead_of_floats(setup, today, with_change)
    else:
        why = "No engine is described, so nothing can be said of devices and pools. Describe one: --engine NAME=RATE."
        yield Answer("a device", why)
    yield _cached(setup, today, cache_cost)
    yield _fewest_workers(setup, strategy, today)
    if setup.engines:
        yield _fewest_engines(setup, strategy, today)


_Change = Callable[..., Answer]


def _twice_the_workers(setup: Setup, with_change: _Change) -> Answer:
    doubled = setup.with_workers(2 * setup.workers)
    part = doubled.host_rate / setup.host_rate
    processors = setup.measured.host_processors
    more = ""
    if processors is None:
        more = " That takes for granted that there are processors for them (--processors)."
    elif part < 1.999:
        more = f" The host has {processors:g} processors, so they make {part:.3g} times as many batches, not twice."
    return with_change("twice the workers", doubled, f"With {2 * setup.workers} workers on the host", more)


def _bytes_instead_of_floats(setup: Setup, today: Epoch, with_change: _Change) -> Answer:
    question, first = "uint8 instead of float32", setup.engines[0]
    if not any(path.bytes_per_batch and (path.bandwidth_bytes_per_s or setup.measured.transfer_bytes_per_s)
               for path in setup.engines):  # fmt: skip
        return Answer(question, "What uint8 brings can't be said: neither bytes nor bandwidth of a batch are known "
                                "(--batch-bytes, --bandwidth).")  # fmt: skip
    if any(path.dtype == "float32" for path in setup.engines):
        smaller = setup.with_engines(tuple(_as(path, "uint8") for path in setup.engines))
        return with_change(question, smaller, "With batches of uint8, a quarter of the bytes")
    already = f"Batches of {first.source} travel as uint8 already."
    larger = tuple(_as(path, "float32") for path in setup.engines)
    if any(path.spool_bytes is not None and path.spool_bytes < (path.bytes_per_batch or 0.0) for path in larger):
        return Answer(question, f"{already} As float32, four times the bytes, a batch would not fit into the spool.")
    answer = with_change(question, setup.with_engines(larger), "As float32, four times the bytes")
    return replace(answer, text=f"{already} {answer.text}")


def _cached(setup: Setup, today: Epoch, cost: float) -> Answer:
    measured = setup.measured
    cpu_s = measured.host_cpu_s_per_batch
    cheaper = replace(measured, loader_batches_per_s=setup.host_rate / cost, host_cpu_s_per_batch=cpu_s and cpu_s * cost)
    epoch = predict(replace(setup, measured=cheaper), Cpu)
    room = "" if setup.batch_bytes is None else f" of {setup.batch_bytes * setup.batches / 1e9:,.3g} GB"
    text = (
        f"With a cache{room} of all finished batches, the host alone, from the second epoch on: {_instead(epoch, today)} "
        f"Reading a batch is taken to cost the host {cost:.0%} of making it (--cache-cost). Each epoch then trains on the same "
        "crops and flips."
    )
    return Answer("a cache", text, epoch, 1 - epoch.seconds / today.seconds)


def _fewest_workers(setup: Setup, strategy: type[Strategy], today: Epoch) -> Answer:
    engines = f" beside {_names(setup)}" if setup.engines else ""
    processors = setup.measured.host_processors
    at_most = "" if processors is None else f"as many workers as {processors:g} processors can keep at work{engines}"
    return _fewest(
        "the fewest workers", setup, strategy, today, range(1, _WORKERS + 1), setup.with_workers,
        lambda count: f"{count} worker{'s' * (count > 1)} on the host{engines}", at_most,
    )  # fmt: skip


def _fewest_engines(setup: Setup, strategy: type[Strategy], today: Epoch) -> Answer:
    first = setup.engines[0].source
    return _fewest(
        "the fewest engines", setup, strategy, today, range(_POOL + 1), lambda count: _like_the_first(setup, count),
        lambda count: f"{count} engine{'s' * (count != 1)} like {first}" if count else "no engine at all",
    )  # fmt: skip


def _fewest(
    question: str, setup: Setup, strategy: type[Strategy], today: Epoch, counts: range, change: Callable[[int], Setup],
    said: Callable[[int], str], at_most: str = "",
) -> Answer:  # fmt: skip
    by = "estimated, then simulated"
    for count in counts:
        changed = change(count)
        if estimate(changed.measured, changed.engines).limit == "training":
            epoch = predict(changed, strategy)
            text = f"With {said(count)} training does not wait: {_instead(epoch, today)}"
            text += f" Of the simulated epoch it still waits {epoch.waiting:.1%}." if epoch.waiting >= 0.0005 else ""
            text += " The count is for engines that are there all the time." if setup.moves else ""
            return Answer(question, text, epoch, 1 - epoch.seconds / today.seconds, by)
    one = estimate(changed.measured, changed.engines)
    limits = "the host" if one.limit == "host" else f"the {one.limit}"
    return Answer(question, f"Even with {at_most or said(counts[-1])} training waits: {limits} limits.", by=by)


# -- changes -----------------------------------------------------------------------------------------------------------


def _like_the_first(setup: Setup, count: int) -> Setup:
    """The same with so many engines, all like the first."""
    first = setup.engines[0]
    paths = [first][:count]
    while len(paths) < count:
        paths.append(replace(first, source=f"{first.source} ({len(paths) + 1})"))
    return setup.with_engines(tuple(paths))


def _named(path: OffloadPath, setup: Setup, name: str) -> OffloadPath:
    """A copy with a name that no engine has."""
    taken, number = {one.source for one in setup.engines}, 2
    while f"{name} ({number})" in taken:
        number += 1
    return replace(path, source=f"{name} ({number})")


def _faster(path: OffloadPath, times: float) -> OffloadPath:
    alone, beside = path.alone_batches_per_s, path.with_host_batches_per_s
    return replace(path, alone_batches_per_s=alone and alone * times, with_host_batches_per_s=beside and beside * times)


def _as(path: OffloadPath, dtype: str) -> OffloadPath:
    """The path with batches of another type; a number of float32 has four bytes."""
    if path.dtype == dtype or path.bytes_per_batch is None:
        return path
    size = path.bytes_per_batch * (4.0 if dtype == "float32" else 0.25)
    return replace(path, dtype="float32" if dtype == "float32" else "uint8", bytes_per_batch=size)


# -- words -------------------------------------------------------------------------------------------------------------


def _instead(epoch: Epoch, today: Epoch) -> str:
    """An epoch beside today's, as the rest of a sentence."""
    part = 1 - epoch.seconds / today.seconds
    change = "the same" if abs(part) < 0.005 else f"{abs(part):.0%} {'less' if part > 0 else 'more'}"
    text = f"{seconds(epoch.seconds)} an epoch instead of {seconds(today.seconds)}, {change}."
    if epoch.energy_j is not None and today.energy_j is not None:
        text = f"{text[:-1]}; {epoch.energy_j / 1e3:,.4g} kJ instead of {today.energy_j / 1e3:,.4g} kJ."
    if epoch.cost is not None and today.cost is not None:
        text = f"{text[:-1]}; it costs {epoch.cost:.3g} instead of {today.cost:.3g}."
    return text


def _names(setup: Setup) -> str:
    return " and ".join(path.source for path in setup.engines)
