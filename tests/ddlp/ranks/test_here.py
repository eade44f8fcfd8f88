"""Which rank this process is, by torchrun's environment variables."""

from __future__ import annotations

import pytest

from ddlp.process.ranks import here

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip


def test_torchrun_says_it():
    one = here(TORCHRUN)
    assert one is not None
    assert (one.rank, one.ranks, one.local_rank, one.local_ranks) == (3, 4, 1, 2)
    other = here({**TORCHRUN, "RANK": "2", "LOCAL_RANK": "0"})
    assert other is not None and other.run == one.run


@pytest.mark.parametrize("name", ["MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"])
def test_another_run_has_another_name(name):
    assert here({**TORCHRUN, name: "7"}).run != here(TORCHRUN).run


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        {key: value for key, value in TORCHRUN.items() if key != "MASTER_PORT"},
        {key: value for key, value in TORCHRUN.items() if not key.startswith("LOCAL")},  # not torchrun's environment
        {**TORCHRUN, "RANK": "three"},
        {**TORCHRUN, "LOCAL_RANK": "2"},
    ],
    ids=["nothing", "alone", "no-place", "no-machine", "no-number", "out-of-range"],
)
def test_other_environments_give_no_rank(environment):
    assert here(environment) is None
