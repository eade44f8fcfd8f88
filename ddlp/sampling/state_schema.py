"""What a loader's saved state holds, checked as a whole before anything of it is used."""

from __future__ import annotations

import base64
from typing import Any

import torch

from csd_engine.errors import quote
from csd_engine.protocol.fields import MAX_INT, Check, an_object, count, integer, list_of, number, optional, tuple_of
from csd_engine.protocol.fields import signed as any_seed
from csd_engine.protocol.fields import truth as true_or_false
from csd_engine.protocol.schema import Misfit, checked_fields

__all__ = ["check_state"]

_MANY = 1 << 40
_WORD = integer(0, (1 << 32) - 1)
_WORDS = 624  # of a Mersenne Twister, in numpy and random
_TORCH_BYTES = 5056  # of the state of a generator on the CPU

_epoch = integer(-MAX_INT, MAX_INT)
_counts = list_of(count, _MANY)
_ranges = list_of(tuple_of(count, count), _MANY)


def _any(value: Any) -> Any:
    return value


def _delivered(value: Any) -> list[tuple[int, int]]:
    ranges, end = list(_ranges(value)), -1
    for start, stop in ranges:
        if not end < start < stop:
            raise ValueError("a list of ranges [first, last + 1] in ascending order, with a gap between two")
        end = stop
    return ranges


def _torch_state(value: Any) -> Any:
    try:
        state = base64.b64decode(value, validate=True)
        if not state:
            raise ValueError
        if len(state) == _TORCH_BYTES:  # that of a GPU's generator is shorter
            torch.Generator().set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    except (TypeError, ValueError, RuntimeError):
        raise ValueError("the state of one of torch's generators, as base64") from None
    return value


def _numpy_state(value: Any) -> Any:
    words, place, flag = list_of(_WORD, _WORDS), integer(0, _WORDS), integer(0, 1)
    kind, keys, *_ = tuple_of(_any, words, place, flag, number(-1e9, 1e9))(value)
    if not isinstance(kind, str) or kind != "MT19937" or len(keys) != _WORDS:
        raise ValueError("the state of numpy's global generator")
    return value


def _random_state(value: Any) -> Any:
    version, words, _ = tuple_of(_any, list_of(_WORD, _WORDS + 1), optional(number(-1e9, 1e9)))(value)
    if type(version) is not int or version != 3 or len(words) != _WORDS + 1 or words[-1] > _WORDS:
        raise ValueError("the state of random's global generator")
    return value


def _generators(value: Any) -> Any:
    return checked_fields("generators", value, {}, dict.fromkeys(("torch", "loader", "sampler"), _torch_state))


def _order(value: Any) -> Any:
    fields: dict[str, Check] = {"sampler": _torch_state, "sampler_epoch": optional(_epoch)}
    more: dict[str, Check] = {
        "loader": _torch_state, "torch": _torch_state, "numpy": _numpy_state, "random": _random_state, "sampler_state": _any,
        "first": optional(list_of(_epoch, _MANY)),
    }  # fmt: skip
    checked_fields("order", value, fields, more)
    if ("numpy" in value) != ("random" in value):
        raise Misfit("order has one of numpy and random; it must have both or neither")
    return value


def _global_generators(value: Any) -> Any:
    fields: dict[str, Check] = {"torch": _torch_state, "numpy": _numpy_state, "random": _random_state}
    return checked_fields("generators", value, fields, {})


def _pending(value: Any) -> tuple[tuple[list[int], list[int]], ...]:
    batches = list_of(tuple_of(_counts, _counts), _MANY)(value)
    if any(len(indices) != len(occurrences) for indices, occurrences in batches):
        raise ValueError("a list of batches, each [indices, as many occurrences]")
    return tuple((list(indices), list(occurrences)) for indices, occurrences in batches)


def _times_drawn(value: Any) -> dict[int, int]:
    try:
        return {count(int(index)): count(often) for index, often in an_object(value).items()}
    except (TypeError, ValueError):
        raise ValueError("an object: how often each index came") from None


def _worker(value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ValueError("a list of [state of a worker's data set, positions or number of batches since] for each worker")
    state, since = value
    if state is not None:
        fields, of_a_stream = {"dataset": _any}, {"iterator": _any, "ended": true_or_false}
        if isinstance(state, dict) and of_a_stream.keys() & state.keys():
            fields |= of_a_stream
        checked_fields("a worker's state", state, fields, {"generators": _global_generators})
    return [state, list(_counts(since)) if isinstance(since, (list, tuple)) else count(since)]


def _workers(value: Any) -> Any:
    workers = checked_fields("workers", value, {"num_workers": count, "next": count, "states": list_of(_worker, _MANY)}, {})
    if len(workers["states"]) != max(1, workers["num_workers"]) or workers["next"] >= len(workers["states"]):
        raise Misfit(
            f"workers has {len(workers['states'])} states, and worker {workers['next']} is next; it must have one for each of "
            f"num_workers={workers['num_workers']}"
        )
    return {**workers, "states": list(workers["states"])}


def _cut(value: Any) -> Any:
    fields = dict.fromkeys(("sampler", "batch_size", "drop_last", "num_replicas", "len(dataset)"), _text_or_number)
    return checked_fields("cut", value, fields, dict.fromkeys(("len(sampler)", "mode"), _text_or_number))


def _text_or_number(value: Any) -> Any:
    if value is not None and not isinstance(value, (bool, int, str)):
        raise ValueError("a text or a number")
    return value


def _merged(value: Any) -> Any:
    merged = checked_fields("merged", value, {"sampler_epoch": _epoch, "samples": count, "deals": list_of(_deal, _MANY)}, {})
    return {**merged, "deals": list(merged["deals"])}


def _deal(value: Any) -> Any:
    fields: dict[str, Check] = {
        "batch_size": integer(1, MAX_INT), "drop_last": true_or_false, "delivered": list_of(_delivered, _MANY),
    }  # fmt: skip
    deal = checked_fields("a deal of merged", value, fields, {})
    if not deal["delivered"]:
        raise Misfit("a deal of merged has no ranks")
    return {**deal, "delivered": list(deal["delivered"])}


_FIELDS: dict[str, Check] = {
    "format": count, "epoch": _epoch, "seed": optional(any_seed), "finished": true_or_false, "delivered": _delivered,
    "order": optional(_order), "seed_drawn": true_or_false, "drawn": count, "pending": _pending, "seen": _times_drawn,
    "workers": optional(_workers), "sampler": _any, "base_seed": optional(any_seed),
}  # fmt: skip
# A state between two epochs has no cut, a merged one no generators.
_MORE: dict[str, Check] = {
    "cut": _cut, "rank": count, "merged": _merged, "replaced": count, "generators": optional(_generators),
}  # fmt: skip


def check_state(state: Any) -> dict[str, Any]:
    """Return the fields of a state that `ddlp.sampling.checkpoint.save` has made. The loader adds ``cut`` to some.

    Raises:
        Misfit: a field is missing, unknown, has a value that none can have, or does not go with another.
    """
    fields = checked_fields("the state", state, _FIELDS, _MORE)
    partly = [name for name in ("delivered", "drawn", "pending", "seen") if fields[name]]
    if fields["finished"] and partly:
        raise Misfit(f"the state: finished is True and {partly[0]} is {quote(fields[partly[0]])}; a finished epoch has none")
    if len(fields["pending"]) > fields["drawn"]:
        raise Misfit(f"the state: pending has {len(fields['pending'])} batches of drawn={fields['drawn']}; it can't have more")
    begun = partly or fields["finished"]
    if begun and fields["workers"] is None and (fields["order"] is None or fields["seed"] is None):
        raise Misfit("the state: order or seed is missing; a state in mid-epoch has both, unless it has the workers' states")
    if partly and "cut" not in fields:
        raise Misfit("the state: cut is missing; a state in mid-epoch has it")
    return fields


