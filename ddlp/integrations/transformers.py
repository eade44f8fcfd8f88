"""Hugging Face's Trainer with a `DDLPLoader` for its training data.

    class ImageTrainer(DDLPTrainerMixin, Trainer):
        ddlp_options = dict(strategy="wrr")

Nothing of transformers is imported before the loader is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DistributedSampler, IterableDataset, RandomSampler

from ddlp.integrations.shards import is_shared
from ddlp.loader import DDLPLoader
from ddlp.order import gives_each_once


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
    """

    ddlp_options: dict[str, Any] = {}

    def get_train_dataloader(self: Any) -> DDLPLoader:
        """The training loader, over this process's share of ``train_dataset``.

        Raises ValueError without one, and for a sampler of Trainer's or yours that does not share it among several processes.
        """
        from accelerate.data_loader import IterableDatasetShard
        from transformers import default_data_collator

        if self.train_dataset is None:
            raise ValueError("Trainer: training requires a train_dataset.")
        args, dataset = self.args, self.train_dataset
        options: dict[str, Any] = dict(
            batch_size=self._train_batch_size,
            num_workers=args.dataloader_num_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            device=args.device,
            batch_transform=name_fields,
        )
        if self.data_collator is not default_data_collator:
            options.update(collate_fn=self.data_collator, batch_transform=None)
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
        return DistributedSampler(
            dataset, args.world_size, args.process_index, seed=seed, drop_last=args.dataloader_drop_last
        )

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
