"""Evaluation beside training: the results of one between two epochs, and training's own numbers."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.transforms import ToTensor

from ddlp import DDLPError, DDLPLoader, Evaluation, ImageArrays
from tests.engine_process import until

LIMIT_S = 60
GPUS = torch.cuda.device_count()


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 2))


def samples(seed: int, count: int = 64) -> TensorDataset:
    random = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 4, generator=random), torch.randint(0, 2, (count,), generator=random))


def loss_of(one: nn.Module, x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    device = next(one.parameters()).device
    return nn.functional.cross_entropy(one(x.to(device)), y.to(device), reduction=reduction)


def evaluate(one: nn.Module, loader: Any) -> float:
    return sum(loss_of(one, x, y, "sum").item() for x, y in loader)


def train(
    one: nn.Module, between: Callable[[int], None] = lambda epoch: None, loader: Any = DataLoader, epochs: int = 3
) -> list[float]:
    """The losses. Order and dropout come from torch's generator for all."""
    torch.manual_seed(11)
    optimizer = torch.optim.SGD(one.parameters(), 0.1, momentum=0.9)
    losses = []
    batches = loader(samples(0), batch_size=8, shuffle=True)
    for epoch in range(epochs):
        one.train()
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_of(one, x, y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        between(epoch)
    return losses


@pytest.mark.parametrize(
    ("loader", "options"),
    [
        (DataLoader, {}), (DataLoader, {"shuffle": True}), (DataLoader, {"num_workers": 1}),
        (DDLPLoader, {"num_workers": 1}), (DDLPLoader, {"num_workers": 1, "shuffle": True}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not GPUS, reason="needs a GPU"))])
def test_losses_and_results_are_those_of_one_after_the_other(loader: Any, options: dict[str, Any], device: str) -> None:
    expected: list[float] = []
    ours = model().to(device)
    if loader is DDLPLoader and device != "cpu":
        options = {**options, "device": device}

    def one_after_the_other(epoch: int) -> None:
        ours.eval()
        with torch.no_grad():
            expected.append(evaluate(ours, DataLoader(samples(1), batch_size=8, generator=torch.Generator())))

    losses = train(ours, one_after_the_other)
    ours = model().to(device)
    found = []
    with Evaluation(ours, loader(samples(1), batch_size=8, **options), evaluate) as side:

        def beside(epoch: int) -> None:
            side.start(epoch)
            found.extend(side.done())

        assert train(ours, beside, loader) == losses
        found += side.finish()
    assert [one.epoch for one in found] == [0, 1, 2] and all(one.seconds > 0 for one in found)
    assert [one.result for one in found] == pytest.approx(expected, rel=1e-6 if "shuffle" in options else 0)


@pytest.fixture
def held() -> Iterator[tuple[threading.Event, Callable[..., float]]]:
    """An event, and an evaluation that waits for it."""
    go = threading.Event()

    def waits(one: nn.Module, loader: Any) -> float:
        assert go.wait(LIMIT_S)
        return evaluate(one, loader)

    yield go, waits
    go.set()


def test_training_goes_on_with_other_weights(held: Any) -> None:
    go, waits = held
    ours = model().eval()
    with torch.no_grad():
        expected = evaluate(ours, DataLoader(samples(1), batch_size=8))
    with Evaluation(ours, DataLoader(samples(1), batch_size=8), waits) as side:
        side.start(5)
        train(ours, epochs=1)
        assert side.done() == []
        go.set()
        (one,) = side.finish()
        assert (one.epoch, one.result) == (5, expected) and side.finish() == []
        assert side._copy is not None and not any(parameter.requires_grad for parameter in side._copy.parameters())
    assert all(parameter.requires_grad and parameter.grad is not None for parameter in ours.parameters())


def test_one_at_a_time(held: Any) -> None:
    go, waits = held
    ours = model()
    with Evaluation(ours, DataLoader(samples(1), batch_size=8), waits) as side:
        side.start(0)
        second = threading.Thread(target=side.start, args=(1,))
        second.start()
        second.join(0.5)
        assert second.is_alive()
        go.set()
        second.join(LIMIT_S)
        assert [one.epoch for one in side.finish()] == [0, 1]


def test_a_model_whose_tensors_become_others_is_copied_anew() -> None:
    ours = nn.Sequential(nn.Linear(4, 2))
    with Evaluation(ours, DataLoader(samples(1)), lambda one, loader: next(one.parameters()).sum().item()) as side:
        side.start(0)
        ours[0] = nn.Linear(4, 3)
        side.start(1)
        assert side.finish()[1].result == next(ours.parameters()).sum().item()


@pytest.mark.parametrize("error", [KeyError("top5"), SystemExit("top5")])
def test_an_error_is_told_once_with_its_epoch(error: BaseException) -> None:
    bad = [True, False]

    def fails(one: nn.Module, loader: Any) -> float:
        if bad.pop(0):
            raise error
        return evaluate(one, loader)

    with Evaluation(model(), DataLoader(samples(1), batch_size=8), fails) as side:
        side.start(7)
        said = f"the evaluation of epoch 7 failed: {type(error).__name__}: {error}"
        with pytest.raises(DDLPError, match=re.escape(said)) as caught:
            side.finish()
        assert caught.value.__cause__ is error
        side.start(8)
        assert [one.epoch for one in side.finish()] == [8]


def test_what_is_around_a_model_is_taken_off(tmp_path: Any) -> None:
    ours = model()
    average = torch.optim.swa_utils.AveragedModel(ours)
    with torch.no_grad():
        for parameter in average.module.parameters():
            parameter.zero_()
    loader = DataLoader(samples(1), batch_size=8)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        around: list[Any] = [nn.parallel.DistributedDataParallel(ours), torch.compile(ours), average]
        sums = []
        for one in around:
            with Evaluation(one, loader, lambda copy, _: (type(copy), sum(p.sum().item() for p in copy.parameters()))) as side:
                side.start(0)
                sums += [one.result for one in side.finish()]
        whole = sum(parameter.sum().item() for parameter in ours.parameters())
        assert sums == [(nn.Sequential, whole)] * 2 + [(nn.Sequential, 0.0)]
        from torch.distributed.fsdp import fully_shard

        sharded = fully_shard(model(), mesh=torch.distributed.init_device_mesh("cpu", (1,)))
        with pytest.raises(ValueError, match="sharded over ranks"):
            Evaluation(sharded, loader, evaluate)
    finally:
        torch.distributed.destroy_process_group()


class Niceness(Dataset):
    """How nice the process or thread is in which a sample is made."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own there")
@pytest.mark.parametrize(("loader", "workers"), [(DataLoader, 0), (DataLoader, 1), (DDLPLoader, 1)])
def test_it_has_a_lower_priority(loader: Any, workers: int) -> None:
    def nice(one: nn.Module, batches: Any) -> set[int]:
        return {int(k) for batch in batches for k in batch} | {os.getpriority(os.PRIO_PROCESS, 0)}

    mine = os.getpriority(os.PRIO_PROCESS, 0)
    with Evaluation(model(), loader(Niceness(), num_workers=workers), nice, niceness=4) as side:
        side.start(0)
        assert side.finish()[0].result == {min(19, mine + 4)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine
    with pytest.raises(ValueError, match="niceness=20"):
        Evaluation(model(), loader(Niceness(), num_workers=1), nice, niceness=20)


def test_own_code_may_not_seed_trainings_generators() -> None:
    with pytest.raises(ValueError, match="num_workers=1 or more"):
        Evaluation(model(), DDLPLoader(samples(1), batch_size=8), evaluate)
    images = ImageArrays(np.zeros((4, 8, 8, 3), np.uint8), range(4), ToTensor())
    with Evaluation(model(), DDLPLoader(images), lambda one, loader: len(list(loader))) as side:  # ddlp's own code draws aside
        side.start(0)
        assert side.finish()[0].result == 4


def evaluations() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "ddlp-evaluation"]


@pytest.mark.parametrize("how", ["closed", "dropped", "left by an error"])
def test_a_thread_ends_with_the_batch_that_it_is_at(how: str) -> None:
    at_work, seen = threading.Event(), []

    def slow(one: nn.Module, loader: Any) -> Tensor:
        for x, _ in loader:
            at_work.set()
            seen.append(len(x))
            until(lambda: side is None or side._shared.ended.is_set(), LIMIT_S)
        raise AssertionError("it went on")

    side: Any = Evaluation(model(), DataLoader(samples(1), batch_size=8), slow)
    side.start(0)
    assert at_work.wait(LIMIT_S)
    if how == "dropped":
        side = None
        gc.collect()
    elif how == "closed":
        side.close()
        side.close()
        with pytest.raises(RuntimeError, match="closed"):
            side.start(1)
        assert side.finish() == []
    else:
        with pytest.raises(KeyError), side:
            raise KeyError
    until(lambda: not evaluations(), LIMIT_S)
    assert seen == [8]


def test_a_script_ends_in_mid_evaluation(forks: Any) -> None:
    code = """
import threading, time
import torch
from torch.utils.data import DataLoader, TensorDataset
from ddlp import Evaluation

at_work = threading.Event()

def evaluate(model, loader):
    for _ in loader:
        at_work.set()
        time.sleep(0.05)

side = Evaluation(torch.nn.Linear(2, 2), DataLoader(TensorDataset(torch.zeros(100_000, 2))), evaluate)
side.start(0)
at_work.wait()
raise KeyboardInterrupt
"""
    done = forks.run(code=code, environment=os.environ)
    assert done.returncode != 0 and done.stderr.count("Traceback") == 1 and "ddlp" not in done.stderr, done.stderr
