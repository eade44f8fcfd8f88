"""`strategy="auto"` with a `RayPool`: engines in actors of a real Ray cluster, and an operator that sleeps."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from csd_engine.prepare.operator_file import content_hash
from ddlp import RayPool
from ddlp.pools.ray_keeper import Settings
from tests.ddlp.pools.test_ray import START_S, ended, nothing_left
from tests.ddlp.pools.test_scaled import come_and_go, loader_of, wishes
from tests.ray_cluster import RayCluster
from tests.sleeping_engine import OPERATOR


@pytest.fixture
def limited() -> None:
    """Ray on a busy machine takes longer than other tests may."""


class WithOperators(RayPool):
    """Engines that have an operator's file; RayPool brings none to them."""

    operators: Path

    def _settings(self, pair: Path, user_code: bool) -> Settings:
        one = super()._settings(pair, user_code)
        return dataclasses.replace(one, arguments=[*one.arguments, "--operators", str(self.operators)])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ddlp[ray]")
def test_engines_in_actors_come_while_training_waits_and_go_when_it_does_not(spool, sleeps, monkeypatch, told):
    monkeypatch.setenv("DDLP_HOME", str(spool / "home"))
    for directory in ("operators", "root"):
        (spool / directory).mkdir()
    (spool / "operators" / f"{content_hash(OPERATOR.read_bytes())}.py").write_bytes(OPERATOR.read_bytes())
    with ended(RayCluster(cpus=2)) as cluster:
        pool = WithOperators(max=2, address=cluster.address, num_cpus=1, roots=str(spool / "root"))
        pool.operators = spool / "operators"
        loader = loader_of(pool, 1200)
        come_and_go(loader, pool, 2, sleeps, START_S)
        assert "2 wanted instead of 1: a batch takes" in wishes(loader)[1] and not len(told), list(told)
        pool.close()
        nothing_left(cluster)
