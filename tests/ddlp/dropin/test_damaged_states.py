"""Damaged saved states: they raise the documented error and change nothing, or the epoch that they describe runs."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddlp import DDLPLoader
from tests.ddlp.dropin.small_sets import SAMPLES, Counting, Draws, numbered
from tests.ddlp.dropin.test_stateful import Numbers
from tests.mutations import mutated, places

BATCHES = 11  # of four


def make(paths: list[str], kind: str) -> DDLPLoader:
    if kind == "stream":
        return DDLPLoader(Numbers(), 4)
    order = dict(sampler=Counting(SAMPLES)) if "own" in kind else dict(shuffle=True)
    return DDLPLoader(Draws() if "code" in kind else numbered(paths), 4, **order)


def state_of(loader: DDLPLoader, batches: int) -> dict[str, Any]:
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


KINDS = ["files", "own files", "code", "own code", "stream"]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.some(2)
def test_one_value_is_another(paths, kind, data):
    first = make(paths, kind)
    whole = state_of(first, data.draw(st.sampled_from([0, 3])))
    state, where = data.draw(mutated(whole, leave=("dataset", "iterator", "sampler_state")))  # these belong to the user
    loader = make(paths, kind)
    before = loader.state_dict()
    try:
        loader.load_state_dict(state)
    except ValueError as error:
        assert loader.state_dict() == before, "a refused state must change nothing"
        assert "state" in str(error) and "begin the epoch again with set_epoch()" in str(error) or where == ("format",)
        assert len(list(loader)) == BATCHES
        return
    try:
        batches = len(list(loader))
    except ValueError as error:
        assert "begin the epoch again with set_epoch()" in str(error), where
        return
    if kind in ("files", "code"):
        delivered = sum(stop - start for start, stop in state["delivered"])
        assert batches == (0 if state["finished"] else BATCHES - delivered), where


@pytest.mark.parametrize("kind", ["files", "own code"])
@pytest.mark.parametrize(
    "value", [torch.tensor([1, 2]), np.array([1.0, 2.0]), np.int64(1), object()], ids=["tensor", "array", "number", "object"]
)
def test_a_value_of_a_type_that_no_file_has(paths, kind, value):
    """Some of these can't be compared, or are equal to nothing."""
    whole = state_of(make(paths, kind), 3)
    loader = make(paths, kind)
    before = loader.state_dict()
    for path in places(whole):
        if {"dataset", "iterator", "sampler_state", "sampler"} & set(path[:1] if len(path) == 1 else path):
            continue  # the user's own, but a generator's state, of which `test_one_value_is_another` has wrong ones
        state = owner = copy.deepcopy(whole)
        for key in path[:-1]:
            owner = owner[key]
        owner[path[-1]] = value
        with pytest.raises(ValueError, match="not a state of DDLPLoader"):
            loader.load_state_dict(state)
    assert loader.state_dict() == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"delivered": [[0, 3], [2, 5]]}, "delivered is [[0, 3], [2, 5]]; it must be a list of ranges"),
        ({"order": None}, "order or seed is missing"),
    ],
)
def test_the_error_says_which_field(paths, change, said):
    state = state_of(make(paths, "files"), 3)
    loader = make(paths, "files")
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the text is checked below)
        loader.load_state_dict({**state, **change})
    assert said in str(caught.value) and "Pass what state_dict() gave" in str(caught.value)
    assert len(list(loader)) == BATCHES


def test_more_batches_than_there_are(paths):
    state = state_of(make(paths, "files"), 3)
    loader = make(paths, "files")
    loader.load_state_dict({**state, "delivered": [[0, 10**9]]})
    with pytest.raises(ValueError, match="counts batch 999999999 as delivered, this loader's epoch has 11 batches"):
        iter(loader)


def test_a_generator_of_another_kind(paths):
    state = state_of(make(paths, "files"), 3)
    loader = make(paths, "files")
    before = torch.get_rng_state()
    loader.load_state_dict({**state, "order": {**state["order"], "sampler": base64.b64encode(bytes(16)).decode()}})  # a GPU's
    with pytest.raises(ValueError, match="generator 'sampler' does not fit this loader's, on the cpu"):
        iter(loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_value_that_is_nested_deeply_is_refused(paths):
    state, deep = state_of(make(paths, "files"), 3), []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(ValueError, match="delivered is .*it must be"):
        make(paths, "files").load_state_dict({**state, "delivered": deep})
