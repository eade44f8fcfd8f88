"""Merges the states of all ranks into one, with which another number of ranks goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data.distributed import DistributedSampler

from ddlp.sampling.checkpoint import load, save
from ddlp.sampling.merged import Deal, Deals, RestSampler
from ddlp.schedule.ranges import RangeSet

__all__ = ["merge_states"]

_DEALERS = (DistributedSampler.__name__, RestSampler.__name__)


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one state of an epoch that all ranks have trained on together, for any number of ranks to go on from.

    Each rank gives it to ``load_state_dict`` of its loader, whose sampler is torch's DistributedSampler with the new number of
    ranks. What no rank had delivered is dealt out to them as that sampler does it: each sample once, and, unless ``drop_last``,
    a few again so that all ranks get as many. Batch size, strategy, workers and devices may be others. A sample's random draws
    are the same as without the interruption, if the loaders have a ``seed``.

    Args:
        states: what ``state_dict()`` gave on each rank, in any order, all from the same step. JSON may have carried them.

    Raises:
        ValueError: one is no such state; they are of different epochs, or not those of all ranks; or the sampler is none of
            torch's DistributedSampler.
    """
    if not states:
        raise ValueError("merge_states: no states were given; pass one for each rank")
    loaded = [(state, *load(state)) for state in states]
    begun = [(state, resume, epoch) for state, resume, epoch in loaded if "cut" in state]
    if not begun:  # between two epochs
        if len({epoch for _, _, epoch in loaded}) > 1:
            raise ValueError(f"merge_states: the states are of epochs {sorted({epoch for _, _, epoch in loaded})}")
        return {name: value for name, value in states[0].items() if name != "generators"}  # each rank has its own
    first, _, epoch = min(begun, key=lambda entry: entry[2])
    cut = first["cut"]
    if cut["sampler"] not in _DEALERS:
        raise ValueError(f"merge_states: the loaders' sampler is {cut['sampler']}; it must be torch's DistributedSampler")
    ranks = [state["rank"] for state, *_ in begun]
    if cut["num_replicas"] != len(states) or len(set(ranks)) < len(ranks):
        raise ValueError(
            f"merge_states: the epoch had {cut['num_replicas']} ranks, and {len(states)} states were given, of ranks "
            f"{sorted(ranks)}. Pass one of each rank"
        )
    delivered: dict[int, RangeSet] = {}
    whole = RangeSet([(0, max(1, cut["len(dataset)"] or 1))])
    other_ranks = iter(sorted(set(range(len(states))) - set(ranks)))
    for state, resume, at in loaded:
        over = resume.finished or ("cut" not in state and at == epoch + 1)
        if at != epoch and not over:
            raise ValueError(f"merge_states: a state is of epoch {at}, another of epoch {epoch}; save all in the same step")
        if "cut" in state and (state["cut"] != cut or state.get("merged") != first.get("merged")):
            raise ValueError(f"merge_states: the loaders differ: {state['cut']} and {cut}")
        if resume.workers is not None or resume.sampler is not None:
            raise ValueError("merge_states: a data set or a sampler has a state of its own, which belongs to its rank")
        delivered[state["rank"] if "cut" in state else next(other_ranks)] = whole if over else resume.delivered
    before = None if first.get("merged") is None else Deals.of_data(first["merged"])
    sampler_epoch = before.sampler_epoch if before is not None else first["order"]["sampler_epoch"]
    deal = Deal(cut["batch_size"] or 1, bool(cut["drop_last"]), tuple(delivered[rank] for rank in range(len(states))))
    deals = Deals(sampler_epoch, cut["len(dataset)"], (*(() if before is None else before.deals), deal))
    seed, base_seed = next(((r.seed, r.base_seed) for _, r, _ in begun if r.seed is not None), (None, None))
    return {**save(RangeSet(), None, seed=seed, base_seed=base_seed, epoch=epoch), "merged": deals.to_data()}
