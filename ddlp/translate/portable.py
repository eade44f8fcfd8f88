"""What of a loader can travel: its data set and its transform together, or the reason why not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, _utils

from csd_engine.errors import PipelineError
from csd_engine.transforms import Pipeline
from ddlp.errors import Untranslatable
from ddlp.process.platforms import other_system
from ddlp.transfer.epilogue import Epilogue
from ddlp.translate.datasets import PortableSet, translate_dataset
from ddlp.translate.transforms import translate


@dataclass(frozen=True)
class Portable:
    """A data set, its pipeline and epilogue, ready for either side."""

    dataset: PortableSet
    pipeline: Pipeline
    epilogue: Epilogue
    shape: tuple[int, int, int]


def refusals(loader: DataLoader) -> Iterator[Untranslatable]:
    """What stands in the way whatever the data set's transform is: its kind, how it is asked, and a collate_fn."""
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        yield Untranslatable(
            type(dataset).__name__,
            "an IterableDataset has no indices, so nothing can be taken from its end",
            ("use a map-style data set: dataset = ddlp.ImageFiles(paths, targets, transform), say",),
        )
    if not loader._auto_collation and isinstance(loader.sampler, BatchSampler):
        yield Untranslatable(
            "batch_size=None",
            f"{type(loader.sampler).__name__} gives lists of indices then, which the data set's own code is asked with",
            ("pass it as batch_sampler=",),
        )
    default = _utils.collate.default_collate if loader._auto_collation else _utils.collate.default_convert
    if loader.collate_fn is not default:
        yield Untranslatable(
            f"collate_fn={getattr(loader.collate_fn, '__qualname__', loader.collate_fn)!s}",
            "it is the user's code, run on single samples",
            ("leave it out and do its work on the finished batch: batch_transform= (MixUp and CutMix belong there)",),
        )


def portable(
    loader: DataLoader, output: torch.dtype | None, memory_format: torch.memory_format | None, decode: str = "exact"
) -> Portable:
    """The loader's samples in portable terms, as its data set and transform are now.

    Raises:
        Untranslatable: names what can't travel, why, and the ways out.
        ValueError: the pipeline can travel, but not give this output.
    """
    if (other := other_system()) is not None:
        raise other
    for refusal in refusals(loader):
        raise refusal
    dataset: Any = loader.dataset
    parts = translate_dataset(dataset)
    with torch.device("cpu"):  # the tables, wherever torch makes tensors by default
        translations = [translate(part.transform, part.mode) for part in parts.parts]
        same = all(_same(translations[0], other) for other in translations[1:])
    if not translations:
        raise Untranslatable(type(dataset).__name__, "it has no samples", ())
    first = translations[0]
    if not same:
        raise Untranslatable(
            type(dataset).__name__, "its parts have different transforms", ("give all parts the same transform",)
        )
    sizes = {part.size for part in parts.parts}
    try:
        shape = first.pipeline.output_shape(sizes.pop() if len(sizes) == 1 else None)
    except PipelineError as error:
        raise Untranslatable(
            "the pipeline", f"its images have no common size ({error})", ("end it with a crop or a Resize((h, w))",)
        ) from None
    pipeline = dataclasses.replace(first.pipeline, decode=decode)
    return Portable(parts, pipeline, first.epilogue.with_output(output, memory_format), shape)


def _same(a: Any, b: Any) -> bool:
    tables = [t.epilogue.table if t.epilogue.table is not None else torch.zeros(0) for t in (a, b)]
    same_values = torch.equal(*tables) and torch.equal(a.epilogue.fills, b.epilogue.fills)
    return a.pipeline.digest == b.pipeline.digest and same_values and a.epilogue.dtype == b.epilogue.dtype
