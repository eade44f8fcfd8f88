"""Ray Train: ``prepare_data_loader`` keeps a DDLPLoader, and the workers share the samples. With real raylets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import json, sys
from pathlib import Path

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader
from torch.utils.data import SequentialSampler, TensorDataset

from ddlp import DDLPLoader

out = Path(sys.argv[1])


def train(config):
    rank = ray.train.get_context().get_world_rank()
    data = TensorDataset(torch.arange(40))
    told = {}
    for how, options in {
        "shuffled": {"shuffle": True}, "in order": {}, "one by one": {"batch_size": None},
        "persistent": {"shuffle": True, "num_workers": 1, "persistent_workers": True},
    }.items():
        ours = DDLPLoader(data, **{"batch_size": 4, **options})
        loader = prepare_data_loader(ours)
        epochs = []
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            epochs.append([int(k) for batch in loader for k in torch.as_tensor(batch[0]).reshape(-1)])
        told[how] = {"epochs": epochs, "ours": getattr(loader, "_dataloader", loader) is ours}
    alone = DDLPLoader(data, batch_size=4)
    prepare_data_loader(alone, add_dist_sampler=False)
    told["left alone"] = isinstance(alone.sampler, SequentialSampler)
    (out / f"{rank}.json").write_text(json.dumps(told))


ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=str(out))).fit()
"""


_TRAINS = [pytest.param("1", id="today's Ray Train"), pytest.param("0", id="the one before", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=_TRAINS)
def told(request: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both workers have reported."""
    pytest.importorskip("ray.train.torch", reason="needs pip install 'ray[train]'", exc_type=ImportError)
    out = tmp_path_factory.mktemp("ray")
    (out / "script.py").write_text(SCRIPT)
    options = {"RAY_TRAIN_V2_ENABLED": request.param, "RAY_USAGE_STATS_ENABLED": "0", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, out / "script.py", out]
    done = subprocess.run(command, env={**os.environ, **options}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return [json.loads((out / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("how", ["shuffled", "in order", "one by one", "persistent"])
def test_each_sample_comes_once_and_the_loader_stays(told: list[dict[str, Any]], how: str) -> None:
    for epoch in (0, 1):
        first, second = (one[how]["epochs"][epoch] for one in told)
        assert sorted(first + second) == list(range(40))
    assert all(one[how]["ours"] for one in told)
    changes = told[0][how]["epochs"][0] != told[0][how]["epochs"][1]
    assert changes == (how in ("shuffled", "persistent"))


def test_without_add_dist_sampler_the_sampler_stays(told: list[dict[str, Any]]) -> None:
    assert all(one["left alone"] for one in told)
