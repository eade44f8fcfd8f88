"""Ray Train: ``prepare_data_loader`` keeps a DDLPLoader, and the workers share the samples.

A quick run has Ray Train's local mode: two processes with torchrun's environment. A slow one has real raylets.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.forks import Forks
from tests.ports import free_port

SCRIPT = """
import json, os, sys, traceback
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


def in_two_ranks(trainer):
    ranks = []
    for rank in range(2):
        ranks.append(os.fork())
        if not ranks[-1]:
            os.environ.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", RANK=str(rank), LOCAL_RANK=str(rank))
            status = 1
            try:
                trainer.fit()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
    sys.exit(any([os.waitpid(one, 0)[1] for one in ranks]))


cpus = int(sys.argv[2])
if not cpus:
    in_two_ranks(TorchTrainer(train, scaling_config=ScalingConfig(num_workers=0)))
ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False)
TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=str(out))).fit()
"""
QUIET = {  # A busy machine starts no more of Ray's processes than there are actors, and may take long for them.
    "RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_register_timeout_seconds": "300", "GLOO_SOCKET_IFNAME": "lo",
}  # fmt: skip
WAYS = [  # RAY_TRAIN_V2_ENABLED, and the cluster's CPUs; the earlier Ray Train needs one more than it has workers
    pytest.param(("1", "0"), id="today's, local mode"), pytest.param(("1", "2"), id="today's", marks=pytest.mark.slow),
    pytest.param(("0", "3"), id="the one before", marks=pytest.mark.slow),
]  # fmt: skip


@pytest.fixture(scope="module", params=WAYS)
def told(request: Any, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both workers have reported."""
    if missing := [name for name in ("ray", "pandas", "pyarrow", "pydantic") if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{missing[0]} is not installed: pip install 'ray[train]'")
    out = tmp_path_factory.mktemp("ray")
    version, cpus = request.param
    environment = {**os.environ, **QUIET, "RAY_TRAIN_V2_ENABLED": version}
    if cpus == "0":
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        done = forks.run(code=SCRIPT, arguments=[str(out), cpus], environment=environment)
    else:
        (out / "script.py").write_text(SCRIPT)
        command = [sys.executable, out / "script.py", out, cpus]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
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
