"""accelerate and Lightning keep a DDLPLoader and its arguments."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
)

from ddlp import DDLPLoader
from ddlp.devices.device import Device
from tests.ddlp.dropin.frameworks import SMALL, EveryOther, Net, classes, need
from tests.ddlp.dropin.small_sets import RANDOM, SAMPLES, Draws, Stream, by_target, numbered


@pytest.fixture
def accelerator():
    accelerate = need("accelerate")
    accelerate.state.AcceleratorState._reset_state(True)
    yield accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    accelerate.state.AcceleratorState._reset_state(True)


def test_accelerate_leaves_the_loader_as_it_is(paths, engine, tmp_path, accelerator):
    loader = DDLPLoader(classes(paths), 4, shuffle=True, strategy="wrr", spool=engine)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net, optimizer, prepared = accelerator.prepare(net, optimizer, loader)
    assert prepared is loader
    steps = 0
    for images, labels in prepared:
        with accelerator.accumulate(net):
            accelerator.backward(net(images, labels)["loss"])
            optimizer.step()
            optimizer.zero_grad()
        steps += 1
    assert steps == len(loader) == 11
    assert loader.report().samples == SAMPLES
    accelerator.save_state(str(tmp_path / "state"))
    accelerator.load_state(str(tmp_path / "state"))
    accelerator.free_memory()


def test_accelerate_saves_its_state_beside_a_stream(tmp_path, accelerator):
    shard = need("accelerate").data_loader.IterableDatasetShard(Stream(), 4, num_processes=1, process_index=0)
    loader = DDLPLoader(shard, 4)
    assert accelerator.prepare(loader) is loader and len(list(loader)) == 5
    accelerator.save_state(str(tmp_path / "state"))
    accelerator.load_state(str(tmp_path / "state"))
    accelerator.free_memory()


def test_a_data_set_that_nobody_shares_is_warned_of_once(paths, monkeypatch):
    need("accelerate")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = DDLPLoader(classes(paths), 4, shuffle=True)
    with pytest.warns(UserWarning, match="each of the 2 processes goes over the whole data set") as caught:
        for _ in range(2):
            list(loader)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(DDLPLoader(classes(paths), 4, sampler=DistributedSampler(classes(paths), 2, 0)))


@pytest.mark.parametrize("given", [dict(dataset=Stream()), dict(sampler=EveryOther()), dict(batch_sampler=[[1, 2], [3]])])
def test_what_may_not_be_shared_is_warned_of_once(paths, monkeypatch, given):
    need("accelerate")
    monkeypatch.setenv("WORLD_SIZE", "2")
    given = {"dataset": classes(paths), **given}
    loader = DDLPLoader(**given)
    with pytest.warns(UserWarning, match="each of the 2 processes may go over the whole .* attribute num_replicas") as caught:
        for _ in range(2):
            list(loader)
    assert len(caught) == 1 and caught[0].filename == __file__


def test_a_sampler_or_set_that_knows_its_ranks_is_not_warned_of(paths, monkeypatch):
    shard = need("accelerate").data_loader.IterableDatasetShard(Stream(), 1, num_processes=2, process_index=1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    own, split = EveryOther(), Stream()
    own.num_replicas = 2
    split._distributed = object()  # as datasets.distributed.split_dataset_by_node sets it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(DDLPLoader(classes(paths), 4, sampler=own))
        list(DDLPLoader(classes(paths), batch_sampler=BatchSampler(own, 4, drop_last=False)))
        list(DDLPLoader(split))
        assert torch.cat(list(DDLPLoader(shard))).tolist() == list(range(1, 20, 2))


def test_a_loader_without_batches_is_not_shared(paths, accelerator, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    accelerator.state.__dict__["num_processes"] = 2
    loader = accelerator.prepare(DDLPLoader(numbered(paths), None))
    with pytest.warns(UserWarning, match="cannot share a loader with batch_size=None"):
        assert len(list(loader)) == SAMPLES


def test_one_process_can_not_read_for_all(paths, accelerator):
    accelerator.state.__dict__["num_processes"] = 2
    accelerator.dataloader_config.dispatch_batches = True
    with pytest.raises(ValueError, match="Leave dispatch_batches out"):
        accelerator.prepare(DDLPLoader(numbered(paths), 4))


@pytest.mark.parametrize("own", [None, "cpu"])
def test_batches_land_on_the_accelerators_device(paths, accelerator, own):
    accelerator.state.__dict__["device"] = torch.device("meta")
    loader = DDLPLoader(numbered(paths), 4, device=own)
    assert accelerator.prepare(loader).device == (own or torch.device("meta"))
    assert accelerator.prepare_data_loader(DDLPLoader(numbered(paths), 4), device_placement=False).device is None


@pytest.mark.parametrize(("even", "split"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("count", [3, 41])
def test_the_parts_are_those_of_accelerates_own_loader(accelerator, paths, even, split, count):
    accelerator.state.__dict__["num_processes"] = 2
    accelerator.rng_types = []  # there is no second process
    accelerator.dataloader_config.even_batches, accelerator.dataloader_config.split_batches = even, split
    for accelerator.state.__dict__["process_index"] in range(2):
        batches = []
        for kind in (DataLoader, DDLPLoader):
            sampler = RandomSampler(range(count), generator=torch.Generator().manual_seed(3))
            loader = accelerator.prepare(kind(numbered(paths[:count]), 4, sampler=sampler))
            batches.append([targets.tolist() for _ in range(2) for _, targets in loader])
        assert batches[0] == batches[1]


def test_skipping_batches_by_accelerate_gives_the_same_batches(paths, accelerator):
    loader = DDLPLoader(numbered(paths), 4)
    skipped = need("accelerate").skip_first_batches(loader, 3)
    rest = [b[1].tolist() for b in loader][3:]
    assert [b[1].tolist() for b in skipped] == rest
    assert type(skipped) is not DDLPLoader  # the docs say so


def test_lightning_rebuilds_it_with_a_distributed_sampler(paths, engine):
    need("lightning")
    from lightning.pytorch.utilities.data import _update_dataloader

    given = dict(
        seed=4, strategy="wrr", csd=[Device("ipc:///nowhere", "keys")], output="float16", audit=3, spool=engine,
        spool_bytes=1 << 20, batch_transform=print, allow_different_bits=True, memory_format=torch.channels_last, decode="fast",
        device="cpu", num_workers=2, prefetch_factor=3, drop_last=True, timeout=3, in_order=False, pin_memory=True,
    )
    dataset = numbered(paths, RANDOM)
    loader = DDLPLoader(dataset, 4, shuffle=True, **given)
    sampler = DistributedSampler(dataset, 2, 1)
    rebuilt = _update_dataloader(loader, sampler)
    assert type(rebuilt) is DDLPLoader
    assert rebuilt.sampler is sampler and rebuilt.dataset is dataset and rebuilt.batch_size == 4
    for name in set(inspect.signature(DDLPLoader).parameters) - {"shuffle", "sampler", "batch_sampler"}:
        assert getattr(rebuilt, name) == getattr(loader, name), name


@pytest.fixture
def fit(tmp_path):
    """Has Lightning train a module for two epochs, in so many processes. The module keeps the targets that it has seen."""
    lightning = need("lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)
            self.seen: list[int] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            assert type(self.trainer.train_dataloader) is DDLPLoader
            self.seen += batch[1].tolist()
            return self.layer(torch.ones(1)).sum()

        def on_train_epoch_end(self) -> None:
            last = self.seen[-(SAMPLES + 1) // self.trainer.world_size :]
            (tmp_path / f"{self.global_rank} {self.current_epoch}").write_text(" ".join(map(str, last)))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    def fit(loader: DDLPLoader, processes: int = 1, checkpoint: str | None = None, callbacks: Any = ()) -> Module:
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", devices=processes, strategy="ddp_fork" if processes > 1 else "auto", logger=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=bool(callbacks),
            callbacks=list(callbacks), default_root_dir=str(tmp_path),
        )  # fmt: skip
        module = Module()
        trainer.fit(module, loader, ckpt_path=checkpoint)
        return module

    return fit


@pytest.mark.parametrize("user_code", [False, True])
@pytest.mark.parametrize("steps", [4, 11])  # in mid-epoch, and at an epoch's last batch
@pytest.mark.some(2)
def test_lightning_goes_on_from_its_checkpoints(paths, tmp_path, fit, user_code, steps):
    callback = need("lightning").pytorch.callbacks.ModelCheckpoint

    def seen(checkpoint: str | None = None) -> list[int]:
        keep = callback(tmp_path, filename="{step}", every_n_train_steps=steps, save_top_k=-1)
        loader = DDLPLoader(Draws() if user_code else numbered(paths), 4, shuffle=True)
        return fit(loader, checkpoint=checkpoint, callbacks=[keep]).seen

    whole, rest = seen(), seen(str(tmp_path / f"step={steps}.ckpt"))
    done = min(4 * steps, SAMPLES)
    assert len(whole) == 2 * SAMPLES and len(rest) == 2 * SAMPLES - done
    assert sorted(whole[:done] + rest[:-SAMPLES]) == sorted(rest[-SAMPLES:]) == list(range(SAMPLES))


def test_plain_loaders_of_the_same_program_are_left_alone(paths, accelerator):
    assert type(accelerator.prepare(DataLoader(numbered(paths), 4))) is not DataLoader
    assert len(by_target(list(DDLPLoader(numbered(paths), 4)))) == SAMPLES


def test_lightning_shares_the_samples_among_its_processes(paths, tmp_path, fit):
    fit(DDLPLoader(numbered(paths, SMALL), 4, shuffle=True, num_workers=1, seed=5), processes=2)
    orders = []
    for epoch in range(2):
        parts = [list(map(int, (tmp_path / f"{rank} {epoch}").read_text().split())) for rank in range(2)]
        assert len(parts[0]) == len(parts[1]) == 21
        assert {*parts[0], *parts[1]} == set(range(SAMPLES))
        orders.append(parts)
    assert orders[0] != orders[1]  # set_epoch reached the sampler


@pytest.mark.slow  # the test below sees it, without an import that takes seconds
def test_keras_leaves_the_report_of_the_last_epoch(paths, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    keras = need("keras")
    loader = DDLPLoader(classes(paths), 4)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(loader, epochs=2, verbose=0)
    assert loader.report().samples == SAMPLES and loader.report().batches_cpu == 11


def test_an_epoch_that_nobody_has_asked_for_a_batch_of_is_not_reported(paths):
    for dataset in (classes(paths), Draws()):
        loader = DDLPLoader(dataset, 4)
        first = iter(loader)
        assert loader.report().samples == 0
        assert len(list(first)) == 11
        second = iter(loader)
        assert loader.report().samples == SAMPLES and loader.report().epoch == 0
        next(second)
        assert loader.report().samples == 4 and loader.report().epoch == 1
