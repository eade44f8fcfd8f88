"""Changed files, descriptions and messages raise the documented error. `python -m tests.fuzz.parsers` runs longer."""

import pytest

from tests.fuzz.parsers import PARSERS, fuzz

INPUTS = {
    "card": 2000, "state": 60, "message": 2000, "pipeline": 800, "dataset": 800, "layout": 800, "manifest": 500, "npy": 500,
    "batch": 500, "segment": 500, "record": 3000, "tree": 2000, "parcel": 1000, "index": 2000, "shard": 1000,
}  # fmt: skip


@pytest.mark.parametrize("name", PARSERS)
def test_only_the_documented_error_comes(name: str) -> None:
    found = fuzz(name, 1, lambda inputs: inputs >= INPUTS[name])
    assert not found.told, f"input {found.inputs}: {found.quoted()}\n{found.told}"
    assert found.taken and (found.taken < found.inputs or name == "npy")
