"""Hugging Face's Trainer with a DDLPLoader: its batches, its order, its own sampling."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from torchvision.datasets import ImageFolder

from ddlp import DDLPLoader
from tests.ddlp.dropin.frameworks import SMALL, EveryOther, Net, classes, need
from tests.ddlp.dropin.small_sets import SAMPLES, numbered


@pytest.fixture
def make_trainer(tmp_path):
    """Makes a Trainer: its model, its data set, ``ddlp_options``, and TrainingArguments. ``base``: Trainer or a subclass."""
    need("accelerate")
    transformers = need("transformers")
    from ddlp.integrations.transformers import DDLPTrainerMixin

    def make(model: Any, options: dict[str, Any], *, base: Any = transformers.Trainer, **arguments: Any) -> Any:
        class ImageTrainer(DDLPTrainerMixin, base):
            ddlp_options = options

        data = {name: arguments.pop(name) for name in ("train_dataset", "eval_dataset") if name in arguments}
        given = transformers.TrainingArguments(
            output_dir=str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, logging_strategy="no",
            remove_unused_columns=False, **arguments,
        )  # fmt: skip
        return ImageTrainer(model=model, args=given, **data)

    return make


def test_the_trainer_of_hugging_face(paths, engine, tmp_path, make_trainer):
    arguments = dict(per_device_train_batch_size=4, save_strategy="epoch", gradient_accumulation_steps=2)

    def trainer(epochs: int, **more: Any) -> Any:
        options = dict(strategy="wrr", spool=engine, seed=3)
        return make_trainer(Net(), options, train_dataset=classes(paths), num_train_epochs=epochs, **arguments, **more)

    first = trainer(2)
    loader = first.get_train_dataloader()
    assert type(loader) is DDLPLoader and loader.strategy == "wrr" and loader.batch_size == 4
    batch = next(iter(loader))
    assert batch["pixel_values"].shape == (4, 3, 8, 8) and batch["labels"].shape == (4,)
    result = first.train()
    assert result.global_step == 12  # 11 batches an epoch, two a step, two epochs
    checkpoint = str(tmp_path / "checkpoint-6")
    with pytest.raises(ValueError, match="ignore_data_skip=True"):
        trainer(3).train(resume_from_checkpoint=checkpoint)
    assert trainer(3, ignore_data_skip=True).train(resume_from_checkpoint=checkpoint).global_step == 18


class Remembers(Net):
    """Keeps the labels of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> Any:
        self.seen.append(labels.tolist())
        return super().forward(pixel_values, labels % 3)


def test_the_trainer_resumes_with_the_epochs_own_order(paths, tmp_path, make_trainer):
    def trained(checkpoint: str | None = None) -> list[list[int]]:
        net = Remembers()
        trainer = make_trainer(
            net, {}, train_dataset=numbered(paths, SMALL), per_device_train_batch_size=4, num_train_epochs=3,
            save_strategy="epoch", ignore_data_skip=True, seed=7,
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=checkpoint)
        return net.seen

    whole = trained()
    epochs = [whole[:11], whole[11:22], whole[22:]]
    assert all(sorted(sum(epoch, [])) == list(range(SAMPLES)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert trained(str(tmp_path / "checkpoint-11")) == epochs[1] + epochs[2]


def test_the_trainers_own_sampling_stays(paths, make_trainer):
    transformers = need("transformers")

    class Balanced(transformers.Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return WeightedRandomSampler([1.0] * SAMPLES, 8)

    def sampler(base: Any, options: dict[str, Any], **arguments: Any) -> Any:
        trainer = make_trainer(Net(), options, base=base, train_dataset=classes(paths), **arguments)
        return trainer.get_train_dataloader().sampler

    own = EveryOther()
    assert type(sampler(transformers.Trainer, {})) is DistributedSampler  # instead of the plain shuffle
    assert type(sampler(transformers.Trainer, {}, train_sampling_strategy="sequential")) is SequentialSampler
    assert type(sampler(Balanced, {})) is WeightedRandomSampler
    assert sampler(Balanced, dict(sampler=own)) is own


@pytest.mark.parametrize("older", [False, True])
def test_in_several_processes_the_trainers_own_sampler_must_share(older):
    from ddlp.integrations.transformers import DDLPTrainerMixin

    class Shuffles:
        """The parts of Trainer that are used. Older versions give the method no data set."""

        args = types.SimpleNamespace(world_size=2, process_index=1, seed=1, data_seed=None, dataloader_drop_last=False)
        _get_train_sampler = (lambda self: self.wanted) if older else (lambda self, dataset: self.wanted)

    class ImageTrainer(DDLPTrainerMixin, Shuffles):
        wanted: Any = None

    trainer, samples = ImageTrainer(), range(SAMPLES)
    for trainer.wanted in (None, RandomSampler(samples)):
        found = trainer._ddlp_sampler(samples)
        assert type(found) is DistributedSampler and (found.rank, found.num_replicas) == (1, 2)
    trainer.wanted = DistributedSampler(samples, 2, 0)
    assert trainer._ddlp_sampler(samples) is trainer.wanted
    for trainer.wanted in (EveryOther(), RandomSampler(samples, True), RandomSampler(samples, num_samples=99)):
        with pytest.raises(ValueError, match=r'2 processes and (RandomSampler|EveryOther) .*ddlp_options\["sampler"\]'):
            trainer._ddlp_sampler(samples)


def test_fields_get_the_names_that_models_know():
    from ddlp.integrations.transformers import name_fields

    images, labels = torch.zeros(2, 3), torch.ones(2)
    for batch in ([images, labels], {"pixel_values": images, "label": labels}, {"pixel_values": images, "label_ids": labels}):
        named = name_fields(batch)
        assert named.keys() == {"pixel_values", "labels"} and named["pixel_values"] is images and named["labels"] is labels
    assert name_fields(images) is images


def test_the_trainer_evaluates_and_predicts_an_image_folder(paths, engine, make_trainer):
    folder = ImageFolder(str(Path(paths[0]).parents[1]), SMALL)
    options = dict(strategy="wrr", spool=engine, batch_size=2, batch_transform=print)
    trainer = make_trainer(Net(), options, eval_dataset=folder, per_device_eval_batch_size=4)
    loader = trainer.get_eval_dataloader()
    assert type(loader) is DDLPLoader and loader is trainer.get_eval_dataloader() and loader.strategy == "ordered"
    assert trainer.evaluate()["eval_loss"] > 0 and loader.report().samples == SAMPLES
    predicted = trainer.predict(folder)
    assert predicted.label_ids.tolist() == folder.targets
    with torch.no_grad():
        expected = torch.cat([trainer.model(image[None])["logits"] for image, _ in folder])
    assert torch.allclose(torch.from_numpy(predicted.predictions), expected, atol=1e-5)
    trainer.eval_dataset = None
    with pytest.raises(ValueError, match="eval_dataset"):
        trainer.evaluate()
