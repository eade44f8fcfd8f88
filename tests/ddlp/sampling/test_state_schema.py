"""A loader's saved state, field by field: which values are allowed, and what the error says otherwise."""

from __future__ import annotations

import base64
import copy
import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from csd_engine.protocol.schema import Misfit
from ddlp.sampling.state_schema import check_state

BIG = (1 << 63) - 1
TORCH = base64.b64encode(torch.Generator().manual_seed(1).get_state().numpy().tobytes()).decode()
NUMPY = np.random.RandomState(1).get_state()
GLOBAL_NUMPY = [NUMPY[0], NUMPY[1].tolist(), *NUMPY[2:]]
GLOBAL_RANDOM = list(random.Random(1).getstate())
CUT = {"sampler": "RandomSampler", "batch_size": 4, "drop_last": False, "num_replicas": 1, "len(dataset)": None}
ORDER = {"sampler": TORCH, "sampler_epoch": None}
GLOBAL = {"torch": TORCH, "numpy": GLOBAL_NUMPY, "random": GLOBAL_RANDOM}
STATE: dict[str, Any] = {
    "format": 3, "epoch": 2, "seed": 7, "finished": False, "delivered": [[0, 2], [5, 6]], "order": ORDER, "seed_drawn": True,
    "drawn": 6, "pending": [[[1, 2], [0, 0]], [[3], [1]]], "seen": {"4": 2}, "cut": CUT,
    "workers": None, "sampler": None, "base_seed": 5,
}  # fmt: skip
BETWEEN = {**STATE, "delivered": [], "order": None, "seed": None, "drawn": 0, "pending": [], "seen": {}}
WORKERS = {"num_workers": 2, "next": 1, "states": [[None, [0, 1]], [{"dataset": {"at": 3}, "iterator": 3, "ended": True}, []]]}
DEAL = {"batch_size": 4, "drop_last": True, "delivered": [[[0, 3]], []]}
MERGED = {"sampler_epoch": 1, "samples": 40, "deals": [DEAL]}


def refusal(state: Any) -> str:
    with pytest.raises(Misfit) as misfit:
        check_state(state)
    return str(misfit.value)


def test_a_state_comes_back_as_it_is_used():
    found = check_state(json.loads(json.dumps(STATE)))
    assert found["delivered"] == [(0, 2), (5, 6)] and found["seen"] == {4: 2}
    assert found["pending"] == (([1, 2], [0, 0]), ([3], [1])) and found["order"] == ORDER and found["cut"] == CUT
    assert "rank" not in found and "merged" not in found
    assert {name: found[name] for name in ("format", "epoch", "seed", "finished", "seed_drawn", "drawn")} == {
        "format": 3, "epoch": 2, "seed": 7, "finished": False, "seed_drawn": True, "drawn": 6,
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"order": {**ORDER, "sampler_epoch": -3, "loader": TORCH, "torch": TORCH, "first": [1, -1], "sampler_state": 3}},
        {"order": {**ORDER, "numpy": GLOBAL_NUMPY, "random": GLOBAL_RANDOM, "first": None}},
        {"order": {**ORDER, "sampler": base64.b64encode(b"of a GPU").decode()}},
        {"workers": WORKERS}, {"workers": {"num_workers": 0, "next": 0, "states": [[None, []]]}}, {"workers": None},
        {"order": None, "seed": None, "workers": WORKERS},
        {"sampler": {"any": "thing"}}, {"rank": 3}, {"replaced": 2}, {"merged": MERGED}, {"seed": (1 << 64) - 1},
        {"seed": -(1 << 63)},
        {"epoch": -BIG}, {"epoch": BIG}, {"cut": {**CUT, "len(sampler)": 3, "mode": "x", "drop_last": True}},
        {"drawn": 2}, {"pending": []}, {"base_seed": None}, {"base_seed": (1 << 64) - 1}, {"generators": None},
        {"generators": {}}, {"generators": {"torch": TORCH, "loader": TORCH, "sampler": TORCH}},
        {"workers": {"num_workers": 1, "next": 0, "states": [[{"dataset": None, "generators": GLOBAL}, 7]]}},
    ],
)  # fmt: skip
def test_what_a_state_may_hold(change):
    state = {**copy.deepcopy(STATE), **change}
    found = check_state(state)
    for name in change:
        assert json.loads(json.dumps(found[name])) == json.loads(json.dumps(state[name]))


def test_a_state_between_two_epochs_has_less():
    assert check_state(BETWEEN)["seed"] is None
    assert "cut" not in check_state({name: BETWEEN[name] for name in BETWEEN if name != "cut"})
    assert check_state({**BETWEEN, "finished": True, "order": ORDER, "seed": 1})["finished"] is True


RANGES = "a list of ranges [first, last + 1] in ascending order, with a gap between two"
GENERATOR = "the state of one of torch's generators, as base64"
COUNT = f"an integer from 0 to {BIG}"
SEEN = "an object: how often each index came"
WORKER = "a list of [state of a worker's data set, positions or number of batches since] for each worker"
PENDING = "a list of batches, each [indices, as many occurrences]"


def order(**change):
    return {"order": {**ORDER, **change}}


def numpy_state(place, value):
    return order(numpy=[*GLOBAL_NUMPY[:place], value, *GLOBAL_NUMPY[place + 1 :]], random=GLOBAL_RANDOM)


def random_state(place, value):
    return order(random=[*GLOBAL_RANDOM[:place], value, *GLOBAL_RANDOM[place + 1 :]], numpy=GLOBAL_NUMPY)


def workers(**change):
    return {"workers": {**WORKERS, **change}}


def merged(**change):
    return {"merged": {**MERGED, "deals": [{**DEAL, **change}]}}


@pytest.mark.parametrize(
    "change, end",
    [
        ({"format": -1}, f"the state: format is -1; it must be {COUNT}"),
        ({"epoch": BIG + 1}, f"it must be an integer from {-BIG} to {BIG}"), ({"epoch": -BIG - 1}, f"from {-BIG} to {BIG}"),
        ({"seed": 1 << 64}, f"it must be an integer from {-(1 << 63)} to {(1 << 64) - 1}"),
        ({"finished": 0}, "the state: finished is 0; it must be true or false"), ({"seed_drawn": None}, "true or false"),
        ({"extra": 1}, "the state has a field 'extra' that is not known"),
        *(({"delivered": one}, RANGES) for one in ([[0, 0]], [[2, 1]], [[0, 2], [2, 3]], [[5, 6], [0, 2]], [[0, 5], [1, 6]])),
        ({"delivered": [[0]]}, "a list of exactly 2"), ({"delivered": 3}, f"a list of at most {1 << 40}"),
        *((order(sampler=value), GENERATOR) for value in ("", "*", "é", 3, None, TORCH + "=")),
        (order(sampler=base64.b64encode(b"\xff" * 5056).decode()), GENERATOR), (order(torch=""), GENERATOR),
        (order(loader=""), GENERATOR), (order(sampler_epoch="x"), f"from {-BIG} to {BIG}"),
        (order(x=1), "order has a field 'x' that is not known"),
        (order(first=[None]), f"from {-BIG} to {BIG}"),
        (order(numpy=GLOBAL_NUMPY), "order has one of numpy and random; it must have both or neither"),
        (order(random=GLOBAL_RANDOM), "order has one of numpy and random; it must have both or neither"),
        (numpy_state(0, "PCG64"), "the state of numpy's global generator"),
        (numpy_state(1, GLOBAL_NUMPY[1][:-1]), "the state of numpy's global generator"),
        (numpy_state(1, [*GLOBAL_NUMPY[1], 0]), "a list of at most 624"),
        (numpy_state(1, [1 << 32] * 624), "an integer from 0 to 4294967295"),
        (numpy_state(2, 625), "an integer from 0 to 624"), (numpy_state(3, 2), "an integer from 0 to 1"),
        (numpy_state(4, 1e9 + 1), "a number from -1e+09 to 1e+09"), (numpy_state(4, -1e9 - 1), "a number from -1e+09 to 1e+09"),
        (random_state(0, 2), "the state of random's global generator"),
        (random_state(1, GLOBAL_RANDOM[1][:-1]), "the state of random's global generator"),
        (random_state(1, [0] * 624 + [625]), "the state of random's global generator"),
        (random_state(1, [0] * 626), "a list of at most 625"), (random_state(2, "x"), "a number from -1e+09 to 1e+09"),
        (random_state(2, 1e9 + 1), "a number from -1e+09 to 1e+09"),
        (random_state(2, -1e9 - 1), "a number from -1e+09 to 1e+09"),
        ({"drawn": -1}, COUNT), ({"rank": -1}, COUNT), ({"replaced": -1}, COUNT),
        ({"pending": [[[1], []]]}, PENDING), ({"pending": [[[1]]]}, "a list of exactly 2"), ({"pending": [[[-1], [0]]]}, COUNT),
        *(({"seen": value}, SEEN) for value in ({"x": 1}, {"-1": 1}, {"1": -1}, {"1": None}, [], 3)),
        *((workers(states=[value, value]), WORKER) for value in ("ab", [None], [None, [], []], 3, {1: 2, 3: 4})),
        (workers(states=[[{}, []], [None, []]]), "a worker's state has no dataset"),
        (workers(states=[[3, []], [None, []]]), "a worker's state is 3; it must be an object"),
        (workers(states=[[{"dataset": 1, "x": 1}, []], [None, []]]), "'x' that is not known"),
        (workers(states=[[{"dataset": 1, "iterator": 1, "ended": 1}, []], [None, []]]), "true or false"),
        (workers(states=[[{"dataset": 1, "ended": True}, []], [None, []]]), "a worker's state has no iterator"),
        (workers(states=[[{"dataset": 1, "iterator": 1}, []], [None, []]]), "a worker's state has no ended"),
        (workers(states=[[None, [-1]], [None, []]]), COUNT), (workers(num_workers=-1), COUNT), (workers(next=-1), COUNT),
        (workers(next=2), "workers has 2 states, and worker 2 is next; it must have one for each of num_workers=2"),
        (workers(num_workers=3), "workers has 2 states, and worker 1 is next; it must have one for each of num_workers=3"),
        (workers(num_workers=0), "it must have one for each of num_workers=0"),
        (workers(states=[[None, -1], [None, []]]), COUNT), (workers(states=[[None, "1"], [None, []]]), COUNT),
        (workers(states=[[{"dataset": 1, "generators": {"torch": TORCH}}, []], [None, []]]), "generators has no numpy"),
        (workers(states=[[{"dataset": 1, "generators": {**GLOBAL, "torch": "x"}}, []], [None, []]]), GENERATOR),
        (workers(x=1), "workers has a field 'x' that is not known"),
        ({"base_seed": 1 << 64}, f"it must be an integer from {-(1 << 63)} to {(1 << 64) - 1}"),
        ({"generators": {"numpy": GLOBAL_NUMPY}}, "generators has a field 'numpy' that is not known"),
        ({"generators": {"torch": "x"}}, GENERATOR),
        ({"cut": {**CUT, "mode": 1.5}}, "a text or a number"), ({"cut": {**CUT, "sampler": []}}, "a text or a number"),
        ({"cut": {**CUT, "x": 1}}, "cut has a field 'x' that is not known"),
        *(({"cut": {key: CUT[key] for key in CUT if key != name}}, f"cut has no {name}") for name in CUT),
        (merged(batch_size=0), f"an integer from 1 to {BIG}"), (merged(batch_size=BIG + 1), f"an integer from 1 to {BIG}"),
        (merged(drop_last=1), "true or false"), (merged(delivered=[]), "a deal of merged has no ranks"),
        (merged(delivered=[[[0, 0]]]), RANGES), (merged(x=1), "a deal of merged has a field 'x' that is not known"),
        ({"merged": {**MERGED, "samples": -1}}, COUNT), ({"merged": {**MERGED, "sampler_epoch": 0.5}}, f"from {-BIG} to {BIG}"),
        ({"merged": {**MERGED, "x": 1}}, "merged has a field 'x' that is not known"),
        ({"merged": {**MERGED, "deals": 3}}, f"a list of at most {1 << 40}"),
        ({"finished": True}, "the state: finished is True and delivered is [(0, 2), (5, 6)]; a finished epoch has none"),
        ({"drawn": 1}, "the state: pending has 2 batches of drawn=1; it can't have more"),
        ({"order": None}, "order or seed is missing; a state in mid-epoch has both, unless it has the workers' states"),
        ({"seed": None}, "order or seed is missing; a state in mid-epoch has both, unless it has the workers' states"),
    ],
    ids=lambda one: str(one)[:60],
)  # fmt: skip
def test_what_none_can_hold(change, end):
    assert refusal({**copy.deepcopy(STATE), **change}).endswith(end)


@pytest.mark.parametrize("name", [name for name in STATE if name != "cut"])
def test_no_field_may_be_missing(name):
    assert refusal({key: STATE[key] for key in STATE if key != name}) == f"the state has no {name}"


@pytest.mark.parametrize("name", ["delivered", "drawn", "seen"])
def test_an_epoch_that_has_begun_has_a_cut_and_is_not_finished(name):
    begun = {**BETWEEN, name: STATE[name], "order": ORDER, "seed": 1}
    check_state(begun)
    del begun["cut"]
    assert refusal(begun) == "the state: cut is missing; a state in mid-epoch has it"
    assert f"finished is True and {name} is" in refusal({**begun, "finished": True})
    assert "order or seed is missing" in refusal({**BETWEEN, name: STATE[name]})


def test_a_finished_epoch_has_its_order_and_seed():
    assert "order or seed is missing" in refusal({**BETWEEN, "finished": True})
    assert refusal(None) == "the state is None; it must be an object"
