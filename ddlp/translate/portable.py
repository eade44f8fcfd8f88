"""Translates a loader's data set and transform together, or says why they can't go to a device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, _utils

from csd_engine.errors import PipelineError
from csd_engine.transforms.pipeline import Pipeline
from ddlp.errors import Untranslatable
from ddlp.process.platforms import other_system
from ddlp.sampling.torch_loader import collates
from ddlp.transfer.epilogue import Epilogue
from ddlp.translate.cut import Rest, cut, cut_joint
from ddlp.translate.datasets import PortableSet, translate_dataset
from ddlp.translate.joint import foreign_part
from ddlp.translate.marked import CodeBeforePoint, marked_in
from ddlp.translate.timm import is_fast_collate
from ddlp.translate.transforms import translate
from ddlp.translate.views import Held


@dataclass(frozen=True)
class Portable:
    """A data set, its pipeline and epilogue, ready for either side.

    ``rest``: the steps that the host runs after the pipeline as user code; None: there are none, all of the transform is known.
    ``image_type``: of a sample's images, before any batch is made of them.
    ``fast_collate``: the collate_fn is timm's, which does nothing to these images but stack them.
    ``point``: how many of the pipeline's operators stand before the user's `ddlp.CachePoint`; None: there is none.
    """

    dataset: PortableSet
    pipeline: Pipeline
    epilogue: Epilogue
    shape: tuple[int, int, int]
    views: int = 1  # rows of each sample, one for each view; views of several sizes share a row (`Epilogue.sizes`)
    rest: Rest | None = None
    point: int | None = None
    image_type: type[torch.Tensor] = torch.Tensor
    fast_collate: bool = False


def refusals(loader: DataLoader, but_collate: bool = False) -> Iterator[Untranslatable]:
    """Yield the obstacles that any transform meets: the data set's kind, how it is indexed, and a collate_fn.

    ``but_collate``: leave the collate_fn out.
    """
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        yield Untranslatable(
            type(dataset).__name__,
            "an IterableDataset has no indices, so nothing can be taken from its end",
            ("use a map-style data set: dataset = ddlp.ImageFiles(paths, targets, transform), say",),
        )
    if not collates(loader) and isinstance(loader.sampler, BatchSampler):
        yield Untranslatable(
            "batch_size=None",
            f"{type(loader.sampler).__name__} gives lists of indices then, which the data set's own code is asked with",
            ("pass it as batch_sampler=",),
        )
    if not but_collate and not is_fast_collate(loader.collate_fn) and (collate := own_collate(loader)) is not None:
        yield collate


def own_collate(loader: DataLoader) -> Untranslatable | None:
    """The loader's collate_fn as an obstacle; None if it is torch's own."""
    default = _utils.collate.default_collate if collates(loader) else _utils.collate.default_convert
    if loader.collate_fn is default:
        return None
    return Untranslatable(
        f"collate_fn={getattr(loader.collate_fn, '__qualname__', loader.collate_fn)!s}",
        "it is the user's code, run on single samples",
        ("leave it out and do its work on the finished batch: batch_transform= (MixUp and CutMix belong there)",),
    )


def joint_transform(name: str) -> Untranslatable:
    """The obstacle of a data set whose ``transforms`` changes image and target together, by its name."""
    return Untranslatable(
        name, "its transforms= changes image and target together",
        ("have it begin with operators of torchvision.transforms.v2 that give images of one size: docs/recipes.md",),
    )  # fmt: skip


def portable(
    loader: DataLoader,
    output: torch.dtype | None,
    memory_format: torch.memory_format | None,
    decode: str = "exact",
    as_pil: bool = False,
    own_steps: bool = False,
    cached: bool = False,
) -> Portable:
    """Return the loader's samples as a Portable, as its data set and transform are now.

    ``own_steps``: if a transform is not wholly known, take its first operators, with a `Rest` after them. This is never done if
    ``output`` or ``memory_format`` asks for another output than the user's code gives. ``cached``: the loader has a cache, so
    that a `ddlp.CachePoint` counts.

    Raises:
        Untranslatable: names what can't travel, why, and the ways out.
        ValueError: the pipeline can travel, but not give this output; or what `marked_in` refuses.
    """
    if (other := other_system()) is not None:
        raise other
    marked = marked_in(loader.dataset, as_pil) if cached else None
    point = None if marked is None else marked[1]
    if point is not None and point.operators is None:
        raise CodeBeforePoint(point)
    try:
        samples: Portable | None = _wholly(loader, output, memory_format, decode, as_pil)
    except Untranslatable as why:
        cut_it = own_steps and output is None and memory_format is None
        samples = _by_prefix(loader, decode, as_pil, why) if cut_it else None
        if samples is None and point is None:
            raise (_beside_collate(loader, decode, as_pil, why) if cut_it else why) from None
    if point is None:
        assert samples is not None
        return samples
    if samples is None:
        raise CodeBeforePoint(point)
    # Its cut is not before the point: what stands before that is known, and of one size from a step on.
    return dataclasses.replace(samples, point=point.operators)


def _by_prefix(loader: DataLoader, decode: str, as_pil: bool, why: Untranslatable) -> Portable | None:
    """Return the loader's samples up to the last known operator of its transform; None if that is not possible.

    ``why``: the reason why the whole transform can't be taken.
    """
    why.__traceback__ = None  # the exception is kept, and would hold the frames of the callers
    for _ in refusals(loader, but_collate=True):
        return None
    try:
        parts = translate_dataset(loader.dataset)
    except Untranslatable:
        return None
    if any(part.transforms is not None for part in parts.parts):
        return _joint(parts, decode, as_pil, why)
    sizes, transforms = {part.size for part in parts.parts}, [part.transform for part in parts.parts]
    size = sizes.pop() if len(sizes) == 1 else None
    if not transforms or transforms[0] is None or any(transform is not transforms[0] for transform in transforms):
        return None
    if len({part.mode for part in parts.parts}) > 1 or any(part.keys is not None for part in parts.parts):
        return None
    with torch.device("cpu"):
        prefix = cut(transforms[0], parts.parts[0].mode, size, as_pil)
    if prefix is None or not (any(prefix.views) or isinstance(prefix.gathered, Held) or own_collate(loader) is not None):
        return None
    known, of_targets = prefix.known, tuple(part.target_transform for part in parts.parts)
    rest = Rest(prefix.views, prefix.gathered, known.crops, prefix.tensor, of_targets, why)
    pipeline = dataclasses.replace(known.pipeline, decode=decode)
    epilogue = dataclasses.replace(known.epilogue, sizes=pipeline.view_sizes(size))
    return Portable(parts, pipeline, epilogue, prefix.shape, known.views, rest)


def _joint(parts: PortableSet, decode: str, as_pil: bool, why: Untranslatable) -> Portable | None:
    """Do as `_by_prefix` for parts with one joint transform, whose targets follow its known operators."""
    first = parts.parts[0]
    if any(part.transforms is not first.transforms or part.mode != first.mode for part in parts.parts):
        return None
    for part in parts.parts:
        if len(part) and foreign_part(part.targets([0])) is not None:
            return None
    with torch.device("cpu"):
        prefix_and_joint = cut_joint(first.transforms, first.mode, as_pil)
    if prefix_and_joint is None:
        return None
    prefix, joint = prefix_and_joint
    known, joint = prefix.known, dataclasses.replace(joint, from_raw=tuple(part.from_raw for part in parts.parts))
    rest = Rest(prefix.views, None, known.crops, prefix.tensor, (None,) * len(parts.parts), why, joint)
    return Portable(parts, dataclasses.replace(known.pipeline, decode=decode), known.epilogue, prefix.shape, 1, rest)


def _beside_collate(loader: DataLoader, decode: str, as_pil: bool, why: Untranslatable) -> Untranslatable:
    """Return the obstacle beside a collate_fn, which is none for a cut; ``why`` if there is no other."""
    try:
        parts = translate_dataset(loader.dataset).parts
        if any(part.transform is not None or part.transforms is not None for part in parts):  # else it gets images
            _wholly(loader, None, None, decode, as_pil, but_collate=True)
    except Untranslatable as other:
        return other
    return why


def _wholly(
    loader: DataLoader, output: torch.dtype | None, memory_format: torch.memory_format | None, decode: str, as_pil: bool,
    but_collate: bool = False,
) -> Portable:  # fmt: skip
    for refusal in refusals(loader, but_collate):
        raise refusal
    dataset: Any = loader.dataset
    parts = translate_dataset(dataset)
    for part in parts.parts:
        if part.transforms is not None:
            raise joint_transform(part.name)
    with torch.device("cpu"):  # for the tables, on whatever device torch makes tensors by default
        translations = [translate(part.transform, part.mode, as_pil) for part in parts.parts]
        same = all(_same(translations[0], other) for other in translations[1:])
    if not translations:
        raise Untranslatable(type(dataset).__name__, "it has no samples", ())
    first = translations[0]
    if not same:
        raise Untranslatable(
            type(dataset).__name__, "its parts have different transforms", ("give all parts the same transform",)
        )
    if len({part.keys for part in parts.parts}) > 1:
        raise Untranslatable(
            type(dataset).__name__, "its parts have samples with different keys", ("give all parts the same columns",)
        )
    sizes = {part.size for part in parts.parts}
    size = sizes.pop() if len(sizes) == 1 else None
    try:
        shape = first.pipeline.output_shape(size)
    except PipelineError as error:
        raise Untranslatable(
            "the pipeline", f"its images have no common size ({error})", ("end it with a crop or a Resize((h, w))",)
        ) from None
    by_timm, collate = is_fast_collate(loader.collate_fn), own_collate(loader)
    of_bytes = first.epilogue.dtype == torch.uint8 and first.views == 1 and parts.keys is None
    if by_timm and collate is not None and not (of_bytes and collates(loader)):
        raise collate
    pipeline = dataclasses.replace(first.pipeline, decode=decode)
    epilogue = dataclasses.replace(first.epilogue.with_output(output, memory_format), sizes=pipeline.view_sizes(size))
    return Portable(parts, pipeline, epilogue, shape, first.views, image_type=first.image_type, fast_collate=by_timm)


def _same(a: Any, b: Any) -> bool:
    return a.views == b.views and a.pipeline.digest == b.pipeline.digest and a.epilogue.does_what(b.epilogue)
