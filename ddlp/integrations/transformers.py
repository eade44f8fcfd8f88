"""Hugging Face's Trainer with a `DDLPLoader` for its data: of training, evaluation and prediction.

    class ImageTrainer(DDLPTrainerMixin, Trainer):
        ddlp_options = dict(strategy="wrr")

Nothing of transformers is imported before the loader is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DistributedSampler, IterableDataset, RandomSampler

from ddlp.frameworks.shards import is_shared
from ddlp.loader import DDLPLoader
from ddlp.sampling.sampler_order import gives_each_once
from ddlp.schedule.strategies import Order, strategy_class

OF_TRAINING = (
    "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "in_order", "generator", "collate_fn", "batch_transform",
    "ratio", "record",
)  # fmt: skip
"""Arguments in `DDLPTrainerMixin.ddlp_options` that say which samples are trained on, in what order, and how they are mixed."""


def name_fields(batch: Any) -> Any:
    """A batch as the keyword arguments of transformers' models.

    [images, labels] become ``pixel_values`` and ``labels``; in a dict ``label`` or ``label_ids`` becomes ``labels``, as by
    transformers' default_data_collator. Anything else stays as it is.
    """
    if isinstance(batch, Mapping):
        return {"labels" if name in ("label", "label_ids") else name: values for name, values in batch.items()}
    if isinstance(batch, (list, tuple)) and len(batch) == 2:
        return {"pixel_values": batch[0], "labels": batch[1]}
    return batch


class DDLPTrainerMixin:
    """Put before ``Trainer`` in the bases of a class of your own.

    Attributes:
        ddlp_options: further arguments of `DDLPLoader`. By default batches land on ``args.device``, and
            ``batch_transform`` is `name_fields`. A ``data_collator`` of your own is user code: the host alone runs it.
            For evaluation and prediction those of `OF_TRAINING` are left out, and a strategy that does not keep the order
            becomes ``"ordered"``.
        ddlp_eval_options: arguments for evaluation and prediction alone, which go before all others.
    """

    ddlp_options: dict[str, Any] = {}
    ddlp_eval_options: dict[str, Any] = {}

    def get_train_dataloader(self: Any) -> DDLPLoader:
        """The training loader, over this process's share of ``train_dataset``.

        Raises ValueError without one, and for a sampler of Trainer's or yours that does not share it among several processes.
        """
        from accelerate.data_loader import IterableDatasetShard

        if self.train_dataset is None:
            raise ValueError("Trainer: training requires a train_dataset.")
        args, dataset = self.args, self.train_dataset
        options = self._ddlp_options(self._train_batch_size)
        if not isinstance(dataset, IterableDataset):
            options["drop_last"] = args.dataloader_drop_last
            if "sampler" not in self.ddlp_options:
                options["sampler"] = self._ddlp_sampler(dataset)
        options.update(self.ddlp_options)
        if isinstance(dataset, IterableDataset) and args.world_size > 1 and not is_shared(dataset):
            dataset = IterableDatasetShard(
                dataset, options["batch_size"], num_processes=args.world_size, process_index=args.process_index
            )
        return DDLPLoader(dataset, **options)

    def get_eval_dataloader(self: Any, eval_dataset: Any = None) -> DDLPLoader:
        """The loader of ``eval_dataset``, or of the Trainer's own data set of that name; None: of the Trainer's.

        Raises ValueError where there is none.
        """
        if isinstance(eval_dataset, str):
            eval_dataset = self.eval_dataset[eval_dataset]
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if dataset is None:
            raise ValueError("Trainer: evaluation requires an eval_dataset.")
        return self._ddlp_in_order(dataset)

    def get_test_dataloader(self: Any, test_dataset: Any) -> DDLPLoader:
        """The loader of the data set that is predicted."""
        return self._ddlp_in_order(test_dataset)

    def _ddlp_in_order(self: Any, dataset: Any) -> DDLPLoader:
        """A loader that keeps the data set's order, shared among the processes by accelerate, as Trainer's is.

        The same one where the data set comes again: accelerate keeps each that it has prepared.
        """
        kept = vars(self).setdefault("_ddlp_kept", {}).get(id(dataset))
        if kept is not None and kept[0] is dataset:
            return kept[1]
        options = self._ddlp_options(self.args.eval_batch_size)
        options.update((name, value) for name, value in self.ddlp_options.items() if name not in OF_TRAINING)
        given = options.get("strategy")
        if given is not None and strategy_class(given).order is not Order.SAMPLER:
            options["strategy"] = "ordered"
        if not isinstance(dataset, IterableDataset):
            options.update(drop_last=self.args.dataloader_drop_last, sampler=self._get_eval_sampler(dataset))
        loader = self.accelerator.prepare(DDLPLoader(dataset, **{**options, **self.ddlp_eval_options}))
        self._ddlp_kept[id(dataset)] = dataset, loader
        return loader

    def _ddlp_options(self: Any, batch_size: int) -> dict[str, Any]:
        """What `TrainingArguments` and the ``data_collator`` say of any loader."""
        from transformers import default_data_collator

        args = self.args
        options: dict[str, Any] = dict(
            batch_size=batch_size,
            num_workers=args.dataloader_num_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            device=args.device,
            batch_transform=name_fields,
        )
        if self.data_collator is not default_data_collator:
            options.update(collate_fn=self.data_collator, batch_transform=None)
        return options

    def _ddlp_sampler(self: Any, dataset: Any) -> Any:
        """Trainer's, by an argument or a method of yours; for its plain shuffle, where each epoch's order follows from what
        was drawn before, one whose orders follow from (seed, epoch), so that a resumed epoch has its own.
        """
        args = self.args
        takes = inspect.signature(self._get_train_sampler).parameters  # older versions ask without the data set
        wanted = self._get_train_sampler(dataset) if takes else self._get_train_sampler()
        if wanted is not None and not (type(wanted) is RandomSampler and gives_each_once(wanted)):
            if args.world_size > 1 and not is_shared(wanted):
                raise ValueError(
                    f"{args.world_size} processes and {type(wanted).__name__} from _get_train_sampler: each of them would go "
                    'over all of its samples. Give ddlp_options["sampler"] one that shares them, with an attribute num_replicas'
                )
            return wanted
        seed = args.seed if args.data_seed is None else args.data_seed
        return DistributedSampler(dataset, args.world_size, args.process_index, seed=seed, drop_last=args.dataloader_drop_last)

    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As Trainer's. Raises ValueError where it would resume by skipping batches: accelerate puts a plain
        DataLoader in this one's place for that.
        """
        resumes = resume_from_checkpoint or self.args.resume_from_checkpoint
        if resumes and not self.args.ignore_data_skip:
            raise ValueError(
                f"resume_from_checkpoint={resumes!r} with ignore_data_skip=False: Trainer would skip batches by a plain "
                "DataLoader in DDLPLoader's place. Set TrainingArguments(ignore_data_skip=True); the epoch that was "
                "broken off begins again, with the same batches."
            )
        return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]
